"""A model of neox behind the interface of lm-evaluation-harness, where it is registered as `neox`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from neox_gpt.api import Sampling, continuations, load_run, saved_run

from neox_core.errors import ConfigError, UsageError
from neox_core.hooks.loader import load_plugins
from neox_lm_eval.share import Share

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.contracts import Tokenizer

Scored = tuple[float, bool]
"""The log-probability of a continuation in nats, and whether it is what greedy decoding gives."""
SHAPES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


class NeoxLM(TemplateLM):
    """Every request is answered on every rank. The numbers are those of the harness's own backend `hf`.

    model: in evaluation, whose call makes passes (`parallel.row.Model`). longest: tokens that it sees at most.
    around: what each pass is made in. share: the batches that this rank computes; the ranks of one copy of the model
    have the same.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        longest: int,
        device: torch.device,
        batch_size: int = 8,
        share: Share | None = None,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        super().__init__()
        self.model = model
        self.text = tokenizer
        self.longest = longest
        self.batch_size = batch_size
        self.share = share or Share()
        self.around = around
        self._device = device

    @property
    def eot_token_id(self) -> int:
        """The token that ends a document."""
        return self.text.eod

    @property
    def max_length(self) -> int:
        """The longest request, in tokens."""
        return self.longest

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **more: Any) -> list[int]:
        """The token ids of a text. add_special_tokens: the tokenizer adds none."""
        return self.text.encode(string)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **more: Any
    ) -> list[Scored]:
        found: dict[int, Scored] = {}
        pairs = [(context, continuation) for _, context, continuation in requests]
        for batch in self._batches([len(context) + len(continuation) for context, continuation in pairs]):
            found.update(zip(batch, self._scored([pairs[number] for number in batch]), strict=True))
        found = self.share.together(found)
        for number, (asked, _, _) in enumerate(requests):
            if asked is not None:
                self.cache_hook.add_partial("loglikelihood", asked, found[number])
        return [found[number] for number in range(len(requests))]

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Numbers of requests, the longest first, of the batches of this rank."""
        order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
        for number, first in enumerate(range(0, len(order), self.batch_size)):
            if self.share.mine(number):
                yield order[first : first + self.batch_size]

    @torch.no_grad()
    def _scored(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Iterator[Scored]:
        """The score of each continuation. The model sees the end of a text that is too long."""
        texts = [(context + continuation)[-(self.longest + 1) :] for context, continuation in pairs]
        width = max(map(len, texts)) - 1
        tokens = torch.full((len(texts), width), self.eot_token_id, device=self._device)
        for row, text in zip(tokens, texts, strict=True):
            row[: len(text) - 1] = torch.tensor(text[:-1])  # what follows is never looked at
        with self.around():
            logits: Tensor = self.model(lambda run: run(tokens).logits())  # [batch, width, vocab]
        for row, text, (_, continuation) in zip(logits, texts, pairs, strict=True):
            count = len(continuation)
            if count >= len(text):
                raise UsageError(
                    f"a continuation has {count:,} tokens, and the model sees {self.longest:,}",
                    hint="choose another task",
                )
            of_labels = row[len(text) - 1 - count : len(text) - 1]
            labels = torch.tensor(continuation, device=self._device)
            logs = of_labels.float().log_softmax(-1).gather(1, labels[:, None])
            yield float(logs.sum()), bool((of_labels.argmax(-1) == labels).all())

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each text, in windows: each token is scored once, after as much text as fits."""
        windows: list[tuple[None, list[int], list[int]]] = []
        counts = []
        for (text,) in (request.args for request in requests):
            some = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self.max_length, 1)
            made = [(None, *make_disjoint_window(each)) for each in some]
            windows += made
            counts.append(len(made))
        scores = iter(self._loglikelihood_tokens(windows))
        return [sum(next(scores)[0] for _ in range(count)) for count in counts]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What follows each context, up to a stop string, the end of the document or the length that is asked for."""
        if not hasattr(self.model, "new_cache"):
            raise UsageError("the model cannot generate text, which a task asks for", hint="choose other tasks")
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(number)
        found: dict[int, str] = {}
        for numbers in groups.values():
            contexts = [self.tok_encode(requests[number].args[0]) for number in numbers]
            for batch in self._batches([len(each) for each in contexts]):
                texts = self._generated([contexts[at] for at in batch], requests[numbers[0]].args[1])
                found.update((numbers[at], text) for at, text in zip(batch, texts, strict=True))
        found = self.share.together(found)
        return [found[number] for number in range(len(requests))]

    def _generated(self, contexts: Sequence[list[int]], asked: dict[str, Any]) -> list[str]:
        options = dict(normalize_gen_kwargs(asked))
        stops, count = options.pop("until"), options.pop("max_gen_toks")
        greedy = not options.pop("do_sample")
        shape = {name: options.pop(name) for name in SHAPES if name in options}
        if options:
            raise UsageError(f"generation_kwargs: {', '.join(map(repr, options))}: unknown", hint="choose another task")
        if count >= self.longest:
            message = f"a task generates {count:,} tokens, and the model sees {self.longest:,}"
            raise UsageError(message, hint="lower its max_gen_toks, or choose other tasks")
        sampling = Sampling(**{"top_p": 1.0, **shape, **({"temperature": 0.0} if greedy else {})})
        given = [ids[-(self.longest - count) :] or [self.eot_token_id] for ids in contexts]
        with self.around():
            found = continuations(
                self.model,
                self.text,
                given,
                max_new_tokens=count,
                sampling=sampling,
                stops=[stop for stop in stops if stop],
            )
        return [each.text for each in found]


@register_model("neox")
class NeoxCheckpoint(NeoxLM):
    """The model in a checkpoint: `simple_evaluate(model="neox", model_args={"load": DIR})`.

    load: a run's `save`, a folder or an address, or one checkpoint in it. device: of torch, in one process.
    """

    def __init__(
        self, load: str | Path, device: str | None = None, batch_size: int | str | None = 8, **more: Any
    ) -> None:
        if any(value is not None for value in more.values()):
            raise UsageError(
                f"the model `neox` has no argument {', '.join(more)}", hint="it has load, device, batch_size"
            )
        checkpoint, plan = saved_run(load, load_plugins())
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        run = load_run(plan, checkpoint, str(chosen))
        if run.tokenizer is None:
            raise no_tokenizer(str(checkpoint))
        super().__init__(
            run.model,
            run.tokenizer,
            longest=longest(run.model, plan.model),
            device=chosen,
            batch_size=int(batch_size or 8),
        )


def longest(model: Any, plan: Any) -> int:
    """The tokens that a model sees at most."""
    return int(getattr(model, "window", plan.seq_length))


def no_tokenizer(where: str) -> ConfigError:
    """The error of a checkpoint whose run had no tokenizer."""
    return ConfigError(
        f"{where}: its run had no tokenizer, and lm-evaluation-harness asks in text",
        hint="set tokenizer-type and the tokenizer's files in the config of the run",
    )
