"""Chooses the kernels of a run, once, when the model is built."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from attrs import frozen
from torch import nn

from neox_core.errors import ConfigError, PluginError
from neox_core.hooks.component import load_path
from neox_kernels.compare import TOLERANCE, compare
from neox_kernels.form import faults_of

if TYPE_CHECKING:
    from pathlib import Path

    from neox_core.parallel.context import BuildContext
    from neox_core.plan.runfile import ComponentRef, KernelPlan
    from neox_kernels.contracts import Kernel

AUTO, FUSED, REFERENCE = "auto", "fused", "reference"


class Ops(Protocol):
    """What an architecture declares about the ops of its model."""

    def op_shape(self, op: str, context: BuildContext) -> tuple[int, ...]:
        """The shape of the first tensor of an op, for one sample on this rank."""

    def kernel_use(self, op: str) -> Any:
        """What a kernel is asked besides shape, dtype and device: the argument of its `why_not_for`. None: nothing."""

    def instead_of(self, op: str, device: torch.device) -> str:
        """What the model has in place of an op that a switch asks to fuse; "" where it computes the op."""


@frozen(eq=False)
class Choice:
    """What computes an op. offer None: the reference. kernel None: what the model has for the op.

    passed_over: (offer, reasons) of those not chosen.
    """

    op: str
    name: str
    kernel: Callable[..., Any] | None
    passed_over: tuple[tuple[str, tuple[str, ...]], ...]
    offer: ComponentRef | None = None

    @property
    def line(self) -> str:
        """The choice as a line for people."""
        why = "".join(f"; not {name}: {', '.join(reasons)}" for name, reasons in self.passed_over)
        return f"{self.op}: {self.name}{why}"


def choose(
    plan: KernelPlan,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    use: Any = None,
) -> Choice:
    """The first kernel that can run and, for `auto`, was tested on the device; else the reference.

    For `auto` a CPU takes the reference, whatever is offered.
    shape: of the op's first tensor, for one sample. use: what the model needs besides, for `why_not_for`. Raises
    ConfigError with all reasons where a kernel was asked for by name and cannot run, PluginError for an offer that is
    not a kernel, except for `auto`, which passes it over.
    """
    if plan.asked == REFERENCE and not plan.offers:
        return Choice(plan.op, REFERENCE, load_path(plan.reference), ())
    passed: list[tuple[str, tuple[str, ...]]] = []
    for offer in plan.offers:
        try:
            kernel, reasons = _asked(offer, shape, dtype, device, use)
        except PluginError as error:
            if plan.asked != AUTO:
                raise
            passed.append((offer.name, (error.message,)))
            continue
        if not reasons and plan.asked == AUTO:
            reasons = _why_not_unasked(kernel, architecture_of(device))
        if not reasons:
            rest = plan.offers[plan.offers.index(offer) + 1 :]
            passed += [(each.name, (f"{offer.name} comes first",)) for each in rest]
            return Choice(plan.op, offer.name, kernel, tuple(passed), offer)
        passed.append((offer.name, reasons))
    if plan.asked not in (AUTO, FUSED):
        why = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in passed)
        raise ConfigError(
            f"{plan.key.replace('_', '-')}: no kernel for {plan.op} can run here: {why}",
            hint=f"remove it, or kernels: {{{plan.op}: reference}}",
        )
    return Choice(plan.op, REFERENCE, None, tuple(passed))


def _asked(
    offer: ComponentRef, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, use: Any
) -> tuple[Kernel, tuple[str, ...]]:
    """A kernel, and its reasons why it cannot run. Raises PluginError."""
    kernel = load_kernel(offer)
    reasons = why_not(offer, kernel.why_not, shape, dtype, device)
    if use is not None:
        why_not_for = getattr(kernel, "why_not_for", None)
        reasons += ("it has no why_not_for",) if why_not_for is None else why_not(offer, why_not_for, use)
    return kernel, reasons


def _why_not_unasked(kernel: Kernel, architecture: str) -> tuple[str, ...]:
    if architecture == "cpu":
        return ("a CPU takes the reference; ask for it to use it",)
    if unasked := getattr(kernel, "unasked", ""):
        return (f"{unasked}; ask for it to use it",)
    return () if architecture in kernel.tested else (f"not tested on {architecture}; ask for it to use it",)


def load_kernel(offer: ComponentRef) -> Kernel:
    """Import a kernel. Raises PluginError for an offer that cannot be imported, or is not a kernel."""
    kernel: Kernel = offer.load()[0]
    lacks = [name for name in ("tested", "why_not", "examples", "__call__") if not hasattr(kernel, name)]
    if isinstance(kernel, type) or lacks:
        fault = "is a class, and must be an instance" if isinstance(kernel, type) else f"has no {lacks[0]}"
        raise offer.fault(f"{offer.target} {fault}")
    return kernel


def why_not(offer: ComponentRef, ask: Callable[..., Any], *about: Any) -> tuple[str, ...]:
    """The kernel's reasons. Raises PluginError for a fault of its code, and where they are not a tuple of texts."""
    with offer.blamed():
        reasons = ask(*about)
        if not isinstance(reasons, tuple) or not all(isinstance(each, str) for each in reasons):
            raise TypeError(f"{ask.__name__} returns a tuple of texts, not {reasons!r}")
    return reasons


