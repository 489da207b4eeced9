"""Clauses of a model that is built: its passes, its gradient, dropout, recomputation and decoding."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen

from neox_author.testing.clauses import has, hold, not_applicable
from neox_author.testing.ranks import hold_same
from neox_author.testing.resolved import SEQ, VOCAB
from neox_author.testing.waits import NoWait
from neox_core.parallel.sample_keys import sample_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

BATCH = 3
KEYS = sample_keys(5, 0, BATCH, torch.device("cpu"))
STEP = 1e-5
"""Of finite differences, in float64: their error is its square, and rounding over it."""
RESULTS = "the result"


def random_tokens(batch: int = BATCH, seq: int = SEQ) -> Tensor:
    """int64 [batch, seq + 1]; none of them ends a document."""
    return torch.randint(1, VOCAB, (batch, seq + 1), generator=torch.Generator().manual_seed(3))


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of each parameter, by name."""
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def total(outputs: Any, labels: Tensor) -> Tensor:
    """What is trained on: the loss of the labels, and what parts of the model add."""
    loss: Tensor = outputs.cross_entropy(labels)
    for each in outputs.auxiliary_losses.values():
        loss = loss + each
    return loss


@frozen
class Reading:
    """How clauses read what a pass gives.

    loss: (outputs, labels int64 [batch, seq]) -> a scalar, which may compare the samples of a batch with each other.
    results: outputs -> a tensor [batch, ...], of each sample by itself. logits: whether these are logits of tokens,
    [batch, seq, vocab], and the outputs a `contracts.objective.Outputs`.
    """

    loss: Callable[[Any, Tensor], Tensor]
    results: Callable[[Any], Tensor]
    logits: bool = False


LOGITS = Reading(total, lambda outputs: outputs.logits(), logits=True)


def loss_of(model: Any, tokens: Tensor, keys: Tensor | None = KEYS, reading: Reading = LOGITS) -> Tensor:
    """Of a pass over int64 [batch, seq + 1]."""
    labels = tokens[:, 1:].contiguous()
    given = () if keys is None or not model.draws else (keys[: len(tokens)],)
    loss: Tensor = model(lambda run: reading.loss(run(tokens[:, :-1]), labels), *given)
    return loss


def results_of(model: Any, tokens: Tensor, keys: Tensor | None = KEYS, reading: Reading = LOGITS) -> Tensor:
    """[batch, ...] of int64 [batch, seq]."""
    found: list[Tensor] = []

    def compute(run: Any) -> Tensor:
        found.append(reading.results(run(tokens)).detach())
        return found[0].sum()

    model(compute, *(() if keys is None or not model.draws else (keys[: len(tokens)],)))
    return found[0]


