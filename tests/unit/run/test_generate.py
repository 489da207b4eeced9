"""Text from a model: what it is given, where it stops, and how ids become text."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch
from neox_activations.gelu import Gelu
from neox_gpt.api import PositionShape
from neox_gpt.generation.generate import continuations, sample, stream
from neox_gpt.generation.main import Job, generate
from neox_gpt.generation.prompts import Prompt, read_prompts
from neox_gpt.generation.rows import continue_ids
from neox_gpt.generation.sampling import Sampling
from neox_gpt.generation.text import UNFINISHED, Text
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

from neox_core.errors import CheckpointError, DataError
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
    monkeypatch.setattr("neox_gpt.generation.main.load_model", lambda *_: (model, Endless()))
    generate(Path("run"), None, Job(new, prompt="A" * prompt, device="cpu", sampling=GREEDY))
    captured = capsys.readouterr()
    assert captured.out.startswith("A" * prompt)
    *notes, speed = captured.err.splitlines()
    assert speed.startswith(f"note: {new} tokens in ")
    assert speed.endswith(" tokens/s")
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


def pieces(ids: Iterable[int], stops: Sequence[str] = ()) -> list[str]:
    text = Text(Bytes(), stops)
    return [*(text.add(token) for token in ids), text.end()]


def test_pieces_never_split_a_character() -> None:
    text = "Ω→é€ and plain"
    got = pieces(text.encode())
    assert "".join(got) == text
    assert not any(UNFINISHED in piece for piece in got)
    assert [piece for piece in got if piece][:3] == ["Ω", "→", "é"]


def test_a_cut_character_is_shown_as_such() -> None:
    assert pieces("a€".encode()[:2]) == ["a", "", UNFINISHED]


@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [
        ("one\n\ntwo", ["\n\n"], "one"),  # across two tokens: each byte is one
        ("one\ntwo", ["\n\n"], "one\ntwo"),  # what may have begun it comes later
        ("aab", ["ab"], "a"),  # the second a begins it, not the first
        ("abcabd", ["abd", "cab"], "ab"),  # the one that ends first
        ("€uro", ["€"], ""),
        ("xab", ["abc"], "xab"),  # never finished
        ("xab", ["b", "ab"], "x"),
        ("stop", ["stop"], ""),
    ],
)
def test_stop_strings(text: str, stops: list[str], kept: str) -> None:
    got = pieces(text.encode(), stops)
    assert "".join(got) == kept
    assert all(kept.startswith("".join(got[:end])) for end in range(len(got)))


def test_a_stop_string_ends_a_row_and_leaves_the_others(model: GPT) -> None:
    free = continuations(model, Bytes(), ["A(", "B"], max_new_tokens=12, sampling=GREEDY)
    stop = free[0].text[3:5]
    assert stop not in free[1].text
    got = continuations(model, Bytes(), ["A(", "B"], max_new_tokens=12, sampling=GREEDY, stops=[stop])
    assert [each.end for each in got] == ["stop", "length"]
    assert got[0].text == free[0].text.partition(stop)[0]
    assert got[0].num_tokens == len(got[0].text) + 2
    assert got[1] == free[1]
    assert "".join(stream(model, Bytes(), "A(", max_new_tokens=12, sampling=GREEDY, stops=[stop])) == got[0].text


PROMPTS = ["A(", "C", "X" * 31, "SOME WORDS HERE", "Y" * 32, "Z" * 47, "B"]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.0, top_p=0.9, min_p=0.01, repetition_penalty=1.2)])
@pytest.mark.parametrize("batch", [2, 7])
def test_batches_equal_single_prompts(model: GPT, sampling: Sampling, batch: int) -> None:
    """Also where the window of 32 positions is left, and where a prompt alone is longer than that."""
    asked = {"max_new_tokens": 40, "sampling": sampling}
    alone = [
        continuations(model, Endless(), [prompt], **asked, first=number)[0] for number, prompt in enumerate(PROMPTS)
    ]
    batches = [
        continuations(model, Endless(), PROMPTS[first : first + batch], **asked, first=first)
        for first in range(0, len(PROMPTS), batch)
    ]
    assert [each for some in batches for each in some] == alone
    assert len({each.text for each in alone}) == len(alone)
    assert {each.num_tokens for each in alone} == {40}


def test_a_row_that_ends_with_its_document_leaves_the_others(model: GPT) -> None:
    class EndsAtThird(Bytes):
        eod = list(continue_ids(model, [65], Bytes(), max_new_tokens=3, sampling=GREEDY))[2]

    alone = [
        continuations(model, EndsAtThird(), [prompt], max_new_tokens=20, sampling=GREEDY)[0] for prompt in ("A", "B(")
    ]
    assert alone[0].end == "document"
    assert alone[0].num_tokens <= 2
    assert continuations(model, EndsAtThird(), ["A", "B("], max_new_tokens=20, sampling=GREEDY) == alone


def test_lines_of_json(model: GPT, monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setattr("neox_gpt.generation.main.load_model", lambda *_: (model, Endless()))
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "A(", "id": "first"}\n{"prompt": "B\\u001b[2J"}\n')
    generate(Path("run"), None, Job(4, file=str(file), device="cpu", batch_size=1, sampling=GREEDY, as_json=True))
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [line["prompt"] for line in lines] == ["A(", "B\x1b[2J"]
    assert lines[0]["id"] == "first"
    assert "id" not in lines[1]
    assert "\x1b" not in captured.out
    assert [(line["end"], line["tokens"], line["prompt_tokens"]) for line in lines] == [
        ("length", 4, 2),
        ("length", 4, 5),
    ]
    alone = continuations(model, Endless(), ["A("], max_new_tokens=4, sampling=GREEDY)[0]
    assert lines[0]["text"] == alone.text


def test_prompts_of_a_text_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes("one {\n\nΩ\r\nlast".encode())
    assert read_prompts(file) == [Prompt("one {"), Prompt(""), Prompt("Ω"), Prompt("last")]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"", "0 lines"),
        ("a.txt", b"good\n\xff\n", "a.txt:2: is not UTF-8"),
        ("a.jsonl", b'{"prompt": "x"}\n{"prompt": 3}\n', "a.jsonl:2: its prompt is 3"),
        ("a.jsonl", b'{"prompt": "x"}\n\n', "a.jsonl:2: cannot be read"),
        ("a.jsonl", b'["x"]', "a.jsonl:1: not a JSON object"),
        ("a.jsonl", b'{"text": "x"}', "a.jsonl:1: has the unknown key 'text'"),
        ("a.jsonl", b'{"id": 1}', "a.jsonl:1: has no key 'prompt'"),
        ("a.jsonl", b'{"prompt": "x", "id": [1]}', "a.jsonl:1: its id is [1]"),
        ("a.jsonl", b'{"prompt": "\\ud800"}', "a.jsonl:1: cannot be read: it has half a surrogate pair"),
        ("a.jsonl", b'{"prompt": ' + b"[" * 100_000, "a.jsonl:1: cannot be read"),
        ("a.jsonl", b'{"\\u001b[2J": ""}', "a.jsonl:1: has the unknown key"),
    ],
)
def test_a_file_of_prompts_that_is_wrong(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_prompts(file)
    assert said in error.value.message
    assert "\x1b" not in error.value.message


def test_a_file_of_prompts_that_is_too_large_or_none(tmp_path: Path) -> None:
    large = tmp_path / "large.txt"
    with large.open("wb") as file:
        file.truncate(65 << 20)
    many = tmp_path / "many.txt"
    many.write_bytes(b"\n" * 1_000_001)
    with pytest.raises(DataError, match="large"):
        read_prompts(large)
    with pytest.raises(DataError, match="lines"):
        read_prompts(many)
    with pytest.raises(DataError, match="cannot be read"):
        read_prompts(tmp_path / "missing.txt")


def test_no_checkpoint_is_an_error(tmp_path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint here"):
        saved_run(tmp_path / "nothing", load_plugins())
