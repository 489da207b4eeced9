"""Which kernels a run may use: what the config asks for each op of its model, and which plugins offer it.

The ranks check whether a kernel can run, since they have the device. A kernel that is asked for by name and cannot
run on any device is refused here. A switch asks for any fused path and never stops a run.
"""

from collections.abc import Iterator
from typing import Any

from neox_core.config.problem import Problem
from neox_core.config.schema.sections.kernels import KernelsSection
from neox_core.config.schema.structure import Config
from neox_core.hooks.install import how_to_get, how_to_install, packages_of
from neox_core.hooks.ops import installed_ops
from neox_core.hooks.registry import Entry, Registry
from neox_core.plan.planners import architecture_planner, sharding
from neox_core.plan.runfile import ComponentRef, KernelPlan

AUTO, FUSED, REFERENCE = "auto", "fused", "reference"


def plan_kernels(config: Config, registry: Registry, device: str) -> tuple[tuple[KernelPlan, ...], list[Problem]]:
    """The kernels that a valid config may use on `device`, and the problems and notes about its requests.

    On a CPU the reference computes an op for which the config asks nothing.
    """
    plans: list[KernelPlan] = []
    problems: list[Problem] = []
    asked = dict(_asked(config, problems))
    mine, switches = model_ops(config), architecture_planner(config).switches
    references = {op.name: op.reference for op in installed_ops(registry)}
    known = set(references)
    for op in sorted(set(mine) | set(asked)):
        choice, key = asked.get(op, (AUTO, ""))
        if choice == REFERENCE and (op in known or key in switches):
            continue
        offers = tuple(_offers(registry, op))
        reason = _why_not(config, op, known, mine, offers, choice)
        if choice == AUTO and (reason or device == "cpu"):
            continue
        if choice == FUSED:
            problems += (config.problem(said, key, hint, "note") for said, hint in _notes(config, op, reason, device))
        elif reason:
            problems.append(config.problem(reason[0], key, reason[1]))
        if reason:
            continue
        ready = [each for each in offers if matches(each, op, choice) and not each.component.missing()]
        plans.append(KernelPlan(op, choice, key, tuple(map(_reference, ready)), references[op]))
    return tuple(plans), problems


def _notes(config: Config, op: str, reason: tuple[str, str] | None, device: str) -> Iterator[tuple[str, str]]:
    """(message, hint) of what a switch comes to, where that is not simply a kernel."""
    if reason:
        yield f"does nothing: {reason[0]}", reason[1]
    elif note := architecture_planner(config).switch_notes.get(op):
        yield note, ""
    elif device == "cpu":
        yield f"on a CPU torch's operators compute {op}, unless an installed kernel runs there", ""


def model_ops(config: Config) -> tuple[str, ...]:
    """The ops that the model and the optimizer of a config compute."""
    parts = (each.entry for chosen in config.chosen.values() for each in chosen)
    others = (each.component for each in parts if not each.definition.plans)  # an architecture tells its own
    return (*architecture_planner(config).ops(config), *(op for each in others for op, _ in each.ops))


def _ops_of(config: Config, kind: str) -> Iterator[str]:
    """The ops that the components of one kind compute."""
    return (name for each in config.components(kind) for name, _ in each.entry.component.ops)


def _asked(config: Config, problems: list[Problem]) -> Iterator[tuple[str, tuple[str, str]]]:
    """(op, (what is asked for, by which key))."""
    section, switches = config.section(KernelsSection), architecture_planner(config).switches
    named = {op.replace("-", "_"): choice for op, choice in section.kernels.items()}
    for key, op in switches.items():
        wanted = config.value(key)
        if wanted is None:
            continue
        if (named.get(op, AUTO) == REFERENCE) == wanted and op in named:
            problems.append(config.problem(f"contradicts {key.replace('_', '-')}", "kernels"))
        if op not in named:
            yield op, (FUSED if wanted else REFERENCE, key)
    for op, choice in named.items():
        yield op, (choice, "kernels")


def _why_not(
    config: Config, op: str, known: set[str], mine: tuple[str, ...], offers: tuple[Entry, ...], choice: str
) -> tuple[str, str] | None:
    """(message, hint) where no kernel can compute the op, whatever the device; None where one may."""
    if op not in known:
        return f"no op {op!r}", f"known are: {', '.join(sorted(known))}"
    if op not in mine:
        return f"nothing in this model computes {op}", "remove it"
    if reason := _why_not_in_this_model(config, op, choice):
        return reason
    if not offers:
        packages = [each for name, each in packages_of("kernel").items() if name.partition(".")[0] == op]
        return f"no installed plugin offers a kernel for {op}", how_to_install(*packages) or "remove it"
    named = [each for each in offers if matches(each, op, choice)]
    if not named:
        return f"no kernel {choice!r} for {op}", f"offered: {', '.join(_names(offers, op))}, reference, auto"
    if all(each.component.missing() for each in named):
        missing = sorted({name for each in named for name in each.component.missing()})
        return f"the kernels of {op} need {', '.join(missing)}", how_to_get(missing, named[0].plugin.id)
    return None


def _why_not_in_this_model(config: Config, op: str, choice: str) -> tuple[str, str] | None:
    if op in _ops_of(config, "optimizer"):
        return _why_not_in_this_optimizer(config, op)
    return architecture_planner(config).why_no_kernel(config, op, choice)


def _why_not_in_this_optimizer(config: Config, op: str) -> tuple[str, str] | None:
    if sharding(config).offload_optimizer:
        return f"offload_optimizer keeps {op} on the host", "remove it, or the offload"
    return None


def matches(entry: Entry, op: str, choice: str) -> bool:
    """Whether a choice names an offer: by "triton", or by "neox-triton:triton" in full."""
    if choice in (AUTO, FUSED):
        return True
    plugin, _, name = choice.rpartition(":")
    return name in (entry.component.name, entry.component.name.removeprefix(f"{op}.")) and plugin in (
        "",
        entry.plugin.id,
    )


def _offers(registry: Registry, op: str) -> Iterator[Entry]:
    """The kernels of an op; a registry sorts by name and plugin."""
    return (each for each in registry.entries("kernel") if each.component.name.partition(".")[0] == op)


def kernel_plan(op: str, registry: Registry) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """(the offers of an op that can be loaded, those that lack a module and why), as plain values."""
    offers = list(_offers(registry, op))
    missing = [
        {"name": each.qualified, "reason": f"needs {', '.join(each.component.missing())}"}
        for each in offers
        if each.component.missing()
    ]
    return [_reference(each).plain() for each in offers if not each.component.missing()], missing


def _names(offers: tuple[Entry, ...], op: str) -> list[str]:
    return sorted({each.component.name.removeprefix(f"{op}.") for each in offers})


def _reference(entry: Entry) -> ComponentRef:
    return ComponentRef("kernel", entry.component.name, entry.plugin.id, entry.plugin.version, entry.component.target)
