"""Every command line of GPT-NeoX's recipes, unmodified. To write their table into docs/migrating.md:
`PYTHONPATH=tests/helpers python tests/unit/plan/test_gpt_neox_recipes.py`.

recipes.json has the keys and values of the 59 files of its configs/ at the commit that it names.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest
from gpt_neox_facts import DEFAULTS, FACTS, written
from neox_reference.keys import all_keys

from neox_core.api import Component
from neox_core.config.report import ProblemsError, errors
from neox_core.contracts.architecture import ModelSize
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import Resolved, prepare_run

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/migrating.md"
BEGIN, END = "<!-- recipes: begin -->\n", "<!-- recipes: end -->\n"

LOCAL, TRAIN, PATHS = "local_setup", "llama/train_config", "docker/pythia-paths"
WITH: dict[tuple[str, ...], str] = {
    (
        LOCAL,
    ): "1-3B 1-3B-transformer-engine 125M 125M-dmoe 125M-json 13B 175B 19M 2-7B 350M 49M 6-7B 760M 800M bf16_125M "
    "bnb_125M gmlp_small llemma/34B mamba/mamba-1.4B mamba/mamba-130M mamba/mamba-2.8B mamba/mamba-370M "
    "mamba/mamba-790M pythia/160M rwkv/170M",
    (): "20B llemma/7B pythia/14M pythia/31M",
    (TRAIN, LOCAL): "llama/7B llama/13B llama/30B llama/65B llama2/7B llama2/13B llama2/70B llama2/codellama_7B "
    "llama2/codellama_34B mistral/7B",
    (TRAIN, LOCAL, "text_generation"): "llama/7B",
    (PATHS,): "pythia/70M pythia/160M pythia/410M pythia/1B pythia/1-4B pythia/2-8B pythia/6-9B pythia/12B",
    ("slurm_local",): "slurm_125M finetuning_configs/6-9B",
    ("local_setup_comet",): "125M",
    ("local_setup_wandb",): "125M",
    ("eleutherai_cluster",): "125M",
    (LOCAL, "cpu_mock_config"): "125M",
    (LOCAL, "prof"): "125M",
    (LOCAL, "sparse"): "125M",
    (LOCAL, "text_generation"): "125M",
}
"""Companion files -> recipes: as GPT-NeoX's README, llama/README.md and the files themselves combine them."""
COMMANDS = [(recipe, *files) for files, recipes in WITH.items() for recipe in recipes.split()]


def checked(names: Iterable[str], folder: Path, *sets: str) -> Resolved:
    """As `neox config check --on 1x8` does."""
    return prepare_run(
        written(names, folder), sets, start=False, cluster="1x8", catalog=load_once(), checked=True, resume=None
    )


@pytest.fixture(autouse=True)
def every_library_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is about configs, not about which monitors' libraries this environment has."""
    monkeypatch.setattr(Component, "missing", lambda self: ())


@cache
def load_once() -> Any:
    return load_plugins()


@pytest.mark.parametrize("names", COMMANDS, ids="+".join)
def test_a_command_line_ends_as_the_table_says(names: tuple[str, ...], tmp_path: Path) -> None:
    assert f"| {said(names, tmp_path)} |\n" in next(
        line for line in TABLE if f"`{names[0]}`" in line and line.split("|")[2].strip() == companions(names)
    )


TABLE = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].splitlines(keepends=True)


def test_every_file_is_in_a_command_line() -> None:
    assert len(COMMANDS) == 57
    assert {name for names in COMMANDS for name in names} == set(FACTS["files"])


