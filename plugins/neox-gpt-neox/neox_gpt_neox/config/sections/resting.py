"""Keys of GPT-NeoX and DeepSpeed that are accepted only at their default."""

from attrs import frozen

from neox_core.config.schema.checks import only
from neox_core.config.schema.setting import setting


@frozen
class RestingSection:
    """Keys accepted only at their default; any other value is refused."""

    output_layer_parallelism: str = setting(
        "column",
        help="How the output layer is split.",
        check=only(
            "column", why="not needed: it computes the same numbers as column, and GPT-NeoX too ends with an error"
        ),
        origin="gpt-neox",
    )
    checkpoint_validation_with_forward_pass: bool = setting(
        False,
        help="Compare the output of a model before a save and after loading it. neox "
        "compares a checksum of each tensor instead.",
        check=only(False, why="not needed: neox compares what it loads with the checksums of what was saved"),
        changes="output",
        origin="gpt-neox",
    )
