"""What is said of datasets, backends and tokenizers that cannot be read, or break their contracts."""

import json
import multiprocessing

import numpy as np
import pytest
from attrs import evolve
from json_data import SEQ, VOCAB, JsonBackend, JsonSource, make_plan, read

from neox_core.data.batches import build_tokenizer, open_split
from neox_core.data.records import edge_hash_of
from neox_core.data.sources import build_backend
from neox_core.errors import DataError, PluginError
from neox_core.plan.runfile import ComponentRef

ODD = {
    "files": (JsonBackend, {"files": lambda self, prefix: [str(prefix)]}),
    "sizes": (JsonSource, {"sizes": property(lambda self: [1.0], lambda self, sizes: None)}),
    "float sizes": (JsonSource, {"sizes": property(lambda self: np.ones(9), lambda self, sizes: None)}),
    "ids": (JsonSource, {"read": lambda self, *where: JsonSource.read(self, *where) + 0.5}),
    "list": (JsonSource, {"read": lambda self, *where: JsonSource.read(self, *where).tolist()}),
    "negative": (JsonSource, {"sizes": property(lambda self: np.array([3, -3, 3]), lambda self, sizes: None)}),
    "table": (JsonSource, {"read": lambda self, *where: JsonSource.read(self, *where)[None]}),
    "raises": (JsonSource, {"__init__": lambda self, prefix: {}["key"]}),
}


class OddBackend(JsonBackend):
    odd = ""

    def __init__(self, settings) -> None:
        base, methods = ODD[self.odd]
        made = type("Odd", (base,), methods)
        self.open = made if base is JsonSource else JsonSource
        self.files = JsonBackend.files.__get__(self) if base is JsonSource else methods["files"].__get__(self)


class Tokenizing(JsonBackend):
    def use(self, tokenizer, identity) -> None: ...


class NoWords:
    vocab_size, eod = None, 0

    def __init__(self, settings) -> None: ...

    def encode(self, text):
        return [0]

    def decode(self, ids):
        return ""


class Halves(NoWords):
    vocab_size = 9

    def encode_batch(self, texts):
        return [[0.5, 1.5] for _ in texts]


class Beyond(Halves):
    def encode_batch(self, texts):
        return [[2**32 + 1] for _ in texts]  # 1, if it were cut to 32 bits


class NoEnd(Halves):
    eod = property()  # raises AttributeError


class FarEnd(Halves):
    eod = 9


class NoDecoder(Halves):
    decode = None


class Words(Halves):
    vocab_size = 130

    def __init__(self, settings) -> None:
        self.settings = settings


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_id_outside_of_the_vocabulary_is_one_clear_error(prefix, num_workers):
    plan = make_plan(prefix, train_iters=100, num_workers=num_workers)
    texts = json.loads(prefix.read_text())
    place = next(i for i, text in enumerate(texts) if len(text) > 12)
    texts[place][11] = VOCAB
    broken = prefix.with_name("broken")
    broken.write_text(json.dumps(texts))
    with pytest.raises(DataError) as raised:
        read(evolve(plan, data=evolve(plan.data, prefix=str(broken))))
    assert raised.value.message == f"{broken}: document {place}, token 11: id 1000 is not among the model's 1000"
    assert raised.value.hint
    assert not multiprocessing.active_children(), "the reading processes are gone"


def test_without_data_path_there_is_one_clear_error():
    with pytest.raises(DataError, match="no dataset to read") as raised:
        read(make_plan(None))
    assert "data-path" in raised.value.hint


def test_a_file_that_is_not_the_one_that_was_prepared_is_one_clear_error(prefix, tmp_path):
    path = tmp_path / prefix.name
    path.write_bytes(prefix.read_bytes())
    (tmp_path / "prepared.json").write_text(json.dumps({"edges": {prefix.name: edge_hash_of(path)}}))
    assert len(read(make_plan(path))) == 10
    texts = json.loads(path.read_text())
    path.write_text(json.dumps(texts[:2] + texts[3:1:-1] + texts[4:]))  # of the same length
    assert path.stat().st_size == prefix.stat().st_size
    with pytest.raises(DataError, match="tokens: is not the file that was prepared") as raised:
        read(make_plan(path))
    assert "prepared.json" in raised.value.hint


def test_a_split_without_documents_is_one_clear_error(prefix):
    with pytest.raises(DataError, match=r"none of its 20 documents is for test \(split 0.8, 0.2, 0\)") as raised:
        read(make_plan(prefix), "test")
    assert "give test a share in split" in raised.value.hint
    with pytest.raises(DataError, match="none of its 20 documents is for valid") as raised:
        read(make_plan(prefix, split=(0.99, 0.01, 0.0)), "valid")
    assert "larger share" in raised.value.hint


