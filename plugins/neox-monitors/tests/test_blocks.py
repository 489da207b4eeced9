"""Monitors that a block of the config switches on: what they write, read back by the libraries they are for."""

import csv
import json
import math
import os
import struct
import time
import zipfile

import pytest
from attrs import evolve
from neox_author.testing import build, load_only

from neox_core.contracts.host import RunInfo
from neox_core.errors import ConfigError

VALUES = {"loss": 2.5, "lr": 0.1, "loss_scale": 128.0, "elapsed_time_ms_forward": 12.5, "eigenvalue_1": 3.0}
EVENTS = {
    "Train/Samples/train_loss": 2.5,
    "Train/Samples/lr": 0.1,
    "Train/Samples/loss_scale": 128.0,
    "Train/Samples/elapsed_time_ms_forward": 12.5,
    "Train/Eigenvalues/ModelBlockParam_1": 3.0,
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return RunInfo(tmp_path / "run", 0, 100, 10, 1, 1000, "cpu", 8)


def start(name, run, **settings):
    entry = load_only("neox-monitors").find("monitor", name)
    return entry.load()(run, build(entry, **settings))


def rows(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_csv_files_have_deepspeeds_names_and_columns(run, tmp_path):
    monitor = start("csv_monitor", run, csv_monitor={"output_path": "out", "job_name": "job"})
    monitor.log(5, VALUES)
    monitor.log(10, {**VALUES, "lr": 0.05})
    monitor.log(10, {"valid_loss": 2.0, "valid_perplexity": math.e**2})
    monitor.close()
    assert rows(tmp_path / "out/job/Train_Samples_lr.csv") == [["step", "lr"], ["40", "0.1"], ["80", "0.05"]]
    assert rows(tmp_path / "out/job/Train_Samples_train_loss.csv")[0] == ["step", "train_loss"]
    assert rows(tmp_path / "out/job/Valid_Samples_loss.csv") == [["step", "loss"], ["80", "2.0"]]
    assert (tmp_path / "out/job/Train_Samples_elapsed_time_ms_forward.csv").exists()


@pytest.mark.parametrize(("path", "folder"), [(None, "run"), ("", "."), ("out", "out")])
def test_without_a_path_csv_files_lie_with_the_run_and_not_where_it_was_started(run, tmp_path, path, folder):
    start("csv_monitor", run, csv_monitor={"output_path": path}).log(1, VALUES)
    assert [file.parent for file in tmp_path.rglob("*_lr.csv")] == [tmp_path / folder / "DeepSpeedJobName"]


def test_a_resumed_run_goes_on_in_its_csv_files_and_a_new_one_keeps_the_old(run, tmp_path):
    lr = tmp_path / "run/DeepSpeedJobName/Train_Samples_lr.csv"
    monitor = start("csv_monitor", run)
    for step in (10, 20, 30):
        monitor.log(step, VALUES)
    with lr.open("a") as file:
        file.write("3")  # killed while writing
    start("csv_monitor", evolve(run, first_step=20)).log(30, {**VALUES, "lr": 0.3})
    assert rows(lr) == [["step", "lr"], ["80", "0.1"], ["160", "0.1"], ["240", "0.3"]]
    start("csv_monitor", run).log(1, VALUES)
    assert rows(lr) == [["step", "lr"], ["8", "0.1"]]
    assert len(rows(lr.with_suffix(".csv.1"))) == 4


def test_a_pipe_in_the_place_of_a_csv_file_is_not_waited_for(run, tmp_path):
    files = start("csv_monitor", run, csv_monitor={"output_path": "out", "job_name": "job"})
    os.mkfifo(tmp_path / "out/job/Train_Samples_lr.csv")
    with pytest.raises(ConfigError, match=r"Train_Samples_lr\.csv: is not a file"):
        files.log(1, VALUES)


def read_events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(each.step, each.value) for each in accumulator.Scalars(tag)] for tag in tags}


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ({"tensorboard": {"output_path": "out", "job_name": "job"}}, "out/job"),
        ({"tensorboard": {"output_path": None}}, "run/DeepSpeedJobName"),
        ({"tensorboard_dir": "events"}, "events"),
    ],
)
def test_tensorboard_reads_what_was_logged(run, tmp_path, settings, folder):
    monitor = start("tensorboard", run, **settings)
    monitor.log(5, VALUES)
    monitor.log(10, VALUES)
    monitor.close()
    read = read_events(tmp_path / folder)
    assert read == {name: [(40, pytest.approx(value)), (80, pytest.approx(value))] for name, value in EVENTS.items()}


