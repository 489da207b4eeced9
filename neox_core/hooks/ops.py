"""The ops that kernels are for: each has one reference in plain torch, beside the code that owns it."""

from attrs import frozen

from neox_core.hooks.registry import Registry

CORE_OPS = (
    ("bias_dropout_add", "neox_core.model.dropout:bias_dropout_add"),
    ("scaled_upper_triang_masked_softmax", "neox_core.model.softmax:causal_softmax"),
    ("scaled_masked_softmax", "neox_core.model.softmax:masked_softmax"),
    ("cross_entropy", "neox_core.model.loss:cross_entropy"),
    ("block_sparse_attention", "neox_core.model.blocked:blocked_attention"),
)
"""(name, import path of the reference) of the ops of every model."""


@frozen
class Op:
    """An op that something installed computes. owners: "core", or the qualified names of components."""

    name: str
    reference: str
    owners: tuple[str, ...]


def installed_ops(registry: Registry) -> tuple[Op, ...]:
    """All ops, by name."""
    owners = {name: ["core"] for name, _ in CORE_OPS}
    references = dict(CORE_OPS)
    for entry in registry.entries():
        for name, reference in entry.component.ops:
            owners.setdefault(name, []).append(entry.qualified)
            references.setdefault(name, reference)
    return tuple(Op(name, references[name], tuple(owners[name])) for name in sorted(references))
