"""What a run reports: when, reduced over what, and that no monitor can stop it."""

import math
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from neox_core.contracts.engine import Peak
from neox_core.contracts.host import RunInfo
from neox_core.errors import RankError
from neox_core.parallel.groups import Groups
from neox_core.run.report import Report
from neox_core.run.skipped import SkippedSteps
from neox_core.run.startup import Startup

ALONE = Groups(world=None, data=None, data_rank=0, data_size=1)


class Engine:
    """An engine that has just made an update, and counts how often it is asked."""

    asked = 0

    def grad_norm(self):
        self.asked += 1
        return 1.5

    def skipped_steps(self):
        return 2

    def loss_scale(self):
        return None

    def timings(self):
        return {}

    def made_update(self):
        return True


class Spoilt(Engine):
    """From its third step on, gradients are not finite. made: how the engine says so."""

    def __init__(self, made):
        self.steps, self.made = 0, made

    def made_update(self):
        self.steps += 1
        return self.made(self.steps < 3)


class Kept:
    """A monitor that keeps what it gets."""

    def __init__(self):
        self.logged, self.said, self.closed = [], [], 0

    def log(self, step, values):
        self.logged.append((step, dict(values)))

    def say(self, message):
        self.said.append(message)

    def close(self):
        self.closed += 1


class Broken(Kept):
    error: BaseException = OSError("disk full")

    def log(self, step, values):
        raise self.error


def make(
    *monitors, log_interval=4, last_step=100, peak=None, on_nonfinite="stop", startup=None, skipped=None, metrics=None
):
    info = RunInfo(Path(), 0, last_step, 10, 2, tokens_per_step=1000, device="cpu", samples_per_step=4)
    return Report(
        info,
        monitors,
        ALONE,
        torch.device("cpu"),
        log_interval=log_interval,
        flops_per_token=6e6,
        peak=Peak(peak, "given"),
        stop_on_nonfinite=on_nonfinite == "stop",
        skipped=skipped,
        startup=startup,
        metrics=metrics,
    )


def feed(report, losses, first=1, engine=None):
    for step, loss in enumerate(losses, start=first):
        next(report.timed(iter([torch.zeros(1)])))
        report.step(step, torch.tensor(float(loss)), 0.1, engine or Engine())


def test_logs_at_its_interval_and_at_the_last_step_the_mean_since_the_last_log():
    kept = Kept()
    feed(make(kept, last_step=10), [9, 7, 5, 3, 8, 8, 8, 4, 2, 1])
    assert [(step, values["loss"]) for step, values in kept.logged] == [(4, 6.0), (8, 7.0), (10, 1.5)]
    assert kept.logged[0][1]["lr"] == 0.1
    assert kept.logged[0][1]["grad_norm"] == 1.5
    assert kept.logged[0][1]["skipped_steps"] == 2


def test_asks_the_device_nothing_between_log_steps():
    engine = Engine()
    report = make(Kept())
    losses = [torch.tensor(1.0, requires_grad=True) * 1 for _ in range(7)]
    for step, loss in enumerate(losses, start=1):
        next(report.timed(iter([torch.zeros(1)])))
        report.step(step, loss, 0.1, engine)
    assert engine.asked == 1
    assert not any(loss.requires_grad for _, loss, _ in report._unread)  # no graph is kept alive