def use_kernels(
    model: nn.Module,
    architecture: Ops,
    kernels: Sequence[KernelPlan],
    context: BuildContext,
    dtype: torch.dtype,
    record: Path | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> tuple[str, ...]:
    """Give the modules of `model`, a whole one or a stage, and `optimizer` the kernels of a plan.

    architecture: of the model. dtype: of matmuls. record: a JSON file for the choices. Returns lines about the choices.
    Raises as `choose`.
    """
    choices = [_chosen(each, architecture, context, dtype) for each in kernels]
    chosen = {each.op: each.kernel for each in choices if each.kernel is not None}
    ready: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for each, choice in zip(kernels, choices, strict=True):
        if choice.kernel is not None and choice.offer is not None and each.reference:
            _probe(choice.offer, choice.kernel, each.reference, dtype, context.device)
            ready[each.op] = set_up(choice.offer, choice.kernel, context.device)
    for user in (*kernel_users(model), optimizer):
        if hasattr(user, "kernels"):
            user.kernels = chosen
    if record is not None and choices:
        text: dict[str, dict[str, Any]] = {
            each.op: {"chosen": each.name, "passed_over": dict(each.passed_over)} for each in choices
        }
        for op, (_, kept) in ready.items():
            text[op] |= kept
        record.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    notes = {op: f", {said}" for op, (said, _) in ready.items() if said}
    return tuple(f"kernel of {each.line}{notes.get(each.op, '')}" for each in choices)


def set_up(offer: ComponentRef, kernel: Any, device: torch.device) -> tuple[str, Mapping[str, Any]]:
    """Let a kernel that has a setup read what it needs: returns its message, and what is kept with the choice."""
    if not hasattr(kernel, "set_up"):
        return "", {}
    with offer.blamed():
        said, kept = kernel.set_up(f"{offer.plugin}:{offer.name}", architecture_of(device))
        return str(said), dict(kept)


def _chosen(kernel: KernelPlan, architecture: Ops, context: BuildContext, dtype: torch.dtype) -> Choice:
    """A switch selects the code that a model has instead of an op; a kernel that the config names is always used."""
    instead = architecture.instead_of(kernel.op, context.device) if kernel.asked == FUSED else ""
    if instead:
        return Choice(kernel.op, instead, None, ())
    shape = architecture.op_shape(kernel.op, context)
    return choose(kernel, shape, dtype, context.device, architecture.kernel_use(kernel.op))


def _probe(offer: ComponentRef, kernel: Any, reference: str, dtype: torch.dtype, device: torch.device) -> None:
    """The first small example, with gradients where the kernel was not tested on the device.

    Raises PluginError for results that do not have the reference's form, there also for wrong numbers.
    """
    fault, compute = "", load_path(reference)
    with offer.blamed(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        arguments = next(iter(kernel.examples(dtype, device, large=False)), None)
        if arguments is not None and architecture_of(device) in kernel.tested:
            fault = "; ".join(faults_of(kernel, compute, arguments))
        elif arguments is not None:
            fault = compare(kernel, compute, arguments).fault(TOLERANCE[dtype])
    if fault:
        raise offer.fault(f"{fault}; the reference is {reference}")


def kernel_users(model: nn.Module) -> Iterator[Any]:
    """Everything in a model that computes ops: see `KernelUser`. Activations are not modules."""
    for module in model.modules():
        shared = getattr(module, "shared_modules", ())  # shared by the layers of a stage of a pipeline
        for each in (module, getattr(module, "activation", None), *shared):
            if hasattr(each, "kernels"):
                yield each


def architecture_of(device: torch.device) -> str:
    """The architecture of a device: "sm_90" for example for an NVIDIA GPU, "gfx942" for an AMD one; "cpu"."""
    if device.type != "cuda":
        return str(device.type)
    if torch.version.hip is not None:
        return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
