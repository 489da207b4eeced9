"""A config field: its type is the annotation, everything else is declared here once.

The metadata feeds validation, the generated docs, `neox config explain` and the check at resume.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

from attrs import NOTHING, field, frozen

from neox_core.hooks.component import METADATA

Changes = Literal["numerics", "speed", "output"]


@frozen
class SettingInfo:
    """What is known of a setting beyond its type and default.

    changes: what another value changes. A resumed run may change "speed" and "output", not "numerics".
    secret: never written to run.json, logs or checkpoints.
    each: for a mapping to blocks, what its keys name: `metric`.
    file: the value is a path that has to exist before a run starts.
    """

    help: str
    unit: str = ""
    changes: Changes = "numerics"
    aliases: tuple[str, ...] = ()
    origin: str = "neox"
    secret: bool = False
    each: str = ""
    file: bool = False


def setting(
    default: Any = NOTHING,
    *,
    help: str,
    check: Callable[[Any, Any, Any], Any] | None = None,
    unit: str = "",
    changes: Changes = "numerics",
    aliases: tuple[str, ...] = (),
    origin: str = "neox",
    secret: bool = False,
    each: str = "",
    file: bool = False,
) -> Any:
    """A field of a settings class.

    default: NOTHING makes the key required; use `attrs.Factory(dict)` for a mutable value.
    check: an attrs validator for the value; its message becomes the error.
    origin: where the key comes from: neox, gpt-neox, megatron, deepspeed.
    """
    if not help or changes not in get_args(Changes):
        said = f"setting(): changes={changes!r} is none of {get_args(Changes)}" if help else "setting(): no help"
        raise TypeError(said)
    info = SettingInfo(help, unit, changes, aliases, origin, secret, each, file)
    return field(default=default, validator=check, kw_only=True, metadata={METADATA: info})
