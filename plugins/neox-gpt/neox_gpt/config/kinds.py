"""The kinds of component that a decoder is made of."""

from neox_core.api import Kind


def _in(*names: str) -> tuple[str, ...]:
    return tuple(f"neox_gpt.contracts:{name}" for name in names)


NORM = Kind("norm", "neox_norms", key="norm", contracts=_in("Norm"))
ACTIVATION = Kind("activation", "neox_activations", key="activation", contracts=_in("Activation"))
POSITION = Kind("position", "neox_positions", key="pos_emb", contracts=_in("Position"))
SPARSE_LAYOUT = Kind(
    "sparse layout",
    "neox_sparse_layouts",
    key="sparse_attention.mode",
    settings_at="sparse_attention",
    many=True,
    contracts=_in("SparseLayout"),
    help="Which key blocks each query block attends to.",
)

KINDS = (NORM, ACTIVATION, POSITION, SPARSE_LAYOUT)
