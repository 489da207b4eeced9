"""Keys of GPT-NeoX and DeepSpeed that are accepted only at their default."""

from attrs import frozen

from neox_core.config.schema.checks import only
from neox_core.config.schema.setting import setting


@frozen
class RestingSection:
    """Accepted at the value that says what happens anyway; any other value is refused."""

    output_layer_parallelism: str = setting(
        "column",
        help="How the output layer is cut; without tensor parallelism there is one.",
        check=only("column"),
        origin="gpt-neox",
    )
    checkpoint_validation_with_forward_pass: bool = setting(
        False,
        help="Compare the output of a model before a save and after loading it: each tensor has a checksum instead.",
        check=only(False, why="not needed: what is loaded is compared with the checksums of what was saved"),
        changes="output",
        origin="gpt-neox",
    )
