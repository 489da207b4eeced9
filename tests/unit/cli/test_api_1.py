"""A plugin for API 1, kept as it was before the model and the engine became plugins: it loads, and a run chooses it."""

import json
from pathlib import Path
from typing import Any

import tomli

LION = Path(__file__).parents[2] / "data" / "api-1" / "neox-example-lion"
OTHERS = """
from neox_core.api import Component, hookimpl

def offers(*names):
    return [Component(name, "math:floor") for name in names]

@hookimpl
def neox_lr_schedules():
    return offers("linear")

@hookimpl
def neox_norms():
    return offers("layernorm")

@hookimpl
def neox_positions():
    return offers("learned")

@hookimpl
def neox_activations():
    return offers("gelu")

@hookimpl
def neox_launchers():
    return offers("local")

@hookimpl
def neox_data_backends():
    return offers("mmap")

@hookimpl
def neox_monitors():
    return offers("console", "jsonl")
"""
CONFIG = """\
num-layers: 2
hidden-size: 64
num-attention-heads: 4
max-position-embeddings: 32
seq-length: 32
data-path: tokens
data-impl: mmap
padded-vocab-size: 256
train-iters: 100
train_micro_batch_size_per_gpu: 4
lr-decay-style: linear
optimizer: {type: ExampleLion, params: {lr: 3.0e-4, betas: [0.9, 0.95]}}
"""


def test_a_plugin_for_api_1_loads_as_before(site: Any) -> None:
    project = tomli.loads((LION / "pyproject.toml").read_text())["project"]
    package = LION / "neox_example_lion"
    site.install(
        project["name"],
        (package / "plugin.py").read_text(),
        {"neox_example_lion/optim.py": (package / "optim.py").read_text()},
        version=project["version"],
        keywords=",".join(project["keywords"]),
        entry_points=project["entry-points"]["neox.plugins"],
    )
    site.install("neox-others", OTHERS)
    site.install_ours("neox-gpt", "plugin.py", "contracts.py", "ops.py", "config")
    site.install_ours("neox-deepspeed", "plugin.py", "config")
    site.install_ours("neox-causal-lm", "plugin.py")
    (site.work / "run.yml").write_text(CONFIG)
    (site.work / "tokens.bin").write_bytes(b"")
    (site.work / "tokens.idx").write_bytes(b"MMIDIDX\x00\x00")
    listed, shown = site.neox_each(["plugins", "list"], ["config", "show", "run.yml", "--json"])
    assert "optimizer\tExampleLion\tneox-example-lion\t0.1.0\tok\t" in listed["stdout"]
    optimizer = json.loads(shown["stdout"])["plan"]["optim"]["optimizer"]
    assert (optimizer["plugin"], optimizer["version"]) == ("neox-example-lion", "0.1.0")
    assert optimizer["settings"] == {"betas": [0.9, 0.95], "lr": 3e-4, "weight_decay": 0.01}


NORM = """
from neox_core.api import Component, hookimpl

@hookimpl
def neox_norms():
    return [Component("acme", "acme_norm.norm:Acme", planner="acme_norm.plan:shapes")]
"""
NORM_FILES = {
    "acme_norm/plan.py": """
from neox_core.contracts import Norm, PositionShape
from neox_core.contracts.attention import LayoutShape
from neox_core.contracts.model import Activation, Position, ScoreBias

def shapes(dim, settings):
    return {"weight": (dim,)}
""",
    "acme_norm/norm.py": "from acme_norm.plan import shapes as Acme",
}
KIT = """
from neox_core.testing import assert_light, build, load_only
catalog = load_only("acme-norm")
entry = catalog.find("norm", "acme")
names = [each.qualified for each in catalog.registry.entries()]
print(names, entry.definition.key, build(entry), entry.load()(3, None))
assert_light("acme-norm")
"""


def test_a_norm_for_api_1_loads_as_before(site: Any) -> None:
    """Its kind was the core's, and it depends on neox-core alone."""
    site.install("acme-norm", NORM, NORM_FILES)
    site.install("neox-others", OTHERS)
    site.install_ours("neox-gpt", "plugin.py", "contracts.py", "ops.py", "config")
    site.install_ours("neox-deepspeed", "plugin.py", "config")
    site.install_ours("neox-causal-lm", "plugin.py")
    site.install_ours("neox-author")
    (site.work / "run.yml").write_text(CONFIG.replace("ExampleLion", "Fine") + "norm: acme\n")
    (site.work / "tokens.bin").write_bytes(b"")
    (site.work / "tokens.idx").write_bytes(b"MMIDIDX\x00\x00")
    site.install("neox-fine", FINE)
    shown, checked = site.neox_each(["config", "show", "run.yml", "--json"], ["plugins", "check"])
    assert json.loads(shown["stdout"])["plan"]["model"]["norm"]["plugin"] == "acme-norm", shown["stderr"]
    assert "acme" not in checked["stdout"]
    done = site.python("-c", KIT)
    assert done.stdout == "['acme-norm:acme'] norm None {'weight': (3,)}\n", done.stderr


def test_a_norm_without_the_decoder_is_one_warning(site: Any) -> None:
    site.install("acme-norm", NORM, NORM_FILES)
    site.install("neox-fine", FINE)
    done = site.neox("plugins", "list")
    (line,) = [line for line in done.stdout.splitlines() if "acme" in line]
    assert "broken\timplements neox_norms, a hook of neox-gpt, which is not installed" in line
    site.install_ours("neox-author")
    checked = site.neox("plugins", "check")
    assert checked.returncode == 3
    assert "`pip install ./plugins/neox-gpt` in the repository of neox" in checked.stdout


FINE = """
from attrs import frozen
from neox_core.api import Component, hookimpl, setting

@frozen
class Settings:
    lr: float = setting(0.1, help="Peak learning rate.")
    betas: tuple[float, float] = setting((0.9, 0.99), help="Betas.")

@hookimpl
def neox_optimizers():
    return [Component("Fine", "math:floor", Settings)]
"""
