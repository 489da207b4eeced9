"""docs/sparse-attention.md does what it says: its pictures are drawn, its plugin is installed and used."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from neox_gpt.api import LayoutShape
from neox_gpt.attention.draw_layouts import Drawing, in_text
from neox_sparse_attention.plugin import neox_sparse_layouts
from ruamel.yaml import YAML

from neox_core.hooks.component import load_path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/sparse-attention.md").read_text(encoding="utf-8")
PICTURES = dict(re.findall(r"^```text (\{.*?\})\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = dict(re.findall(r"^```console\n\$ neox (.*?)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
FILES = dict(re.findall(r"^`(neox_strided/\w+\.py)`:\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("settings", PICTURES)
def test_pictures(settings: str) -> None:
    said = dict(YAML(typ="safe").load(settings))
    mode = said.pop("mode")
    component = next(each for each in neox_sparse_layouts() if each.name == mode)
    chosen = component.settings(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in said.items()}
    )
    made = load_path(component.target)(LayoutShape(12, 1, seed=1234), chosen)
    _, *rows = in_text(Drawing([0], [0], mode, chosen.block, made[0]))
    assert rows == PICTURES[settings].splitlines()


def test_every_layout_has_its_picture() -> None:
    drawn = {YAML(typ="safe").load(settings)["mode"] for settings in PICTURES}
    assert drawn == {each.name for each in neox_sparse_layouts()} - {"dense"}


def test_what_the_commands_say_and_that_a_layout_takes_30_lines(tmp_path: Path) -> None:
    assert sum(len(text.splitlines()) for text in FILES.values()) <= 30
    (tmp_path / "neox_strided").mkdir()
    installed = tmp_path / "neox_strided-0.1.0.dist-info"
    installed.mkdir()
    for name, text in {**FILES, "neox_strided/__init__.py": ""}.items():
        (tmp_path / name).write_text(text)
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: neox-strided\nVersion: 0.1\nKeywords: neox-api-1\n"
    )
    (installed / "entry_points.txt").write_text("[neox.plugins]\nstrided = neox_strided.plugin\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    assert len(COMMANDS) == 2
    for command, wanted in COMMANDS.items():
        run = [sys.executable, "-m", "neox_core", *shlex.split(command)]
        done = subprocess.run(run, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout == wanted
