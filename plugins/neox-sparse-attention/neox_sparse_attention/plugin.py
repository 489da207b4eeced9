from collections.abc import Iterator
from typing import Any

from neox_core.api import Component, Problem, hookimpl
from neox_sparse_attention.rules import RULES, looks_where_the_model_does


@hookimpl
def neox_sparse_layouts() -> list[Component]:
    return [
        Component(
            "dense",
            "neox_sparse_attention.dense:dense",
            "neox_sparse_attention.settings:DenseSettings",
            summary="Every block: the baseline",
        ),
        Component(
            "fixed",
            "neox_sparse_attention.fixed:fixed",
            "neox_sparse_attention.settings:FixedSettings",
            summary="Windows, and blocks that speak for each (arXiv:1904.10509)",
        ),
        Component(
            "variable",
            "neox_sparse_attention.variable:variable",
            "neox_sparse_attention.settings:VariableSettings",
            summary="Windows of chosen sizes, chosen global blocks, random blocks",
        ),
        Component(
            "bigbird",
            "neox_sparse_attention.bigbird:bigbird",
            "neox_sparse_attention.settings:BigBirdSettings",
            summary="Random, sliding and global blocks (arXiv:2007.14062)",
        ),
        Component(
            "bslongformer",
            "neox_sparse_attention.bslongformer:bslongformer",
            "neox_sparse_attention.settings:BSLongformerSettings",
            summary="Sliding and global blocks (arXiv:2004.05150)",
        ),
        Component(
            "local",
            "neox_sparse_attention.local:local",
            "neox_sparse_attention.settings:LocalSettings",
            summary="A sliding window alone",
        ),
    ]


@hookimpl
def neox_kernels() -> list[Component]:
    return [Component("block_sparse_attention.flex", "neox_sparse_attention.flex:KERNEL", summary="FlexAttention")]


@hookimpl
def neox_check_config(config: Any) -> Iterator[Problem]:
    mine = [each for each in config.components("sparse layout") if each.entry.plugin.id == "neox-sparse-attention"]
    if not mine:
        return
    from neox_gpt.api import is_causal  # more of neox-gpt than a list of plugins needs

    causal, length = is_causal(config), config.value("seq-length")
    for layout in mine:
        yield from looks_where_the_model_does(layout.settings, causal=causal)
        for rule in RULES:
            yield from rule(layout.settings, length // layout.settings.block)
