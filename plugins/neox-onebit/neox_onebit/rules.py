"""Rules for a config that names one of these optimizers."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Problem

NEEDED = ("freeze_step", "cuda_aware", "comm_backend_name")


def keys_are_there(config: Any, cluster: Any, name: str, settings: Any) -> Iterator[Problem]:
    """OneBitAdam needs a freeze step and a backend from the config: no default suits every run."""
    missing = [key for key in NEEDED if not config.is_set(f"optimizer.params.{key}")]
    if name == "OneBitAdam" and missing:
        yield Problem(
            f"OneBitAdam needs {', '.join(missing)}",
            "optimizer.params",
            "freeze_step: a seventh to a fifth of the run; cuda_aware: false; comm_backend_name: nccl, on a CPU gloo",
        )


def exchange_is_between_whole_copies(config: Any, cluster: Any, name: str, settings: Any) -> Iterator[Problem]:
    """Each rank holds the whole model and all of its gradient, so there is no sharding and no pipeline."""
    stage = config.value("zero_optimization.stage")
    if stage:
        yield Problem(f"{name} runs at stage 0 only, not at {stage}", "zero_optimization.stage", "stage: 0")
    stages = config.value("pipe_parallel_size")
    if stages > 1:
        yield Problem(f"{name} exchanges between whole models, not between stages", "pipe_parallel_size", "set it to 1")


def backend_is_the_one_in_use(config: Any, cluster: Any, name: str, settings: Any) -> Iterator[Problem]:
    """The config names the backend that the process group uses."""
    if cluster.backend != settings.comm_backend_name:
        yield Problem(
            f"is {settings.comm_backend_name}, and the ranks talk over {cluster.backend}",
            "optimizer.params.comm_backend_name",
            f"set it to {cluster.backend}",
        )


def no_mpi_library_is_told(config: Any, cluster: Any, name: str, settings: Any) -> Iterator[Problem]:
    """cuda_aware acts on an MPI library only, and the exchange uses nccl or gloo."""
    if settings.cuda_aware:
        said = f"does nothing: it is for an MPI library, and the exchange goes over {settings.comm_backend_name}"
        yield Problem(said, "optimizer.params.cuda_aware", "cuda_aware: false", severity="note")


def lamb_bounds_are_in_order(config: Any, cluster: Any, name: str, settings: Any) -> Iterator[Problem]:
    """Lower bounds are not above upper ones, and the running trust ratio has time to settle."""
    if name != "OneBitLamb":
        return
    for low, high in (("factor_min", "factor_max"), ("min_coeff", "max_coeff")):
        least, most = getattr(settings, low), getattr(settings, high)
        if least > most:
            yield Problem(f"{least} is more than {high} {most}", f"optimizer.params.{low}")
    needed = 1 / (1 - settings.coeff_beta)
    if needed > settings.freeze_step + 1e-9:
        yield Problem(
            f"a running mean with {settings.coeff_beta} takes {needed:.0f} steps, and freeze_step is"
            f" {settings.freeze_step}",
            "optimizer.params.coeff_beta",
            f"freeze_step: {needed:.0f} at least",
        )


def deepspeed_has_no_floor(config: Any, cluster: Any, name: str, settings: Any) -> Iterator[Problem]:
    """DeepSpeed's form has no floor of the variance."""
    if (
        name == "OneBitAdam"
        and settings.compatibility == "deepspeed"
        and config.is_set("optimizer.params.variance_floor")
    ):
        yield Problem(
            "has no part in compatibility: deepspeed", "optimizer.params.variance_floor", "remove one of the two"
        )


RULES = (
    deepspeed_has_no_floor,
    keys_are_there,
    exchange_is_between_whole_copies,
    backend_is_the_one_in_use,
    no_mpi_library_is_told,
    lamb_bounds_are_in_order,
)
