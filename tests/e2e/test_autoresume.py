"""Runs that ask a command whether to save and end: what it is told, its answers, and the run that resumes."""

import re
import stat

import pytest
from toy_runs import PLAIN, Run, make_toy

pytestmark = [pytest.mark.ranks, pytest.mark.deadline]

COMMAND = """#!/bin/sh
echo "$NEOX_AUTORESUME $NEOX_STEP $1" >> asked.txt
test "$NEOX_STEP" != 5 || exit 3
test "$NEOX_STEP" != 10 || sleep 60
test "$NEOX_STEP" != 15
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make_toy(tmp_path_factory.mktemp("toy"))


def command(folder, text):
    path = folder / "ask.sh"
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def sets(path):
    asks = (f'autoresume-command=["{path}", "a b; echo $HOME"]', "autoresume-timeout=2")
    return PLAIN, "log-interval=1", "adlr-autoresume=true", "adlr-autoresume-interval=5", *asks


def test_it_is_asked_at_the_interval_and_ends_two_ranks_with_a_checkpoint_that_resumes(toy, tmp_path):
    path = command(tmp_path, COMMAND)
    code, out, err = Run(toy, tmp_path, *sets(path)).end()
    assert code == 0, err
    stopped = int(re.search(r"stopped after step (\d+)", out)[1])
    assert stopped in (15, 16)
    asked = (tmp_path / "asked.txt").read_text().splitlines()
    words = "a b; echo $HOME"  # one argument: no shell has read it
    assert asked == [*(f"ask {step} {words}" for step in (5, 10, 15)), f"ended {stopped} {words}"]
    assert "exit status 3 at step 5, which is neither 0 nor 1: the run trains on" in out
    assert "gave no answer in 2 s at step 10 and was ended; the run trains on" in out
    assert out.count("asks to stop: autoresume-command asked for it at step 15") == 1
    assert (tmp_path / "save/latest").read_text().split()[0] == f"step-{stopped:08d}"

    command(tmp_path, "#!/bin/sh\nexit 0\n")
    run = Run(toy, tmp_path, *sets(path), flags=("--resume", "auto"))
    assert run.end()[0] == 0
    resumed = run.losses()
    assert sorted(resumed) == [*range(1, 41)]

    (tmp_path / "whole").mkdir()
    whole = Run(toy, tmp_path / "whole", PLAIN, "log-interval=1")
    assert whole.end()[0] == 0
    assert resumed == whole.losses()


def test_a_command_that_does_not_start_ends_no_run(toy, tmp_path):
    code, out, err = Run(toy, tmp_path, *sets("/no\\u001b/such"), "train-iters=6").end()
    assert code == 0, err
    assert "autoresume-command (/no\\x1b/such): did not start at step 5: No such file" in out
