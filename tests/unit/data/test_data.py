import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from neox_author.testing.plans import example_plan
from neox_causal_lm.blend import build_blend
from neox_causal_lm.order import build_order
from neox_causal_lm.samples import INDEX_FOLDER
from neox_data.index import index_data

from neox_core.data.batches import build_batches, build_tokenizer, open_split
from neox_core.data.records import edge_hash_of
from neox_core.data.sample_hash import Trail
from neox_core.data.samples import rounds_of
from neox_core.data.sources import build_backend
from neox_core.errors import DataError, PluginError
from neox_core.plan.runfile import BatchPlan, ComponentRef, DataPlan, DataSource

SEQ = 6
VOCAB = 1000
READS: list[int] = []
CAUSAL_LM = ComponentRef("objective", "causal-lm", "neox-causal-lm", "0", "neox_causal_lm.objective:CausalLM")


class JsonSource:
    """Documents in a JSON file: a data backend that owes nothing to the real ones."""

    def __init__(self, prefix) -> None:
        self._documents = json.loads(prefix.read_text())
        self.sizes = np.array([len(document) for document in self._documents], dtype=np.int32)
        self.dtype = np.dtype(np.int64)

    def read(self, document, offset=0, length=None):
        READS.append(document)
        end = None if length is None else offset + length
        return np.array(self._documents[document][offset:end], dtype=np.int64)


class JsonBackend:
    def __init__(self, settings) -> None:
        self.open = JsonSource

    def files(self, prefix):
        return (prefix,)


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


def make_plan(prefix, *, layout=(2, 1, 1), train_iters=10, eval_iters=3, num_workers=0, split=(0.8, 0.2, 0.0)):
    """layout: micro-batch, accumulation, data-parallel ranks."""
    micro, accumulation, ranks = layout
    backend = ComponentRef("data backend", "json", "test", "0", f"{__name__}:JsonBackend")
    plan = example_plan(Path("runs"))
    return evolve(
        plan,
        objective=CAUSAL_LM,
        model=evolve(plan.model, seq_length=SEQ, padded_vocab_size=VOCAB, make_vocab_size_divisible_by=128),
        batch=BatchPlan(micro, accumulation, ranks, micro * accumulation * ranks),
        data=DataPlan(None if prefix is None else str(prefix), split, backend, None, num_workers),
        train=evolve(plan.train, train_iters=train_iters, eval_interval=5, eval_iters=eval_iters, seed=1234),
    )


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    rng = np.random.RandomState(0)
    documents = [rng.randint(0, VOCAB, size=rng.randint(1, 30)).tolist() for _ in range(20)]
    path = tmp_path_factory.mktemp("data") / "tokens"
    path.write_text(json.dumps(documents))
    return path


def read(plan, split="train", rank=0, first_step=0):
    return list(build_batches(plan, split, data_rank=rank, data_size=plan.batch.data_parallel, first_step=first_step))


def by_step(plan, first_step=0):
    """[steps, train_batch, seq + 1]: the samples of each step in global order, put together from all ranks."""
    ranks = [read(plan, rank=rank, first_step=first_step) for rank in range(plan.batch.data_parallel)]
    micro_batches = torch.cat([torch.cat(same_time) for same_time in zip(*ranks, strict=True)])
    return micro_batches.reshape(-1, plan.batch.train_batch, SEQ + 1)


def samples_by_hand(prefix, documents, num_samples):
    """Samples cut out of the stream that GPT-NeoX's index describes."""
    texts = json.loads(prefix.read_text())
    sizes = np.array([len(text) for text in texts])
    order = build_order(sizes, np.array(documents), SEQ, num_samples, 1234)
    stream = [token for document in order.documents for token in texts[document]]
    return torch.tensor([stream[s * SEQ : s * SEQ + SEQ + 1] for s in order.shuffle.astype(int)[:num_samples]])


def test_a_step_holds_the_samples_of_gpt_neox_order(prefix):
    plan = make_plan(prefix, layout=(2, 1, 1), train_iters=30)
    batches = read(plan)
    assert len(batches) == 30
    assert all(batch.shape == (2, SEQ + 1) and batch.dtype == torch.int64 for batch in batches)
    assert torch.equal(torch.cat(batches), samples_by_hand(prefix, range(16), 60))


@given(factors=st.permutations([2, 2, 3]), cut=st.tuples(st.integers(0, 3), st.integers(0, 3)), first=st.integers(0, 4))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_a_step_is_the_same_whatever_the_ranks_and_the_accumulation(prefix, factors, cut, first):
    a, b = sorted(cut)
    layout = tuple(int(np.prod(part)) for part in (factors[:a], factors[a:b], factors[b:]))
    expected = by_step(make_plan(prefix, layout=(12, 1, 1), train_iters=5))
    assert torch.equal(by_step(make_plan(prefix, layout=layout, train_iters=5), first), expected[first:])


