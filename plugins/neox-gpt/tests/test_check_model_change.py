"""`check_model_change` on the change of docs/plugins/model-change.md, whole and with one fault at a time."""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from neox_gpt.api import ChangeSize, LinearChange, build_model
from neox_gpt.config.size import model_size
from neox_gpt.testing import check_model_change

from neox_core.errors import ConfigError, NeoxError, PluginError
from neox_core.hooks.component import GROUP
from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run

PAGE = (Path(__file__).resolve().parents[3] / "docs/plugins/model-change.md").read_text("utf-8")
FILES = dict(re.findall(r"^`([\w./]+)`[^\n]*:\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
CONFIG = """
num-layers: 4
hidden-size: 32
num-attention-heads: 2
intermediate-size: 48
max-position-embeddings: 16
seq-length: 16
data-path: none
data-impl: mmap
padded-vocab-size: 64
train-iters: 2
train_micro_batch_size_per_gpu: 4
hidden-dropout: 0
attention-dropout: 0
optimizer: {type: Adam, params: {lr: 1e-2}}
"""


@pytest.fixture
def rescale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The catalogue with the page's change, and its module."""
    for path, text in {**FILES, "neox_rescale/__init__.py": ""}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("", ".plugin", ".change", ".size"):
        monkeypatch.delitem(sys.modules, f"neox_rescale{name}", raising=False)
    points = [EntryPoint(name, f"{name.replace('-', '_')}.plugin", GROUP) for name in ("neox-rescale", "neox-gpt")]
    catalog = load_plugins(points, {})
    change = import_module("neox_rescale.change")

    return catalog, change


def test_the_example_of_the_page_keeps_its_contract(rescale: Any) -> None:
    check_model_change(rescale[0], "rescale")
    check_model_change(rescale[0], "rescale", rescale={"layers": [""]})


MAKE, FORWARD = "        super().__init__(linear, tensor)\n", "    def forward(self, x, y):\n"
RESULT = "y * (self.scale if self.cuts else self.tensor.copy(self.scale))"
FAULTS = {
    "a wrong slice": (
        ("tensor.cut(0, linear.sections)", "tensor.cut(0, (linear.outputs,))"),
        "TP 2 equals TP 1: the result differs",
    ),
    "a whole parameter that is not summed": (
        ("self.tensor.copy(self.scale)", "self.scale"),
        "TP 2 equals TP 1: the gradient of changes.rescale.scale differs",
    ),
    "not linear where inputs are split": ((RESULT, f"({RESULT}).clamp(-1, 1)"), "TP 2 equals TP 1: the result differs"),
    "a bias on every rank": ((RESULT, f"{RESULT} + self.scale"), "TP 2 equals TP 1: the result differs"),
    "split but not told": (
        ("{\"scale\": tensor.cut(0, linear.sections)} if split", "{} if split"),
        "the planner tells what is split, and where: {}, not {'scale': 0}",
    ),
    "other shapes": (("torch.ones(", "torch.ones(2, "), "the planner tells the shape of each parameter"),
    "other layers": (
        ("size(linear, self.settings) is None", "linear.name.endswith('qkv')"), "which layers are changed",
    ),
    "another module": (("Scale(LinearChange)", "Scale(nn.Module)"), "raises TypeError"),
    "not a LinearChange": (("else Scale(linear, tensor)", "else nn.Identity()"), "makes a neox_gpt.api.LinearChange"),
    "a buffer": ((MAKE, f"{MAKE}        self.register_buffer('seen', torch.zeros(1))\n"), "not in buffers"),
    "first values of the global generator": (
        ("torch.ones(", "torch.rand("),
        "what is not drawn starts with the same numbers in each process: scale differs",
    ),
    "dropout of the global generator": (
        (RESULT, f"nn.functional.dropout({RESULT}, 0.1)"),
        "draws no numbers from torch's own generator",
    ),
    "dropout without draws": ((RESULT, f"{RESULT} * self.drop(x, 0.5).mean()"), "does not depend on"),
    "a look at other tokens": ((RESULT, f"{RESULT} + y.mean(1, keepdim=True)"), "depends on that token alone"),
    "a look at other samples": ((RESULT, f"{RESULT} + y.mean(0)"), "does not depend on the others in its micro-batch"),
    "a state that no checkpoint has": (
        (FORWARD, f"{FORWARD}        self.calls = getattr(self, 'calls', 0) + 1\n        y = y * self.calls\n"),
        "two calls give the same bits",
    ),
    "steps that are counted": (
        (FORWARD, "    seen = frozenset()\n\n    def at_step(self, step):\n        self.seen |= {step}\n\n" + FORWARD),
        "it resumes to the bit",
    ),
    "changes its input": ((FORWARD, f"{FORWARD}        x.mul_(2)\n"), "leaves its input as it is"),
    "a weight without a gradient": (
        (FORWARD, f"    straight_through = True\n    change_weight = lambda self, w: w.detach()\n\n{FORWARD}"),
        "what is `straight_through` gives the weight a gradient, unless `freezes` names it",
    ),
    "a gradient that is cut off": (
        ("(self.scale if self.cuts", "(self.scale.detach() if self.cuts"),
        "the gradient of changes.rescale.scale differs",
    ),
    "a wait for the device": ((RESULT, f"{RESULT} * (1 if y.sum().item() else 1)"), "as item does"),
    "another result when folded": (
        ("weight * self.scale[:, None]", "weight / self.scale[:, None]"),
        "folded into the weight, it computes the same: the result differs",
    ),
    "fp32 result": ((RESULT, f"({RESULT}).float()"), "like y: float64 [3, 4, 64], not float32"),
    "a pair": ((f"return {RESULT}", f"return {RESULT}, None"), "like y: float64 [3, 4, 64], not a tuple"),
    "nothing is trained": (
        ("self.scale = nn.Parameter(torch.ones(tensor.share(linear.outputs) if split else linear.outputs))",
         "self.scale = torch.ones(linear.outputs)"),
        "the planner tells the shape of each parameter: {}",
    ),
    "freezes is no answer": (("return True", "return None"), "`freezes` gives True or False"),
}  # fmt: skip
NOT_FOLDED = ("def folded", "def other")
MORE = {
    "steps that are counted": (RESULT, f"{RESULT} * len(self.seen)"),
    "not linear where inputs are split": NOT_FOLDED,
    "a bias on every rank": NOT_FOLDED,
    "a weight without a gradient": ("return True", "return False"),
}


def faulty(*changes: tuple[str, str]) -> Any:
    """The page's change with some of its text replaced."""
    source = FILES["neox_rescale/change.py"]
    for before, after in changes:
        assert before in source
        source = source.replace(before, after)
    scope: dict[str, Any] = {"__name__": "neox_rescale.change"}
    exec(compile(source, "fault", "exec"), scope)
    return scope["Rescale"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(rescale: Any, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    catalog, module = rescale
    change, clause = FAULTS[fault]
    monkeypatch.setattr(module, "Rescale", faulty(change, *([MORE[fault]] if fault in MORE else [])))
    if MORE.get(fault) == NOT_FOLDED:
        told(monkeypatch, folds=False)
    with pytest.raises(AssertionError, match=re.escape(clause)):
        check_model_change(catalog, "rescale", rescale={"layers": ["mlp.up", "mlp.down"]})


def told(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Let the planner tell something else."""
    module = import_module("neox_rescale.size")
    whole = module.size

    def size(*given: Any) -> Any:
        found = whole(*given)
        return None if found is None else evolve(found, **changed)

    monkeypatch.setattr(module, "size", size)


def test_a_planner_that_tells_of_no_folded_weight_is_named(rescale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, folds=False)
    with pytest.raises(AssertionError, match="the planner tells whether `folded` gives a weight: it tells False"):
        check_model_change(rescale[0], "rescale")


def test_a_change_may_freeze_parameters_alone(rescale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not change a layer; one that does neither is set up wrongly."""
    catalog, module = rescale
    monkeypatch.setattr(module.Rescale, "change", lambda self, linear, tensor: None)
    monkeypatch.setattr(import_module("neox_rescale.size"), "size", lambda linear, settings: None)
    monkeypatch.setattr(module.Rescale, "freezes", lambda self, name: name.startswith("embedding"))
    check_model_change(catalog, "rescale")
    monkeypatch.setattr(module.Rescale, "freezes", lambda self, name: False)
    with pytest.raises(AssertionError, match=r"it changes one of layers.*, or freezes a parameter"):
        check_model_change(catalog, "rescale")


@pytest.fixture
def resolve(tmp_path: Path, rescale: Any) -> Callable[..., Any]:
    def _resolve(*sets: str) -> Any:
        (tmp_path / "c.yml").write_text(CONFIG)
        point = EntryPoint("neox-rescale", "neox_rescale.plugin", GROUP)
        catalog = load_plugins([*entry_points(group=GROUP), point], {})
        return prepare_run([tmp_path / "c.yml"], sets, catalog=catalog, machine=Machine(0, 4), start=False)

    return _resolve


ON = "rescale.enabled=true"
CONTEXT = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)
TOKENS = torch.arange(64).view(4, 16)


def test_the_host_tells_what_is_built(resolve: Callable[..., Any]) -> None:
    resolved = resolve(ON, "lora.enabled=true", "activation=swiglu")
    model = build_model(resolved.plan.model, 64, CONTEXT)
    size = model_size(resolved.config, resolved.plan.model)
    assert dict(size.shapes) == {name: tuple(each.shape) for name, each in model.named_parameters()}
    added = {name for name in size.shapes if resolved.plan.model.adds(name)}
    assert len(added) == 4 * (2 + 4 * 2)
    assert {name for name, each in model.named_parameters() if each.requires_grad} == added


def test_without_a_change_the_plan_and_the_model_are_as_they_were(resolve: Callable[..., Any]) -> None:
    """What a run without changes draws is what a run with them draws."""
    plain, changed = resolve().plan.model, resolve(ON).plan.model
    assert plain.changes is None
    weights = dict(build_model(plain, 64, CONTEXT).named_parameters())
    others = dict(build_model(changed, 64, CONTEXT).named_parameters())
    assert all(torch.equal(weight, others[name]) for name, weight in weights.items())
    assert all(weight.requires_grad for weight in weights.values())


def test_changes_act_in_the_stated_order(resolve: Callable[..., Any]) -> None:
    """A scale after an adapter scales what the adapter adds; the list comes first, then what is enabled, by name."""
    for sets, names in (
        (("model-changes=[rescale]", "lora.enabled=true"), ["rescale", "lora"]),
        (("model-changes=[rescale, lora]",), ["rescale", "lora"]),
        (("model-changes=[lora]", ON), ["lora", "rescale"]),
        ((ON, "lora.enabled=true"), ["lora", "rescale"]),
    ):
        plan = resolve(*sets).plan.model
        assert [each.name for each in plan.changes] == names
        layer = build_model(plan, 64, CONTEXT).layers[1].mlp.down
        assert list(layer.changes) == names
        torch.manual_seed(0)
        for each in layer.parameters():
            torch.nn.init.normal_(each)
        x, own = torch.randn(2, 3, 48), dict(layer.named_parameters())
        added = 2 * (x @ own["changes.lora.down"].T) @ own["changes.lora.up"].T
        product, scale = x @ own["weight"].T, own["changes.rescale.scale"]
        wanted = (product + added) * scale if names[0] == "lora" else product * scale + added
        torch.testing.assert_close(layer(x), wanted + own["bias"], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ((ON, "rescale.layers=[attention.value]"), "rescale: rescale changes no layer of this model"),
        ((ON, "zero_optimization.stage=3", "num-gpus=2"), "at ZeRO 3 a rank has parts of them"),
        ((ON, "compile=true"), "rescale: a model change is not compiled along with a layer"),
        (("model-changes=[rescal]",), "model-changes: no model change 'rescal'"),
        (("model-changes=[lora, lora]",), "model-changes"),
    ],
)
def test_what_cannot_be_is_refused_before_the_start(
    resolve: Callable[..., Any], sets: tuple[str, ...], said: str
) -> None:
    with pytest.raises(NeoxError, match=re.escape(said)):
        resolve(*sets)


def test_what_cannot_be_split_is_refused(resolve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sets = (ON, "model-parallel-size=2", "num-gpus=2")
    assert resolve(*sets).plan.cluster.tensor_parallel == 2
    size = import_module("neox_rescale.size")

    monkeypatch.setattr(size, "size", lambda linear, settings: ChangeSize({"a": (3, 5)}, {"a": 1}))
    with pytest.raises(NeoxError, match=r"a of layers.0.attention.qkv is 3 x 5, and cannot be split over 2 ranks"):
        resolve(*sets)
    monkeypatch.setattr(size, "size", lambda linear, settings: None // 0)
    with pytest.raises(NeoxError, match=r"the planner of model change rescale failed: TypeError, and so not which"):
        resolve(*sets)


def test_a_breach_in_a_run_names_the_change(
    resolve: Callable[..., Any], rescale: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = resolve(ON).plan.model
    for fault, said in (
        ("not a LinearChange", "makes a Identity for layers"),
        ("a buffer", "state of a change is in parameters"),
        ("a pair", r"of float32 \[1, 1, 96\] it gives a tuple"),
    ):
        monkeypatch.setattr(rescale[1], "Rescale", faulty(FAULTS[fault][0]))
        with pytest.raises(PluginError, match=rf"model change neox-rescale:rescale .*{said}"):
            build_model(plan, 64, CONTEXT)
    frozen = faulty(("return None if size(linear, self.settings) is None else Scale(linear, tensor)", "return None"))
    monkeypatch.setattr(rescale[1], "Rescale", frozen)
    with pytest.raises(ConfigError, match="nothing to train"):
        build_model(plan, 64, CONTEXT)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("return None", "changes no layer of this model, freezes nothing and has no first values"),
        ("return LinearChange(linear, tensor)", "makes a LinearChange that does nothing, freezes nothing"),
    ],
)
def test_a_change_that_changes_nothing_is_refused(
    made: str, said: str, resolve: Callable[..., Any], rescale: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its planner tells the host of layers; one that freezes something has an effect."""
    plan, module = resolve(ON).plan.model, rescale[1]

    class Idle(module.Rescale):  # type: ignore[name-defined]  # of the page
        frozen = ""

        def change(self, linear: Any, tensor: Any) -> Any:
            return None if made == "return None" else LinearChange(linear, tensor)

        def freezes(self, name: str) -> bool:
            return name == self.frozen

    monkeypatch.setattr(module, "Rescale", Idle)
    with pytest.raises(PluginError, match=f"model change neox-rescale:rescale .*{said}"):
        build_model(plan, 64, CONTEXT)
    monkeypatch.setattr(Idle, "frozen", "layers.0.mlp.up.weight")
    assert not build_model(plan, 64, CONTEXT).layers[0].mlp.up.weight.requires_grad


def test_the_step_reaches_a_change(resolve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the engine plain; that a base class tells it serves the other one too."""
    told: list[int] = []
    monkeypatch.setattr(LinearChange, "at_step", lambda self, step: told.append(step))
    from neox_plain.api import build_engine

    from neox_core.run.optimizer import build_optimizer

    plan = resolve(ON, "engine=plain").plan
    model = build_model(plan.model, 64, CONTEXT)
    engine = build_engine(plan, model, build_optimizer(plan.optim, model), CONTEXT)
    engine.start_at(7 * plan.batch.train_batch)
    batches = iter([torch.arange(68).view(4, 17) % 64] * 2)
    for _ in range(2):
        engine.train_step(batches, 0.01)
    engine.close()
    assert told == [7] * 8 + [8] * 8
