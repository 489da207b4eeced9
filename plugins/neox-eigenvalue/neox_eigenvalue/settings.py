"""The settings of the measurement: DeepSpeed's block `eigenvalue`."""

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


@frozen
class EigenvalueBlock:
    """The largest eigenvalue of the Hessian of the loss, of each layer."""

    enabled: bool = setting(
        False,
        help="Measure the largest eigenvalue of the Hessian of each layer, the sharpness of the loss.",
        changes="output",
        origin="deepspeed",
    )
    verbose: bool = setting(
        False, help="Print the iterations and the eigenvalue of each layer.", changes="output", origin="deepspeed"
    )
    max_iter: int = setting(
        100, help="Iterations for a layer, at most.", check=v.gt(0), changes="output", origin="deepspeed"
    )
    tol: float = setting(
        0.01,
        help="The iterations end when the eigenvalue changes by less than this share of itself.",
        check=v.gt(0),
        changes="output",
        origin="deepspeed",
    )
    stability: float = setting(
        1e-6,
        help="Added to the length of a vector before the vector is divided by it.",
        check=v.ge(0),
        changes="output",
        origin="deepspeed",
    )
    gas_boundary_resolution: int = setting(
        1, help="Steps between two measurements.", unit="steps", check=v.gt(0), changes="output", origin="deepspeed"
    )
    layer_name: str = setting(
        "layers",
        help="Name of the layers in the model; the only value is layers.",
        changes="output",
        origin="deepspeed",
    )
    layer_num: int | None = setting(
        None,
        help="Layers to measure, the first ones; all if not given.",
        unit="layers",
        check=v.optional(v.gt(0)),
        changes="output",
        origin="deepspeed",
    )


@frozen
class EigenvalueSettings:
    eigenvalue: EigenvalueBlock = setting(
        EigenvalueBlock(), help="Block of the curvature of each layer.", changes="output", origin="deepspeed"
    )

    @property
    def enabled(self) -> bool:
        """Whether the config asks for it."""
        return self.eigenvalue.enabled
