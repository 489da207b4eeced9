"""docs/python.md is one session that does what it says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks

PAGE = (Path(__file__).resolve().parents[2] / "docs/python.md").read_text(encoding="utf-8")
WORDS = "zero one two three four five six seven eight nine ten eleven "


def test_the_page(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(WORDS * 2500)
    how = {
        "cwd": tmp_path,
        "capture_output": True,
        "text": True,
        "timeout": 240,
        "env": {**os.environ, "NO_COLOR": "1"},
    }
    for command in re.findall(r"^\$ neox (.*)$", PAGE, re.MULTILINE):
        done = subprocess.run([sys.executable, "-m", "neox_core", *shlex.split(command)], check=False, **how)
        assert done.returncode == 0, done.stderr
    session = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    done = subprocess.run([sys.executable, "-c", session], check=False, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checkpoints True" in done.stdout
    assert "on 2 cpu ranks" in done.stdout
    assert "hidden-size: 63 cannot be divided" in done.stdout
    assert "2 one two three" in done.stdout