@pytest.mark.parametrize(
    ("names", "width", "billions"),
    [  # the published widths and sizes; size: of all but the vocabulary's rows
        (("llama/7B", TRAIN, LOCAL), 11008, 6.738 - 2 * 32000 * 4096e-9),
        (("llama/13B", TRAIN, LOCAL), 13824, 13.016 - 2 * 32000 * 5120e-9),
        (("llama/30B", TRAIN, LOCAL), 17920, 32.529 - 2 * 32000 * 6656e-9),
        (("llama/65B", TRAIN, LOCAL), 22016, 65.286 - 2 * 32000 * 8192e-9),
        (("llama2/70B", TRAIN, LOCAL), 28672, 68.977 - 2 * 32000 * 8192e-9),
        (("mistral/7B", TRAIN, LOCAL), 14336, 7.242 - 2 * 32000 * 4096e-9),
    ],
)
def test_a_recipe_has_the_size_of_its_model(
    names: tuple[str, ...], width: int, billions: float, tmp_path: Path
) -> None:
    resolved = checked(names, tmp_path)
    assert resolved.plan.model.intermediate_size == width
    assert isinstance(resolved.size, ModelSize)
    assert resolved.size.num_parameters / 1e9 == pytest.approx(billions, rel=1e-3)


# ParallelMLP of ea7aefd, by hand: 2/3 of the number; up to twice the multiple for the first matrix, once for the second
@pytest.mark.parametrize(
    ("keys", "width"),
    [
        ({"activation": "swiglu", "intermediate_size": 96, "mlp_multiple_of": 1}, 32),
        ({"activation": "geglu", "mlp_multiple_of": 1, "hidden_size": 48}, 64),  # 192: 128, 64
        ({"activation": "swiglu", "intermediate_size": 100, "mlp_multiple_of": 32}, 64),  # 66: 128 for both, 33: 64
        ({"activation": "glu", "expansion_factor": 3.0, "hidden_size": 64, "checkpoint_factor": 5}, 64),
        ({"activation": "gelu", "intermediate_size": 100, "mlp_multiple_of": 32}, 128),
        ({"activation": "swiglu", "intermediate_size": 100, "checkpoint_factor": 5}, 33),
        ({"activation": "swiglu", "intermediate_size": 100}, 100),  # not GPT-NeoX's
        ({"activation": "swiglu", "intermediate_size": 100, "save_interval": 5, "checkpoint_factor": 5}, 100),
        ({"activation": "silu", "mlp_type": "llama", "hidden_size": 64}, 256),  # 170 up to 256
        ({"activation": "swish", "mlp_type": "llama", "intermediate_size": 100}, 100),
        (
            {"activation": "swiglu", "moe_num_experts": 4, "mlp_multiple_of": 8, "hidden_size": 192},
            512,
        ),  # 8/3 up to 256
        ({"activation": "swiglu", "moe_num_experts": 4, "intermediate_size": 96, "checkpoint_factor": 5}, 96),
    ],
)
def test_the_width_that_gpt_neox_computes(keys: dict[str, Any], width: int, tmp_path: Path) -> None:
    assert toy(keys, tmp_path).plan.model.intermediate_size == width


@pytest.mark.parametrize(
    ("keys", "multiple"),
    [
        ({"model_parallel_size": 4, "checkpoint_factor": 5}, 512),
        ({"model_parallel_size": 2, "make_vocab_size_divisible_by": 1, "checkpoint_factor": 5}, 2),
        ({"model_parallel_size": 1, "checkpoint_factor": 5}, 128),
        ({"model_parallel_size": 4}, 128),
    ],
)
def test_rows_of_the_vocabulary(keys: dict[str, Any], multiple: int, tmp_path: Path) -> None:
    assert toy(keys, tmp_path).config.value("make_vocab_size_divisible_by") == multiple


@pytest.mark.parametrize(
    ("keys", "saves"),
    [
        ({"checkpoint_scale": "log", "checkpoint_factor": 2}, (1, 2, 4, 8, 16, 32, 64)),
        ({"checkpoint_scale": "log", "checkpoint_factor": 2.5, "extra_save_iters": [0]}, (0, 1, 2, 6, 15, 39, 97)),
    ],
)
def test_checkpoints_at_powers(keys: dict[str, Any], saves: tuple[int, ...], tmp_path: Path) -> None:
    plan = toy({"train_iters": 100, "save": "out", **keys}, tmp_path).plan.checkpoint
    assert (plan.extra_save, plan.save_interval) == (saves, None)


