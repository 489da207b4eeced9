"""What a checkpoint keeps of the samples of a run, and how the run goes on from it."""

import json

import numpy as np
import pytest
import torch
from attrs import evolve
from neox_author.testing.plans import example_plan

from neox_core.checkpoint.contents import BLOCKS, contents_of, other_contents
from neox_core.data.records import vocabulary_of
from neox_core.errors import CheckpointError, DataError
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import ComponentRef, DataSource
from neox_core.plan.stored.state import TrainState
from neox_core.run.samples import open_samples

ALONE = Groups(None, None, 0, 1)


class Source:
    def __init__(self, prefix):
        self._documents = json.loads(prefix.read_text())
        self.sizes = np.array([len(document) for document in self._documents], dtype=np.int32)
        self.dtype = np.dtype(np.int64)

    def read(self, document, offset=0, length=None):
        return np.array(self._documents[document][offset : None if length is None else offset + length])


class Stream:
    """The same documents, in their own order."""

    def __init__(self, prefix):
        self._documents = json.loads(prefix.read_text())
        self.identity = prefix.read_text()

    def documents(self, first, number, wanted):
        for index, ids in enumerate(self._documents):
            if index >= first[1] - 1 and wanted(index):
                yield 0, index + 1, index, np.array(ids, dtype=np.int32)


class Whole:
    def __init__(self, settings):
        self.open = Source

    def files(self, prefix):
        return (prefix,)


class Streamed(Whole):
    def __init__(self, settings):
        self.stream = Stream


@pytest.fixture(params=["Whole", "Streamed"])
def plan(request, tmp_path):
    path = tmp_path / "tokens"
    path.write_text(json.dumps([[index] * (index % 9 + 1) for index in range(50)]))
    backend = ComponentRef("data backend", request.param, "test", "0", f"{__name__}:{request.param}")
    plan = example_plan(tmp_path, ranks=(1,))
    data = evolve(plan.data, prefix=str(path), backend=backend, split=(0.8, 0.2, 0.0), num_workers=0)
    train = evolve(plan.train, train_iters=8, eval_iters=1, eval_interval=4)
    model = evolve(plan.model, seq_length=4, padded_vocab_size=128)
    objective = ComponentRef("objective", "causal-lm", "neox-causal-lm", "0", "neox_causal_lm.objective:CausalLM")
    return evolve(plan, data=data, train=train, model=model, objective=objective)


def open_at(plan, state):
    samples = open_samples(plan, ALONE, 128)
    samples.resume(state, None)
    return samples


def go(plan, state, steps):
    """The batches of some steps from `state` on, to which it is brought."""
    samples = open_at(plan, state)
    reader = samples.batches(state.step)
    seen = []
    for _ in range(steps):
        seen.append(torch.cat([next(reader) for _ in range(plan.batch.gradient_accumulation)]))
        state.step += 1
    assert steps == 0 or samples.trail(state.step)
    samples.note(state)
    return seen, samples.notes


def longer(plan, steps):
    return evolve(plan, train=evolve(plan.train, train_iters=steps))


def test_a_run_goes_on_with_the_samples_that_come_next(plan):
    whole_state = TrainState()
    whole, notes = go(plan, whole_state, 8)
    assert notes == []
    state = TrainState()
    seen = []
    for steps in (3, 0, 4, 1):
        more, _ = go(plan, state, steps)
        seen += more
    assert all(torch.equal(one, other) for one, other in zip(seen, whole, strict=True))
    assert state == whole_state
    assert state.data_hash


def test_a_run_that_is_made_longer_goes_on(plan):
    state = TrainState()
    first, _ = go(plan, state, 6)
    again, notes = go(longer(plan, 200), state, 194)
    assert len(again) == 194
    assert [note for note in notes if "train-iters" in note] == notes
    assert len(notes) == (plan.data.backend.name == "Whole")
    twice = TrainState(6, data_rounds=state.data_rounds[:1], data_position=None)
    assert torch.equal(go(longer(plan, 300), twice, 1)[0][0], again[0])
    once, _ = go(plan, TrainState(), 8)
    assert all(torch.equal(one, other) for one, other in zip(once, [*first, *again], strict=False))


