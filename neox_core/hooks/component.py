"""What a plugin offers: a name, the import path of the code, and its settings. Creating an offer imports nothing."""

import math
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

from attrs import NOTHING, Attribute, field, fields, frozen, has
from attrs import validators as v

from neox_core.errors import NeoxError, PluginError
from neox_core.hooks.blame import cause_of as cause_of
from neox_core.hooks.markers import GROUP as GROUP

METADATA = "neox"
"""The key of an attrs field's metadata where `setting()` stores its SettingInfo."""

IMPORT_PATH = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"


def _attrs_class(offer: Any, attribute: "Attribute[Any]", value: Any) -> None:
    if not _is_class(value):
        raise TypeError(f"{offer.name}: {attribute.alias} has to be an attrs class, not {value!r}")
    for each in fields(value):
        if fault := _fault(each):
            raise TypeError(f"{offer.name}: {value.__name__}.{each.name} {fault}")


def _settings(offer: Any, attribute: "Attribute[Any]", value: Any) -> None:
    """An attrs class, or an import path, whose class is looked at when it is imported."""
    if not (isinstance(value, str) and re.fullmatch(IMPORT_PATH, value)):
        _attrs_class(offer, attribute, value)


@cache
def _class_at(path: str) -> type:
    """The settings class at an import path. Raises PluginError for one that cannot be imported, or has a fault."""
    found = load_path(path)
    faults = [f"{each.name} {_fault(each)}" for each in fields(found) if _fault(each)] if _is_class(found) else []
    if faults or not _is_class(found):
        raise PluginError(f"{path}: {faults[0]}" if faults else f"{path} has to be an attrs class, not {found!r}")
    return cast("type", found)


def _is_class(value: Any) -> bool:
    return isinstance(value, type) and has(value)


def _fault(setting: "Attribute[Any]") -> str:
    """The fault of a field of a settings class; "" when it has none."""
    if setting.init and METADATA not in setting.metadata:
        return "is not made by setting()"
    if setting.type is None:
        return "has no type"
    made_anew = hasattr(setting.default, "takes_self")  # attrs' Factory
    if setting.validator is not None and setting.default is not NOTHING and not made_anew:
        try:
            setting.validator(None, setting, setting.default)
        except (TypeError, ValueError) as error:
            return f"has a default that its own check refuses: {error.args[0]}"
    return ""


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list | tuple) else value


def _tuple_of(
    holds: Callable[[Any], object], what: str, length: int | None = None
) -> Callable[[Any, "Attribute[Any]", Any], None]:
    """A check of a field of an offer: a tuple of members for which `holds` is true. what: the members, in words."""

    def check(offer: Any, attribute: "Attribute[Any]", value: Any) -> None:
        sound = isinstance(value, tuple) and length in (None, len(value))
        if not sound or (value is not attribute.default and not all(map(holds, value))):
            raise TypeError(f"{offer.name}: {attribute.alias} has to be a tuple of {what}, not {value!r}")

    return check


def _an(kind: type, what: str = "", form: str = "") -> Callable[[Any, "Attribute[Any]", Any], None]:
    def check(offer: Any, attribute: "Attribute[Any]", value: Any) -> None:
        if not isinstance(value, kind) or (form and not re.fullmatch(form, str(value))):
            raise TypeError(f"{offer.name}: {attribute.alias} has to be {what or f'a {kind.__name__}'}, not {value!r}")

    return check


def _one_of(*allowed: object) -> Callable[[Any, "Attribute[Any]", Any], None]:
    def holds(value: object) -> bool:
        return not isinstance(value, bool) and value in allowed

    return _tuple_of(holds, f"{', '.join(map(str, allowed[:-1]))} or {allowed[-1]}")


def _is_op(value: Any) -> bool:
    pair = isinstance(value, tuple) and [type(part) for part in value] == [str, str]
    return bool(pair and re.fullmatch(r"\w+", value[0]) and re.fullmatch(IMPORT_PATH, value[1]))


