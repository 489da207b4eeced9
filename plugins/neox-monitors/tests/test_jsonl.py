import errno
import json
import math
import os
import socket
from importlib.metadata import version
from pathlib import Path

import pytest
from neox_author.testing import assert_light, build, check_monitor, load_only

from neox_core.contracts.host import RunInfo
from neox_core.errors import ConfigError

VALUES = {"loss": 2.0, "lr": 0.1, "tokens_per_s": 10.0, "step_s": 0.5, "data_wait_s": 0.0, "memory_gib": 1.0}


@pytest.fixture(scope="module")
def entry():
    return load_only("neox-monitors").find("monitor", "jsonl")


def start(entry, folder, first_step=0):
    return entry.load()(RunInfo(folder, first_step, 100, 10, 1, 10, "cpu", 4), build(entry))


def read(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_listing_is_light():
    assert_light("neox-monitors")


def test_a_line_is_on_disk_as_soon_as_it_is_logged(entry, tmp_path):
    monitor = start(entry, tmp_path)
    monitor.log(10, VALUES)
    (line,) = read(tmp_path)
    assert line.pop("time") > 1.7e9
    assert line == {"step": 10, **VALUES}
    monitor.say("not for programs")
    monitor.close()
    assert len(read(tmp_path)) == 1


def test_what_is_not_finite_is_null_since_json_has_no_nan(entry, tmp_path):
    start(entry, tmp_path).log(1, {"loss": math.nan, "valid_perplexity": math.inf})
    text = (tmp_path / "metrics.jsonl").read_text()
    line = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (line["loss"], line["valid_perplexity"]) == (None, None)


@pytest.mark.parametrize(("cut", "kept"), [('{"step": 50, "lo', []), ('{"step": 22}', [22])])
def test_a_resumed_run_goes_on_without_a_step_twice_or_a_line_cut_off(entry, tmp_path, cut, kept):
    monitor = start(entry, tmp_path)
    for step in (10, 20, 30, 40):
        monitor.log(step, VALUES)
    monitor.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(cut)  # killed while writing
    monitor = start(entry, tmp_path, first_step=25)
    for step in (30, 40):
        monitor.log(step, VALUES)
    assert [line["step"] for line in read(tmp_path)] == [10, 20, *kept, 30, 40]


def test_a_run_that_starts_anew_keeps_the_file_of_the_one_before(entry, tmp_path):
    start(entry, tmp_path).log(10, VALUES)
    start(entry, tmp_path).log(5, VALUES)
    assert [line["step"] for line in read(tmp_path)] == [5]
    assert json.loads((tmp_path / "metrics.jsonl.1").read_text())["step"] == 10


def test_messages_are_kept_over_a_resume_with_where_the_run_was_started(entry, tmp_path):
    def messages(name="messages.jsonl"):
        return [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]

    monitor = start(entry, tmp_path)
    monitor.say("saved\n\x1b[31m step")
    monitor.close()
    start(entry, tmp_path, first_step=25).say("resumed")
    assert [line.get("said") for line in messages()] == [None, "saved\n\x1b[31m step", None, "resumed"]
    began = messages()[2]
    assert (began["step"], began["start"]["host"], began["start"]["ranks"]) == (25, socket.gethostname(), 1)
    assert began["start"]["neox-core"] == version("neox-core")
    start(entry, tmp_path)
    assert [*messages()[0]] == ["step", "time", "start"]
    assert len(messages("messages.jsonl.1")) == 4


@pytest.mark.parametrize("name", ["console", "csv_monitor", "jsonl"])
def test_the_contract(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where CSV files go by default
    check_monitor(load_only("neox-monitors"), name)


@pytest.mark.parametrize("first_step", [0, 25])
@pytest.mark.parametrize("name", ["metrics.jsonl", "metrics.jsonl.1"])
def test_a_folder_in_its_place_is_the_users_to_mend(entry, tmp_path, name, first_step):
    (tmp_path / name / "kept").mkdir(parents=True)
    with pytest.raises(ConfigError, match=rf"/{name}: is not a file, .* writes one\n  move it away, .*--run-dir"):
        start(entry, tmp_path, first_step)
    assert [each.name for each in tmp_path.iterdir()] == [name]
    with pytest.raises(ConfigError, match="cannot be written to: No space left"):
        start(entry, Full(tmp_path / "disk"))


@pytest.mark.parametrize("name", ["metrics.jsonl", "metrics.jsonl.1"])
def test_a_pipe_in_its_place_is_not_waited_for(entry, tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=f"/{name}: is not a file"):
        start(entry, tmp_path)


class Full(type(Path())):
    """A folder on a disk without room."""

    def mkdir(self, *args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
