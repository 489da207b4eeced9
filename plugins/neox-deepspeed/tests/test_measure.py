"""Each key of what the engine measures, with DeepSpeed itself: what changing it changes in the terminal or on disk."""

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from neox_author.testing.outputs import WholeLogits
from neox_author.testing.plans import example_plan
from neox_deepspeed.api import build_engine
from neox_deepspeed.config.json.profiling import profiling_json
from neox_deepspeed.config.sections.profiling import ProfilingSection
from neox_deepspeed.measure import print_collectives
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from neox_core.config.schema.structure import structure_settings
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import ComponentRef
from neox_core.run.optimizer import build_optimizer
from neox_core.run.startup import Startup

pytestmark = pytest.mark.usefixtures("process_group")

ADAM = ComponentRef(
    "optimizer", "Adam", "neox-adam", "0.1.0", "neox_adam.optim:adam", "neox_adam.settings:AdamSettings"
)
CAUSAL_LM = ComponentRef("objective", "causal-lm", "neox-causal-lm", "0.1.0", "neox_causal_lm.objective:CausalLM")


class Model(nn.Module):
    """Three modules of 8 x 16, 8 x 8 and 8 x 8 weights, the last two of them one level down."""

    draws, documents, sparse_weights = False, None, ()

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        self.out = nn.Linear(8, 16)

    def forward(self, compute: Callable[[Any], Tensor], *, routing: None = None) -> Tensor:
        return compute(lambda tokens: WholeLogits(self.out(self.inner(self.embed(tokens)))))


def _train(folder: Path, zero: int, keys: dict[str, Any]) -> dict[str, float]:
    section = structure_settings(ProfilingSection, keys)
    plan = example_plan(folder, ranks=(1,))
    batch = {"train_micro_batch_size_per_gpu": 1, "train_batch_size": 1, "gradient_accumulation_steps": 1}
    plan = evolve(
        plan,
        objective=CAUSAL_LM,
        optim=evolve(plan.optim, optimizer=ADAM, zero_stage=zero),
        engine={
            **batch,
            "zero_optimization": {"stage": zero},
            "zero_allow_untested_optimizer": True,
            **profiling_json(section),
        },
    )
    model = Model()
    context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)
    engine = build_engine(plan, model, build_optimizer(plan.optim, model), context)
    batches = (torch.randint(16, (2, 9)) for _ in range(3))
    for _ in range(3):
        engine.train_step(batches, 0.1)
    timings = engine.timings()
    print_collectives(plan)
    engine.close()
    return timings


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What three steps print under the given keys."""
    import deepspeed
    import deepspeed.comm

    monkeypatch.chdir(tmp_path)

    def said(zero: int = 0, **keys: Any) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            said.timings = _train(tmp_path, zero, keys)  # type: ignore[attr-defined]  # beside what it returns
        return out.getvalue()

    yield said
    deepspeed.comm.configure(enabled=False, verbose=False, debug=False, prof_all=True, prof_ops=[])
    deepspeed.comm.reset_log()


def depths(profile: str) -> list[str]:
    return re.findall(r"^depth (\d+):", profile, re.MULTILINE)


def listed(profile: str, depth: int) -> int:
    """How many modules are named at one depth."""
    line = re.search(rf"^depth {depth}:\n\s+params\s+- (.*)$", profile, re.MULTILINE)
    return 0 if line is None else len(re.findall(r"'\w+':", line[1]))


def test_nothing_is_printed_unless_asked(said: Any) -> None:
    assert said() == ""
    assert said.timings == {}


def test_wall_clock_breakdown_prints_and_reports_times(said: Any) -> None:
    assert len(re.findall(r"time \(ms\) \| fwd: ", said(wall_clock_breakdown=True))) == 3
    assert list(said.timings) == [
        f"elapsed_time_ms_{part}" for part in ("forward", "backward", "backward_inner", "backward_allreduce", "step")
    ]
    assert all(value >= 0 for value in said.timings.values())


@pytest.mark.usefixtures("said")
def test_what_is_printed_goes_above_a_progress_bar(tmp_path: Path) -> None:
    """Each line stands alone: where it begins, the bar's line was erased."""
    screen = io.StringIO()
    with Progress(console=Console(file=screen, force_terminal=True, width=400)) as bar:
        bar.add_task("the bar")
        _train(tmp_path, 0, {"wall_clock_breakdown": True, "steps_per_print": 1})
    shown = [line.rpartition("\x1b[2K")[2] for line in screen.getvalue().split("\n")]
    told = [line for line in shown if "time (ms) | fwd: " in line or "skipped=0" in line]
    assert len(told) == 6
    assert not any("the bar" in line for line in told)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_printed_at_the_start_does_not_stand_in_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    startup = Startup(0.0)
    startup.show()
    startup.mark("compile")
    _train(tmp_path, 0, {"dump_state": True})
    startup.hide()
    shown = screen.getvalue().split("\n")
    told = [line for line in shown if "[INFO]" in line]
    assert len(told) > 20
    assert not [line for line in told if "starting the engine" in line.rpartition("\x1b[2K")[2]]