def _a_magic(offer: Any, attribute: "Attribute[Any]", value: Any) -> None:
    sound = isinstance(value, tuple) and [type(part) for part in value] == [str, bytes] and value[1]
    if not sound:
        raise TypeError(f"{offer.name}: magic has to be a suffix and the first bytes of the file, not {value!r}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


_path = _an(str, "an import path such as 'package.module:attribute'", IMPORT_PATH)


@frozen
class ConfigSection:
    """Top-level config keys that a plugin owns apart from the settings of its components, or that a component owns.

    * name: for messages and generated docs.
    * summary: a line for them; by default the first one of the docstring of the settings.
    * settings: attrs class of `setting()` fields, each a top-level key; a field whose type is an attrs class is a
      block. Or the import path of the class, which is then imported when a config is read, and not to list plugins.
    """

    name: str = field(validator=_an(str))
    given: type | str = field(validator=_settings, alias="settings")
    said: str = field(default="", validator=_an(str), alias="summary")

    @property
    def settings(self) -> type:
        return _class_at(self.given) if isinstance(self.given, str) else self.given

    @property
    def summary(self) -> str:
        return self.said or (self.settings.__doc__ or "").partition("\n")[0]


@frozen
class Component:
    """An offer of one kind.

    * name: what a config writes to choose it.
    * target: "package.module:attribute"; imported only in the process that uses it.
    * settings: attrs class of `setting()` fields, or None for a component without settings. Or the import path of the
      class, which is then imported when it is needed to read a config.
    * summary: one line for `neox plugins list`, with the source (paper, document).
    * needs: top-level modules that the target imports beyond the plugin's hard dependencies.
    * zero_stages: optimizers only: the ZeRO stages that its author has tested. A sharded stage gives the optimizer flat
      fp32 slices of the parameters, so an optimizer that uses shapes must list only 0 and 1.
    * whole_parameters: optimizers only: it uses a parameter's shape or all of its elements, so it cannot step a
      tensor-parallel part of one, and at ZeRO 1 each rank's optimizer has the whole parameters that the rank owns.
    * devices, precisions: optimizers only: the devices that it runs on, and the precisions of a model that it suits.
    * state_numbers: optimizers only: the largest number of values in its state for each element of a parameter, and for
      each row and column (each index of each dimension), at the default settings; None: not declared.
    * uses: optimizers only: what it asks of an engine: "closure", for a step that computes gradients again, "modes",
      for other weights in evaluation and checkpoints than in training. An engine that does not do it refuses the run.
    * ops: (name, "package.module:attribute" of the reference in plain torch) of each op that a kernel may compute for
      it; the target then makes a `neox_kernels.api.KernelUser`.
    * scheduler: optimizers only: the scheduler of a run whose config names none.
    * magic: data backends only: (suffix, first bytes) of the file by which `data-impl: infer` knows a dataset of it
      without asking: (".idx", b"MMIDIDX").
    * chooses: the name stands for another component of its kind: the target is a light function of the values of the
      top-level keys and the registry that returns the other's name, and raises ConfigError where it finds none.
    * planner: import path of a light function or object that the host asks before a run; its kind says what for.
    * sections: config keys that are read where the component is chosen, grouped by subject; for a component with more
      keys than one class of settings should hold, such as an architecture or an engine.
    """

    name: str = field(validator=_an(str, "a word such as my-name", r"[A-Za-z0-9][A-Za-z0-9_.+-]*"))
    target: str = field(validator=_path)
    given: type | str | None = field(default=None, validator=v.optional(_settings), alias="settings")
    summary: str = field(default="", validator=_an(str))
    needs: tuple[str, ...] = field(
        default=(),
        converter=_tuple,
        validator=_tuple_of(
            lambda name: isinstance(name, str) and name.isidentifier(), "names of top-level modules such as ('yaml',)"
        ),
    )
    zero_stages: tuple[int, ...] = field(default=(0,), converter=_tuple, validator=_one_of(0, 1, 2, 3))
    whole_parameters: bool = field(default=False, validator=_an(bool))
    devices: tuple[str, ...] = field(default=("cpu", "cuda"), converter=_tuple, validator=_one_of("cpu", "cuda"))
    precisions: tuple[str, ...] = field(
        default=("fp32", "bf16", "fp16"), converter=_tuple, validator=_one_of("fp32", "bf16", "fp16")
    )
    state_numbers: tuple[float, float] | None = field(
        default=None, converter=_tuple, validator=v.optional(_tuple_of(_is_count, "two numbers of 0 or more", 2))
    )
    uses: tuple[str, ...] = field(default=(), converter=_tuple, validator=_one_of("closure", "modes"))
    ops: tuple[tuple[str, str], ...] = field(
        default=(),
        converter=_tuples,
        validator=_tuple_of(_is_op, "pairs such as ('rms_norm', 'package.module:reference')"),
    )
    scheduler: str | None = field(default=None, validator=v.optional(_an(str)))
    magic: tuple[str, bytes] | None = field(default=None, converter=_tuple, validator=v.optional(_a_magic))
    chooses: bool = field(default=False, validator=_an(bool))
    planner: str | None = field(default=None, validator=v.optional(_path))
    sections: tuple[ConfigSection, ...] = field(
        default=(), converter=_tuple, validator=_tuple_of(lambda each: isinstance(each, ConfigSection), "ConfigSection")
    )

    @property
    def settings(self) -> type | None:
        return _class_at(self.given) if isinstance(self.given, str) else self.given

    def missing(self) -> tuple[str, ...]:
        """The needed modules that are not installed; imports nothing."""
        return tuple(name for name in self.needs if find_spec(name) is None)


def load_path(path: str) -> Any:
    """Import "package.module:attribute" and return the attribute.

    path: the import path.
    Raises PluginError that names the path and the cause, whatever the module raises when it is imported.
    """
    module_name, _, attribute = path.partition(":")
    try:
        value: Any = import_module(module_name)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (NeoxError, MemoryError):
        raise
    except (ImportError, AttributeError) as error:
        raise PluginError(f"cannot load {path}: {error}") from error
    except (Exception, SystemExit) as error:  # the code of a plugin may raise anything
        raise PluginError(f"cannot load {path}: {cause_of(error, path)}") from error
    return value


def path_of(cls: type) -> str:
    """The import path of a class, as `load_path` reads it."""
    return f"{cls.__module__}:{cls.__qualname__}"