def gradients(model: Any, tokens: Tensor, reading: Reading = LOGITS) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, and its gradient by the name of the parameter."""
    model.zero_grad()
    loss = loss_of(model, tokens, reading=reading)
    loss.backward()
    found = {
        name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in model.named_parameters()
    }
    return loss.detach(), {name: each.detach().clone() for name, each in found.items()}


def check_passes(model: Any, *, causal: bool, reading: Reading = LOGITS) -> None:
    """One pass over a whole model in float64, with weights that all matter."""
    tokens = random_tokens()
    inputs, before, state = tokens[:, :-1], tokens.clone(), torch.get_rng_state()
    weights = state_of(model)
    results = partial(results_of, model, reading=reading)
    if reading.logits:
        _check_outputs(model, tokens)
    else:
        not_applicable("a pass gives Outputs, whose scores follow from the logits", "it gives other results")
    first, again = results(inputs), results(inputs)
    hold_same("two passes give the same bits", {RESULTS: again}, {RESULTS: first}, 0)
    hold(torch.equal(torch.get_rng_state(), state), "a pass draws no numbers from torch's own generator")
    hold(torch.equal(tokens, before), "a pass leaves the tokens as they are")
    hold_same("a pass leaves weights as they are", state_of(model), weights, 0)
    alone = torch.cat([results(each[None]) for each in inputs])
    clause = "a sample does not depend on the others in its micro-batch"
    hold_same(clause, {RESULTS: alone}, {RESULTS: first})
    if causal:
        place = SEQ // 2
        other = inputs.clone()
        other[:, place] = other[:, place] % (VOCAB - 1) + 1
        changed = results(other)
        clause = "a change at one position alters no result before it"
        same = torch.equal(changed[:, :place], first[:, :place])
        near = (changed[:, :place] - first[:, :place]).abs().amax(-1).amax(0) > 1e-12
        where = [index for index, each in enumerate(near.tolist()) if each]
        hold(same or not where, f"{clause}: position {where[:1]} sees position {place}")
        hold(not torch.equal(changed[:, place:], first[:, place:]), "a result depends on the token at its position")
    else:
        not_applicable("a change at one position alters no result before it", "`causal` is False")
    _check_differences(model, tokens, reading)
    with NoWait():
        loss_of(model, tokens, reading=reading).backward()
    hold(True, "it does not wait for the device")
    model.zero_grad()


def _check_outputs(model: Any, tokens: Tensor) -> None:
    labels = tokens[:, 1:].clone()
    labels[0, 2:5], labels[2] = -100, -100
    kept: dict[str, Any] = {}

    def compute(run: Any) -> Tensor:
        out = run(tokens[:, :-1])
        has(out, "a pass gives Outputs, which", "cross_entropy", "scores", "logits")
        kept.update(logits=out.logits(), scores=out.scores(labels), loss=out.cross_entropy(labels))
        kept["none"] = out.cross_entropy(torch.full_like(labels, -100)).detach()
        doubled: Tensor = kept["loss"] * 2
        return doubled

    given = model(compute, *((KEYS,) if model.draws else ()))
    hold(torch.equal(given, kept["loss"] * 2), "the call gives what `compute` makes of passes")
    logits, scores = kept["logits"].double(), kept["scores"]
    hold(tuple(logits.shape) == (BATCH, SEQ, VOCAB), f"logits() is [batch, seq, vocab], not {tuple(logits.shape)}")
    counts = labels != -100
    log = logits.log_softmax(-1)
    own = log.gather(-1, labels.clamp(min=0)[..., None])[..., 0].masked_fill(~counts, 0)
    wanted = {"log_prob": own, "mean_log_prob": log.mean(-1), "log_sum": logits.logsumexp(-1)}
    # of labels that do not count, only `log_prob` is told
    found = {name: getattr(scores, name).double() for name in wanted}
    some = {name: each if name == "log_prob" else each[counts] for name, each in wanted.items()}
    hold_same(
        "scores() follows from the logits",
        {name: each if name == "log_prob" else each[counts] for name, each in found.items()},
        some,
        1e-5,
    )
    mean = -own.sum() / counts.sum()
    clause = "cross_entropy() is the mean over the labels that count"
    hold_same(clause, {"the loss": kept["loss"].double()}, {"the loss": mean}, 1e-5)
    hold(float(kept["none"]) == 0, "cross_entropy() is 0 where no label counts")


def _check_differences(model: Any, tokens: Tensor, reading: Reading) -> None:
    """Each parameter's gradient, along a direction, is what the loss does there."""
    clause = "the gradient is that of the function, against finite differences in float64"
    _, found = gradients(model, tokens, reading)
    for place, (name, parameter) in enumerate(model.named_parameters()):
        if not parameter.requires_grad:
            continue
        way = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(place), dtype=parameter.dtype)
        start, losses = parameter.detach().clone(), []
        with torch.no_grad():
            for sign in (1, -1):
                parameter.copy_(start + sign * STEP * way)
                losses.append(loss_of(model, tokens, reading=reading).double())
            parameter.copy_(start)
        slope = (losses[0] - losses[1]) / (2 * STEP)
        along = (found[name] * way).sum()
        hold(bool((slope - along).abs() <= 1e-6 + 1e-5 * slope.abs()), f"{clause}: {name} differs")


def check_recomputed(whole: Any, recomputed: Any, reading: Reading = LOGITS) -> None:
    """recomputed: of the same weights, under `checkpoint-activations`."""
    (loss, wanted), (again, found) = (gradients(each, random_tokens(), reading) for each in (whole, recomputed))
    clause = "it computes the same with recomputation"
    hold_same(clause, {"the loss": again, **found}, {"the loss": loss, **wanted}, 1e-12)