def test_rates_follow_from_the_time_in_steps_alone(monkeypatch):
    """A clock that is moved by hand: steps of 2 s, of which 0.5 s wait for data; 100 s of evaluation between them."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def slow_batches():
        while True:
            now[0] += 0.5
            yield torch.zeros(1)

    kept = Kept()
    report = make(kept, peak=6e9)
    batches = report.timed(slow_batches())
    for step in range(1, 5):
        next(batches)
        now[0] += 1.5
        report.step(step, torch.tensor(1.0), 0.1, Engine())
        now[0] += 100
    values = kept.logged[0][1]
    assert values["step_s"] == 2.0
    assert values["data_wait_s"] == 0.5
    assert values["tokens_per_s"] == 500.0
    assert values["mfu"] == pytest.approx(500 * 6e6 / (2 * 6e9))  # two ranks
    assert values["tflops"] == pytest.approx(500 * 6e6 / 2 / 1e12)


def test_each_pass_of_a_batch_counts(monkeypatch):
    kept = Kept()
    monkeypatch.setattr(Engine, "passes", 2 + 1 / 3, raising=False)
    feed(make(kept, peak=6e9), [1.0] * 4)
    (_, values) = kept.logged[0]
    assert values["mfu"] * 6e9 == pytest.approx(values["tokens_per_s"] * (2 + 1 / 3) * 6e6 / 2)


def test_without_a_known_peak_there_is_no_mfu():
    kept = Kept()
    feed(make(kept), [1] * 4)
    assert "mfu" not in kept.logged[0][1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_names_its_step_and_rank(bad):
    with pytest.raises(RankError, match=r"at step 3 on rank 0") as caught:
        feed(make(), [1, 1, bad, 1])
    assert caught.value.exit_code == 6
    assert "on-nonfinite-loss: skip" in caught.value.hint


def test_a_loss_that_is_not_finite_names_what_made_it():
    skipped = SkippedSteps(0, find_source=lambda: "layers.1.mlp (feed forward a:b 1.0) gives")
    said = r"on rank 0: the first number that is not finite is what layers\.1\.mlp \(feed forward a:b 1\.0\) gives"
    with pytest.raises(RankError, match=said):
        feed(make(skipped=skipped), [1, 1, math.nan, 1])


def test_a_gradient_that_is_not_finite_stops_at_once_where_the_host_knows():
    engine = Spoilt(bool)
    skipped = SkippedSteps(0, lambda: ["layers.1.mlp.out.weight", "embedding.weight", "layers.0.norm.weight"])
    said = r"^the gradient is not finite at step 3 on rank 0: of layers\.1\.mlp\.out\.weight and 2 more\n"
    with pytest.raises(RankError, match=said) as caught:
        feed(make(log_interval=1000, skipped=skipped), [1] * 9, engine=engine)
    assert engine.steps == 3
    assert "on-nonfinite-loss: skip" in caught.value.hint


def test_a_gradient_that_is_not_finite_is_found_at_the_next_look_where_the_device_knows():
    skipped, engine = SkippedSteps(0, lambda: ["embedding.weight"]), Spoilt(torch.tensor)
    report = make(log_interval=1000, skipped=skipped)
    feed(report, [1] * 9, engine=engine)
    assert engine.steps == 9, "nothing has looked"
    with pytest.raises(RankError, match=r"^the gradient is not finite at step 3 on rank 0: of embedding\.weight\n"):
        report.check()


def test_a_loss_that_is_not_finite_is_said_before_its_gradient():
    with pytest.raises(RankError, match=r"the loss is nan at step 3 on rank 0"):
        feed(make(), [1, 1, math.nan, 1], engine=Spoilt(bool))


def test_skipped_steps_in_a_row_have_a_bound():
    engine = Spoilt(bool)
    report = make(log_interval=1000, on_nonfinite="skip", skipped=SkippedSteps(4, list))
    said = (
        r"^no update was made in 5 steps in a row: the gradient is not finite since step 3, .*max-skipped-steps is 4$"
    )
    with pytest.raises(RankError, match=re.compile(said, re.DOTALL)):
        feed(report, [1, 1, math.nan, 1, 1, 1, 1, 1, 1], engine=engine)
    assert engine.steps == 7


def test_an_update_ends_the_row_of_skipped_steps():
    skipped = SkippedSteps(2)
    for step, made in enumerate((True, False, False, True, False, False), start=1):
        skipped.note(step, made=made)
        assert not skipped.too_many
    skipped.note(7, made=False)
    assert skipped.too_many


def test_it_is_found_before_a_checkpoint_between_two_logs():
    report = make(log_interval=1000)
    feed(report, [1, math.nan, 1])
    with pytest.raises(RankError, match="step 2"):
        report.check()


def test_it_can_be_left_out_instead():
    kept = Kept()
    feed(make(kept, on_nonfinite="skip"), [1, math.nan, 3, 5])
    assert kept.logged[0][1]["loss"] == 3.0


def test_a_check_takes_no_loss_out_of_the_mean():
    kept = Kept()
    report = make(kept)
    feed(report, [1, 3])
    report.check()
    feed(report, [5, 7], first=3)
    assert kept.logged[0][1]["loss"] == 4.0


@pytest.mark.parametrize("error", [OSError("disk full"), SystemExit("disk full")])
def test_a_monitor_that_raises_is_reported_once_and_left_out(capsys, error):
    """Also with what would end the process, as rich does where nobody reads its output."""
    kept, broken = Kept(), Broken()
    broken.error = error
    report = make(broken, kept)
    feed(report, [1] * 12)
    assert [step for step, _ in kept.logged] == [4, 8, 12]
    (said,) = kept.said
    assert "Broken" in said
    assert "disk full" in said
    assert capsys.readouterr().err.count("disk full") == 1
    report.close()
    assert (kept.closed, broken.closed) == (1, 0)


def test_a_log_on_a_full_disk_does_not_stop_a_run(monkeypatch):
    def full(text):
        raise OSError("disk full")

    kept = Kept()
    report = make(Broken(), kept)
    monkeypatch.setattr(sys.stderr, "write", full)
    feed(report, [1] * 8)
    assert [step for step, _ in kept.logged] == [4, 8]


def test_a_monitor_that_draws_random_numbers_changes_no_run():
    def draw():
        return random.random(), np.random.rand(), float(torch.rand(()))

    class Drawing(Kept):
        def log(self, step, values):
            super().log(step, dict.fromkeys(draw()))

    def two(between):
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        first = draw()
        between()
        return first, draw()

    drawing = Drawing()
    report = make(drawing, log_interval=1)
    assert two(lambda: feed(report, [1, 1])) == two(lambda: None)
    assert len(drawing.logged) == 2


def test_validation_is_the_mean_of_its_batches():
    kept = Kept()
    assert make(kept).validation(7, [torch.tensor(2.0), torch.tensor(4.0)]) == 3.0
    assert kept.logged == [(7, {"valid_loss": 3.0, "valid_perplexity": pytest.approx(math.e**3)})]


def test_a_validation_that_diverged_has_an_infinite_perplexity():
    kept = Kept()
    make(kept).validation(7, [torch.tensor(1e4)], "test")
    assert kept.logged[0][1]["test_perplexity"] == math.inf


def test_the_start_up_is_told_once_after_the_first_step():
    startup = Startup(began=100.0)
    startup.mark("host", at=100.5)
    startup.mark("imports", at=102.5)
    kept = Kept()
    feed(make(kept, startup=startup), [1] * 8)
    (step, values), *rest = kept.logged
    assert step == 1
    assert (values["startup_host_s"], values["startup_imports_s"]) == (0.5, 2.0)
    assert values["startup_total_s"] == pytest.approx(
        sum(value for name, value in values.items() if name != "startup_total_s"), abs=0.01
    )
    assert [step for step, _ in rest] == [4, 8]


def test_a_run_that_is_quicker_than_its_measured_peak_says_so_and_has_no_mfu():
    kept = Kept()
    report = make(kept)
    report.peak = Peak(1.0, "", measured=True)
    feed(report, [1] * 8)
    assert not any("mfu" in values for _, values in kept.logged)
    assert [line for line in kept.said if "mfu is left out: the machine is faster now" in line] == kept.said[-1:]
    assert Peak(1e12, "").mfu(2e12) == 2.0  # which peak-tflops said


def test_metrics_of_components_are_read_at_log_steps_alone() -> None:
    asked: list[int] = []

    class Metrics:
        def read(self) -> dict[str, float]:
            asked.append(1)
            return {"objective_z": float(len(asked))}

    monitor = Kept()
    feed(make(monitor, log_interval=4, metrics=Metrics()), range(1, 9))
    assert [values["objective_z"] for _, values in monitor.logged if "loss" in values] == [1.0, 2.0]
    assert len(asked) == 2
