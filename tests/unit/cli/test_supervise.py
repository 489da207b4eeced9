"""The host around a launcher process: signals, exit codes, and what is said of a failure."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from neox_core.cli.supervise import Supervisor, last_lines
from neox_core.contracts.host import LaunchCommand
from neox_core.errors import NeoxError, PluginError, RankError

ENDED = "import pathlib; pathlib.Path({!r}, '.unfinished').unlink();"
"""What the first rank does at its end."""


def run(tmp_path, script):
    return Supervisor(LaunchCommand((sys.executable, "-c", script)), tmp_path).run()


def test_a_launch_that_ends_well_is_0(tmp_path):
    assert run(tmp_path, ENDED.format(str(tmp_path))) == 0


def test_a_pipe_in_the_place_of_its_mark_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / ".unfinished")
    assert run(tmp_path, ENDED.format(str(tmp_path))) == 0


STOPPED = "import pathlib; pathlib.Path({!r}, '.unfinished').rename(pathlib.Path({!r}, '.stopped'));"
"""What the first rank does when a signal has ended the run before its last step."""


def test_a_run_that_a_signal_ended_early_is_130_whichever_process_got_it(tmp_path):
    assert run(tmp_path, STOPPED.format(str(tmp_path), str(tmp_path))) == 130
    assert run(tmp_path, ENDED.format(str(tmp_path))) == 0  # the same run, to its last step


def test_ranks_that_a_signal_ended_before_they_trained_are_130_whichever_process_got_it(tmp_path):
    (tmp_path / "report.json").write_text(json.dumps({"rank": 1, "exit_code": -15, "asked": True}))
    script = f"import os; os.chdir({str(tmp_path)!r}); os.rename('report.json', 'failure.json'); raise SystemExit(1)"
    assert run(tmp_path, script) == 130


def test_a_run_that_was_asked_at_its_last_step_is_0(tmp_path):
    host = Host(tmp_path, POLITE.replace("sys.exit(0)", ENDED.format(str(tmp_path)) + "sys.exit(0)"))
    host.process.send_signal(signal.SIGTERM)
    assert host.end()[0] == 0


def test_a_launcher_that_ends_well_before_a_rank_has_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("of an earlier run")
    supervisor = Supervisor(LaunchCommand((sys.executable, "-c", "")), tmp_path, "launcher neox-a:odd 1.0")
    with pytest.raises(PluginError, match=r"launcher neox-a:odd 1\.0 ended with exit code 0, but no rank") as caught:
        supervisor.run()
    assert sys.executable in caught.value.hint


def test_its_environment_is_added_to_the_hosts(tmp_path, monkeypatch):
    monkeypatch.setenv("THEIRS", "1")
    script = (
        ENDED.format(str(tmp_path))
        + "import os, sys; sys.exit(not (os.environ['THEIRS'] == '1' and os.environ['OURS'] == '2'))"
    )
    command = LaunchCommand((sys.executable, "-c", script), {"OURS": "2"})
    assert Supervisor(command, tmp_path).run() == 0


def test_a_launcher_that_fails_without_a_word_is_named(tmp_path):
    with pytest.raises(RankError, match="exit code 9") as caught:
        run(tmp_path, "raise SystemExit(9)")
    assert sys.executable in caught.value.hint


def test_a_launcher_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RankError, match="cannot start /nowhere/mpirun"):
        Supervisor(LaunchCommand(("/nowhere/mpirun",)), tmp_path).run()


def fail_with(tmp_path, **failure):
    (tmp_path / "report.json").write_text(json.dumps(failure))
    script = f"import os; os.chdir({str(tmp_path)!r}); os.rename('report.json', 'failure.json'); raise SystemExit(1)"
    with pytest.raises(NeoxError) as caught:
        run(tmp_path, script)
    return caught.value


def test_a_dead_rank_is_named_with_its_last_lines(tmp_path):
    log = tmp_path / "rank1.log"
    log.write_text("".join(f"line {number}\n" for number in range(5000)))
    error = fail_with(tmp_path, rank=1, exit_code=-11, message="was killed by SIGSEGV", log=str(log))
    assert error.exit_code == 6
    assert error.message.startswith("rank 1: was killed by SIGSEGV\n")
    assert "line 4999" in error.message
    assert "line 4980" in error.message
    assert "line 4979" not in error.message
    assert str(log) in error.hint


def test_a_users_mistake_is_shown_as_such_with_its_own_exit_code(tmp_path):
    error = fail_with(tmp_path, rank=0, exit_code=5, message="no checkpoint", hint="train", users_mistake=True)
    assert (str(error), error.exit_code) == ("no checkpoint\n  train", 5)


def test_without_a_word_of_the_launcher_the_ranks_say_what_happened(tmp_path):
    reports = [
        {"rank": 0, "exit_code": 1, "message": "Connection closed by peer", "time": 1.0, "lost_peer": True},
        {"rank": 1, "exit_code": 1, "message": "late", "time": 3.0, "lost_peer": False},
        {"rank": 2, "exit_code": 3, "message": "first", "hint": "mend", "time": 2.0, "users_mistake": True},
    ]
    for report in reports:
        (tmp_path / f"failure.rank{report['rank']}.json").write_text(json.dumps(report))
    (tmp_path / "failure.rank3.json").write_text("{")
    with pytest.raises(NeoxError) as caught:
        run(tmp_path, "raise SystemExit(1)")
    assert (str(caught.value), caught.value.exit_code) == ("first\n  mend", 3)
    (tmp_path / "failure.rank2.json").unlink()
    with pytest.raises(RankError, match=r"^rank 1: late$"):
        run(tmp_path, "raise SystemExit(1)")


def test_of_a_crash_the_place_is_shown(tmp_path):
    """faulthandler writes the innermost frame first, and as a last line every extension module there is."""
    frames = [f'  File "deep.py", line {number} in f' for number in range(100)]
    text = [
        "before",
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread:",
        *frames,
        "Extension modules: numpy",
    ]
    (tmp_path / "log").write_text("\n".join(text))
    lines = last_lines(tmp_path / "log")
    assert lines[0].startswith("Fatal")
    assert frames[0] in lines
    assert len(lines) == 20


@pytest.mark.parametrize("header", ["Current thread 0x0f", "Thread 0x0f [python]"])
def test_of_a_rank_that_hung_the_place_of_its_main_thread_is_shown(tmp_path, header):
    """faulthandler writes it last."""
    frames = [f'  File "deep.py", line {number} in f' for number in range(30)]
    threads = ["Thread 0x0a (most recent call first):", '  File "watch.py", line 1 in watch', ""]
    (tmp_path / "log").write_text("\n".join([*threads, f"{header} (most recent call first):", *frames]))
    assert last_lines(tmp_path / "log") == [f"{header} (most recent call first):", *frames[:19]]


def test_last_lines_of_a_log_that_is_not_there_or_not_text(tmp_path):
    assert last_lines(tmp_path / "none") == []
    (tmp_path / "log").write_bytes(b"\xff\xfe\nx\n")
    assert last_lines(tmp_path / "log")[-1] == "x"


HOST = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from neox_core.cli.supervise import Supervisor
    from neox_core.contracts.host import LaunchCommand
    sys.exit(Supervisor(LaunchCommand((sys.executable, "-c", sys.argv[2])), Path(sys.argv[1])).run())
    """
)

