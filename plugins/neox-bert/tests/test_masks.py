"""Which tokens are hidden, by what, and the loss of them: against plain counts and torch's own losses."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve
from encoders import CLS, MASK, PAD, SEP, example_encoder
from neox_author.testing.outputs import WholeLogits
from neox_author.testing.plans import example_plan
from neox_bert.model import EncoderOutputs
from neox_bert.objective import MaskedLM
from neox_bert.settings import MaskedLMSettings
from torch.nn import functional as F

from neox_core.contracts.objective import Batch
from neox_core.parallel.sample_keys import sample_keys

SEQ, VOCAB = 128, 644


def objective(**settings: Any) -> MaskedLM:
    plan = example_plan(Path("unused"), ranks=(1,))
    plan = evolve(plan, model=evolve(example_encoder(), seq_length=SEQ, padded_vocab_size=VOCAB))
    return MaskedLM(plan, MaskedLMSettings(**settings))


def batch(rows: int = 64, first: int = 0) -> Batch:
    tokens = torch.randint(640, (rows, SEQ + 1), generator=torch.Generator().manual_seed(3))
    tokens[:, 0], tokens[:, 50], tokens[:, 99], tokens[:, 100:-1] = CLS, SEP, SEP, PAD
    tokens[:, -1] = torch.arange(rows) % 2
    return Batch(tokens, sample_keys(1, first, rows, torch.device("cpu")))


@pytest.mark.parametrize("share", [0.15, 0.5, 1.0, 0.001])
def test_a_share_of_the_text_is_predicted(share: float) -> None:
    """Of 97 tokens that are not special, and one at least."""
    given, masked = batch(), objective(mask_prob=share)
    chosen = masked.weights(given)
    assert (chosen.sum(1) == max(1, int(97 * share + 0.5))).all()
    special = (given.tokens[:, :-1] >= 640) & chosen
    assert not special.any()
    by_place = chosen[:, 1:99].float().mean(0)
    if share == 0.5:
        assert 0.2 < by_place[by_place > 0].min() < by_place.max() < 0.8, "no place is preferred"


def test_most_of_them_are_hidden_some_replaced_some_stay() -> None:
    given, masked = batch(400), objective(mask_prob=0.5)
    chosen, read, text = masked.weights(given), masked.inputs(given), given.tokens[:, :-1]
    assert torch.equal(read[~chosen], text[~chosen])
    number = int(chosen.sum())
    hidden = float((read[chosen] == MASK).sum()) / number
    same = float((read[chosen] == text[chosen]).sum()) / number
    assert abs(hidden - 0.8) < 0.01
    assert abs(same - 0.1) < 0.01
    others = read[chosen & (read != MASK) & (read != text)]
    assert len(others.unique()) > 600, "any id of the vocabulary"


def test_masks_follow_from_the_key_of_a_sample() -> None:
    masked, whole = objective(), batch()
    assert whole.keys is not None
    some = Batch(whole.tokens[5:9], whole.keys[5:9])
    assert torch.equal(masked.inputs(some), masked.inputs(whole)[5:9])
    later = Batch(whole.tokens, batch(first=64).keys)
    assert not torch.equal(masked.inputs(later), masked.inputs(whole))


def test_loss_of_tokens_and_pairs() -> None:
    """A sample counts by its number of predicted tokens, in both losses."""
    masked, given = objective(), batch(4)
    given.tokens[3, 40:-1] = PAD
    draw = torch.Generator().manual_seed(5)
    logits = torch.randn(4, SEQ, VOCAB, generator=draw, dtype=torch.float64)
    pairs = torch.randn(4, 2, generator=draw, dtype=torch.float64)
    read: list[torch.Tensor] = []

    def run(tokens: torch.Tensor) -> Any:
        read.append(tokens)
        outputs = WholeLogits(logits)
        return SimpleNamespace(cross_entropy=outputs.cross_entropy, pairs=pairs)

    loss = masked.loss(run, given)
    chosen = masked.weights(given)
    text = given.tokens[:, :-1]
    by_token = -logits.log_softmax(-1).gather(-1, text[..., None])[..., 0]
    wanted = by_token[chosen].mean()
    counts = chosen.sum(1)
    assert counts[3] < counts[0]
    by_pair = F.cross_entropy(pairs, given.tokens[:, -1], reduction="none")
    of_pairs = (by_pair * counts).sum() / counts.sum()
    right = ((pairs.argmax(1) == given.tokens[:, -1]) * counts).sum() / counts.sum()
    torch.testing.assert_close(loss.mean, wanted + of_pairs)
    torch.testing.assert_close(loss.metrics["masked"], wanted)
    torch.testing.assert_close(loss.metrics["pairs"], of_pairs)
    torch.testing.assert_close(loss.metrics["pairs_right"], right.float())
    assert torch.equal(read[0], masked.inputs(given))


@pytest.mark.parametrize("share", [0.15, 1.0, 0.001])
def test_only_what_is_predicted_has_logits(share: float) -> None:
    """The loss of an encoder's outputs, of which the chosen tokens alone meet the vocabulary, is that of all tokens."""
    masked, given = objective(mask_prob=share, sentence_pairs="none"), batch(4)
    given.tokens[3, 40:-1] = PAD
    draw = torch.Generator().manual_seed(5)
    hidden = torch.randn(4, SEQ, 8, generator=draw, dtype=torch.float64)
    weight = torch.randn(VOCAB, 8, generator=draw, dtype=torch.float64)
    counted: list[int] = []

    class Counting(EncoderOutputs):
        def cross_entropy(self, labels: torch.Tensor) -> torch.Tensor:
            counted.append(labels.shape[1])
            return super().cross_entropy(labels)

    found = masked.loss(lambda _: Counting(hidden, weight), given)
    wanted = masked.loss(lambda _: WholeLogits(hidden @ weight.T), given)
    torch.testing.assert_close(found.mean, wanted.mean)
    assert counted == [max(1, int(SEQ * share + 0.5))]
