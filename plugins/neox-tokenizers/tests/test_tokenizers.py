import json
import lzma
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from neox_author.testing import assert_light, build, check_tokenizer, load_only
from neox_tokenizers.bpe import GPT2BPETokenizer
from tokenizers import Tokenizer

from neox_core.errors import ConfigError, DataError

REFERENCE = Path(__file__).parent / "data" / "gpt2.json.xz"
HARD = [
    "",
    " ",
    "Hello, world! It's we'll they've I'd you're I'm 1234567890",
    "def f(x):\n\treturn  x ** 2    # comment\r\n\n\n",
    "\U0001f9d1\u200d\U0001f680 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea",
    "\u6f22\u5b57\u4eee\u540d\u4ea4\u3058\u308a \ud55c\uad6d\uc5b4",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea",
    "".join(chr(code) for code in range(0x100)),
    "a" + " " * 300 + "b" + "\t" * 50 + "\n" * 50 + " \u00a0\u2003\u3000 ",
    "e\u0301 \u00e9 \ufb01 \u1e9e \u0130 \ufeff \ufffd \U0010ffff",
    "x" * 5000,
    "snake_case CamelCase __dunder__ 0xDEADBEEF 1e-5 http://a.b/c?d=e&f=%20#g",
    "<|endoftex",
    "endoftext|>",
]
ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=200)


@pytest.fixture(scope="session")
def gpt2_files(tmp_path_factory) -> dict[str, Path]:
    """GPT-2's files, written from the library's own format."""
    folder = tmp_path_factory.mktemp("gpt2")
    raw = lzma.decompress(REFERENCE.read_bytes())
    model = json.loads(raw)["model"]
    (folder / "tokenizer.json").write_bytes(raw)
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(model["merges"]) + "\n")
    return {name: folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt")}


@pytest.fixture(scope="session")
def reference(gpt2_files) -> Tokenizer:
    return Tokenizer.from_file(str(gpt2_files["tokenizer.json"]))


@pytest.fixture(scope="session")
def gpt2(gpt2_files):
    return make(vocab_file=str(gpt2_files["vocab.json"]), merge_file=str(gpt2_files["merges.txt"]))


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return make(**{field: str(folder / name) for field, name in train(folder).items()})


def make(name: str = "GPT2BPETokenizer", **values):
    entry = load_only("neox-tokenizers").registry.find("tokenizer", name)
    return entry.load()(build(entry, **values))


def train(folder: Path, vocab_size: int = 400) -> dict[str, str]:
    return GPT2BPETokenizer.train(iter([Path(__file__).read_text(), "\u6f22\u5b57" * 9]), vocab_size, folder)


def test_listing_is_light():
    assert_light("neox-tokenizers")


def test_gpt2_has_its_known_ids(gpt2):
    assert gpt2.encode("Hello world") == [15496, 995]
    assert (gpt2.vocab_size, gpt2.eod) == (50257, 50256)
    assert gpt2.decode([50256]) == "<|endoftext|>"


@pytest.mark.parametrize("text", HARD)
def test_ids_are_those_of_the_reference(gpt2, reference, text):
    assert gpt2.encode(text) == reference.encode(text).ids
    assert gpt2.decode(gpt2.encode(text)) == text


@pytest.fixture(scope="session")
def of_openai(gpt2_files):
    """GPT-2's encoding as OpenAI's own library has it: its pattern, and merges in the order of the ids."""
    vocab = json.loads(gpt2_files["vocab.json"].read_text())
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # bytes that stand for themselves
    hidden = [byte for byte in range(256) if byte not in shown]
    byte_of = {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(hidden)}
    ranks = {bytes(byte_of[c] for c in token): number for token, number in vocab.items() if token != "<|endoftext|>"}
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})


@pytest.mark.parametrize("text", HARD, ids=range(len(HARD)))
def test_ids_are_those_of_gpt2_itself(gpt2, of_openai, text):
    assert gpt2.encode(text) == of_openai.encode_ordinary(text)
    assert of_openai.decode(gpt2.encode(text)) == text


@given(text=ANY_TEXT)
@settings(max_examples=300, deadline=None)
def test_ids_of_any_text_are_those_of_the_reference(gpt2, reference, text):
    if "<|endoftext|>" not in text:
        assert gpt2.encode(text) == reference.encode(text).ids


@given(text=ANY_TEXT)
@settings(max_examples=300, deadline=None)
def test_any_text_comes_back(trained, text):
    ids = trained.encode(text)
    assert trained.decode(ids) == text
    assert all(0 <= token < trained.vocab_size for token in ids)


def test_a_batch_is_its_texts(gpt2):
    assert gpt2.encode_batch(HARD) == [gpt2.encode(text) for text in HARD]