# They write by os.write: a handler that prints while a print is going on fails as reentrant.
POLITE = """
import os, signal, sys, time
def stop(*args):
    os.write(1, b"asked\\n")
    time.sleep(0.3)
    os.write(1, b"done\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, lambda *args: os.write(1, b"interrupted\\n"))
os.write(1, b"up\\n")
for _ in range(600):  # a signal just before a sleep is answered after it
    time.sleep(0.1)
"""

DEAF = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *args: os.write(1, b"asked\\n"))
os.write(1, b"up\\n")
while True:
    time.sleep(1)
"""


class Host:
    """A host process with a process group of its own, as a terminal would start it."""

    def __init__(self, folder, launcher, *before):
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", HOST, str(folder), launcher],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout.readline() == "up\n"

    def end(self, timeout=10):
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out.split(), err


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_once_and_waits_for_a_clean_end(tmp_path, signum):
    host = Host(tmp_path, POLITE)
    os.killpg(host.process.pid, signum)  # as a terminal does; the launcher is not in this group
    code, out, err = host.end()
    assert (code, out) == (130, ["asked", "done"])
    assert "stopping after the current step" in err
    assert "no checkpoint was written" in err, "no rank was there yet"


MUCH = """
import os, sys, time
os.write(1, b"up\\n")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
for stream in (1, 2):
    os.write(stream, b"x" * 300_000)
