"""A plugin for API 1, kept as it was before the model and the engine became plugins: it loads, and a run chooses it."""

import json
from pathlib import Path
from typing import Any

import tomli

LION = Path(__file__).parents[2] / "data" / "api-1" / "neox-example-lion"
OPTIMIZER = "ExampleLion, params: {lr: 3.0e-4, betas: [0.9, 0.95]}"


def test_a_plugin_for_api_1_loads_as_before(site: Any, prepare: Any, using: Any) -> None:
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
    prepare(site)
    using(site, OPTIMIZER, "lr-decay-style: linear\n")
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


def test_a_norm_for_api_1_loads_as_before(site: Any, prepare: Any, using: Any) -> None:
    """Its kind was the core's, and it depends on neox-core alone."""
    site.install("acme-norm", NORM, NORM_FILES)
    site.install_ours("neox-author")
    prepare(site)
    using(site, "Fine", "norm: acme\n")
    shown, checked = site.neox_each(["config", "show", "run.yml", "--json"], ["plugins", "check"])
    assert json.loads(shown["stdout"])["plan"]["model"]["norm"]["plugin"] == "acme-norm", shown["stderr"]
    assert "acme" not in checked["stdout"]
    done = site.python("-c", KIT)
    assert done.stdout == "['acme-norm:acme'] norm None {'weight': (3,)}\n", done.stderr


def test_a_norm_without_the_decoder_is_one_warning(site: Any, install: Any) -> None:
    site.install("acme-norm", NORM, NORM_FILES)
    install(site, "neox-fine", "Fine")
    done = site.neox("plugins", "list")
    (line,) = [line for line in done.stdout.splitlines() if "acme" in line]
    assert "broken\timplements neox_norms, a hook of neox-gpt, which is not installed" in line
    site.install_ours("neox-author")
    site.install_ours("neox-reference")
    checked = site.neox("plugins", "check")
    assert checked.returncode == 3
    assert "`pip install ./plugins/neox-gpt` in the repository of neox" in checked.stdout