def test_a_rank_takes_its_rows_of_each_micro_batch(prefix):
    plan = make_plan(prefix, layout=(2, 2, 3), train_iters=1)
    expected = samples_by_hand(prefix, range(16), 12)
    for rank in range(3):
        first, second = read(plan, rank=rank)
        assert torch.equal(first, expected[2 * rank : 2 * rank + 2])
        assert torch.equal(second, expected[6 + 2 * rank : 6 + 2 * rank + 2])


def test_resuming_reads_nothing_of_what_came_before(prefix):
    plan = make_plan(prefix, train_iters=2000, layout=(1, 1, 1))
    READS.clear()
    assert len(read(plan, first_step=1998)) == 2
    assert len(READS) <= 2 * (SEQ + 1)


def test_a_finished_run_has_no_more_batches(prefix):
    assert read(make_plan(prefix), first_step=10) == []


@pytest.mark.parametrize("num_workers", [1, 2])
def test_processes_that_read_ahead_change_nothing(prefix, num_workers):
    plan = make_plan(prefix, layout=(2, 2, 1), train_iters=20)
    ahead = evolve(plan, data=evolve(plan.data, num_workers=num_workers))
    for first_step in (0, 7):
        expected, batches = read(plan, first_step=first_step), read(ahead, first_step=first_step)
        assert len(batches) == len(expected)
        assert all(torch.equal(one, other) for one, other in zip(batches, expected, strict=True))


def test_reading_draws_nothing_from_the_generator_of_the_model(prefix):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    read(make_plan(prefix, num_workers=1))
    read(make_plan(prefix), "valid")
    assert torch.equal(torch.get_rng_state(), before)


def test_every_validation_sees_the_same_samples(prefix):
    plan = make_plan(prefix, layout=(2, 2, 1), eval_iters=3)
    first, second = read(plan, "valid"), read(plan, "valid")
    assert len(first) == 3, "one micro-batch an iteration"
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert torch.equal(torch.cat(first), samples_by_hand(prefix, range(16, 20), 12)[:6])