@pytest.mark.parametrize("change", ["seq_length", "documents"])
def test_a_run_on_other_samples_stops(plan, change):
    state = TrainState()
    go(plan, state, 6)
    if change == "documents":
        with open(plan.data.prefix, "w") as file:  # noqa: PTH123
            json.dump([[index] * (index % 7 + 1) for index in range(50)], file)
    else:
        plan = evolve(plan, model=evolve(plan.model, seq_length=3))
    with pytest.raises(CheckpointError, match="its 6 steps used other samples than this run has there"):
        go(plan, state, 1)


@pytest.mark.parametrize("plan", ["Whole"], indirect=True)  # another text, or tokenizer, is an error to a stream
def test_datasets_and_a_tokenizer_with_other_contents_are_said(plan, tmp_path):
    """Documents of the same lengths are the same samples to `data_hash`; where the files lie does not matter."""
    documents = json.loads((tmp_path / "tokens").read_text())
    for name, more in (("tokens", 40), ("moved", 40), ("other", 41)):  # ids of two digits, so files of one length
        (tmp_path / name).write_text(json.dumps([[token + more for token in each] for each in documents]))
        (tmp_path / f"{name}.json").write_text(name)
    (tmp_path / "tokens.json").write_text("moved")

    def on(train, valid, vocab):
        sources = ((DataSource(str(tmp_path / name), 1.0),) for name in (train, valid))
        tokenizer = ComponentRef("tokenizer", "T", "t", "0", "t:T", None, {"vocab_file": str(tmp_path / vocab)})
        data = evolve(plan.data, prefix=None, train=next(sources), valid=next(sources), tokenizer=tokenizer)
        return longer(evolve(plan, data=data), 9)

    def notes_of(plan):
        return go(plan, evolve(state), 1)[1]

    state = TrainState()
    assert go(on("tokens", "tokens", "tokens.json"), state, 3)[1] == []
    assert notes_of(on("tokens", "tokens", "tokens.json")) == []
    assert notes_of(on("moved", "moved", "moved.json")) == []
    said = "other contents than when the checkpoint was written: "
    other = tmp_path / "other"
    assert notes_of(on("other", "moved", "moved.json")) == [f"{said}{other} (train)"]
    assert notes_of(on("tokens", "other", "other.json")) == [f"{said}{other} (valid), the tokenizer"]
    state.data_contents = {}  # of a checkpoint that does not tell
    assert notes_of(on("other", "moved", "moved.json")) == []


def test_another_validation_set_is_said_of_whatever_kind(plan, tmp_path):
    text = (tmp_path / "tokens").read_text()
    (tmp_path / "other").write_text(text.replace("7", "8"))
    (tmp_path / "moved").write_text(text)

    def on(valid):
        sources = ((DataSource(str(tmp_path / name), 1.0),) for name in ("tokens", valid))
        return evolve(plan, data=evolve(plan.data, prefix=None, train=next(sources), valid=next(sources)))

    state = TrainState()
    go(on("tokens"), state, 3)
    assert go(on("moved"), evolve(state), 1)[1] == []
    (note,) = go(on("other"), evolve(state), 1)[1]
    assert note == f"other contents than when the checkpoint was written: {tmp_path / 'other'} (valid)"


def test_what_is_noticed_of_files_of_one_length(tmp_path):
    """Tokens that were made anew; of a prepared dataset one token too, unless its manifest was left behind."""
    plan = evolve(example_plan(tmp_path).data, prefix="tokens")

    def contents(name, first=0, last=0, told=""):
        folder = tmp_path / name
        folder.mkdir()
        tokens = bytearray(4 * BLOCKS * 4096)
        tokens[first:last] = b"x" * (last - first)
        (folder / "tokens").write_bytes(tokens)
        if told:
            (folder / "prepared.json").write_text(json.dumps({"sha256": {"tokens": told}}))
        return contents_of(evolve(plan, prefix=str(folder / "tokens")), Whole(None))

    whole, other = contents("whole"), contents("other", 1_500_000, 1_600_000)
    prepared, anew = contents("prepared", told="a"), contents("anew", 1_500_000, 1_500_001, told="b")
    assert other_contents(whole, contents("moved"), plan) == []
    assert len(other_contents(whole, other, plan)) == 1
    assert len(other_contents(prepared, anew, plan)) == 1
    assert other_contents(prepared, whole, plan) == other_contents(whole, prepared, plan) == []


