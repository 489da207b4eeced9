"""Files of any age to one in today's spelling: comments, order, what moved, what has no place, and the same plan."""

import re
from pathlib import Path
from typing import Any

import pytest
from neox_gpt_neox.migrate import MARK, Migrated, migrate

from neox_core.config.report import ProblemsError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import to_json

REFERENCES = sorted((Path(__file__).parents[3] / "tests/data/gpt-neox").glob("*.yml"))


@pytest.fixture(scope="module")
def catalog() -> Any:
    return load_plugins()


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """The prefix of files that look like a dataset."""
    (tmp_path / "tokens.bin").write_bytes(b"")
    (tmp_path / "tokens.idx").write_bytes(b"MMIDIDX\x00\x00")
    return str(tmp_path / "tokens")


@pytest.fixture
def moved(tmp_path: Path, catalog: Any) -> Any:
    def _moved(*texts: str) -> Migrated:
        files = [tmp_path / f"{index}.yml" for index, _ in enumerate(texts)]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        return migrate(files, catalog)

    return _moved


def lines(text: str) -> list[str]:
    """The file without what `migrate` itself says in it."""
    return [line for line in text.splitlines() if not line.strip().startswith(MARK)]


BEFORE = """\
# The size of the model
{
  "num_layers": 2, # two

  # how it learns
  "lr": 0.1,
  "optimizer": {
    # not just any
    "type": "Adam", "params": {"eps": 1.0e-8}
  },
  "rms-norm": true, # by its old name
  "adam_beta1": 0.8,
  "zero_optimization": {"stage": 1, "cpu_offload": false, "overlap_comm": True},
  "fp16": {"fp16": true, "initial_loss_scale_power": 12},
  "train_micro_batch_size_per_gpu": 4,
  "checkpoint_factor": 7, # steps
  "DDP-impl": "local",
  "sede": 1,
}
# the end
"""
AFTER = """\
# The size of the model
num-layers: 2  # two

# how it learns
optimizer:
  params:
    lr: 0.1
    eps: 1.0e-8
    betas: [0.8, 0.999]
  # not just any
  type: "Adam"
norm: "rmsnorm"  # by its old name
zero_optimization:
  stage: 1
  overlap_comm: True
fp16:
  enabled: true
  initial_scale_power: 12
train_micro_batch_size_per_gpu: 4
save-interval: 7  # steps
# DDP-impl: "local" has no effect any more: DeepSpeed averages the gradients
sede: 1
# the end
"""


def test_keys_move_and_comments_and_order_stay(moved: Any) -> None:
    new = moved(BEFORE)
    assert lines(new.text) == AFTER.splitlines()
    assert f"{MARK}unknown key (did you mean seed?)\nsede: 1\n" in new.text
    said = {problem.key: problem.message for problem in new.problems if problem.severity == "note"}
    assert said["lr"] == "is the old spelling of optimizer.params.lr"
    assert said["checkpoint_factor"] == "is another name of save_interval"


def test_a_migrated_file_stays_as_it_is(moved: Any) -> None:
    once = moved(BEFORE).text
    assert moved(once).text == once


def test_several_files_become_one(moved: Any) -> None:
    new = moved(
        "# first\noptimizer: {type: Adam}  # which\nseed: 1\n",
        "# second\noptimizer:\n  params: {lr: 0.1}  # how fast\nseed: 1  # again\n# last\n",
    )
    assert lines(new.text) == [
        "# first",
        "optimizer:  # which",
        "  type: Adam",
        "",
        "  # from 1.yml",
        "  # second",
        "  params: {lr: 0.1}  # how fast",
        "seed: 1",
        "# again",
        "# last",
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a-list: [1,\n  2, # two\n  3]\n", ["# two", "a-list: [1, 2, 3]"]),
        ("monitors:\n  - console\n  # and\n  - jsonl\nseed: 1\n", ["# and", "monitors: [console, jsonl]", "seed: 1"]),
        ("save: &a 'x y'\nload: *a\nseed: 1\n", ['save: "x y"', 'load: "x y"', "seed: 1"]),
        ("save: |\n  text\nseed: 1\n", ['save: "text\\n"', "seed: 1"]),
        ("save: 'it''s # not a comment'  # one\n", ["save: 'it''s # not a comment'  # one"]),
        ("plugins: {}\n", ["plugins: {}"]),
        ("warmup:\n", ["warmup:"]),
        ("bfloat16:\n  # bits\n  enabled: true\n", ["bf16:", "  # bits", "  enabled: true"]),
        ("precision: bfloat16 # half\n", ["bf16:", "  enabled: true  # half"]),
        (
            "use_wandb: true  # send\nwandb_project: p\nwandb_team: us\nwandb_group: g\n",
            ["wandb:", "  enabled: true  # send", "  project: p", "  team: us", "  group: g"],
        ),
    ],
)
def test_shapes_of_values(moved: Any, before: str, after: list[str]) -> None:
    new = moved(before).text.replace('["console", "jsonl"]', "[console, jsonl]")
    assert lines(new) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# where\nvocab-file: v.json\n", ["# where", "vocab-file: v.json", 'tokenizer-type: "GPT2BPETokenizer"']),
        ("lr: 0.1\n", ["optimizer:", "  params:", "    lr: 0.1", '  type: "Adam"']),
        ("use_wandb: true\n", ["wandb:", "  enabled: true", '  project: "neox"']),
        ("tokenizer-type: HFTokenizer\nvocab-file: v\n", ["tokenizer-type: HFTokenizer", "vocab-file: v"]),
        ("lr: 0.1\nonebitadam: true\n", ["optimizer:", "  params:", "    lr: 0.1", '  type: "OneBitAdam"']),
        ("use_wandb: false\nseed: 1\n", ["seed: 1"]),
    ],
)
def test_what_gpt_neox_assumes_is_written(tmp_path: Path, catalog: Any, before: str, after: list[str]) -> None:
    file = tmp_path / "c.yml"
    for text in (before, "\n".join(after) + "\n"):
        file.write_text(text)
        assert lines(migrate([file], catalog).text) == after


