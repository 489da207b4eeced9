"""The families of transformers keep the contract, and faults are named."""

from collections.abc import Iterator
from typing import Any

import pytest
from neox_author.testing import load_only
from neox_hf.api import WeightRule
from neox_hf.gpt_neox import GPTNeoX
from neox_hf.testing import check_model_family, families

LLAMA: dict[str, Any] = {
    "norm": "rmsnorm",
    "rms_norm_epsilon_in": "mean-square",
    "pos_emb": "rotary",
    "activation": "swiglu",
    "use_bias_in_attn_linear": False,
    "use_bias_in_mlp": False,
    "intermediate_size": 48,
}
PYTHIA: dict[str, Any] = {"pos_emb": "rotary", "rotary_pct": 0.5, "gpt_j_residual": True}


@pytest.mark.parametrize(("name", "keys"), [("gpt_neox", PYTHIA), ("llama", LLAMA)])
def test_a_family_keeps_every_clause(name: str, keys: dict[str, Any]) -> None:
    check_model_family(load_only("neox-hf"), name, **keys)


WEIGHTS, KEYS, CONFIG = GPTNeoX.weights, GPTNeoX.keys, GPTNeoX.config


def without_head(self: Any, model: Any) -> Iterator[WeightRule]:
    return (each for each in WEIGHTS(self, model) if each.ours != "head.weight")


def turned(self: Any, model: Any) -> Iterator[WeightRule]:
    return (WeightRule(each.ours, each.theirs, split=lambda weight: (weight.flip(0),)) for each in WEIGHTS(self, model))


@pytest.mark.parametrize(
    ("method", "new", "said"),
    [
        ("weights", without_head, "one rule for each parameter; not so of .'head.weight'"),
        ("weights", turned, "join is the inverse of split, bit for bit"),
        ("ignores", lambda self, name: name.endswith("bias"), "ignores.. is False for a weight"),
        ("keys", lambda self, config: KEYS(self, config) | {"rotary-pct": 1.0}, "describe the same model; .* position"),
        ("config", lambda self, *model: CONFIG(self, *model) | {"model_type": "gpt"}, "is called as the `model_type`"),
        ("keys", lambda self, config: {}, "raises ConfigError for a config.json that lacks"),
    ],
)
def test_a_fault_is_named(method: str, new: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GPTNeoX, method, new)
    monkeypatch.setattr(families, "check_light", lambda target: None)  # which starts a process
    with pytest.raises(AssertionError, match=said):
        check_model_family(load_only("neox-hf"), "gpt_neox", **PYTHIA)