open(sys.argv[1] + ".saved", "w").close()
"""


def test_who_reads_the_output_may_go(tmp_path):
    """As `tee` does at Ctrl-C, and then the ranks have yet to save."""
    go = tmp_path / "go"
    host = Host(tmp_path, MUCH.replace("sys.argv[1]", repr(str(go))))
    for stream in (host.process.stdout, host.process.stderr):
        stream.close()
    go.touch()
    host.process.wait(timeout=20)
    assert (tmp_path / "go.saved").exists()


def test_a_signal_is_passed_on_though_nobody_reads_that(tmp_path):
    host = Host(tmp_path, POLITE.replace('os.write(1, b"done\\n")', f"open({str(tmp_path / 'saved')!r}, 'w').close()"))
    for stream in (host.process.stdout, host.process.stderr):
        stream.close()
    host.process.send_signal(signal.SIGINT)
    host.process.wait(timeout=20)
    assert (tmp_path / "saved").exists()


def test_all_output_is_passed_on_before_the_end(tmp_path):
    go = tmp_path / "go"
    host = Host(tmp_path, MUCH.replace("sys.argv[1]", repr(str(go))))
    go.touch()  # not before: what comes with the first line is lost in the buffer that it was read from
    _, out, err = host.end()
    assert out == ["x" * 300_000]
    assert err.startswith("x" * 300_000)


def test_a_slow_reader_gets_all_and_a_process_left_behind_holds_nobody_up(tmp_path):
    go = tmp_path / "go"
    behind = "import subprocess; subprocess.Popen(['sleep', '60'])\n"
    host = Host(tmp_path, MUCH.replace("sys.argv[1]", repr(str(go))).replace("300_000", "100_000") + behind)
    go.touch()
    with pytest.raises(subprocess.TimeoutExpired):
        host.process.wait(timeout=3)
    _, out, err = host.end()
    assert out == ["x" * 100_000]
    assert err.startswith("x" * 100_000)


def test_nohup_is_heeded(tmp_path):
    """A shell passes SIGHUP on to what it has started when its terminal goes."""
    host = Host(tmp_path, POLITE, "nohup")
    host.process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        host.process.wait(timeout=1)
    host.process.send_signal(signal.SIGTERM)
    code, out, err = host.end()
    assert (code, out) == (130, ["asked", "done"])
    assert err.count("stopping after the current step") == 1


def test_one_keystroke_that_arrives_twice_kills_nothing(tmp_path):
    host = Host(tmp_path, POLITE)
    host.process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    host.process.send_signal(signal.SIGINT)
    assert host.end()[:2] == (130, ["asked", "done"])


def test_a_second_interrupt_kills_at_once(tmp_path):
    host = Host(tmp_path, DEAF)
    host.process.send_signal(signal.SIGINT)
    time.sleep(0.8)
    began = time.monotonic()
    host.process.send_signal(signal.SIGINT)
    code, out, err = host.end()
    assert (code, out) == (130, ["asked"])
    assert time.monotonic() - began < 2
    assert "killed: nothing was saved after the last checkpoint" in err


def polite_but_failing(folder, failure):
    write = f"open({str(folder / 'failure.json')!r}, 'w').write({json.dumps(failure)!r}); sys.exit(1)"
    return POLITE.replace("sys.exit(0)", write)


def test_a_rank_that_fails_while_stopping_is_reported(tmp_path):
    script = polite_but_failing(tmp_path, {"rank": 1, "exit_code": 1, "message": "disk full"})
    host = Host(tmp_path, script)
    host.process.send_signal(signal.SIGTERM)
    code, _, err = host.end()
    assert code == 1  # the exception leaves this little host as a traceback; `neox` makes it exit code 6
    assert "RankError: rank 1: disk full" in err


def test_a_rank_that_was_not_training_yet_dies_of_the_signal_and_that_is_no_failure(tmp_path):
    script = polite_but_failing(tmp_path, {"rank": 1, "exit_code": -15})
    host = Host(tmp_path, script)
    host.process.send_signal(signal.SIGTERM)
    code, _, err = host.end()
    assert code == 130
    assert "stopped outside of the training loop: no checkpoint was written" in err


def test_a_signal_while_the_launcher_is_being_started_is_passed_on(tmp_path, monkeypatch):
    class SignalledAtStart(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            os.kill(os.getpid(), signal.SIGTERM)  # before the caller has this object

    monkeypatch.setattr(subprocess, "Popen", SignalledAtStart)
    supervisor = Supervisor(LaunchCommand((sys.executable, "-c", "import time; time.sleep(60)")), tmp_path)
    assert supervisor.run() == 130
    assert supervisor.process.returncode == -signal.SIGTERM
