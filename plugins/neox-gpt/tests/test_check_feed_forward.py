"""`check_feed_forward` on the MLP, and on the feed-forward of docs/plugins/feed-forward.md with one fault at a time."""

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
from neox_author.testing import load_only
from neox_gpt.api import FeedForwardSize, build_model
from neox_gpt.architecture import GPTArchitecture
from neox_gpt.shape import flops_per_token
from neox_gpt.testing import check_feed_forward

from neox_core.errors import NeoxError, PluginError
from neox_core.hooks.component import GROUP
from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.run.optimizer import build_optimizer

PAGE = (Path(__file__).resolve().parents[3] / "docs/plugins/feed-forward.md").read_text("utf-8")
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
def experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The catalogue with the page's feed-forward, and its modules."""
    for path, text in {**FILES, "neox_shared_experts/__init__.py": ""}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("", ".plugin", ".layer", ".size"):
        monkeypatch.delitem(sys.modules, f"neox_shared_experts{name}", raising=False)
    points = [
        EntryPoint(name, f"{name.replace('-', '_')}.plugin", GROUP) for name in ("neox-shared-experts", "neox-gpt")
    ]
    catalog = load_plugins(points, {})
    layer = import_module("neox_shared_experts.layer")
    size = import_module("neox_shared_experts.size")

    return catalog, layer, size


def test_the_mlp_keeps_its_contract() -> None:
    check_feed_forward(load_only("neox-gpt"), "regular")


def test_the_example_of_the_page_keeps_it_too(experts: Any) -> None:
    check_feed_forward(experts[0], "shared-experts", num_experts=3)


def forward_with(*changes: tuple[str, str]) -> Callable[[Any], Any]:
    """The page's layer with some of its text replaced."""
    (source,) = (text for path, text in FILES.items() if path.endswith("layer.py"))
    for before, after in changes:
        assert before in source
        source = source.replace(before, after)

    def change(layer: Any) -> Any:
        scope: dict[str, Any] = {}
        exec(compile(source, "fault", "exec"), scope)
        return scope["SharedExperts"]

    return change