@pytest.mark.parametrize(("every", "steps"), [(1, ["1", "2", "3"]), (2, ["2"])])
def test_steps_per_print(said: Any, every: int, steps: list[str]) -> None:
    out = said(steps_per_print=every)
    assert re.findall(r"step=(\d+), skipped=0, lr=\[0.1[\d., ]*\], mom=", out) == steps
    assert "DeepSpeedEngine" not in out


def test_dump_state(said: Any) -> None:
    out = said(dump_state=True)
    assert re.search(r"DeepSpeedEngine configuration", out)
    assert re.search(r"global_steps \.+ 0", out)  # an attribute of the engine itself
    assert "skipped=0" not in out.replace("step=0, skipped=0", "")


def test_the_profile_is_of_one_step_and_switches_the_timers_on(said: Any) -> None:
    for step in (0, 2):
        out = said(flops_profiler={"enabled": True, "profile_step": step})
        assert re.findall(r"Profile Summary at step (\d+)", out) == [str(step + 1)]
        assert said.timings
    assert "Profile Summary" not in said(flops_profiler={"enabled": True, "profile_step": 3})


def test_the_profile_counts_the_models_own_products(said: Any) -> None:
    out = said(flops_profiler={"enabled": True})
    assert f"{2 * 8 * (8 * 8 + 8 * 8 + 8 * 16) / 1000:.1f}".rstrip("0") in re.search(r"fwd MACs per GPU: (.*)", out)[1]
    assert re.search(r"params per GPU:\s+416", out)  # 128 + 2 x 72 + 144


def test_module_depth_and_top_modules(said: Any) -> None:
    whole = said(flops_profiler={"enabled": True, "module_depth": -1, "top_modules": 3})
    assert depths(whole) == ["0", "1"]  # DeepSpeed's count leaves out the innermost
    assert listed(whole, 1) == 3
    assert depths(said(flops_profiler={"enabled": True, "module_depth": 1, "top_modules": 3})) == ["0"]
    assert listed(said(flops_profiler={"enabled": True, "top_modules": 2}), 1) == 2


def test_detailed_and_output_file(said: Any, tmp_path: Path) -> None:
    assert "Detailed Profile" in said(flops_profiler={"enabled": True})
    assert "Detailed Profile" not in said(flops_profiler={"enabled": True, "detailed": False})
    assert "Profile Summary" not in said(flops_profiler={"enabled": True, "output_file": "profile.txt"})
    assert "Profile Summary" in (tmp_path / "profile.txt").read_text()


def operations(out: str) -> set[str]:
    return set(re.findall(r"^([a-z_]+)(?: \||$)", out[out.index("Comm. Op") :], re.MULTILINE))


def test_collectives_of_all_kinds_or_of_some(said: Any) -> None:
    every = operations(said(zero=1, comms_logger={"enabled": True}))
    assert len(every - {"log_summary_barrier"}) > 1
    import deepspeed.comm

    deepspeed.comm.reset_log()
    some = said(zero=1, comms_logger={"enabled": True, "prof_all": False, "prof_ops": ["all_reduce"]})
    assert operations(some) == {"all_reduce"}


def test_collectives_one_by_one_and_with_their_callers(said: Any) -> None:
    out = said(zero=1, comms_logger={"enabled": True, "verbose": True})
    assert re.search(r"comm op: all_reduce \| time \(ms\): ", out)
    import deepspeed.comm

    deepspeed.comm.reset_log()
    assert "[Caller Func:" in said(zero=1, comms_logger={"enabled": True, "verbose": True, "debug": True})
    assert "[Caller Func:" not in out
