"""The kinds of component that a decoder is made of."""

from neox_core.api import Kind


def _in(*names: str) -> tuple[str, ...]:
    return tuple(f"neox_gpt.contracts:{name}" for name in names)


_KIT = "neox_gpt.testing:check_"

NORM = Kind("norm", "neox_norms", key="norm", contracts=_in("Norm"), kit=_KIT + "norm")
ACTIVATION = Kind(
    "activation", "neox_activations", key="activation", contracts=_in("Activation"), kit=_KIT + "activation"
)
POSITION = Kind("position", "neox_positions", key="pos_emb", contracts=_in("Position"), kit=_KIT + "position")
SPARSE_LAYOUT = Kind(
    "sparse layout",
    "neox_sparse_layouts",
    key="sparse_attention.mode",
    settings_at="sparse_attention",
    many=True,
    contracts=("neox_gpt.sparse_contracts:SparseLayout", "neox_gpt.sparse_contracts:SparseKernel"),
    kit=_KIT + "sparse_layout",
    help="Which key blocks each query block attends to. A kernel of `block_sparse_attention` follows `SparseKernel`.",
)

MIXER = Kind(
    "mixer",
    "neox_mixers",
    key="attention_config",
    many=True,
    contracts=_in("Mixer"),
    kit=_KIT + "mixer",
    help="The part of a block that looks at several tokens.",
)

FEED_FORWARD = Kind(
    "feed forward",
    "neox_feed_forwards",
    key="mlp_type",
    many=True,
    contracts=_in("FeedForward"),
    kit=_KIT + "feed_forward",
    help="The part of a block that looks at one token at a time.",
)

MODEL_CHANGE = Kind(
    "model change",
    "neox_model_changes",
    key="model_changes",
    many=True,
    contracts=("neox_gpt.change_contracts:ModelChange",),
    kit=_KIT + "model_change",
    help="""Changes of the linear layers of a built model, several in an order. Chosen by `model-changes`, a list, or by
    `enabled` of their own settings. The base class of what changes a layer is `neox_gpt.api.LinearChange`.""",
)

KINDS = (NORM, ACTIVATION, POSITION, SPARSE_LAYOUT, MIXER, FEED_FORWARD, MODEL_CHANGE)
