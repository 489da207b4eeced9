"""Text from a model: what it is given, where it stops, and how ids become text."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch
from neox_activations.gelu import Gelu
from neox_gpt.api import PositionShape
from neox_gpt.generation.generate import UNFINISHED, continue_ids, generate, sample, stream
from neox_gpt.generation.sampling import Sampling
from neox_gpt.gpt import GPT
from neox_gpt.init import init_parameters
from neox_gpt.mlp import MLP
from neox_gpt.saved import saved_run
from neox_gpt.shape import ModelShape
from neox_norms.layernorm import LayerNorm
from neox_norms.settings import LayerNormSettings
from neox_positions.rotary import Rotary
from neox_positions.settings import RotarySettings
from torch import nn

from neox_core.errors import CheckpointError
from neox_core.hooks.loader import load_plugins

GREEDY = Sampling(temperature=0)


class Bytes:
    """Every byte below 95 is an id; id 0 ends a document."""

    vocab_size = 95
    eod = 0

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(ids).decode(errors="replace")


class Endless(Bytes):
    eod = -1


@pytest.fixture
def model() -> GPT:
    """Three layers that see 32 positions, with weights large enough for the choices to depend on what is read."""
    shape = ModelShape(3, 64, 4, 256, 24, 32, 96, parallel_residual=True, hidden_dropout=0.5)
    position = Rotary(PositionShape(64, 4, 16, 32), RotarySettings(rotary_pct=0.25))
    feed_forward = lambda block: MLP(shape.feed_forward(block), Gelu(None))  # noqa: E731
    model = GPT(shape, lambda: LayerNorm(64, LayerNormSettings()), feed_forward, position)
    init_parameters(model, shape, seed=1, method="normal", output_method="normal", std=0.2)
    return model


def greedy_without_cache(model: GPT, ids: list[int], count: int) -> list[int]:
    ids = list(ids)
    for _ in range(count):
        ids.append(int(model.logits(torch.tensor([ids]))[0, -1, : Bytes.vocab_size].argmax()))
    return ids[-count:]


@torch.no_grad()
def test_greedy_is_what_the_whole_text_says(model: GPT) -> None:
    prompt = [5, 40, 33, 8]
    expected = greedy_without_cache(model.eval(), prompt, 20)
    assert Bytes.eod not in expected
    assert len(set(expected)) > 3
    got = list(continue_ids(model, prompt, Bytes(), max_new_tokens=20, sampling=GREEDY))
    assert got == expected


@torch.no_grad()
def test_longer_than_the_model_can_see(model: GPT) -> None:
    """Of 32 positions: when they are full, the newest 16 tokens are read anew and the text goes on."""
    prompt = [(7 * place) % 90 + 1 for place in range(40)]
    got = list(continue_ids(model, prompt, Endless(), max_new_tokens=30, sampling=GREEDY))
    assert len(got) == 30
    model.eval()
    assert got[:1] == greedy_without_cache(model, prompt[-32:], 1)
    assert got[1:18] == greedy_without_cache(model, (prompt + got[:1])[-16:], 17)
    assert got[18:30] == greedy_without_cache(model, (prompt + got[:18])[-16:], 12)


def test_memory_is_for_the_text_not_for_all_that_the_model_can_see(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    new_cache = model.new_cache
    monkeypatch.setattr(model, "new_cache", lambda **size: asked.append(size["capacity"]) or new_cache(**size))
    for prompt, new in ((3, 4), (3, 32), (40, 4)):
        list(continue_ids(model, [5] * prompt, Endless(), max_new_tokens=new, sampling=GREEDY))
    assert asked == [7, 32, 32]


@pytest.mark.parametrize(("prompt", "new", "said"), [(20, 12, ()), (20, 13, ("32 tokens",)), (33, 1, ("33", "32"))])
def test_text_beyond_the_positions_of_the_model_is_said(
    model: GPT, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], prompt, new, said
) -> None:
    monkeypatch.setattr("neox_gpt.generation.generate.load_model", lambda *_: (model, Endless()))
    generate(Path("run"), None, "A" * prompt, new, "cpu", GREEDY)
    captured = capsys.readouterr()
    assert captured.out.startswith("A" * prompt)
    notes = captured.err.splitlines()
    assert len(notes) == len(said)
    assert all(each in note for each, note in zip(said, notes, strict=True))


def test_seed_decides(model: GPT) -> None:
    texts = [
        sample(model, Bytes(), "A(", max_new_tokens=24, sampling=Sampling(temperature=1.0, top_p=1.0, seed=seed))
        for seed in (3, 3, 4)
    ]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("A(")


def test_the_models_mode_and_torchs_generator_are_left_alone(model: GPT) -> None:
    for training in (True, False):
        model.train(training)
        state = torch.get_rng_state()
        sample(model, Bytes(), "A", max_new_tokens=5)
        assert model.training is training
        assert torch.equal(torch.get_rng_state(), state)


def test_ends_with_the_document(model: GPT) -> None:
    class EndsAtThird(Bytes):
        eod = list(continue_ids(model, [65], Bytes(), max_new_tokens=3, sampling=GREEDY))[2]

    got = list(continue_ids(model, [65], EndsAtThird(), max_new_tokens=20, sampling=GREEDY))
    assert EndsAtThird.eod not in got
    assert len(got) <= 2


def test_padding_rows_are_never_chosen(model: GPT) -> None:
    nn.init.zeros_(model.output_weight)
    with torch.no_grad():
        model.final_norm.bias.fill_(1)
        model.output_weight[95:] = 10.0
    hot = Sampling(temperature=5.0, top_p=1.0)
    assert max(continue_ids(model, [65], Bytes(), max_new_tokens=200, sampling=hot)) < 95


def test_nothing_to_continue_begins_a_document(model: GPT) -> None:
    got = sample(model, Bytes(), "", max_new_tokens=4, sampling=GREEDY)
    expected = continue_ids(model, [Bytes.eod], Bytes(), max_new_tokens=4, sampling=GREEDY)
    assert got == Bytes().decode(expected)


def test_pieces_never_split_a_character(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Ω→é€ and plain"

    def fixed(*args: object, **kwargs: object) -> Iterable[int]:
        return iter(text.encode())

    monkeypatch.setattr("neox_gpt.generation.generate.continue_ids", fixed)
    pieces = list(stream(model, Bytes(), "", max_new_tokens=99))
    assert "".join(pieces) == text
    assert not any(UNFINISHED in piece for piece in pieces)
    assert pieces[:3] == ["Ω", "→", "é"]


def test_a_cut_character_is_shown_as_such(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_gpt.generation.generate.continue_ids", lambda *args, **kwargs: iter("a€".encode()[:2]))
    assert list(stream(model, Bytes(), "", max_new_tokens=99)) == ["a", UNFINISHED]


def test_no_checkpoint_is_an_error(tmp_path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint here"):
        saved_run(tmp_path / "nothing", load_plugins())
