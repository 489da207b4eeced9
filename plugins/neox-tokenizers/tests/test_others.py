"""SentencePiece, tiktoken, characters, and a folder with a tokenizer.json."""

import base64
import json
import lzma
from pathlib import Path

import pytest
import sentencepiece as spm
from hypothesis import given, settings
from hypothesis import strategies as st
from neox_author.testing import build, load_only
from tokenizers import Tokenizer

from neox_core.errors import DataError

REFERENCE = Path(__file__).parent / "data" / "gpt2.json.xz"
HARD = [
    "",
    " ",
    "caf\u00e9 \u6f22\u5b57 \U0001f9d1\u200d\U0001f680",
    "a  b\n\n\tc" + " " * 40,
    "x" * 3000,
    "\x01\x7f<|endoftext|>",
]


def make(name: str, **values):
    entry = load_only("neox-tokenizers").registry.find("tokenizer", name)
    return entry.load()(build(entry, **values) if entry.component.settings else None)


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory) -> Path:
    """A folder with GPT-2 as tokenizer.json and as .tiktoken file."""
    folder = tmp_path_factory.mktemp("gpt2")
    raw = lzma.decompress(REFERENCE.read_bytes())
    (folder / "tokenizer.json").write_bytes(raw)
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
    lines = [
        base64.b64encode(bytes(byte_of[letter] for letter in token)) + b" %d" % rank
        for token, rank in json.loads(raw)["model"]["vocab"].items()
        if token != "<|endoftext|>"
    ]
    (folder / "gpt2.tiktoken").write_bytes(b"\n".join(lines))
    return folder


def test_tiktoken_has_the_ids_of_gpt2(gpt2):
    tokenizer = make("TiktokenTokenizer", vocab_file=str(gpt2 / "gpt2.tiktoken"))
    reference = Tokenizer.from_file(str(gpt2 / "tokenizer.json"))
    assert (tokenizer.vocab_size, tokenizer.eod) == (50257, 50256)
    for text in HARD:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.eod not in tokenizer.encode(text)
        if "<|" not in text:
            assert tokenizer.encode(text) == reference.encode(text).ids
    assert tokenizer.encode_batch(HARD) == [tokenizer.encode(text) for text in HARD]
    assert tokenizer.decode([tokenizer.eod]) == "<|endoftext|>"


@pytest.mark.parametrize(
    ("content", "pattern", "says"),
    [
        (None, None, "no such file"),
        (b"!!! 1\n", None, "is not a .tiktoken file"),
        (b"YQ==\n", None, "is not a .tiktoken file"),
        (b"YQ== 0\n", None, "255 of 256 bytes are missing"),
        (b"".join(base64.b64encode(bytes([n])) + b" %d\n" % n for n in range(256)), "(", "tiktoken-pattern"),
    ],
)
def test_a_broken_tiktoken_file_is_one_error(tmp_path, content, pattern, says):
    if content is not None:
        (tmp_path / "x.tiktoken").write_bytes(content)
    with pytest.raises(DataError, match=says):
        make("TiktokenTokenizer", vocab_file=str(tmp_path / "x.tiktoken"), tiktoken_pattern=pattern)


@pytest.fixture(scope="session")
def pieces(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("spm")
    tokenizer = load_only("neox-tokenizers").registry.find("tokenizer", "SPMTokenizer").load()
    files = tokenizer.train(iter([Path(__file__).read_text(), Path(pytest.__file__).read_text()]), 400, folder)
    assert files == {"vocab_file": "tokenizer.model"}
    return folder / "tokenizer.model"


def test_sentencepiece_has_the_ids_of_the_library(pieces):
    tokenizer, reference = make("SPMTokenizer", vocab_file=str(pieces)), spm.SentencePieceProcessor(str(pieces))
    assert tokenizer.encode_batch(HARD) == [reference.encode(text) for text in HARD]
    assert (tokenizer.vocab_size, tokenizer.eod) == (reference.vocab_size(), reference.piece_to_id("</s>"))
    assert tokenizer.encode_batch([]) == []


def test_a_trained_sentencepiece_model_changes_no_text(pieces):
    tokenizer = make("SPMTokenizer", vocab_file=str(pieces))
    for text in HARD:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.eod not in tokenizer.encode(text)


def test_broken_sentencepiece_models_are_one_error(tmp_path):
    with pytest.raises(DataError, match=r"no such file \(vocab-file\)"):
        make("SPMTokenizer", vocab_file=str(tmp_path / "x.model"))
    (tmp_path / "x.model").write_bytes(b"no model")
    with pytest.raises(DataError, match=r"x\.model: is not a SentencePiece model"):
        make("SPMTokenizer", vocab_file=str(tmp_path / "x.model"))


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=100))
@settings(max_examples=200, deadline=None)
def test_characters_are_their_bytes(text):
    tokenizer = make_characters()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eod not in tokenizer.encode(text)


def make_characters():
    from neox_tokenizers.characters import CharLevelTokenizer

    return CharLevelTokenizer(None)


def test_characters_are_found_by_name():
    tokenizer = make("CharLevelTokenizer")
    assert (tokenizer.vocab_size, tokenizer.eod) == (512, 0)
    assert tokenizer.encode_batch(["a\u00e9", ""]) == [[97, 195, 169], []]
    assert tokenizer.decode([97, 195, 400]) == "a\ufffd"


def test_a_folder_and_another_end_of_document(gpt2):
    tokenizer = make("HFGPT2Tokenizer", vocab_file=str(gpt2), eod_token="!")
    assert tokenizer.eod == 0
    assert tokenizer.encode("Hello world") == [15496, 995]
    with pytest.raises(DataError, match="has no </s>, which ends a document"):
        make("HFTokenizer", vocab_file=str(gpt2), eod_token="</s>")
    with pytest.raises(DataError, match=r"tokenizer\.json: no such file"):
        make("HFTokenizer", vocab_file=str(gpt2.parent))