def check_dropout(whole: Any, dropped: Any, reading: Reading = LOGITS) -> None:
    """dropped: of the same weights, with dropout."""
    tokens = random_tokens()[:, :-1]
    hold(dropped.draws is True, "`draws` is True where there is dropout")
    state = torch.get_rng_state()
    results = partial(results_of, reading=reading)
    first = results(dropped, tokens)
    clause = "dropout follows from the keys of the samples"
    hold_same(f"{clause}: the same keys drop the same", {RESULTS: results(dropped, tokens)}, {RESULTS: first}, 0)
    hold(torch.equal(torch.get_rng_state(), state), f"{clause}: it draws no numbers from torch's own generator")
    others = results(dropped, tokens, KEYS + 1)
    hold(not torch.equal(others, first), f"{clause}: other keys drop the same")
    turned = results(dropped, tokens.flip(0), KEYS.flip(0)).flip(0)
    clause = "a sample does not depend on the others in its micro-batch, with dropout too"
    hold_same(clause, {RESULTS: turned}, {RESULTS: first})
    passes: list[Tensor] = []

    def compute(run: Any) -> Tensor:
        passes.extend(reading.results(run(tokens)).detach() for _ in range(2))
        return passes[0].sum()

    dropped(compute, KEYS)
    hold(not torch.equal(*passes), "the passes of one call drop different numbers")
    dropped.eval()
    hold_same(
        "there is no dropout in evaluation",
        {RESULTS: results(dropped, tokens, None)},
        {RESULTS: results(whole, tokens)},
    )
    dropped.train()


class _Letters:
    """A tokenizer: each token is a letter."""

    vocab_size, eod = VOCAB, 0

    def encode(self, text: str) -> list[int]:
        return [ord(each) - 0x100 for each in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(0x100 + each) for each in ids)


def check_decoding(architecture: Any, build: Callable[..., Any], whole: Any, window: int) -> None:
    """A sample is the prompt and a continuation: with weights that leave no choice, that of whole passes."""
    weights = {name: each.float() for name, each in state_of(whole).items()}
    clause = "sample() continues as passes over the whole text do"
    letters, prompt = _Letters(), _Letters().decode(random_tokens(1)[0, : SEQ // 3].tolist())
    found = _scored_by(whole, architecture.tables)
    if found is None:
        not_applicable(clause, "the weights that score tokens are those that look them up")
    model = build(weights=weights | ({} if found is None else {found: 300 * weights[found]}))
    model.train()
    text = architecture.sample(model, letters, prompt)
    hold(isinstance(text, str) and text.startswith(prompt), "sample() gives the prompt and a continuation of it")
    hold(model.training, "sample() leaves the model in the mode that it had")
    hold(architecture.sample(model, letters, prompt) == text, "sample() gives the same again")
    if found is None:
        return
    ids, model_in_64 = letters.encode(prompt), model.double().eval()
    said = letters.encode(text)
    with torch.no_grad():
        while len(ids) < min(window, len(said)):
            logits = results_of(model_in_64, torch.tensor([ids]), None)[0, -1]
            best = logits.topk(2).values
            if float(best[0] - best[1]) < 30:  # two tokens are near each other: a sample may take either
                ids.append(said[len(ids)])
                continue
            ids.append(int(logits.argmax()))
            hold(said[len(ids) - 1] == ids[-1], f"{clause}: token {len(ids) - 1} differs")


def _scored_by(model: Any, tables: tuple[str, ...]) -> str | None:
    """The name of the weight that scores tokens and looks none up."""
    tokens = torch.full((1, SEQ + 1), 3)
    _, found = gradients(model, tokens)
    for name, gradient in found.items():
        if name.partition(".")[0] in tables and gradient.dim() == 2 and len(gradient) == VOCAB:
            unseen = gradient[5:].abs().sum(-1)
            if bool((unseen > 0).any()) and not _looks_up(model, name, tokens):
                return name
    return None


def _looks_up(model: Any, name: str, tokens: Tensor) -> bool:
    """Whether another row of the weight than that of a token changes the logits of that token alone."""
    parameter: Mapping[str, Any] = dict(model.named_parameters())
    with torch.no_grad():
        before = results_of(model, tokens[:, :-1])
        parameter[name][3] += 1.0
        after = results_of(model, tokens[:, :-1])
        parameter[name][3] -= 1.0
    kept = [each for each in range(VOCAB) if each != 3]
    return bool((before[..., kept] - after[..., kept]).abs().amax() > 1e-12)
