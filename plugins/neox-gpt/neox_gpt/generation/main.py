"""`python -m neox_gpt.generation.main JSON`: what `neox generate` does where torch may be imported."""

from __future__ import annotations

import json
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import field, frozen

from neox_core.checkpoint.read import read_weights
from neox_core.data.tokenizer import padded_vocab
from neox_core.errors import UsageError, run_main
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import receive_plan
from neox_core.terminal import Own, echo
from neox_gpt.build import build_model
from neox_gpt.config.plan import gpt_plan_in
from neox_gpt.generation.generate import Continuation, continuations, prompt_ids, stream
from neox_gpt.generation.prompts import LONGEST, Prompt, read_prompts
from neox_gpt.generation.sampling import Sampling
from neox_gpt.tokenizer import tokenizer_of

if TYPE_CHECKING:
    from neox_core.contracts import Tokenizer
    from neox_core.plan.runfile import PrecisionPlan, RunPlan
    from neox_gpt.gpt import GPT


@frozen
class Job:
    """What a command line asks for. prompt: one, shown as it comes; file: many; neither: those that a user types."""

    max_new_tokens: int
    prompt: str | None = None
    file: str | None = None
    device: str = "auto"
    batch_size: int = 8
    stops: Sequence[str] = ()
    as_json: bool = False
    sampling: Sampling = field(factory=Sampling)


def load_model(checkpoint: Path, plan: RunPlan, device: torch.device) -> tuple[GPT, Tokenizer]:
    """The model in a checkpoint that a run of `plan` wrote, and its tokenizer.

    On a CPU its weights are fp32, which holds those of any training type exactly. Raises CheckpointError when the
    checkpoint is damaged, of another model or of another tokenizer, UsageError when its run had no tokenizer.
    """
    tokenizer = tokenizer_of(plan, checkpoint)
    if tokenizer is None:
        raise UsageError(f"{checkpoint}: its run had no tokenizer, so there is none to read a prompt with")
    context = BuildContext(device, _dtype(plan.precision, device), Groups(None, None, 0, 1), plan.train.seed)
    vocab_size = padded_vocab(plan.model, tokenizer.vocab_size)
    weights = read_weights(checkpoint)
    return build_model(gpt_plan_in(plan), vocab_size, context, weights, eod=tokenizer.eod), tokenizer


def _dtype(precision: PrecisionPlan, device: torch.device) -> torch.dtype:
    if device.type == "cpu":
        return torch.float32
    half = precision.dtype if precision.autocast is None else precision.autocast
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[half]


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("there is no GPU here that torch can use", hint="leave out --device, or use --device cpu")
    return torch.device(name)


def generate(checkpoint: Path, plan: RunPlan, job: Job) -> None:
    """Write what follows each prompt to the terminal, and on stderr what there is to say of it."""
    prompts = read_prompts(Path(job.file)) if job.file is not None else []
    model, tokenizer = load_model(checkpoint, plan, _device(job.device))
    if job.prompt is not None and not job.as_json:
        _notes(model, [prompt_ids(tokenizer, job.prompt)], job)
        _show(model, tokenizer, job, job.prompt)
    elif job.prompt is not None or job.file is not None:
        prompts = prompts or [Prompt(str(job.prompt))]
        _all(model, tokenizer, job, prompts)
    else:
        for typed in _typed():
            if job.as_json:
                _all(model, tokenizer, job, [Prompt(typed)])
            else:
                _notes(model, [prompt_ids(tokenizer, typed)], job)
                _show(model, tokenizer, job, typed)


def _notes(model: GPT, prompts: Sequence[Sequence[int]], job: Job) -> None:
    """Say of which prompts the model does not see all. prompts: the ids of each."""
    given = [len(each) for each in prompts]
    longest, window = max(given), model.window
    if longest > window:
        of = "" if len(given) == 1 else f", the longest of {sum(each > window for each in given):,} such"
        echo(f"note: of the {longest:,} tokens of the prompt{of} the model sees the last {window:,}", err=True)
    if longest + job.max_new_tokens > window:
        echo(f"note: each time {window:,} tokens are full, the text continues from their newer half", err=True)


def _show(model: GPT, tokenizer: Tokenizer, job: Job, prompt: str) -> None:
    echo(prompt, end="")
    began, count = time.monotonic(), 0
    pieces = stream(model, tokenizer, prompt, max_new_tokens=job.max_new_tokens, sampling=job.sampling, stops=job.stops)
    for count, piece in enumerate(pieces):  # noqa: B007 - a piece for each token, and one more at the end
        echo(piece, end="")
    echo("")
    _say_speed(count, began)


def _all(model: GPT, tokenizer: Tokenizer, job: Job, prompts: Sequence[Prompt]) -> None:
    ids = [array("i", prompt_ids(tokenizer, each.text)) for each in prompts]
    _notes(model, ids, job)
    began, count = time.monotonic(), 0
    for first in range(0, len(prompts), job.batch_size):
        some = prompts[first : first + job.batch_size]
        continued = continuations(
            model,
            tokenizer,
            ids[first : first + job.batch_size],
            max_new_tokens=job.max_new_tokens,
            sampling=job.sampling,
            stops=job.stops,
            first=first,
        )
        for prompt, found in zip(some, continued, strict=True):
            count += found.num_tokens
            echo(_line(prompt, found) if job.as_json else f"{prompt.text}{found.text}\n")
    _say_speed(count, began)


def _line(prompt: Prompt, found: Continuation) -> Own:
    of = {} if prompt.id is None else {"id": prompt.id}
    line = {
        **of,
        "prompt": prompt.text,
        "text": found.text,
        "end": found.end,
        "prompt_tokens": found.num_prompt_tokens,
        "tokens": found.num_tokens,
    }
    return Own(json.dumps(line).replace("\x7f", "\\u007f"))


def _say_speed(count: int, began: float) -> None:
    took = time.monotonic() - began
    echo(f"note: {count:,} tokens in {took:.1f} s, {count / max(took, 1e-9):,.0f} tokens/s", err=True)


def _typed() -> Iterator[str]:
    """Prompts, a line each, to the end of the input."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 - gives `input` its keys
    while True:
        try:
            line = input("> ") if sys.stdin.isatty() else sys.stdin.readline(LONGEST)
            line.encode()
        except EOFError:
            return
        except UnicodeError:
            raise UsageError("the prompt is not UTF-8", hint="type it in UTF-8") from None
        if not sys.stdin.isatty():
            if not line:
                return
            if len(line) == LONGEST:
                raise UsageError(f"a line has more than {LONGEST:,} characters", hint="use --prompts FILE")
        yield line.removesuffix("\n")


def main() -> None:
    """Generate text as the command line asks in JSON."""
    raw: dict[str, Any] = json.loads(sys.argv[1])
    checkpoint, plan = Path(raw.pop("checkpoint")), receive_plan(raw.pop("plan"))
    generate(checkpoint, plan, Job(**{**raw, "sampling": Sampling(**raw["sampling"])}))


if __name__ == "__main__":
    run_main(main)