def test_no_text_ends_a_document(gpt2, trained):
    text = "a<|endoftext|>b"
    for tokenizer in (gpt2, trained):
        assert tokenizer.eod not in tokenizer.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_older_name_is_the_same(gpt2, gpt2_files):
    older = make("GPT2Tokenizer", vocab_file=str(gpt2_files["vocab.json"]), merge_file=str(gpt2_files["merges.txt"]))
    assert older.encode_batch(HARD) == gpt2.encode_batch(HARD)


def test_training_gives_the_size_asked_for_and_the_same_files_each_time(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        assert train(folder) == {"vocab_file": "vocab.json", "merge_file": "merges.txt"}
    assert len(json.loads((folders[0] / "vocab.json").read_text())) == 400
    for name in ("vocab.json", "merges.txt"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def test_training_joins_the_most_frequent_pairs_first(tmp_path):
    GPT2BPETokenizer.train(iter(["xy xy xy", "xy zq"]), 259, tmp_path)  # counted by hand: x y 4, Ġ x 2
    assert (tmp_path / "merges.txt").read_text().splitlines()[1:] == ["x y", "Ġ xy"]


def test_a_vocabulary_smaller_than_its_bytes_is_refused(tmp_path):
    with pytest.raises(DataError, match="at least 257 tokens, not 256"):
        train(tmp_path, 256)


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(DataError, match="none: cannot be written: No such file"):
        train(tmp_path / "none", 257)


def test_missing_settings_are_named():
    with pytest.raises(ConfigError, match=r"(?s)vocab.file.*merge.file"):
        make()


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("vocab.json", None, r"vocab\.json: no such file \(vocab-file\)"),
        ("merges.txt", None, r"merges\.txt: no such file \(merge-file\)"),
        ("vocab.json", "{", "are not the vocabulary and merges of a BPE"),
        ("vocab.json", "[1]", "are not the vocabulary and merges of a BPE"),
        (
            "vocab.json",
            '{"a": 0, "<|endoftext|>": 1}',
            "are not the vocabulary and merges|is not a byte-level vocabulary",
        ),
        ("merges.txt", "a b c d\n", "are not the vocabulary and merges of a BPE"),
        ("merges.txt", "a zzzz\n", "are not the vocabulary and merges of a BPE"),
    ],
)
def test_broken_files_are_one_error(tmp_path, file, content, says):
    train(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(DataError, match=says) as raised:
        make(vocab_file=str(tmp_path / "vocab.json"), merge_file=str(tmp_path / "merges.txt"))
    assert str(tmp_path / file) in raised.value.message


def test_a_vocabulary_needs_an_end_of_document(tmp_path):
    train(tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    del vocabulary["<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(DataError, match=r"vocab\.json: has no <\|endoftext\|>"):
        make(vocab_file=str(tmp_path / "vocab.json"), merge_file=str(tmp_path / "merges.txt"))


def test_a_vocabulary_needs_every_byte(tmp_path):
    train(tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    del vocabulary["\u00ff"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(DataError, match=r"vocab\.json: is not a byte-level vocabulary: 1 of 256 bytes are missing"):
        make(vocab_file=str(tmp_path / "vocab.json"), merge_file=str(tmp_path / "merges.txt"))


def test_every_id_is_below_the_size_where_ids_have_gaps(tmp_path):
    train(tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    vocabulary["<|endoftext|>"] = 999
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = make(vocab_file=str(tmp_path / "vocab.json"), merge_file=str(tmp_path / "merges.txt"))
    assert (tokenizer.vocab_size, tokenizer.eod) == (1000, 999)


def test_two_tokens_of_one_id_are_refused(tmp_path):
    """Neither its text nor its tokenizer.json would come back."""
    train(tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    vocabulary["\u00ff"] = vocabulary["a"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(DataError, match=r"vocab\.json: several tokens have one id"):
        make(vocab_file=str(tmp_path / "vocab.json"), merge_file=str(tmp_path / "merges.txt"))


def test_any_tokenizer_json_is_read(gpt2_files, reference):
    tokenizer = make("HFTokenizer", vocab_file=str(gpt2_files["tokenizer.json"]))
    assert tokenizer.encode_batch(HARD) == [reference.encode(text).ids for text in HARD]
    assert (tokenizer.vocab_size, tokenizer.eod) == (50257, 50256)
    assert tokenizer.decode([*tokenizer.encode("end"), tokenizer.eod]) == "end<|endoftext|>"


def test_what_is_no_tokenizer_json_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json: is not a tokenizer\.json"):
        make("HFTokenizer", vocab_file=str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match="no such file"):
        make("HFTokenizer", vocab_file=str(tmp_path / "missing.json"))


@pytest.mark.parametrize("name", ["CharLevelTokenizer", "GPT2BPETokenizer"])
def test_the_contract(name):
    check_tokenizer(load_only("neox-tokenizers"), name)
