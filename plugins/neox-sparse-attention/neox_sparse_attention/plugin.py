from neox_core.api import Component, hookimpl
from neox_sparse_attention.settings import (
    BigBirdSettings,
    BSLongformerSettings,
    DenseSettings,
    FixedSettings,
    LocalSettings,
    VariableSettings,
)


@hookimpl
def neox_sparse_layouts() -> list[Component]:
    return [
        Component("dense", "neox_sparse_attention.dense:dense", DenseSettings, summary="Every block: the baseline"),
        Component(
            "fixed",
            "neox_sparse_attention.fixed:fixed",
            FixedSettings,
            summary="Windows, and blocks that speak for each (arXiv:1904.10509)",
        ),
        Component(
            "variable",
            "neox_sparse_attention.variable:variable",
            VariableSettings,
            summary="Windows of chosen sizes, chosen global blocks, random blocks",
        ),
        Component(
            "bigbird",
            "neox_sparse_attention.bigbird:bigbird",
            BigBirdSettings,
            summary="Random, sliding and global blocks (arXiv:2007.14062)",
        ),
        Component(
            "bslongformer",
            "neox_sparse_attention.bslongformer:bslongformer",
            BSLongformerSettings,
            summary="Sliding and global blocks (arXiv:2004.05150)",
        ),
        Component("local", "neox_sparse_attention.local:local", LocalSettings, summary="A sliding window alone"),
    ]