def test_tensorboard_keeps_every_bit_of_the_hash_of_the_data(run, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    monitor = start("tensorboard", run, tensorboard_dir="events")
    hashes = [float(2**48 - 1), float(2**47 + 1)]
    for step, value in enumerate(hashes, 1):
        monitor.log(step, {"data_hash": value, "lr": 1.0})
    monitor.close()
    accumulator = EventAccumulator(str(tmp_path / "events"))
    accumulator.Reload()
    assert accumulator.Tags()["scalars"] == ["Train/Samples/lr"]
    written = accumulator.Tensors("Train/Samples/data_hash/text_summary")
    texts = [tensor_util.make_ndarray(each.tensor_proto)[0].decode() for each in written]
    assert [float(text) for text in texts] == hashes
    assert [each.step for each in written] == [8, 16]


def test_tensorboard_forgets_what_a_resumed_run_does_again(run, tmp_path):
    first = start("tensorboard", run, tensorboard_dir="events")
    for step in (10, 20, 30):
        first.log(step, {"lr": 1.0})
    first.close()
    second = start("tensorboard", evolve(run, first_step=20), tensorboard_dir="events")
    second.log(30, {"lr": 2.0})
    second.close()
    assert read_events(tmp_path / "events") == {"Train/Samples/lr": [(80, 1.0), (160, 1.0), (240, 2.0)]}


def read_history(data):
    """The logged rows in wandb's offline file: a LevelDB log (after 7 bytes of its own) of protobuf records."""
    from wandb.proto import wandb_internal_pb2

    place, text = 7, b""
    while place < len(data):
        if 32768 - place % 32768 < 7:  # no room for a header in this block
            place += 32768 - place % 32768
            continue
        _, length, part = struct.unpack_from("<IHB", data, place)
        text += data[place + 7 : place + 7 + length]
        place += 7 + length
        if part in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record.FromString(text)
            text = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                yield {each.key or ".".join(each.nested_key): json.loads(each.value_json) for each in items}


def test_wandb_gets_one_run_with_every_value(run, tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monitor = start("wandb", run, wandb={"project": "p", "group": "g", "team": "t"})
    assert (wandb.run.project, wandb.run.group, wandb.run.entity) == ("p", "g", "t")
    monitor.log(5, VALUES)
    monitor.log(10, VALUES)
    monitor.close()
    (file,) = tmp_path.glob("run/wandb/offline-run-*/run-*.wandb")
    for _ in range(300):  # wandb's own process may write after `finish` has returned
        logged = list(read_history(file.read_bytes()))
        if len(logged) == 2:
            break
        time.sleep(0.1)
    assert [each["_step"] for each in logged] == [40, 80]
    assert [{name: each[name] for name in EVENTS} for each in logged] == [EVENTS, EVENTS]


def test_comet_gets_an_experiment_with_a_value_of_each_name_every_so_many_samples(run, tmp_path, monkeypatch):
    monkeypatch.setenv("COMET_OFFLINE_DIRECTORY", str(tmp_path / "comet"))
    monkeypatch.setenv("COMET_LOGGING_CONSOLE", "ERROR")
    key = "0123456789abcdef0123456789abcdef"
    comet = {"online": False, "experiment_key": key, "experiment_name": "named", "project": "p", "workspace": "w"}
    comet |= {"tags": ("first", "second"), "others": {"note": "kept"}}
    monitor = start("comet", evolve(run, samples_per_step=50), comet={**comet, "samples_log_interval": 100})
    for step in range(1, 6):
        monitor.log(step, {"lr": step / 10})
    monitor.close()
    (archive,) = (tmp_path / "comet").glob("*.zip")
    with zipfile.ZipFile(archive) as opened:
        about = json.loads(opened.read("experiment.json"))
        messages = [json.loads(line) for line in opened.read("messages.json").decode().splitlines()]
    assert (about["project_name"], about["workspace"], about["offline_id"]) == ("p", "w", key)
    metrics = [each["payload"]["metric"] for each in messages if each["type"] == "metric_msg"]
    sent = [(each["metricName"], each["step"], each["metricValue"]) for each in metrics]
    assert [each for each in sent if each[0] == "Train/Samples/lr"] == [
        ("Train/Samples/lr", 50, 0.1),
        ("Train/Samples/lr", 150, 0.3),
        ("Train/Samples/lr", 250, 0.5),
    ]
    assert "named" in json.dumps(messages)
    assert "kept" in json.dumps(messages)
    assert all(tag in json.dumps([about, messages]) for tag in comet["tags"])


@pytest.mark.parametrize("mode", ["get", "create", "get_or_create"])
def test_comet_is_asked_for_an_experiment_that_is_there_or_a_new_one(run, tmp_path, monkeypatch, mode):
    monkeypatch.setenv("COMET_OFFLINE_DIRECTORY", str(tmp_path / "comet"))
    monkeypatch.setenv("COMET_LOGGING_CONSOLE", "ERROR")
    key = "0123456789abcdef0123456789abcdef"
    start("comet", run, comet={"online": False, "experiment_key": key, "mode": mode}).close()
    (archive,) = (tmp_path / "comet").glob("*.zip")
    with zipfile.ZipFile(archive) as opened:
        assert json.loads(opened.read("experiment.json"))["resume_strategy"] == mode


@pytest.mark.parametrize("name", ["csv_monitor", "tensorboard"])
def test_a_file_in_the_place_of_their_folder_is_the_users_to_mend(run, tmp_path, name):
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match=r"out/job: cannot be written to: Not a directory\n  set .*output_path"):
        start(name, run, **{name: {"output_path": "out", "job_name": "job"}})
