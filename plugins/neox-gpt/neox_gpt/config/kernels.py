"""Which kernels a run may use: what the config asks for each op of its model, and which plugins offer it.

The ranks check whether a kernel can run, since they have the device. A kernel that is asked for by name and cannot
run on any device is refused here. A switch asks for any fused path and never stops a run.
"""

from collections.abc import Iterator
from contextlib import suppress

from neox_core.config.problem import Problem
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.structure import Config
from neox_core.hooks.install import how_to_get, how_to_install, packages_of
from neox_core.hooks.registry import Entry, Registry
from neox_core.plan.component import offered
from neox_core.plan.planners import sharding
from neox_core.plan.runfile import KernelPlan, RunPlan
from neox_gpt.config.mixers import has_softmax_attention
from neox_gpt.config.sections.attention import AttentionSection
from neox_gpt.config.sections.fusion import SWITCHES, FusionSection
from neox_gpt.config.sections.model import ModelSection
from neox_gpt.ops import BLOCK_SPARSE, COMPILED, OPS, SOFTMAXES

AUTO, FUSED, REFERENCE = "auto", "fused", "reference"
NEED_WHOLE_BIAS = ("bias_gelu", "bias_dropout_add")


def compiled_code(plan: RunPlan) -> Iterator[Problem]:
    """A note for a run on CPUs where this host has no compiler for the loss and attention."""
    with suppress(ImportError):  # only ranks need that package
        from neox_kernels.api import without_compiler

        if plan.cluster.device == "cpu" and (said := without_compiler()):
            yield Problem(said, severity="note")


def plan_kernels(config: Config, registry: Registry, device: str) -> tuple[tuple[KernelPlan, ...], list[Problem]]:
    """The kernels that a valid config may use on `device`, and the problems and notes about its requests.

    On a CPU the reference computes an op for which the config asks nothing.
    """
    plans: list[KernelPlan] = []
    problems: list[Problem] = []
    asked = dict(_asked(config, problems))
    mine = _model_ops(config)
    declared = [op for entry in registry.entries() for op in entry.component.ops]
    references = dict(reversed(declared))  # of an op that several declare, the first counts
    left_out: list[str] = []
    known = set(references)
    for op in sorted(set(mine) | set(asked)):
        choice, key = asked.get(op, (AUTO, ""))
        if choice == REFERENCE and (op in known or key in SWITCHES):
            if op in COMPILED and op in mine:
                plans.append(KernelPlan(op, choice, key, (), references[op]))
            continue
        offers = tuple(_offers(registry, op))
        reason = _why_not(config, op, known, mine, offers, choice)
        if choice == AUTO and (reason or device == "cpu"):
            if device != "cpu" and reason == _not_compiled(op) and any(not each.component.missing() for each in offers):
                left_out.append(op)
            continue
        if choice == FUSED:
            problems += (config.problem(said, key, hint, "note") for said, hint in _notes(config, op, reason, device))
        elif reason:
            problems.append(config.problem(reason[0], key, reason[1]))
        if reason:
            continue
        ready = [each for each in offers if _matches(each, op, choice) and not each.component.missing()]
        plans.append(KernelPlan(op, choice, key, tuple(map(offered, ready)), references[op]))
    if left_out:
        said = f"leaves out the kernels of {', '.join(left_out)}, which are not compiled along with a layer"
        hint = "compile: false uses them; `neox tune` compares the two"
        problems.append(config.problem(said, "compile", hint, "note"))
    return tuple(plans), problems


def _notes(config: Config, op: str, reason: tuple[str, str] | None, device: str) -> Iterator[tuple[str, str]]:
    """(message, hint) of what a switch comes to, where that is not simply a kernel."""
    if reason:
        yield f"does nothing: {reason[0]}", reason[1]
    elif op in SOFTMAXES:
        yield "uses attention that stores no scores, or else a kernel where one can run", ""
    elif device == "cpu":
        yield f"on a CPU torch's operators compute {op}, unless an installed kernel runs there", ""


def _model_ops(config: Config) -> tuple[str, ...]:
    """The ops that the decoder, its parts and the optimizer compute."""
    own = (op for op, _ in OPS if op != BLOCK_SPARSE or config.components("sparse layout"))
    parts = (each.entry for chosen in config.chosen.values() for each in chosen)
    others = (each.component for each in parts if not each.definition.plans)
    return (*own, *(op for each in others for op, _ in each.ops))


def _asked(config: Config, problems: list[Problem]) -> Iterator[tuple[str, tuple[str, str]]]:
    """(op, (what is asked for, by which key))."""
    section = config.section(FusionSection)
    named = {op.replace("-", "_"): choice for op, choice in section.kernels.items()}
    for key, op in SWITCHES.items():
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
    named = [each for each in offers if _matches(each, op, choice)]
    if not named:
        return f"no kernel {choice!r} for {op}", f"offered: {', '.join(_names(offers, op))}, reference, auto"
    if all(each.component.missing() for each in named):
        missing = sorted({name for each in named for name in each.component.missing()})
        return f"the kernels of {op} need {', '.join(missing)}", how_to_get(missing, named[0].plugin.id)
    return None


def _why_not_in_this_model(config: Config, op: str, asked: str) -> tuple[str, str] | None:
    if op in (name for each in config.components("optimizer") for name, _ in each.entry.component.ops):
        if sharding(config).offload_optimizer:
            return f"offload_optimizer keeps {op} on the host", "remove it, or the offload"
        return None
    section, parallel = config.section(ModelSection), config.section(ParallelismSection)
    if op in NEED_WHOLE_BIAS and sharding(config).stage == 3:
        return f"at ZeRO 3 a bias is sharded where {op} needs it", "remove it, or use a lower stage"
    if op == "bias_gelu" and not section.use_bias_in_mlp:
        return "the MLP has no bias", "remove it, or use-bias-in-mlp: true"
    if op == BLOCK_SPARSE and config.section(AttentionSection).attention_softcap is not None:
        return "no kernel keeps scores within attention-softcap", "remove it"
    if op == "cross_entropy" and (section.logit_softcap is not None or section.use_bias_in_head):
        return "the kernels of cross_entropy have no logit-softcap and no use-bias-in-head", "remove it"
    if op in (*SOFTMAXES, BLOCK_SPARSE) and not has_softmax_attention(config):
        return "no layer has causal softmax attention", "remove it"
    if op == "cross_entropy" and parallel.ranks_of_a_copy > 1:
        return "the kernels of cross_entropy need one rank to hold the vocabulary and all layers", "remove it"
    if op in SOFTMAXES:
        if asked == AUTO:
            return "attention that stores no scores is faster", ""
        if config.section(AttentionSection).sparsity == "all":
            return "every layer has block-sparse attention, which has no whole rows of scores", "remove it"
        if op == SOFTMAXES[0] and section.reset_attention_mask:
            return "the mask is not purely causal", "use scaled-masked-softmax-fusion, which takes any mask"
    return _not_compiled(op) if section.compile else None


def _not_compiled(op: str) -> tuple[str, str]:
    return f"the kernels of {op} are not compiled along with a layer", "remove it, or compile"


def _matches(entry: Entry, op: str, choice: str) -> bool:
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


def _names(offers: tuple[Entry, ...], op: str) -> list[str]:
    return sorted({each.component.name.removeprefix(f"{op}.") for each in offers})
