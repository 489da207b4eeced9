"""What neox-kernels offers."""

from neox_core.api import Component, Kind, hookimpl

KERNEL = Kind(
    "kernel",
    "neox_kernels",
    contracts=("neox_kernels.contracts:Kernel", "neox_kernels.contracts:KernelUser"),
    kit="neox_author.testing:check_kernel",
    help="""Named `<op>.<implementation>`, chosen by `kernels` and the fusion switches. `neox plugins info OP`
shows the call signature of the reference of an op such as `cross_entropy`. The component that computes an op follows
`KernelUser` and declares the op. A kernel that a model may need more of also
has `why_not_for`, with an argument of the architecture.""",
)


@hookimpl
def neox_kinds() -> tuple[Kind, ...]:
    return (KERNEL,)


@hookimpl
def neox_commands() -> list[Component]:
    summary = "Show, check and measure what computes a model's ops here."
    return [Component("kernels", "neox_kernels.commands:kernels", summary=summary)]