def test_another_seed_is_another_order(prefix):
    plan = make_plan(prefix, train_iters=30)
    other = evolve(plan, train=evolve(plan.train, seed=4321))
    assert not torch.equal(torch.cat(read(plan)), torch.cat(read(other)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_leaves_the_reading_to_the_rank(prefix, number):
    plan = make_plan(prefix, train_iters=200, num_workers=1)
    batches = build_batches(plan, "train", data_rank=0, data_size=1, first_step=0)
    seen = [next(batches)]
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, number)
    seen += batches
    assert len(seen) == 200


def test_a_rank_that_leaves_by_a_traceback_takes_its_processes_along(prefix):
    code = f"""
import multiprocessing, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_data import build_batches, make_plan
batches = build_batches(make_plan(Path(sys.argv[1]), num_workers=1), "train", data_rank=0, data_size=1, first_step=0)
next(batches)
print(multiprocessing.active_children()[0].pid, flush=True)
raise RuntimeError("in a step")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(prefix)], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "in a step" in done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


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


def test_a_reader_that_is_killed_is_one_clear_error(prefix, monkeypatch):
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)  # how often torch looks, 5 s
    batches = build_batches(
        make_plan(prefix, train_iters=5000, num_workers=1), "train", data_rank=0, data_size=1, first_step=0
    )
    next(batches)
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(DataError, match="a process that reads the data died") as raised:
        list(batches)
    assert "num-workers: 0" in raised.value.hint


def test_the_order_is_kept_beside_the_dataset_and_not_computed_again(prefix, monkeypatch):
    plan = make_plan(prefix, train_iters=37)
    expected = read(plan)
    monkeypatch.setattr("neox_causal_lm.samples.build_order", None)
    assert all(torch.equal(one, other) for one, other in zip(read(plan), expected, strict=True))
    samples = open_split(plan, "train")
    assert not samples.parts[0].order.samples.flags.owndata


def test_an_index_of_other_documents_is_never_used(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(json.dumps([[1] * 20, [2] * 30, [3] * 40, [4] * 9, [5] * 11]))
    plan = make_plan(path, split=(1.0, 0.0, 0.0))
    read(plan)
    path.write_text(json.dumps([[1] * 20, [2] * 31, [3] * 40, [4] * 9, [5] * 11]))  # one token more
    order = open_split(plan, "train").parts[0].order
    expected = build_order(np.array([20, 31, 40, 9, 11]), np.arange(5), SEQ, 20, 1234)
    assert np.array_equal(order.samples, expected.samples)
    for changed in (
        evolve(plan, train=evolve(plan.train, seed=5)),
        evolve(plan, model=evolve(plan.model, seq_length=SEQ + 1)),
        evolve(plan, train=evolve(plan.train, train_iters=100)),
        evolve(plan, data=evolve(plan.data, split=(0.8, 0.2, 0.0))),
    ):
        before = len(list((tmp_path / INDEX_FOLDER).iterdir()))
        open_split(changed, "train")
        assert len(list((tmp_path / INDEX_FOLDER).iterdir())) == before + 1


@pytest.fixture
def blended(tmp_path):
    """A plan that trains on three datasets, whose ids tell which it is."""
    sources = []
    for number, weight in enumerate((3.0, 1.0, 2.0)):
        path = tmp_path / f"set{number}"
        rng = np.random.RandomState(number)
        path.write_text(json.dumps([(100 * number + rng.randint(0, 100, size=17)).tolist() for _ in range(9)]))
        sources.append(DataSource(str(path), weight))
    plan = make_plan(None, layout=(2, 1, 1), train_iters=30)
    return evolve(plan, data=evolve(plan.data, train=tuple(sources), valid=tuple(sources[:1])))


def test_datasets_take_turns_by_their_weights(blended):
    batches = torch.cat(read(blended))
    assert (batches[:, 0] // 100).tolist() == build_blend([0.5, 1 / 6, 1 / 3], 60).turns.tolist()
    assert torch.equal(batches // 100, (batches // 100)[:, :1].expand(-1, SEQ + 1)), "a sample is of one dataset"
    for number, share in enumerate((0.5, 1 / 6, 1 / 3)):  # each in the order that it has alone
        texts = json.loads(Path(blended.data.train[number].prefix).read_text())
        order = build_order(np.full(9, 17), np.arange(9), SEQ, int(np.ceil(60 * share * 1.005)), 1234)
        stream = [token for document in order.documents for token in texts[document]]
        mine = batches[batches[:, 0] // 100 == number]
        expected = [stream[s * SEQ : s * SEQ + SEQ + 1] for s in order.shuffle.astype(int)[: len(mine)]]
        assert mine.tolist() == expected
    assert {int(token) // 100 for token in torch.cat(read(blended, "valid")).flatten()} == {0}


def test_weights_can_follow_from_the_numbers_of_documents(blended):
    texts = json.loads(Path(blended.data.train[1].prefix).read_text())
    Path(blended.data.train[1].prefix).write_text(json.dumps(texts * 9))
    plan = evolve(blended, data=evolve(blended.data, sampler_alpha=1.0))
    turns = (torch.cat(read(plan))[:, 0] // 100).tolist()
    shares = np.array([9 * 90, 81 * 18, 9 * 90]) / (9 * 90 * 2 + 81 * 18)  # p (1 - p), p = 9, 81 and 9 of 99
    assert turns == build_blend(shares.tolist(), 60).turns.tolist()


def test_a_split_that_no_dataset_is_named_for_is_one_clear_error(blended):
    with pytest.raises(DataError, match="no dataset for test") as raised:
        read(blended, "test")
    assert "test-data-paths" in raised.value.hint


def test_a_dataset_of_no_documents_cannot_be_blended(blended):
    Path(blended.data.train[1].prefix).write_text("[]")
    with pytest.raises(DataError, match="set1: has no documents"):
        read(blended)


@pytest.mark.parametrize("kind", ["one", "blended"])
def test_the_hash_of_a_run_says_which_samples_it_had(prefix, blended, kind, monkeypatch):
    plan = make_plan(prefix, layout=(2, 1, 1), train_iters=30) if kind == "one" else blended
    trail = Trail(open_split(plan, "train"), 2)
    hashes = [trail.at(step) for step in range(31)]
    assert len(set(hashes)) == 31
    assert all(0 <= each < 2**48 for each in hashes)
    for at_once in (1, 7, 1000):  # neither how many are looked up together nor which steps are asked for matters
        monkeypatch.setattr("neox_core.data.sample_hash.AT_ONCE", at_once)
        again = Trail(open_split(plan, "train"), 2)
        assert [again.at(step) for step in (30, 3, 11)] == [hashes[step] for step in (30, 3, 11)]
    other = Trail(open_split(evolve(plan, train=evolve(plan.train, seed=99)), "train"), 2)
    assert not {other.at(step) for step in range(1, 31)} & set(hashes)


class Changed:
    """Samples that are those of another run but for one."""

    def __init__(self, samples, index):
        self._samples, self._index = samples, index

    def identify(self, indices):
        who = self._samples.identify(indices)
        who[indices == self._index, 2] += 1
        return who


def test_the_hash_of_a_run_sees_every_step_before(prefix):
    samples = open_split(make_plan(prefix, layout=(2, 1, 1), train_iters=30), "train")
    hashes = {Trail(Changed(samples, index), 2).at(30) for index in range(60)} | {Trail(samples, 2).at(30)}
    assert len(hashes) == 61


@pytest.mark.parametrize("kind", ["one", "blended"])
def test_a_run_that_is_made_longer_keeps_its_order_and_goes_on(prefix, blended, kind):
    short = make_plan(prefix, layout=(2, 1, 1), train_iters=30) if kind == "one" else blended
    longer = evolve(short, train=evolve(short.train, train_iters=90))
    once, twice = rounds_of((), short), rounds_of(rounds_of((), short), longer)
    assert (once, twice) == ((60,), (60, 180))
    assert rounds_of(twice, short) == twice, "fewer iterations change nothing"
    first, whole = open_split(short, "train"), open_split(longer, "train", rounds=twice)
    same = np.arange(60)
    assert np.array_equal(whole.identify(same), first.identify(same))
    assert not np.array_equal(open_split(longer, "train").identify(same), first.identify(same)), (
        "a new run has another order"
    )
    for part in whole.parts:
        assert len(part.order.parts) == 2
        taken, documents = 0, len(set(part.order.parts[0].documents))
        for order in part.order.parts:  # each in whole epochs, all of whose samples are read before the next begins
            assert set(np.bincount(order.documents, minlength=documents)[list(set(order.documents))]) == {
                len(order.documents) // documents
            }
            starts = part.order.starts(np.arange(taken, taken + len(order)))
            assert sorted(map(tuple, starts)) == sorted(map(tuple, order.starts(np.arange(len(order)))))
            taken += len(order)
        assert not np.array_equal(part.order.parts[0].documents[:16], part.order.parts[1].documents[:16])
    batches = list(build_batches(longer, "train", data_rank=0, data_size=1, first_step=30, rounds=twice))
    assert len(batches) == 60
    alone = list(build_batches(short, "train", data_rank=0, data_size=1, first_step=29))
    again = next(build_batches(longer, "train", data_rank=0, data_size=1, first_step=29, rounds=twice))
    assert torch.equal(alone[0], again)


def test_how_often_the_data_is_read_is_known(prefix):
    tokens = sum(map(len, json.loads(prefix.read_text())[:16]))
    samples = open_split(make_plan(prefix, layout=(2, 1, 1), train_iters=30), "train")
    assert samples.epochs == [pytest.approx(60 * SEQ / tokens)]


def test_orders_can_be_made_before_a_run(blended, monkeypatch):
    lines = index_data(blended)
    assert [line.split(": ")[0] for line in lines] == ["train"] * 4 + ["valid"] * 2
    assert "train: 60 samples are wanted" in lines[3]
    monkeypatch.setattr("neox_causal_lm.samples.build_order", None)
    monkeypatch.setattr("neox_causal_lm.samples.build_blend", None)
    assert len(read(blended)) == 30


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


def test_a_document_longer_than_the_sequence_and_empty_ones_are_read_whole(tmp_path):
    (tmp_path / "long").write_text(json.dumps([[], list(range(100)), [], [500], []]))
    plan = make_plan(tmp_path / "long", train_iters=8, split=(1.0, 0.0, 0.0))  # 16 samples, 6 tokens each, of 101
    tokens = torch.cat(read(plan))[:, :-1].flatten().tolist()
    assert sorted(tokens) == sorted(set(tokens))
    assert len(tokens) == 96


def test_a_validation_that_needs_more_samples_than_there_are_reads_them_again(prefix):
    plan = make_plan(prefix, layout=(2, 1, 1), eval_iters=40)
    samples = open_split(plan, "valid")
    (epochs,) = samples.epochs
    assert epochs > 1
    assert len(samples) >= 80
    assert len(read(plan, "valid")) == 40


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
        ("NoEnd", "it has no eod, the id that ends a document"),
        ("FarEnd", "its eod is 9, not an id below its vocab_size 9"),
        ("NoDecoder", "it has no method decode"),
    ],
)
def test_a_tokenizer_that_breaks_its_contract_is_named(name, said):
    reference = ComponentRef("tokenizer", "odd", "neox-odd", "1.0", f"{__name__}:{name}")
    plan = make_plan(None)
    backend = evolve(plan.data.backend, target=f"{__name__}:Tokenizing")
    with pytest.raises(PluginError, match=f"tokenizer neox-odd:odd 1[.]0: .*{said}"):
        build_backend(evolve(plan.data, backend=backend, tokenizer=reference))
