"""Each key of the core and of all plugins changes what can be observed of a run of three steps on one rank.

Most keys are changed as tests/helpers/changed_keys.py changes them; tests/helpers/short_run_keys.py says how to see one
within so few steps, and tests/helpers/seen_elsewhere.py which tests see what such a run cannot show. The others are
noted or refused.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from attrs import frozen
from changed_keys import HOLDS, REFUSED, keys
from neox_author.testing import build, load_only
from neox_reference.keys import Key
from plan_answers import CPU, Sets, changed_fields, is_about
from seen_elsewhere import ELSEWHERE, WORDS, listed
from short_run_keys import REFUSED_BY, SAID, short_run_of

from neox_core.config.report import ProblemsError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import Resolved, prepare_run
from neox_core.plan.runfile import write_runfile

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[2]
BASE = """{
"device": "cpu", "num_gpus": 1, "engine": "plain", "num_workers": 0, "data_impl": "mmap", "peak_tflops": 1,
"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 16, "max_position_embeddings": 16,
"padded_vocab_size": 64, "hidden_dropout": 0.1, "optimizer": {"type": "Adam", "params": {"lr": 1e-2}},
"train_micro_batch_size_per_gpu": 2, "train_iters": 3, "save_interval": 3, "log_interval": 1,
"eval_interval": 2, "eval_iters": 1
}"""
GROUPS = ("section", "architecture", "optimizer", "model change", "scheduler", "others")
"""How kinds of keys begin that are run together: no group takes long."""
TERMINAL = "said.txt"
"""What a run writes to its terminal, where a busy machine may add a line."""
AGAIN, REHEARSAL = ("num_workers=0",), ("train_iters=3",)
PLACES = {"CheckpointPlan.save", "CheckpointPlan.load", "RunPlan.run_dir"}


@frozen
class Job:
    """A key, and the names of a run without its change and of one with it."""

    path: str
    before: str
    after: str


def make_data(folder: Path) -> None:
    """Two datasets of tokens, a text, and a tokenizer for it."""
    writer = load_only("neox-data-indexed").find("data backend", "mmap")
    draw = np.random.default_rng(0)
    for name, number in (("tokens", 200), ("more", 40)):
        tokens = writer.load()(build(writer)).create(folder / name, 64)
        for _ in range(number):
            tokens.add_document(draw.integers(0, 60, 20).tolist())
        tokens.close()
    lines = (json.dumps({"text": 12 * "a ab " + str(each), "body": 30 * "ab "}) + "\n" for each in range(200))
    (folder / "text.jsonl").write_text("".join(lines))
    make_vocabularies(folder)
    (folder / "base.json").write_text(BASE)


def make_vocabularies(folder: Path) -> None:
    """The files of each tokenizer, and others beside them, whose names begin with `other-`."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    for prefix, order in (("", 1), ("other-", -1)):
        words = tokenizers.Tokenizer(
            tokenizers.models.WordLevel(dict(zip(("a", "b", "c", "ab")[::order], range(4), strict=True)), "c")
        )
        words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        words.save(str(folder / f"{prefix}tokenizer.json"))
        (folder / f"{prefix}words.txt").write_text("\n".join([*special, *("a", "ab", "b", "##b")[::order], ""]))
        ids = [*letters[::order], "ab", "<|endoftext|>"]
        (folder / f"{prefix}vocab.json").write_text(json.dumps({each: at for at, each in enumerate(ids)}))
        (folder / f"{prefix}merges.txt").write_text("#version: 0.2\n" + "a b\n" * (order > 0))
        known = [*[bytes([each]) for each in range(256)][::order], b"ab"]
        ranks = (f"{b64encode(each).decode()} {at}\n" for at, each in enumerate(known))
        (folder / f"{prefix}ranks.tiktoken").write_text("".join(ranks))
    pieces = load_only("neox-tokenizers").registry.find("tokenizer", "SPMTokenizer").load()
    for prefix, text in (("", "a ab b "), ("other-", "b c bc a")):
        (folder / "pieces").mkdir(exist_ok=True)
        pieces.train(iter([text * 50]), 300, folder / "pieces")
        (folder / "pieces/tokenizer.model").replace(folder / f"{prefix}pieces.model")


@frozen
class Runs:
    """jobs: the keys to run. unanswered: those that are neither run, noted nor refused. files: of the plans.

    rehearsal: the file of the run that is not observed.
    """

    jobs: list[Job]
    unanswered: list[str]
    files: dict[str, str]
    rehearsal: str


