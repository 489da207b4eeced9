"""The loss half of `check_objective`, on the objectives of docs/plugins/objective.md, with one fault at a time."""

import re
import sys
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from neox_author.testing import build, check_objective
from neox_author.testing.outputs import WholeLogits
from torch.nn import functional as F

from neox_core.contracts.objective import Batch
from neox_core.hooks.component import GROUP
from neox_core.hooks.loader import load_plugins

PAGE = (Path(__file__).resolve().parents[3] / "docs/plugins/objective.md").read_text("utf-8")
FILES = dict(re.findall(r"^`([\w./]+)`:\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
SMOOTH = {"smoothing": 0.2, "z_loss_weight": 0.1}


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is installed, and the page's plugins."""
    for path, text in {**FILES, "neox_smooth/__init__.py": "", "neox_sampled/__init__.py": ""}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for package in ("neox_smooth", "neox_sampled"):
        for name in ("", ".plugin", ".objective"):
            monkeypatch.delitem(sys.modules, f"{package}{name}", raising=False)
    points = [EntryPoint(f"neox-{name}", f"neox_{name}.plugin", GROUP) for name in ("smooth", "sampled")]
    return load_plugins([*entry_points(group=GROUP), *points], {})


def test_the_examples_of_the_page_keep_the_contract(catalog: Any) -> None:
    check_objective(catalog, "smooth", **SMOOTH)
    check_objective(catalog, "sampled", sampled_percent=50)


def test_the_example_is_label_smoothing_as_torch_has_it(catalog: Any) -> None:
    objective = catalog.find("objective", "smooth")
    settings = build(objective, smoothing=0.2, z_loss_weight=0.0)
    tokens = torch.randint(32, (3, 9), generator=torch.Generator().manual_seed(1))
    logits = torch.randn(3, 8, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    found = objective.load()(None, settings).loss(lambda tokens: WholeLogits(logits), Batch(tokens))
    expected = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), label_smoothing=0.2)
    torch.testing.assert_close(found.mean, expected, rtol=1e-12, atol=0)


INPUTS = "    def inputs(self, batch):\n        {}\n        return CausalLM.inputs(self, batch)\n\n"
LAST = "return Loss(cross_entropy +"
FAULTS = {
    "a sum": (("/ number\n        return", "\n        return"), "the loss is the mean over what counts"),
    "of all labels": (("counts.sum().clamp(min=1)", "counts.numel()"), "the loss is the mean over what counts"),
    "what does not count": (
        ("labels != -100", "labels != -1"),
        "the loss is the mean over what counts",
    ),
    "neighbours in the batch": (
        (LAST, f"{LAST} scores.log_prob.mean(0).square().mean() +"),
        "follows from those of its",
    ),
    "no weights": (
        ("    def loss(self", "    def weights(self, batch):\n        return\n\n    def loss(self"),
        "the weight 0",
    ),
    "a negative weight": (
        (
            "    def loss(self",
            "    def weights(self, batch):\n        return -1.0 * (batch.tokens[:, 1:] > 0)\n\n    def loss(self",
        ),
        "no weight is negative",
    ),
    "a weight for each sample": (
        (
            "    def loss(self",
            "    def weights(self, batch):\n        return torch.ones(len(batch.tokens))\n\n    def loss(self",
        ),
        "weights() gives [batch, seq] or None",
    ),
    "weights of the inputs too": (
        (
            "    def loss(self",
            "    def weights(self, batch):\n        return torch.ones(batch.tokens.shape)\n\n    def loss(self",
        ),
        "weights() gives [batch, seq] or None",
    ),
    "a second pass": ((LAST, f"run(self.inputs(batch))\n        {LAST}"), "makes 1 passes, as its planner says, not 2"),
    "other tokens": (("run(self.inputs(batch))", "run(batch.tokens[:, 1:])"), "the first pass is over inputs()"),
    "a wait": ((LAST, f"z = z * (1 if z.item() else 1)\n        {LAST}"), "does not wait for the device, as item does"),
    "a metric with a gradient": (('"z": z.detach()', '"z": z'), "the metric z has no gradient"),
    "a metric that is a number": (('"z": z.detach()', '"z": 3.0'), "z is a scalar tensor"),
    "no scalar": ((".square() * counts).sum()", ".square() * counts).sum(1)"), "is a scalar tensor"),
    "a bare tensor": ((LAST, f"return cross_entropy\n        {LAST}"), "loss() gives a Loss, not a Tensor"),
    "half precision": (
        ("cross_entropy + self.z_loss_weight * z,", "cross_entropy.bfloat16(),"),
        "the mean is in fp32 or wider",
    ),
    "dropout of the global generator": (
        (LAST, f"{LAST} torch.rand(()) * 0 +"),
        "draws no numbers from torch's own generator",
    ),
    "a count of calls": (
        (LAST, f"self.calls = getattr(self, 'calls', 0) + 1\n        {LAST} self.calls +"),
        "two calls give the same bits",
    ),
    "a changed batch": ((LAST, f"batch.tokens[0, -1] += 1\n        {LAST}"), "the batch is left as it is"),
    "no gradient": ((LAST, f"cross_entropy, z = cross_entropy.detach(), z.detach()\n        {LAST}"), "has a gradient"),
    "a gradient of a sum": (
        (LAST, f"z = z + (len(batch.tokens) - 1) * (z - z.detach())\n        {LAST}"),
        "so is its gradient: that of a batch follows from those of its samples",
    ),
    "keys without draws": (
        (LAST, f"z = z + 0 * batch.keys.float().mean()\n        {LAST}"),
        "an objective that uses the keys of a batch has `draws`, True",
    ),
    "0 by 0": ((".clamp(min=1)", ""), "loss and gradients are finite where no label counts"),
    "a list of metrics": (
        ('{"cross_entropy": cross_entropy.detach(), "z": z.detach()}', '[("z", z.detach())]'),
        "metrics are by name, not list",
    ),
    "a wait in inputs": (
        ("    def loss(self", f"{INPUTS.format('batch.tokens.max().item()')}    def loss(self"),
        "does not wait for the device, as item does",
    ),
    "inputs changed in place": (
        ("    def loss(self", f"{INPUTS.format('batch.tokens.add_(1)')}    def loss(self"),
        "inputs() and weights() leave the batch as it is",
    ),
    "weights by chance": (
        (
            "    def loss(self",
            "    def weights(self, batch):\n        return torch.rand(batch.tokens[:, 1:].shape)\n\n    def loss(self",
        ),
        "inputs() and weights() draw no numbers from torch's own generator",
    ),
    "a metric of some batches": (
        ('"z": z.detach()', '"z" if batch.documents is None else "y": z.detach()'),
        "metrics have the same names each time; ['cross_entropy', 'y', 'z'] are not",
    ),
    "a metric with a blank": (('"z": z', '"the z": z'), "is a word, and not `loss`; 'the z' is not"),
    "a metric called loss": (('"z": z', '"loss": z'), "is a word, and not `loss`; 'loss' is not"),
    "other numbers in an evaluation": (
        (LAST, f"{LAST} (not torch.is_grad_enabled()) +"),
        "without gradients the loss is the same",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(catalog: Any, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    (before, after), clause = FAULTS[fault]
    source = FILES["neox_smooth/objective.py"]
    assert before in source
    scope: dict[str, Any] = {}
    exec(compile("import torch\n" + source.replace(before, after), "fault", "exec"), scope)
    module = import_module("neox_smooth.objective")

    monkeypatch.setattr(module, "Smooth", scope["Smooth"])
    with pytest.raises(AssertionError, match=re.escape(clause)):
        check_objective(catalog, "smooth", **SMOOTH)


def test_a_name_that_the_log_takes_is_no_fault(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict[str, Any] = {}
    exec(FILES["neox_smooth/objective.py"].replace('"z": z', '"z-loss.mean": z'), scope)
    monkeypatch.setattr(import_module("neox_smooth.objective"), "Smooth", scope["Smooth"])
    check_objective(catalog, "smooth", **SMOOTH)


def test_passes_that_the_planner_does_not_tell_are_named(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("neox_sampled.plugin")

    monkeypatch.setattr(module, "passes", lambda settings: 3)
    with pytest.raises(AssertionError, match=re.escape("makes 3 passes, as its planner says, not 2")):
        check_objective(catalog, "sampled")
