"""Two runs do not write one folder; a run that is gone, however it went, is in nobody's way."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from neox_core.checkpoint.lock import claim
from neox_core.errors import CheckpointError
from neox_core.parallel.groups import Groups

ALONE, CPU = Groups(world=None, data=None, data_rank=0, data_size=1), torch.device("cpu")
HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def test_a_folder_that_another_process_holds_is_refused_until_that_is_gone(tmp_path: Path) -> None:
    save = tmp_path / "save"
    save.mkdir()
    argv = [sys.executable, "-c", HOLD, str(save / ".lock")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(CheckpointError, match="save: another run is saving here"):
            claim(str(save), ALONE, CPU, patience_s=0)
        other.kill()
    claim(str(save), ALONE, CPU)
    with pytest.raises(CheckpointError, match="another run"):
        claim(str(save), ALONE, CPU, patience_s=0)


@pytest.mark.parametrize("name", ["save", "save/.lock"])
def test_a_place_that_cannot_be_written_is_refused_before_the_first_step(tmp_path: Path, name: str) -> None:
    if name == "save":
        (tmp_path / "save").write_text("")
    else:
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"save: cannot write the checkpoint: (File exists|Is a directory)"):
        claim(str(tmp_path / "save"), ALONE, CPU, patience_s=0)
    claim(None, ALONE, CPU)
