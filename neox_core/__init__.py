from typing import Any

from neox_core.old_paths import install

install()


def __getattr__(name: str) -> Any:
    """What a package offers for use from Python: an entry point of this name in the group `neox.python`."""
    from importlib.metadata import entry_points

    found = [] if name.startswith("_") else [*entry_points(group="neox.python", name=name)]
    if len(found) != 1:
        offers = ", ".join(str(each.dist and each.dist.name) for each in found) or "no installed package"
        raise AttributeError(f"module {__name__!r} has no attribute {name!r} of its own; {offers} offers it")
    return found[0].load()