def test_documents_without_tokens_are_one_clear_error(tmp_path):
    (tmp_path / "empty").write_text("[[], [], [1, 2]]")
    with pytest.raises(DataError, match="the 2 documents for train hold no token"):
        read(make_plan(tmp_path / "empty", split=(0.67, 0.33, 0.0)))


def test_the_tokenizer_is_built_from_the_plan(prefix):
    plan = make_plan(prefix)
    assert build_tokenizer(plan) is None
    words = ComponentRef("tokenizer", "words", "test", "0", f"{__name__}:Words")
    assert isinstance(build_tokenizer(evolve(plan, data=evolve(plan.data, tokenizer=words))), Words)


def test_the_vocabulary_comes_from_the_tokenizer_where_the_plan_has_no_size(prefix):
    plan = make_plan(prefix)
    words = ComponentRef("tokenizer", "words", "test", "0", f"{__name__}:Words")
    plan = evolve(plan, data=evolve(plan.data, tokenizer=words), model=evolve(plan.model, padded_vocab_size=None))
    with pytest.raises(DataError, match="is not among the model's 256"):
        read(plan)


@pytest.mark.parametrize(
    ("documents", "says"),
    [
        ([], "none of its 0 documents is for train"),
        ([[], []], "hold no token"),
    ],
)
def test_a_dataset_of_nothing_is_one_clear_error(tmp_path, documents, says):
    (tmp_path / "nothing").write_text(json.dumps(documents))
    with pytest.raises(DataError, match=says) as raised:
        read(make_plan(tmp_path / "nothing", split=(1.0, 0.0, 0.0)))
    assert raised.value.exit_code == 4
    assert raised.value.hint


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ("files", "files() gives ["),
        ("sizes", "`sizes` of its dataset is not an array of whole numbers"),
        ("float sizes", "`sizes` of its dataset is not an array of whole numbers"),
        ("ids", "does not hold ids of an integer type"),
        ("list", "does not hold ids of an integer type"),
        ("raises", "failed: KeyError: 'key'"),
        ("negative", "`sizes` of its dataset gives document 1 -3 tokens"),
        ("table", "read() of its dataset gives ids of the shape [1, 1], not [length]"),
    ],
)
def test_a_backend_that_breaks_its_contract_is_named(tmp_path, monkeypatch, odd, said):
    """Ids with a half would be cast without a word."""
    (tmp_path / "docs").write_text(json.dumps([[1, 2, 3]] * 9))
    plan = make_plan(tmp_path / "docs")
    monkeypatch.setattr(OddBackend, "odd", odd)
    reference = evolve(plan.data.backend, target=f"{__name__}:OddBackend")
    with pytest.raises(PluginError) as caught:
        open_split(evolve(plan, data=evolve(plan.data, backend=reference)), "train")
    assert caught.value.message.startswith("data backend test:json 0")
    assert said in caught.value.message


def test_a_document_that_ends_before_its_size_is_an_error(tmp_path, monkeypatch):
    """Else what was in memory before would be trained on."""
    (tmp_path / "docs").write_text(json.dumps([[1, 2, 3]] * 9))
    monkeypatch.setattr(JsonSource, "read", lambda self, *where: np.array([], dtype=np.int64))
    samples = open_split(make_plan(tmp_path / "docs"), "train")
    with pytest.raises(DataError, match="docs: sample 0: its documents are shorter than their sizes"):
        samples.read(0, np.zeros(SEQ + 1, dtype=np.int64))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NoWords", "its vocab_size is None"),
        ("Halves", "does not give a list of whole numbers"),
        ("Beyond", "does not give a list of whole numbers below its vocab_size"),
        ("NoEnd", "its eod, which ends a document, is None"),
        ("FarEnd", "its eod, .* is 9, not an id below its vocab_size 9"),
        ("NoDecoder", "it has no method decode"),
    ],
)
def test_a_tokenizer_that_breaks_its_contract_is_named(name, said):
    reference = ComponentRef("tokenizer", "odd", "neox-odd", "1.0", f"{__name__}:{name}")
    plan = make_plan(None)
    backend = evolve(plan.data.backend, target=f"{__name__}:Tokenizing")
    with pytest.raises(PluginError, match=f"tokenizer neox-odd:odd 1[.]0: .*{said}"):
        build_backend(evolve(plan.data, backend=backend, tokenizer=reference))
