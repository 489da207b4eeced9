"""A Python of its own is the same to what runs in it, started from the beginning or as a fork."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from alone import LATER, make_python
from warm_start import Template, can_fork

PROBE = """
import importlib.util, json, os, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
sys.workers = ThreadPoolExecutor(1)
sys.workers.submit(int)  # and then waits, until Python tells it that all ends
print(json.dumps({
    "python": sys.executable, "prefix": sys.prefix, "words": sys.argv[1:], "folder": os.getcwd(), "nice": os.nice(0),
    "first": sys.path[0], "torch": importlib.util.find_spec("torch") is not None, "mine": os.environ["MINE"],
    "child": subprocess.run(
        [sys.executable, "-c", "import probe"], env={**os.environ, "CHILD": "1"}, capture_output=True, text=True
    ).stdout if "CHILD" not in os.environ else "",
    "command": subprocess.run(
        [sys.executable, "-P", "-m", "neox_core.cli.process", "probe_path", "0"],
        env={**os.environ, "PYTHONPATH": os.environ["MINE"]}, input="given", capture_output=True, text=True
    ).stdout if "CHILD" not in os.environ else "",
}))
sys.exit(3 if sys.argv[-1] == "fail" else 0)
"""


@pytest.mark.timeout(100)
@pytest.mark.parametrize("forked", [False, True])
def test_it_sees_its_own_and_the_libraries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, forked: bool
) -> None:
    if forked and not can_fork():
        pytest.skip("needs Linux and Python 3.11 or newer")
    shown, outside, mine = (tmp_path / each for each in ("shown", "outside", "mine"))
    monkeypatch.setenv("MINE", str(mine))
    for each in (shown, outside, mine):
        each.mkdir()
    (mine / "probe_path.py").write_text("import sys; print(sys.argv[1:], sys.executable, sys.path)")
    (shown / "probe.py").write_text(PROBE)
    alone = make_python(tmp_path / "python", [shown], Template("concurrent.futures.thread") if forked else None)
    alone.run("probe", "word", cwd=outside, behind=True)
    seen = json.loads(capsys.readouterr().out)
    child, command = json.loads(seen.pop("child")), seen.pop("command")
    assert seen == {
        "python": str(tmp_path / "python/bin/python"),
        "prefix": str(tmp_path / "python"),
        "words": ["word"],
        "folder": str(outside),
        "nice": os.nice(0) + LATER,
        "first": str(outside),
        "torch": True,
        "mine": str(mine),
    }
    assert command.startswith(f"['given'] {seen['python']} ['{mine}', ")
    assert str(outside) not in command
    assert (child["python"], child["prefix"]) == (seen["python"], seen["prefix"])
    with pytest.raises(subprocess.CalledProcessError) as failed:
        alone.run("probe", "fail", cwd=outside, behind=False)
    assert failed.value.returncode == 3
