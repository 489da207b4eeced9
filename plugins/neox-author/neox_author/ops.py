"""The ops that kernels compute: each has one reference in plain torch, next to the code that owns it."""

from attrs import frozen

from neox_core.hooks.registry import Registry


@frozen
class Op:
    """An op that an installed component computes. owners: the qualified names of components."""

    name: str
    reference: str
    owners: tuple[str, ...]


def installed_ops(registry: Registry) -> tuple[Op, ...]:
    """All ops, by name."""
    owners: dict[str, list[str]] = {}
    references: dict[str, str] = {}
    for entry in registry.entries():
        for name, reference in entry.component.ops:
            owners.setdefault(name, []).append(entry.qualified)
            references.setdefault(name, reference)
    return tuple(Op(name, references[name], tuple(owners[name])) for name in sorted(references))