ENTERED, LEFT = "entered = self.tensor.enter(x)", "self.tensor.leave(routed)"
FAULTS = {
    "missing all-reduce": ((LEFT, "routed"), "TP 2 equals TP 1: the result differs"),
    "missing sum of gradients": ((ENTERED, "entered = x"), "TP 2 equals TP 1: the gradient of the input differs"),
    "a whole parameter that is not summed": (
        ("self.tensor.copy(self.router)", "self.router"),
        "TP 2 equals TP 1: the gradient of router differs",
    ),
    "wrong slice": (("tensor.cut(1, (width, width))", "tensor.cut(1, (2 * width,))"), "TP 2 equals TP 1: the result"),
    "split along another dimension": (
        ("tensor.cut(2, (width,))", "tensor.cut(1, (hidden,))"),
        "what is split, and where",
    ),
    "bias on every rank": (
        (LEFT, "self.tensor.leave(routed + self.router[0])"),
        "TP 2 equals TP 1: the result differs",
    ),
    "sequence": ((f"{LEFT} +", f"{LEFT} + x.mean(1, keepdim=True) +"), "depends on that token alone: the result"),
    "place": ((f"{LEFT} +", f"{LEFT} + torch.arange(x.shape[1]).to(x)[:, None] +"), "depends on that token alone"),
    "micro-batch": ((f"{LEFT} +", f"{LEFT} + x.mean(0) +"), "depends on that token alone"),
    "dropout of the global generator": ((LEFT, f"F.dropout({LEFT}, 0.1)"), "no numbers from torch's own generator"),
    "a state": ((LEFT, f"{LEFT} * self.count()"), "two calls give the same bits"),
    "changes its input": ((ENTERED, f"x.mul_(2); {ENTERED}"), "leaves its input as it is"),
    "sums in half precision": (
        (
            'torch.einsum("bsew,ehw->bsh", inner * weights[..., None], self.down)',
            "summed(inner * weights[..., None], self.down)",
        ),
        "sums of half-precision products are in fp32",
    ),
    "another result in evaluation": (
        (LEFT, f"{LEFT} * (1 if self.training else 0.5)"),
        "evaluation mode gives what training gives, without dropout: the result differs",
    ),
    "a gradient that is forgotten": (
        (ENTERED, f"self.down.grad = None; {ENTERED}"),
        "the gradients of two micro-batches add up: the gradient of down differs",
    ),
    "a stack in a text": (
        ("self.cuts = {", "self.stacks = 'up'; self.cuts = {"),
        "`stacks` is a set of names of the module's own parameters; SharedExperts has 'up'",
    ),
    "waits for the device": (
        (LEFT, f"{LEFT} * (1 if values.sum().item() else 1)"),
        "does not wait for the device, as item does",
    ),
    "counts on the host": (
        (LEFT, f"{LEFT} + 0 * len(scores.nonzero())"),
        "does not wait for the device, as nonzero does",
    ),
    "a gradient that is cut off": (
        ("self.down)", "self.down.detach())"),
        "by finite differences in float64: the gradient of down differs",
    ),
    "a detached router": (
        ("values, places = scores", "values, places = scores.detach()"),
        "by finite differences in float64: the gradient of the input differs",
    ),
    "no numbers": (("return result, self", "return result  # self"), "gives (tensor, numbers)"),
    "a pair of no tensor": (("return result, self", "return None, self"), "gives a tensor, not a NoneType"),
    "fp32 result": (
        ("return result, self", "return result.to(torch.promote_types(x.dtype, torch.float32)), self"),
        "same dtype: torch.bfloat16 became torch.float32",
    ),
    "a loss without a name": (
        ('("balance", "router_z")', '("balance",)'),
        "gives balance, busiest besides its tensor, as its attributes say, and not balance, router_z, busiest",
    ),
    "a loss for each token": ((".square().mean()", ".square().mean(1)"), "gives router_z as a floating-point scalar"),
    "a sum over tokens": ((".square().mean()", ".square().sum()"), "router_z is a mean over tokens"),
    "a loss of half precision": (
        ("logits.to(torch.promote_types(logits.dtype, torch.float32))", "logits"),
        "balance is in fp32 or wider",
    ),
    "a loss past the sum of gradients": (
        ("self.numbers(logits.to(", "self.numbers(F.linear(entered, self.router).to("),
        "TP 2 equals TP 1: the gradient of router differs",
    ),
    "a loss that waits": (
        ('"busiest": used.max()', '"busiest": used.max() * (1 if used.sum().item() else 1)'),
        "does not wait for the device, as item does",
    ),
    "a loss that is cut off": (
        ("router_z = logits.logsumexp", "router_z = logits.detach().logsumexp"),
        "by finite differences in float64: the gradient of the input differs",
    ),
    "FLOPs of one rank": (("3 * width * (1", "3 * mine * (1"), "`flops_per_token` counts all tensor ranks"),
    "other shapes": (("torch.empty(experts, hidden)", "torch.empty(experts + 1, hidden)"), "shape of each parameter"),
}
HELPERS = """

def summed(inner, down):
    total = 0
    for place in range(inner.shape[3]):
        total = total + torch.einsum("bse,eh->bsh", inner[..., place], down[..., place])
    return total
"""
COUNT = """
    def count(self):
        self.calls = getattr(self, "calls", 0) + 1
        return self.calls

    def forward(self, x):"""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(experts: Any, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    catalog, layer, _ = experts
    change, clause = FAULTS[fault]
    more = (("\n    def forward(self, x):", COUNT), ("\n\ndef gated", f"{HELPERS}\n\ndef gated"))
    monkeypatch.setattr(layer, "SharedExperts", forward_with(change, *more)(layer))
    with pytest.raises(AssertionError, match=re.escape(clause)):
        check_feed_forward(catalog, "shared-experts")


def test_first_values_that_follow_from_no_seed_are_named(experts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, layer, _ = experts

    class Drawn(layer.SharedExperts):
        starts_as_made = ("router",)

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            torch.nn.init.normal_(self.router)

    monkeypatch.setattr(layer, "SharedExperts", Drawn)
    with pytest.raises(AssertionError, match=r"PP 2 equals one process: first weights: layers\.0\.mlp\.router differs"):
        check_feed_forward(catalog, "shared-experts")


@pytest.fixture
def resolve(tmp_path: Path, experts: Any) -> Callable[..., Any]:
    def _resolve(*sets: str) -> Any:
        (tmp_path / "c.yml").write_text(CONFIG)
        point = EntryPoint("neox-shared-experts", "neox_shared_experts.plugin", GROUP)
        catalog = load_plugins([*entry_points(group=GROUP), point], {})
        return prepare_run([tmp_path / "c.yml"], sets, catalog=catalog, machine=Machine(0, 4), start=False)

    return _resolve


MIXED = "mlp-type=[[[regular, shared-experts], all]]"
ALONE = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)


def test_it_trains_beside_the_mlp(resolve: Callable[..., Any]) -> None:
    """Every second layer has it; what the host says of the model is what is built, and two steps lower the loss."""
    resolved = resolve(MIXED, "num-experts=3")
    plan = resolved.plan
    assert [plan.model.feed_forward(layer).name for layer in range(4)] == ["regular", "shared-experts"] * 2
    model = build_model(plan.model, 64, ALONE)
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    assert shapes["layers.1.mlp.up"] == (3, 96, 32)
    assert shapes["layers.2.mlp.up.weight"] == (192 // 4, 32)
    regular, routed = 6 * 2 * 32 * 48, 6 * 32 * (3 + 3 * 48 * 4)
    dense = flops_per_token(evolve(model.shape, feed_forward_flops=0), 16)
    assert model.flops_per_token == dense + 2 * (regular + routed)
    optimizer = build_optimizer(plan.optim, model, None, GPTArchitecture.tables)
    tokens = torch.arange(64).view(4, 16)
    losses = []
    for _ in range(3):
        loss = model.loss(tokens, tokens.roll(-1, 1))
        losses.append(loss.item())
        loss.backward()
        assert model.layers[1].mlp.router.grad.abs().sum() > 0
        optimizer.step()
        optimizer.zero_grad()
    assert losses[2] < losses[1] < losses[0]


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("mlp-type=[[[regular], 3]]",), "mlp-type: names the feed-forward of 3 layers, and num-layers is 4"),
        (("mlp-type=[[regular, 1]]",), "mlp-type: must be a list of names, or of"),
        (("mlp-type=shared_experts",), "mlp-type: no feed forward 'shared_experts'"),
        ((MIXED, "num-unique-layers=2"), "mlp-type: excludes num-unique-layers"),
        (("num-experts=3",), "num-experts"),
        (("mlp-type=shared-experts", "num-experts=two"), "num-experts: must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused_before_the_start(
    resolve: Callable[..., Any], sets: tuple[str, ...], said: str
) -> None:
    with pytest.raises(NeoxError, match=re.escape(said)):
        resolve(*sets)


def test_what_cannot_be_split_is_refused(
    resolve: Callable[..., Any], experts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets, size = ("mlp-type=shared-experts", "model-parallel-size=2", "num-gpus=2"), experts[2]
    plan = resolve(*sets).plan
    assert plan.cluster.tensor_parallel == 2
    whole = size.size
    for said, told in (
        ("cannot be split over ranks", lambda shape, settings: evolve(whole(shape, settings), one_rank_only=True)),
        (
            "router of shared-experts is 3 x 32, and cannot be split over 2 ranks",
            lambda shape, settings: FeedForwardSize({"router": (3, 32)}, {"router": 0}),
        ),
    ):
        monkeypatch.setattr(size, "size", told)
        with pytest.raises(NeoxError, match=said):
            resolve(*sets)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("text", "no FeedForwardSize"),
        (None, "no FeedForwardSize"),
        (FeedForwardSize(dict[str, Any](up=3)), "`shapes` that are not the lengths of each parameter by name"),
        (FeedForwardSize({"up": (4, 4)}, {"down": 0}), "a `split` of 'down', and no such dimension"),
        (FeedForwardSize({"up": (4, 4)}, {"up": 2}), "a `split` of 'up', and no such dimension"),
        (FeedForwardSize({"up": (4, 4)}, spread={"down": 2}), "a `spread` of 'down', which its `shapes` lack"),
    ],
)
def test_a_planner_that_breaks_its_contract_is_named(
    resolve: Callable[..., Any], experts: Any, monkeypatch: pytest.MonkeyPatch, told: Any, said: str
) -> None:
    monkeypatch.setattr(experts[2], "size", lambda shape, settings: told)
    with pytest.raises(NeoxError, match=re.escape(f"the planner of feed forward shared-experts gives {said}")):
        resolve("mlp-type=shared-experts", "model-parallel-size=2", "num-gpus=2")
    monkeypatch.setattr(experts[2], "size", lambda shape, settings: sys.exit(0))
    with pytest.raises(NeoxError, match="the planner of feed forward shared-experts failed: SystemExit"):
        resolve("mlp-type=shared-experts", "model-parallel-size=2", "num-gpus=2")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (FAULTS["a pair of no tensor"][0], "it gives None, not float32"),
        (
            FAULTS["no numbers"][0],
            "gives balance, router_z, busiest besides its tensor, as its attributes say, and not",
        ),
        (
            ('auxiliary_losses, auxiliary_metrics = ("balance", "router_z"), ("busiest",)', "pass"),
            "it gives a tuple, not",
        ),
        (('("busiest",)', '"busiest"'), "its auxiliary_metrics is a str, not a tuple of names"),
        (FAULTS["a loss without a name"][0], "gives balance, busiest besides its tensor, as its attributes say"),
    ],
)
def test_what_is_not_as_it_says_is_refused_when_the_model_is_built(
    resolve: Callable[..., Any], experts: Any, monkeypatch: pytest.MonkeyPatch, change: Any, said: str
) -> None:
    monkeypatch.setattr(experts[1], "SharedExperts", forward_with(change)(experts[1]))
    with pytest.raises(PluginError, match=f"feed forward neox-shared-experts:shared-experts .*{re.escape(said)}"):
        build_model(resolve("mlp-type=shared-experts").plan.model, 64, ALONE)
