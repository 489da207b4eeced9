"""What the planners of a model's components tell, as far as it is what their contracts say."""

from collections.abc import Mapping
from typing import Any

from neox_core.config.schema.choose import Chosen
from neox_core.contracts.architecture import Untold
from neox_core.hooks.component import load_path
from neox_gpt.change_contracts import ChangeSize
from neox_gpt.contracts import ByHead, FeedForwardSize, MixerSize, PositionSize

SIZES: dict[str, type[MixerSize] | type[FeedForwardSize] | type[ChangeSize]] = {
    "mixer": MixerSize,
    "feed forward": FeedForwardSize,
    "model change": ChangeSize,
}
"""What planners of these kinds give."""
PLAIN: dict[str, type] = {"activation": bool, "tokenizer": int}


def tell(chosen: Chosen, arguments: tuple[Any, ...]) -> Any:
    """What a component's planner says; Untold where it has none, fails, or says something else than its contract."""
    component = chosen.entry.component
    name = f"{chosen.entry.kind} {component.name}"
    if component.planner is None:
        return Untold(f"{name} does not tell before it is loaded")
    try:
        told = load_path(component.planner)(*arguments, chosen.settings)
    except (OSError, ValueError):
        return Untold(f"the files of {name} do not tell")
    except (Exception, SystemExit) as error:  # noqa: BLE001 the code of a plugin, and its files
        return Untold(f"the planner of {name} failed: {type(error).__name__}")
    fault = _fault(chosen.entry.kind, told)
    return Untold(f"the planner of {name} gives {fault}") if fault else told


def dimension(split: int | ByHead) -> int:
    """The dimension along which a parameter is split."""
    return split.dim if isinstance(split, ByHead) else split


def _fault(kind: str, told: Any) -> str:
    """What a planner gives in place of what its contract says; "" where it is that."""
    if kind in PLAIN:
        return "" if type(told) is PLAIN[kind] else f"no {PLAIN[kind].__name__}"
    if kind not in SIZES:
        plain = told.shapes if isinstance(told, PositionSize) else told
        return "" if _are_shapes(plain) else "no shape of each parameter"
    if told is None and kind == "model change":
        return ""
    if not isinstance(told, SIZES[kind]):
        return f"no {SIZES[kind].__name__}"
    shapes: Mapping[str, tuple[int, ...]] = told.shapes
    if not _are_shapes(shapes):
        return "`shapes` that are not the lengths of each parameter by name"
    for name, how in told.split.items():
        if name not in shapes or dimension(how) not in range(len(shapes[name])):
            return f"a `split` of {name!r}, and no such dimension in its `shapes`"
    unknown = [name for name in getattr(told, "spread", ()) if name not in shapes]
    return f"a `spread` of {unknown[0]!r}, which its `shapes` lack" if unknown else ""


def _are_shapes(told: object) -> bool:
    return isinstance(told, Mapping) and all(
        isinstance(name, str) and isinstance(shape, tuple | list) and all(type(each) is int for each in shape)
        for name, shape in told.items()
    )
