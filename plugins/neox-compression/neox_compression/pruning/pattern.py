"""The blocks of weights that snip_momentum sets to zero, as `block_pattern` says them."""

from __future__ import annotations

from attrs import frozen


@frozen
class Pattern:
    """rows x inputs of a block; or, where zeros is not None, so many zeros in each group of `inputs` inputs."""

    rows: int
    inputs: int
    zeros: int | None = None

    @classmethod
    def read(cls, text: str) -> Pattern:
        """Of the value of `block_pattern`, which was checked."""
        first, second = (int(each) for each in text.split(":" if ":" in text else "x"))
        return cls(1, second, first) if ":" in text else cls(first, second)

    @property
    def most_zeros(self) -> float:
        """Of the weights of a layer, the largest share that it can set to zero."""
        return 1.0 if self.zeros is None else self.zeros / self.inputs

    def fits(self, outputs: int, inputs: int) -> bool:
        """Whether the pattern divides a weight of [outputs, inputs]."""
        return outputs % self.rows == 0 and inputs % self.inputs == 0