def test_a_vocabulary_is_known_by_its_files(tmp_path):
    """Also those of a folder, and a pattern that no path could be as long as is only a value."""

    def known(**settings):
        return vocabulary_of(ComponentRef("tokenizer", "T", "t", "0", "t:T", None, settings))

    for name, text in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(text)
        (tmp_path / name / "model.safetensors").write_text(name)
    for inside in ("", "tokenizer.json"):
        a, b, c = (known(vocab_file=str(tmp_path / name / inside)) for name in "abc")
        assert a == b != c
    assert known(pattern="x" * 400) != known(pattern="x" * 401)
    assert known(pattern="\0") != known(pattern="")


def test_a_split_without_documents_is_said_before_the_first_step(plan):
    plan = evolve(plan, data=evolve(plan.data, split=(1.0, 0.0, 0.0)))
    with pytest.raises(DataError, match=r"none of its .*documents is for valid"):
        open_samples(plan, ALONE, 128)


def test_an_evaluation_sees_the_same_each_time(plan):
    samples = open_at(plan, TrainState())
    first, second = (torch.cat(list(samples.valid("valid"))) for _ in range(2))
    assert torch.equal(first, second)


def test_a_run_makes_one_backend_and_opens_each_dataset_once(plan, monkeypatch):
    """Also one that is made longer, and whatever it evaluates."""
    plan = evolve(plan, data=evolve(plan.data, split=(0.6, 0.2, 0.2)))
    state = TrainState()
    go(plan, state, 4)
    backend, opened = globals()[plan.data.backend.name], Source if plan.data.backend.name == "Whole" else Stream
    made = []
    for cls in (backend, opened):
        monkeypatch.setattr(
            cls, "__init__", lambda self, of, init=cls.__init__: (made.append(type(self)), init(self, of))[1]
        )
    samples = open_at(longer(plan, 99), state)
    next(samples.batches(state.step))
    for split in ("valid", "valid", "test"):
        assert len(list(samples.valid(split))) == 1
    assert made == [backend, opened]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data_rounds": (10**12,)}, "the order of 1,000,000,000,000 samples takes .* GiB, and this machine has"),
        ({"data_rounds": (8, 10**30)}, "samples takes .* GiB"),
        ({"data_rounds": (9, 8)}, "0 samples are read, of an order of 9, 8"),
        (
            {"data_rounds": (8,), "step": 10**7, "consumed_samples": 10**7},
            "10000000 samples are read, of an order of 8",
        ),
    ],
)
def test_an_order_that_a_checkpoint_asks_for_is_bounded(plan, changes, says):
    if plan.data.backend.name != "Whole":
        return
    state = TrainState()
    for name, value in changes.items():
        object.__setattr__(state, name, value)  # past the checks of a state that is read
    with pytest.raises((CheckpointError, DataError), match=says):
        open_at(plan, state).batches(0)


@pytest.mark.parametrize(
    "changes",
    [
        {"taken": "ab"},
        {"taken": [1, 2]},
        {"places": []},
        {"places": [{"epoch": -1}]},
        {"places": [{"other": 1}]},
        {"places": 5},
        {"trail": "x"},
        {"step": 1e30},
        {"step": 5},
    ],
)
def test_a_place_in_the_texts_that_anybody_may_have_written_is_an_error(plan, changes):
    if plan.data.backend.name != "Streamed":
        return
    state = TrainState()
    go(plan, state, 3)
    state.data_position |= changes
    with pytest.raises(CheckpointError, match="position in the texts"):
        open_at(plan, state)
