"""An estimate in words, and as an object for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import asdict

from neox_plan.estimate import Estimate
from neox_plan.scale import NAMES, Scale
from neox_plan.search import Candidate
from neox_plan.step import Step


def in_lines(found: Estimate) -> Iterator[str]:
    """The lines of `neox plan`."""
    total = sum(found.parameters.values())
    yield f"parameters: {_count(total)}: " + ", ".join(f"{part} {_count(n)}" for part, n in found.parameters.items())
    memory, other = found.now.memory, found.recomputed
    without = "with" if other.layout.recompute else "without"
    yield (
        f"memory of the fullest rank: {memory.in_words()} "
        f"({_bytes(other.memory.activations)} of activations {without} recomputation)"
    )
    flops = f"{_count(found.flops_per_token)} FLOPs a token, " if found.flops_per_token else ""
    yield f"work: {flops}{found.tokens:,} tokens a step, {_count(found.total_tokens)} tokens in {found.steps:,} steps"
    sent = found.sent
    links = {"within layers": sent.tensor, "between stages": sent.pipeline, "between data-parallel ranks": sent.data}
    carried = ", ".join(f"{_bytes(each)} {name}" for name, each in links.items() if each)
    yield f"links: a rank sends {carried or 'nothing'} in a step"
    if found.seconds is not None and found.mfu is not None:
        days = found.seconds * found.steps / 86400
        speed = found.tokens / found.seconds / found.ranks
        mfu = f"an MFU of {100 * found.mfu:.0f} %"
        pace = f"{found.seconds:.3g} s a step at {mfu}, {speed:,.0f} tokens a second and GPU"
        yield f"time: {pace}, {days:,.1f} days in all"
        if found.now.step is not None:
            yield f"      {_spent(found.now.step)}"
    if found.scale is not None:
        yield from _scale(found.scale)
    if found.room is not None and found.gpu is not None:
        fits = "fits" if found.fits else "does not fit"
        yield f"{fits}: {_bytes(memory.total)} of the {_bytes(found.room)} that a run can fill on {found.gpu.name}"
    for fix in found.fixes:
        yield f"  would fit with {', '.join(f'{key}: {_yaml(value)}' for key, value in fix.items())}"
    for place, each in enumerate(found.best, 1):
        yield f"{place}. {_ranked(each)}"


def _scale(scale: Scale) -> Iterator[str]:
    at = scale.counts
    yield (
        f"checkpoint: at most {at['files']:,} files, {at['in_a_folder']:,} in a folder; "
        f"about {_bytes(at['listed_bytes'])} list {at['pieces']:,} pieces of tensors, "
        f"of which a rank reads {_bytes(at['read_bytes'])} to resume"
    )
    logins = f"{at['logins']:,} logins by ssh, " if at["logins"] else ""
    yield (
        f"start: {logins}{at['store']:,} connections to the first host, {at['groups']} process groups a rank, "
        f"{at['peers']:,} peers to agree on a stop"
    )
    if scale.faster:
        more = ", ".join(f"{NAMES[name]} (x {scale.twice[name] / at[name]:.1f})" for name in scale.faster)
        yield f"grows faster than the hosts, on twice as many: {more}"


def _ranked(each: Candidate) -> str:
    step = each.step
    told = "" if step is None else f"{step.seconds:.3g} s a step, {_spent(step)}; "
    return f"{each.layout}: {told}{_bytes(each.memory.total)}"


def _spent(step: Step) -> str:
    """What a step is spent on, the largest first."""
    parts = {
        "products": step.products,
        "waiting for stages": step.bubble,
        "links within layers": step.tensor,
        "links between stages": step.pipeline,
        "averaging gradients": step.data,
    }
    shares = {name: each / step.seconds for name, each in sorted(parts.items(), key=lambda part: -part[1])}
    return ", ".join(f"{100 * share:.0f} % {name}" for name, share in shares.items() if share >= 0.005)


def as_object(found: Estimate) -> dict[str, Any]:
    """What `--json` prints: bytes, seconds and counts."""
    plain = asdict(found)
    plain["fits"] = found.fits
    if found.scale is not None:
        plain["scale"]["faster"] = found.scale.faster
    return plain


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _count(number: float) -> str:
    for unit, name in ((1e12, " T"), (1e9, " B"), (1e6, " M")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return f"{number:,.0f}"


def _bytes(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"