def test_a_key_that_nothing_stands_for_stays_with_the_reason(moved: Any) -> None:
    new = moved("seed: 1\n# ours\nwandb_host: https://wandb.example.org\n")
    why = f"{MARK}cannot be 'https://wandb.example.org': the environment names the server (set WANDB_BASE_URL instead)"
    assert new.text == f"seed: 1\n# ours\n{why}\nwandb_host: https://wandb.example.org\n"
    assert moved(new.text).text == new.text


def test_contradictions_are_left_to_the_user(moved: Any) -> None:
    with pytest.raises(ProblemsError, match="differs from norm"):
        moved("norm: layernorm\nrms-norm: true\n")


def test_other_formats_are_refused(tmp_path: Path, catalog: Any) -> None:
    (tmp_path / "a.toml").write_text("seed = 1\n")
    with pytest.raises(ProblemsError, match="is not YAML"):
        migrate([tmp_path / "a.toml"], catalog)


def runnable(file: Path, folder: Path, catalog: Any, sets: list[str]) -> Path:
    """A copy of a file of GPT-NeoX without the lines that this version refuses."""
    lines = file.read_text().splitlines()
    lines = [line for line in lines if not re.match(r'\s*"(hostfile|tokenizer_type|load|vocab_file)"', line)]
    copy = folder / file.name
    while lines:
        copy.write_text("\n".join(lines) + "\n")
        try:
            prepare_run([copy], sets, catalog=catalog, machine=Machine(0, 4))
            return copy
        except ProblemsError as error:
            wrong = [each.where.split(":") for each in error.problems if each.severity == "error"]
            for number in sorted({int(where[1]) for where in wrong}, reverse=True):
                del lines[number - 1]
    raise AssertionError(f"{file} still has errors")


@pytest.mark.parametrize(
    "file", [each for each in REFERENCES if "num_layers" in each.read_text()], ids=lambda path: path.stem
)
def test_a_migrated_file_makes_the_same_plan(file: Path, tmp_path: Path, catalog: Any, dataset: str) -> None:
    sets = [f"data-path={dataset}", "padded-vocab-size=51200", "save=out"]
    (tmp_path / "new").mkdir()
    before = runnable(file, tmp_path, catalog, sets)
    after = tmp_path / "new" / file.name
    after.write_text(migrate([before], catalog).text)
    plans = [
        to_json(prepare_run([each], sets, catalog=catalog, machine=Machine(0, 4)).plan) for each in (before, after)
    ]
    assert plans[0] == plans[1]
    assert not [
        each
        for each in prepare_run([after], sets, catalog=catalog, machine=Machine(0, 4)).notes
        if "name of" in each.message or "spelling" in each.message
    ]


@pytest.mark.parametrize("file", REFERENCES, ids=lambda path: path.stem)
def test_every_comment_of_a_reference_file_is_kept(file: Path, catalog: Any) -> None:
    new = migrate([file], catalog).text
    comments = [line.partition("#")[2].strip() for line in file.read_text().splitlines() if "#" in line]
    missing = [comment for comment in comments if comment and comment not in new]
    assert missing == []


@pytest.mark.parametrize("file", REFERENCES, ids=lambda path: path.stem)
def test_migrating_a_reference_file_again_changes_nothing(file: Path, tmp_path: Path, catalog: Any) -> None:
    new = tmp_path / file.name
    new.write_text(migrate([file], catalog).text)
    assert migrate([new], catalog).text == new.read_text()