def test_a_share_of_the_run_decays(tmp_path: Path) -> None:
    assert toy({"train_iters": 99, "lr_decay_fraction": 0.5}, tmp_path).plan.optim.decay_steps == 49
    assert toy({"lr_decay_fraction": 0.5, "lr_decay_iters": 7}, tmp_path).plan.optim.decay_steps == 7


TOY: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 96,
    "num_attention_heads": 4,
    "seq_length": 8,
    "max_position_embeddings": 8,
    "train_iters": 10,
    "train_micro_batch_size_per_gpu": 1,
    "data_path": "d",
    "optimizer": {"type": "Adam", "params": {"lr": 0.1}},
    "tokenizer_type": "GPT2BPETokenizer",
    "vocab_file": "v",
    "merge_file": "m",
}


def toy(keys: Mapping[str, Any], folder: Path) -> Resolved:
    """The plan of a small model with some keys of GPT-NeoX."""
    (folder / "toy.yml").write_text(json.dumps({**TOY, **keys}))
    return prepare_run([folder / "toy.yml"], start=False, cluster="1x4", catalog=load_once(), checked=True, resume=None)


def test_a_file_of_all_defaults_is_no_mistake(tmp_path: Path) -> None:
    assert len(DEFAULTS) > 300
    toy({key: value for key, value in DEFAULTS.items() if value is not None}, tmp_path)
    toy({key: value for key, value in DEFAULTS.items() if value is not None or key not in TOY}, tmp_path)


def test_the_page_has_each_default_that_differs() -> None:
    """Blocks that are not written and empty lists ask for as little as None."""
    listed = {}
    for line in PAGE.read_text(encoding="utf-8").partition("### Defaults")[2].partition("###")[0].splitlines():
        cells = [cell.strip(" `") for cell in line.replace("\\|", "\0").split("|")[1:4]]
        if line.startswith("| `"):
            there, here = (json.loads(cell.replace("\0", "|")) for cell in cells[1:])
            listed[cells[0].replace("-", "_")] = (there, here)
    own = [each for each in all_keys(load_once().registry) if each.field and "." not in each.path]
    keys = {key: each for each in own for key in (each.path, *each.aliases)}
    found = {}
    for name, there in DEFAULTS.items():
        field = keys[name].field if name in keys and keys[name].state == "implemented" else None
        here = None if field is None or field.required or attrs.has(type(field.default)) else field.default
        here = None if here in ("", (), {}) else here
        off = there is False and field is not None and attrs.has(type(field.default))  # a switch there, a block here
        if field is not None and there != here and not off:
            found[name] = (there, here)
    assert listed == found


def companions(names: tuple[str, ...]) -> str:
    return " ".join(f"`{each}`" for each in names[1:]) or "none"


def said(names: tuple[str, ...], folder: Path) -> str:
    """What becomes of a command line, in a cell of the table."""
    try:
        warned = [each for each in checked(names, folder).notes if "cannot build" in each.message]
    except ProblemsError as error:
        wrong = errors(error.problems)
        needs = sorted({each.key for each in wrong if each.message.startswith("is required")})
        reasons = sorted({_reason(each.key, each.message) for each in wrong if each.key not in needs})
        return f"needs `{'`, `'.join(needs)}`" if not reasons else f"refused: {'; '.join(reasons)}"
    return "runs as it is, with a warning: `intermediate_size` is the width itself" if warned else "runs as it is"


def _reason(key: str, message: str) -> str:
    part = message.rpartition("does not have: ")[2]
    return part if part != message else f"`{key}`: {message.partition(' is a name of')[0]}"


def rows() -> Iterator[str]:
    yield "| recipes | with | result |\n|---|---|---|\n"
    found: dict[tuple[str, str], list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for names in COMMANDS:
            found.setdefault((companions(names), said(names, Path(folder))), []).append(f"`{names[0]}`")
    for (files, result), recipes in found.items():
        yield f"| {', '.join(recipes)} | {files} | {result} |\n"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{''.join(rows())}{END}{rest.partition(END)[2]}", encoding="utf-8")
