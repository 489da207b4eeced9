"""`check_mixer` on softmax attention, and on the mixer of docs/plugins/mixer.md with one fault at a time."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from neox_author.testing import load_only
from neox_gpt.attention import scores
from neox_gpt.testing import check_mixer

PAGE = (Path(__file__).resolve().parents[3] / "docs/plugins/mixer.md").read_text("utf-8")
FILES = dict(re.findall(r"^`([\w./]+)`[^\n]*:\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
PACKAGE = "neox_gated_linear"


def test_softmax_attention_keeps_its_contract() -> None:
    check_mixer(load_only("neox-gpt"), "global")


def test_the_example_of_the_page_keeps_it_too(gated: Any) -> None:
    for divisor in (4.0, 1e4):
        check_mixer(gated[0], "gated-linear", gate_divisor=divisor)


def changed(*changes: tuple[str, str]) -> Any:
    """The page's class with some of its text replaced."""
    (source,) = (text for path, text in FILES.items() if path.endswith("layer.py"))
    for before, after in changes:
        assert before in source, before
        source = source.replace(before, after)
    scope: dict[str, Any] = {}
    exec(compile(source, "fault", "exec"), scope)
    return scope["GatedLinear"]


MIXED = "(mixed * self.scale).transpose(1, 2).flatten(2)"
RESULT = f"return self.output({MIXED})"
GATE = "self.gate = ColumnLinear(hidden, shape.num_heads, tensor)"
OUTPUT = "self.output = RowLinear(hidden, hidden, tensor, bias=False)"
SUM = 'state["sum"] = last.exp()[..., None] * before + new'
DECODING = "decoding with a state gives what a whole sequence gives"
PRODUCT = "(query @ key.mT * weight).to(value.dtype) @ value"
SUMMED = """def summed(weight, value):
    total = 0
    for at in range(value.shape[2]):
        total = total + weight[..., at : at + 1] * value[:, :, at : at + 1]
    return total


"""
FAULTS: dict[str, tuple[tuple[tuple[str, str], ...], str]] = {
    "missing all-reduce": (
        ((RESULT, f"return F.linear({MIXED}, self.output.weight)"),),
        "TP 2 equals TP 1: the result differs",
    ),
    "missing sum of gradients": (
        (("self.gate(x)", "F.linear(x, self.gate.weight, self.gate.bias)"),),
        "TP 2 equals TP 1: the gradient of the input differs",
    ),
    "wrong slice": ((("sections=(hidden,) * 3", "sections=(3 * hidden,)"),), "TP 2 equals TP 1: the result differs"),
    "split along another dimension": (
        ((OUTPUT, f"{OUTPUT}\n        self.output.cuts = {{}}"),),
        "the planner tells what is split, and where",
    ),
    "bias on every rank": (
        ((RESULT, f"return self.output.tensor.leave(F.linear({MIXED}, self.output.weight) + 0.1)"),),
        "TP 2 equals TP 1: the result differs",
    ),
    "not causal by one": (((".tril()", ".tril(1)"),), "causal: a change at a token alters nothing before it"),
    "a mean over the sequence": (
        ((RESULT, RESULT.replace("mixed *", "(mixed + mixed.mean(2, keepdim=True)) *")),),
        "causal: a change at a token alters nothing before it",
    ),
    "documents forgotten": ((("if scope.documents is not None:", "if False:"),), "passes the boundary of a document"),
    "documents by one": (
        (("scope.documents[:, None])[:, None]", "scope.documents.roll(1, 1)[:, None])[:, None]"),),
        "passes the boundary of a document",
    ),
    "the micro-batch": (
        ((RESULT, RESULT.replace("mixed *", "mixed / (1 + mixed.abs().amax(0)) *")),),
        "does not depend on the others of the micro-batch",
    ),
    "a state that forgets once too often": (
        (("mixed = mixed + (left.exp()", "mixed = mixed + ((2 * left).exp()"),),
        f"{DECODING} (one token at a time)",
    ),
    "a state that is one token late": (
        (("key.mT.to(wide) @", "key.roll(1, 2).mT.to(wide) @"),),
        f"{DECODING} (3, 1, 4 tokens at a time)",
    ),
    "a state that is not stored": (((SUM, 'state["sum"] = new'),), DECODING),
    "no state at all": (((SUM, "pass"),), DECODING),
    "a state on the module": (
        (
            ('state.get("sum", ', 'getattr(self, "kept", '),
            ('if "sum" in state', 'if getattr(self, "kept", None) is not None'),
            (SUM, 'self.kept = state["sum"] = last.exp()[..., None] * before + new'),
        ),
        DECODING,
    ),
    "a state of no layer": ((("scope.state(layer)", "scope.state(0)"),), "what is kept of a sequence and a layer"),
    "dropout of the global generator": (
        ((RESULT, RESULT.replace("mixed *", "F.dropout(mixed, 0.1) *")),),
        "draws no numbers from torch's own generator",
    ),
    "changes its input": ((("parts = self.qkv(x)", "parts = self.qkv(x.mul_(2))"),), "leaves its input as it is"),
    "counts its calls": (
        ((RESULT, f"self.scale *= 1.5\n        {RESULT}"),),
        "two calls give the same bits",
    ),
    "another result in evaluation": (
        ((RESULT, RESULT.replace("mixed *", "mixed * (1 if self.training else 0.5) *")),),
        "evaluation mode gives what training gives, without dropout: the result differs",
    ),
    "a buffer that counts": (
        (
            (OUTPUT, f"{OUTPUT}\n        self.register_buffer('calls', torch.zeros(()))"),
            (RESULT, f"self.calls.add_(1)\n        {RESULT}"),
        ),
        "a mixer leaves its parameters and buffers as they are; calls differs",
    ),
    "weights that a pass clips": (
        ((RESULT, f"self.output.weight.data.clamp_(-0.1, 0.1)\n        {RESULT}"),),
        "a mixer leaves its parameters and buffers as they are; output.weight differs",
    ),
    "decay of another name": (
        ((OUTPUT, f"{OUTPUT}\n        self.no_weight_decay = {{'gate_bias'}}"),),
        "`no_weight_decay` is a set of names of the module's own parameters; GatedLinear has 'gate_bias'",
    ),
    "sums in half precision": (
        (
            (PRODUCT, "summed((query @ key.mT * weight).to(value.dtype), value)"),
            ("class GatedLinear", f"{SUMMED}class GatedLinear"),
        ),
        "sums of half-precision products are in fp32",
    ),
    "waits for the device": (
        ((RESULT, RESULT.replace("mixed *", "mixed * (1 if left.sum().item() else 1) *")),),
        "does not wait for the device, as item does",
    ),
    "waits in a condition": (
        (("if scope.documents is not None:", "if scope.documents is not None and bool(scope.documents.amax() >= 0):"),),
        "does not wait for the device, as __bool__ does",
    ),
    "a gradient that is cut off": (
        (("(query @ key.mT * weight)", "(query @ key.mT.detach() * weight)"),),
        "by finite differences in float64: the gradient of the input differs",
    ),
    "a gate without gradient": (
        (("/ self.divisor)", "/ self.divisor).detach()"),),
        "by finite differences in float64: the gradient of the input differs",
    ),
    "a pair": ((("return self.output(", "return None, self.output("),), "gives a tensor, not a tuple"),
    "fp32 result": (((RESULT, f"{RESULT}.float()"),), "same dtype: torch.float64 became torch.float32"),
    "first values from torch's generator": (
        ((GATE, f"{GATE}\n        nn.init.normal_(self.gate.bias)"),),
        "PP 2 equals one process: first weights: layers.0.attention.gate.bias differs",
    ),
    "other shapes": (((GATE, GATE.replace("tensor)", "tensor, bias=False)")),), "the shape of each parameter"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(gated: Any, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    catalog, layer, _ = gated
    changes, clause = FAULTS[fault]
    monkeypatch.setattr(layer, "GatedLinear", changed(*changes))
    divisor = 1e4 if fault == "sums in half precision" else 4.0  # where nothing is forgotten, sums are long
    with pytest.raises(AssertionError, match=re.escape(clause)):
        check_mixer(catalog, "gated-linear", gate_divisor=divisor)


def test_dropout_that_does_not_scale_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scores.drop_probabilities

    def unscaled(probs: Any, p: float, keys: Any, *more: Any) -> Any:
        return whole(probs, p, keys, *more) * (1 if keys is None else 1 - p)

    monkeypatch.setattr(scores, "drop_probabilities", unscaled)
    with pytest.raises(AssertionError, match=r"dropout scales what it keeps: .* it is 0\.[45]\d of it"):
        check_mixer(load_only("neox-gpt"), "global")


TOLD: dict[str, tuple[Callable[[Any], Any], str]] = {
    "FLOPs of the forward pass": (lambda size: evolve(size, flops=size.flops // 12), "`flops` has 6 for each weight"),
    "heads that are not equal": (
        lambda size: evolve(size, split={**size.split, "gate.bias": 0, "qkv.weight": 1}),
        "the planner tells what is split, and where",
    ),
    "positions that nothing takes": (
        lambda size: evolve(size, needs_positions=True),
        "a mixer with `needs_positions` uses `rotate`",
    ),
    "dropout that is none": (lambda size: evolve(size, uses={"dropout"}), "without keys there is none"),
    "a bias that is none": (lambda size: evolve(size, uses={"bias"}), "`uses` names what changes the parameters"),
    "shapes": (lambda size: evolve(size, shapes={}), "the planner tells the shape of each parameter"),
    "another answer": (lambda size: None, "the planner gives a MixerSize"),
}


@pytest.mark.parametrize("fault", TOLD)
def test_a_fault_of_the_planner_is_named(gated: Any, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    catalog, _, size = gated
    (change, clause), whole = TOLD[fault], size.size
    monkeypatch.setattr(size, "size", lambda shape, settings: change(whole(shape, settings)))
    with pytest.raises(AssertionError, match=re.escape(clause)):
        check_mixer(catalog, "gated-linear")


def test_what_is_not_declared_is_not_asked_for(gated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mixer that sees later tokens, has no state and cannot be split may say so."""
    catalog, layer, size = gated
    whole = size.size
    told = {"causal": False, "decodes": False, "one_rank_only": True}
    monkeypatch.setattr(size, "size", lambda shape, settings: evolve(whole(shape, settings), **told))
    monkeypatch.setattr(layer, "GatedLinear", changed((".tril()", ".tril(1)"), (SUM, "pass")))
    check_mixer(catalog, "gated-linear")
