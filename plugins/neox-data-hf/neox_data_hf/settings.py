"""Settings of the backend."""

from attrs import frozen

from neox_core.api import setting


@frozen
class HFDataSettings:
    hf_column: str = setting("input_ids", help="Column with the ids of each row, a list of integers.")
