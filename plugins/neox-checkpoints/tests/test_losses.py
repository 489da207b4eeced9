"""The loss of an imported model is what GPT-NeoX's formulas give in float64, for every form of its model and files."""

from pathlib import Path

import pytest
import torch
from attrs import evolve
from gpt_neox_files import LENGTH, ROWS, Run, write_run
from gpt_neox_formula import loss_of
from neox_checkpoints.importing import import_checkpoint
from neox_checkpoints.neox.format import GPTNeoX
from neox_gpt.build import build_model

from neox_core.checkpoint.read import CheckpointReader
from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.resolve import prepare_run

PLAIN = Run("zero", "fp32", data=2, spread=0.5)
LLAMA = evolve(PLAIN, norm="rmsnorm", gated=True, biases=False, parallel=False)
MODELS = {
    **{
        positions: evolve(PLAIN, positions=positions)
        for positions in ("learned", "sinusoidal", "rotary", "alibi", "rpe")
    },
    "no positions, scalenorm": evolve(PLAIN, positions="none", norm="scalenorm"),
    "serial, half of a head rotary": evolve(PLAIN, parallel=False, config={"rotary_pct": 0.5}),
    "one norm": evolve(PLAIN, config={"gpt_j_tied": True}),
    "norms of queries and keys": evolve(PLAIN, qk_norm=True),
    "one key for all queries, biases": evolve(PLAIN, kv_heads=1, parallel=False),
    "grouped queries": evolve(LLAMA, kv_heads=2),
    "an epsilon that counts": evolve(LLAMA, config={"rms_norm_epsilon": 0.1}),
    "a gate with biases": evolve(PLAIN, gated=True, tied=True),
    **{name: evolve(LLAMA, config={"activation": name}) for name in ("geglu", "reglu", "bilinear", "glu")},
    **{name: evolve(PLAIN, config={"activation": name}) for name in ("relu", "softsign", "swish", "silu", "mish")},
}
FILES = {
    "tensor ranks": {"tensor": 2},
    "tensor ranks, two stages, tied": {"tensor": 2, "stages": 2, "tied": True},
    "no ZeRO, two stages": {"form": "adam", "stages": 2, "data": 1},
    "sequential, tensor ranks": {"sequential": True, "tensor": 2},
    "GPT-NeoX 1": {"form": "stage1", "older_names": True, "tensor": 2},
}


def loss(run: Run, folder: Path) -> tuple[float, float]:
    """Of one batch: here, and by the formulas."""
    made = write_run(folder / "theirs", run)["master"]
    catalog = load_plugins()
    final, found = import_checkpoint(folder / "theirs", folder / "ours", GPTNeoX(), catalog)
    reader = CheckpointReader(final)
    plan = prepare_run([folder / "ours/config.yml"], start=False, catalog=catalog).plan
    weights = {name: reader.tensor(reader.master_kind(name), name) for name in reader.shapes("weight")}
    context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), 0)
    model = build_model(plan.model, found.keys["padded-vocab-size"], context, weights).eval()
    tokens = torch.randint(ROWS, (3, LENGTH + 1), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        return model.loss(tokens[:, :-1], tokens[:, 1:]).item(), loss_of(run, made, tokens)


@pytest.mark.parametrize("name", MODELS)
def test_of_every_model(name: str, tmp_path: Path) -> None:
    ours, theirs = loss(MODELS[name], tmp_path)
    assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("files", FILES)
@pytest.mark.parametrize("model", ["learned", "alibi", "rotary", "grouped queries", "a gate with biases"])
def test_of_every_form_of_files(model: str, files: str, tmp_path: Path) -> None:
    ours, theirs = loss(evolve(MODELS[model], **FILES[files]), tmp_path)
    assert ours == pytest.approx(theirs, abs=1e-5)
