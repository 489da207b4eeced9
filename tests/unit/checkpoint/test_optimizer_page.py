"""The optimizers of docs/plugins/optimizer.md in a run: against loops in plain torch, saved, resumed and sharded."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from checkpoint_runs import CAUSAL_LM, CONTEXT, ENGINES, LINEAR, Run, Tiny, resuming, with_checkpoint
from neox_author.testing import check_optimizer, load_only
from neox_author.testing.outputs import WholeLogits
from neox_author.testing.plans import example_plan
from neox_deepspeed.testing import process_group_of_one
from torch import Tensor, nn

from neox_core.checkpoint.read import CheckpointReader
from neox_core.errors import ConfigError, PluginError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import ComponentRef, RunPlan
from neox_core.run.optimizer import build_optimizer

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = {
    "SAM": ("SAMSettings", {"lr": 0.1, "radius": 0.05, "weight_decay": 0.0}),
    "ScheduleFreeSGD": ("ScheduleFreeSettings", {"lr": 0.1, "beta": 0.9}),
    "LayerwiseSGD": ("LayerwiseSettings", {"lr": 0.1, "layer_decay": 0.5}),
}
USES = {"SAM": ("closure",), "ScheduleFreeSGD": ("modes",)}
STEPS, LR, RADIUS, BETA = 5, 0.01, 0.05, 0.9


@pytest.fixture
def plan_of(build_page: Any, tmp_path: Path) -> Any:
    build_page("optimizer")

    def plan_of(name: str, engine: str = "plain", zero: int = 0, **changes: Any) -> RunPlan:
        plan = example_plan(tmp_path, ranks=(1,))
        settings, values = SETTINGS[name]
        chosen = ComponentRef(
            "optimizer", name, "neox-steps", "1.0", f"neox_steps.optim:{name}", f"neox_steps.plugin:{settings}", values
        )
        optim = evolve(
            plan.optim,
            optimizer=chosen,
            schedule=LINEAR,
            uses=USES.get(name, ()),
            weight_decay=0.0,
            gradient_clipping=0.0,
            zero_stage=zero,
        )
        plan = evolve(
            plan,
            engine_component=evolve(plan.engine_component, name=engine),
            objective=CAUSAL_LM,
            optim=evolve(optim, **changes),
        )
        return with_checkpoint(plan, save=str(tmp_path / "saved"), load=None)

    return plan_of


@pytest.fixture(scope="module")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with process_group_of_one(tmp_path_factory.mktemp("store")):
        yield


def batch_of(step: int) -> Tensor:
    return torch.randint(16, (2, 9), generator=torch.Generator().manual_seed(step))


def plain_loop(update: Any) -> dict[str, Tensor]:
    """Weights after `STEPS` steps; update(weights, gradient at the weights, state) is the optimizer."""
    torch.manual_seed(3)
    model = Tiny()
    names = dict(model.named_parameters())

    def gradient(step: int) -> dict[str, Tensor]:
        model.zero_grad()
        batch = batch_of(step)
        model.run(batch[:, :-1]).cross_entropy(batch[:, 1:]).backward()
        return {name: weight.grad.clone() for name, weight in names.items() if weight.grad is not None}

    state: dict[str, Any] = {}
    model.train()
    for step in range(STEPS):
        with torch.no_grad():
            now = {name: weight.clone() for name, weight in names.items()}
        update(names, now, step, lambda step=step: gradient(step), state)
    return {name: weight.detach().clone() for name, weight in names.items()} | state.get("evaluated", {})


def sam(names: Any, now: Any, step: int, gradient: Any, state: Any) -> None:
    first = gradient()
    norm = sum(float((each.double() ** 2).sum()) for each in first.values()) ** 0.5
    set_all(names, {name: now[name] + RADIUS / norm * first[name] for name in now})
    second = gradient()
    set_all(names, {name: now[name] - LR * second[name] for name in now})


def schedule_free(names: Any, now: Any, step: int, gradient: Any, state: Any) -> None:
    """x_t of arXiv:2405.15682, equation 5: the mean of z_1 to z_t."""
    seen = gradient()
    base = {name: state["z"][-1][name] - LR * seen[name] for name in now} if step else None
    base = base or {name: now[name] - LR * seen[name] for name in now}
    state.setdefault("z", []).append(base)
    mean = {name: torch.stack([each[name] for each in state["z"]]).mean(0) for name in now}
    set_all(names, {name: (1 - BETA) * base[name] + BETA * mean[name] for name in now})
    state["evaluated"] = {f"mean of {name}": mean[name] for name in now}


def set_all(names: Any, values: Any) -> None:
    with torch.no_grad():
        for name, weight in names.items():
            weight.copy_(values[name])


class Steady(Tiny):
    """Without dropout, which draws from a generator that a loop in plain torch has in another state."""

    def run(self, tokens: Tensor) -> WholeLogits:
        return WholeLogits(self.out(self.norm(self.embed(tokens))))


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tiny, "run", Steady.run)


@pytest.mark.parametrize(("name", "update"), [("SAM", sam), ("ScheduleFreeSGD", schedule_free)])
def test_an_optimizer_trains_as_a_loop_in_plain_torch(name: str, update: Any, plan_of: Any) -> None:
    run = Run(plan_of(name)).steps(STEPS)
    expected = plain_loop(update)
    for weight, value in run.weights().items():
        torch.testing.assert_close(value, expected[weight], rtol=1e-5, atol=1e-7)
    with run.engine.at_hand():
        evaluated = run.weights()
    for weight, value in evaluated.items():
        mean = expected.get(f"mean of {weight}", expected[weight])
        torch.testing.assert_close(value, mean, rtol=1e-5, atol=1e-7)


class Layers(nn.Module):
    draws, documents, sparse_weights = False, None, ()

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.out = nn.Linear(8, 16, bias=False)

    def forward(self, compute: Callable[[Any], Tensor], *, routing: None = None) -> Tensor:
        return compute(self.run)

    def run(self, tokens: Tensor) -> WholeLogits:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = hidden + layer(hidden).tanh()
        return WholeLogits(self.out(hidden))


@pytest.mark.parametrize(("engine", "zero"), [("plain", 0), ("deepspeed", 0), ("deepspeed", 1), ("deepspeed", 2)])
@pytest.mark.usefixtures("process_group")
def test_layers_have_rates_of_their_own(engine: str, zero: int, plan_of: Any) -> None:
    plan = plan_of("LayerwiseSGD", engine, zero)
    plan = evolve(
        plan,
        engine={
            "train_batch_size": 1,
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": zero},
            "zero_allow_untested_optimizer": True,
        },
    )
    model, alone = Layers(), Layers()
    built: Any = ENGINES[engine](plan, model, build_optimizer(plan.optim, model, total_steps=STEPS), CONTEXT)
    for step in range(STEPS):
        built.train_step(iter([batch_of(step)]), lr=LR)
        alone.zero_grad()
        batch = batch_of(step)
        alone.run(batch[:, :-1]).cross_entropy(batch[:, 1:]).backward()
        for name, weight in alone.named_parameters():
            layer = re.search(r"layers\.(\d)", name)
            rate = LR * (1 - step / STEPS) * (0.5 ** (2 - int(layer[1])) if layer else 1.0)
            with torch.no_grad():
                weight.sub_(rate * weight.grad)  # type: ignore[operator] # every one has a gradient
    for weight, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(
            weight.detach().float(), other.detach(), rtol=1e-5, atol=1e-7, msg=lambda said: f"{name}: {said}"
        )
    built.close()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_resumed_run_continues_to_the_same_bits(name: str, plan_of: Any) -> None:
    plan = plan_of(name)
    whole = Run(plan).steps(2)
    whole.save()
    whole.steps(3)
    resumed = Run(resuming(plan))
    resumed.load()
    resumed.steps(3)
    assert resumed.losses == whole.losses[2:]
    for weight, value in whole.weights().items():
        assert torch.equal(value, resumed.weights()[weight]), weight


def test_neither_evaluations_nor_saves_change_a_run(plan_of: Any) -> None:
    plan = plan_of("ScheduleFreeSGD")
    straight, watched = Run(plan).steps(STEPS), Run(plan)
    for _ in range(STEPS):
        watched.engine.evaluate([batch_of(9)])
        watched.steps(1).save()
    assert watched.losses == straight.losses
    for weight, value in straight.weights().items():
        assert torch.equal(value, watched.weights()[weight]), weight


def test_a_checkpoint_and_an_evaluation_have_the_weights_of_evaluation(plan_of: Any) -> None:
    run = Run(plan_of("ScheduleFreeSGD")).steps(3)
    reader = CheckpointReader(run.save())
    trained = run.weights()
    with run.engine.at_hand():
        evaluated = run.weights()
    assert not torch.equal(trained["embed.weight"], evaluated["embed.weight"])
    for weight, value in evaluated.items():
        assert torch.equal(reader.tensor("weight", weight), value), weight
    (loss,) = run.engine.evaluate([batch_of(9)])
    model = Tiny().eval()
    model.load_state_dict(evaluated, strict=False)
    batch = batch_of(9)
    assert float(loss) == float(model.run(batch[:, :-1]).cross_entropy(batch[:, 1:]))


def test_what_is_declared_is_there(plan_of: Any) -> None:
    with pytest.raises(PluginError, match=r"SAM 1\.0.*lacks train\(\) or eval\(\).*declares uses=\('modes',\)"):
        Run(plan_of("SAM", uses=("modes",)))
    with pytest.raises(PluginError, match=r"ScheduleFreeSGD 1\.0.*does not declare uses=\('modes',\)"):
        Run(plan_of("ScheduleFreeSGD", uses=()))
    with pytest.raises(PluginError, match=r"SAM 1\.0.*missing 1 required positional argument: 'closure'"):
        Run(plan_of("SAM", uses=()))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SAM", "SAM computes gradients again within a step, and the engine deepspeed computes them once"),
        ("ScheduleFreeSGD", "ScheduleFreeSGD has other weights for evaluation than for training, and the engine"),
    ],
)
def test_deepspeed_refuses_what_it_cannot_do(name: str, said: str, plan_of: Any, tmp_path: Path) -> None:
    plan_of(name)  # installs the page
    quickstart = (ROOT / "configs/quickstart.yml").read_text("utf-8")
    config = tmp_path / "run.yml"
    config.write_text(quickstart.replace("weight-decay: 0.1\n", ""))
    files, sets, machine = [config], [f"optimizer={{type: {name}}}"], Machine(0, 2)
    with pytest.raises(ConfigError, match=said):
        prepare_run(files, sets, catalog=load_plugins(), machine=machine, start=False)
    ready = prepare_run(files, [*sets, "engine=plain"], catalog=load_plugins(), machine=machine, start=False)
    assert ready.plan.optim.uses == USES[name]


FAULTS = {
    "an inexact return to training": (
        "ScheduleFreeSGD",
        """        self.set_weights(lambda state: torch.lerp(state["base"], state["average"], self.beta))""",
        """        for weight, state in self.state.items():
            weight.data.add_((state["base"] - weight.data) * (1 - self.beta))""",
        "a second train",
    ),
    "a state that eval() changes": (
        "ScheduleFreeSGD",
        """        self.set_weights(lambda state: state["average"])""",
        """        self.set_weights(lambda state: state["base"].add_(1e-3))""",
        r"a second eval\(\) changes nothing",
    ),
    "no closure called": ("SAM", "        closure()\n", "", r"step\(closure\) calls it"),
    "what it added stays": ("SAM", "            weight.copy_(start)\n", "", "at lr 0 the weights stay"),
    "a step along the first gradient": (
        "SAM",
        "        closure()\n        for (weight, group), start in zip(weights, starts):",
        """        first = [weight.grad for weight, _ in weights]
        closure()
        for (weight, group), start, weight.grad in zip(weights, starts, first):""",
        "where it finds no finite gradient, the weights stay",
    ),
    "an update that depends on how many tensors there are": (
        "LayerwiseSGD",
        "                weight.sub_(weight.grad, alpha=group",
        "                weight.sub_(weight.grad * (len(group['params']) > 2), alpha=group",
        "flat slices of the parameters give the same update",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_kit_names_what_an_optimizer_breaks(fault: str, build_page: Any) -> None:
    name, sound, faulty, clause = FAULTS[fault]
    assert sound in build_page("optimizer", (sound, faulty))["neox_steps/optim.py"]
    catalog = load_only("neox-steps")
    with pytest.raises(AssertionError, match=clause):
        check_optimizer(catalog, name)