def planned(folder: Path, some: Iterable[Key]) -> Runs:
    """The runs that show what some keys do."""
    catalog, runs = load_plugins(), dict[Sets, Resolved | ProblemsError]()

    def resolve(sets: Sets) -> Resolved | ProblemsError:
        if sets not in runs:
            data = () if any("data_path" in each for each in sets) else ("data_path={folder}/tokens", "split=80,10,10")
            last = {each.partition("=")[0]: each for each in (f"save={{folder}}/run{len(runs)}", *data, *sets)}
            texts = [each.replace("{folder}", str(folder)) for each in last.values()]
            try:
                runs[sets] = prepare_run(
                    [folder / "base.json"], texts, catalog=catalog, resume="auto", machine=CPU, start=False
                )
            except ProblemsError as error:
                runs[sets] = error
        return runs[sets]

    for sets in ((), AGAIN, REHEARSAL):
        resolve(sets)
    jobs, unanswered = list[tuple[str, Sets, Sets]](), list[str]()
    for key in some:
        name, (before, after) = f"{key.part}: {key.path}", short_run_of(key)
        one, other = resolve(before), resolve(after)
        if isinstance(one, ProblemsError):
            unanswered.append(f"{name}: {one}")
        elif isinstance(other, ProblemsError):
            about = any(is_about(each, key.path) for each in other.problems)
            if not about or key.path not in {*REFUSED, *HOLDS, *REFUSED_BY.get(key.part, ())}:
                unanswered.append(f"{name}: {other}")
        elif key.path in SAID or any(is_about(each, key.path) for each in other.notes if each not in one.notes):
            continue
        elif changed_fields(one.plan, other.plan) - PLACES or key.path in ("save", "load"):
            jobs.append((name, before, after))
        elif key.path not in HOLDS:
            unanswered.append(f"{name}: changes nothing")
    names = {sets: f"run{number}" for number, sets in enumerate(runs)}
    files = {names[REHEARSAL]: ""}
    wanted = {(), AGAIN, REHEARSAL, *(each for _, *both in jobs for each in both)}
    for sets, run in runs.items():
        if sets in wanted and not isinstance(run, ProblemsError):
            files[names[sets]] = str(folder / names[sets] / "run.json")
            write_runfile(run.plan, Path(files[names[sets]]))
    return Runs(
        [Job(name, names[before], names[after]) for name, before, after in jobs],
        unanswered,
        files,
        files[names[REHEARSAL]],
    )


def group_of(key: Key) -> str:
    return next((each for each in GROUPS if key.part.startswith(each)), GROUPS[-1])


def chosen() -> list[Key]:
    """Those that are to be run: of a retriever, which is two encoders, those that an encoder does not have."""
    encoder = {key.path for key in keys() if key.part == "architecture bert"}
    return [
        key for key in keys() if not listed(key) and (key.part != "architecture retriever" or key.path not in encoder)
    ]


@pytest.fixture(scope="module", params=GROUPS)
def seen(
    tmp_path_factory: pytest.TempPathFactory, start: Any, request: pytest.FixtureRequest
) -> tuple[Runs, dict[str, Any]]:
    """The runs of a group of keys, and what was observed of each."""
    folder = tmp_path_factory.mktemp("runs")
    make_data(folder)
    runs = planned(folder, (key for key in chosen() if group_of(key) == request.param))
    start("short_runs.py", folder, runs.files)
    observed = [name for name, file in runs.files.items() if file != runs.rehearsal]
    return runs, {name: json.loads((folder / f"{name}.json").read_text()) for name in observed}


def test_the_same_run_is_observed_to_be_the_same(seen: tuple[Runs, dict[str, Any]]) -> None:
    _, found = seen
    assert found["run0"]["ended"] == 0
    one, other = ({key: each for key, each in found[run].items() if key != TERMINAL} for run in ("run0", "run1"))
    assert one == other


def test_each_key_changes_what_is_observed(seen: tuple[Runs, dict[str, Any]]) -> None:
    runs, found = seen
    jobs = runs.jobs
    assert [job.path for job in jobs if found[job.before]["ended"] or found[job.after]["ended"]] == []
    assert [job.path for job in jobs if found[job.after] == found[job.before]] == []
    assert len(jobs) > 30


def test_a_key_that_is_not_run_is_answered(seen: tuple[Runs, dict[str, Any]]) -> None:
    assert seen[0].unanswered == []


@pytest.mark.parametrize("test", ELSEWHERE)
def test_the_test_of_a_key_names_it(test: str) -> None:
    text = (ROOT / test).read_text(encoding="utf-8")
    words = {key: WORDS.get(key, re.split("[. ]", key)[-1]) for key in ELSEWHERE[test]}
    assert [key for key, word in words.items() if not re.search(word.replace("_", "[-_]"), text)] == []
