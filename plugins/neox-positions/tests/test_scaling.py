"""Scaled rotary positions against transformers' functions, and the settings that go together."""

from typing import Any

import pytest
import torch
from neox_gpt.api import PositionShape
from neox_positions.rotary import Rotary
from neox_positions.rules import scaling_is_whole
from neox_positions.settings import RotarySettings
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

SHAPE = PositionShape(hidden_size=128, num_heads=2, head_dim=64, max_positions=512)
FACTOR = {"rotary_scaling_factor": 8.0}
ORIGINAL = {**FACTOR, "rotary_original_positions": 64}
OURS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "linear": ({"rotary_scaling": "linear", **FACTOR}, {"rope_type": "linear"}),
    "dynamic": ({"rotary_scaling": "dynamic", **ORIGINAL}, {"rope_type": "dynamic"}),
    "llama3": (
        {"rotary_scaling": "llama3", **ORIGINAL, "rotary_low_freq_factor": 1.5, "rotary_high_freq_factor": 5.0},
        {"rope_type": "llama3", "low_freq_factor": 1.5, "high_freq_factor": 5.0},
    ),
    "yarn": ({"rotary_scaling": "yarn", **ORIGINAL}, {"rope_type": "yarn"}),
    "yarn, all set": (
        {
            "rotary_scaling": "yarn",
            **ORIGINAL,
            "rotary_beta_fast": 20.0,
            "rotary_beta_slow": 2.0,
            "rotary_mscale": 0.7,
            "rotary_mscale_all_dim": 1.3,
            "rotary_truncate": False,
        },
        {"rope_type": "yarn", "beta_fast": 20, "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False},
    ),
    "yarn, its factor given": (
        {"rotary_scaling": "yarn", **ORIGINAL, "rotary_attention_factor": 0.9},
        {"rope_type": "yarn", "attention_factor": 0.9},
    ),
}


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(("share", "seq"), [(1.0, 200), (0.5, 50)])
def test_tables_are_those_of_transformers(name: str, share: float, seq: int) -> None:
    """Beyond the original length and within it; the sine with the sign of its half."""
    settings, theirs = OURS[name]
    ours = Rotary(SHAPE, RotarySettings(rotary_pct=share, rotary_emb_base=5e4, **settings))
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=64 if name == "dynamic" else 512,
        rope_parameters={
            "rope_theta": 5e4,
            "partial_rotary_factor": share,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            **theirs,
        },
    )
    expected = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(seq)[None])
    for positions in (torch.arange(seq), torch.arange(seq)[None]):
        cos, sin = ours.prepare(positions, torch.float32)
        half = sin.shape[-1] // 2
        sign = torch.cat((-torch.ones(half), torch.ones(half)))
        torch.testing.assert_close(cos.view(seq, -1), expected[0][0], rtol=0, atol=2e-5)
        torch.testing.assert_close((sin * sign).view(seq, -1), expected[1][0], rtol=0, atol=2e-5)
    plain = Rotary(SHAPE, RotarySettings(rotary_pct=share, rotary_emb_base=5e4)).prepare(positions, torch.float32)
    assert (name == "dynamic" and seq <= 64) == bool(torch.allclose(plain[0], cos, atol=1e-4))


def test_a_sequence_has_the_base_of_its_own_length() -> None:
    ours = Rotary(SHAPE, RotarySettings(**OURS["dynamic"][0]))
    long, short = torch.arange(100), torch.cat((torch.arange(50), torch.arange(50)))
    both = ours.prepare(torch.stack((long, short)), torch.float32)[0]
    for row, one in enumerate((long, short)):
        torch.testing.assert_close(both[row, 0], ours.prepare(one, torch.float32)[0], rtol=0, atol=0)
    assert (ours.decodes_up_to, Rotary(SHAPE, RotarySettings()).decodes_up_to) == (64, None)


def test_windows_have_a_base_of_their_own() -> None:
    """Gemma 3's: not scaled."""
    ours = Rotary(SHAPE, RotarySettings(rotary_emb_base=1e6, rotary_emb_base_in_windows=1e4, **OURS["linear"][0]))
    query, positions = torch.randn(1, 2, 30, 64, generator=torch.Generator().manual_seed(0)), torch.arange(30)
    prepared = ours.prepare(positions, torch.float32)
    for settings, rotate in (
        (RotarySettings(rotary_emb_base=1e4), ours.rotate_in_window),
        (RotarySettings(rotary_emb_base=1e6, **OURS["linear"][0]), ours.rotate),
    ):
        other = Rotary(SHAPE, settings)
        wanted = other.rotate(query, query, other.prepare(positions, torch.float32))
        assert all(map(torch.equal, rotate(query, query, prepared), wanted))


class Config:
    """What a rule asks of a config."""

    def __init__(self, written: dict[str, Any]) -> None:
        self.written = written

    def is_set(self, key: str) -> bool:
        return key in self.written

    def value(self, key: str) -> Any:
        return self.written.get(key)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"rotary_scaling": "linear"}, "is required for rotary-scaling linear"),
        ({"rotary_scaling": "yarn", **FACTOR}, "is required for rotary-scaling yarn"),
        ({"rotary_scaling_factor": 2.0}, "does nothing with rotary-scaling none"),
        ({"rotary_scaling": "linear", **FACTOR, "rotary_beta_fast": 3.0}, "does nothing with rotary-scaling linear"),
        ({**OURS["llama3"][0], "rotary_high_freq_factor": 1.0}, "is not above rotary-low-freq-factor"),
        ({**OURS["yarn"][0], "rotary_beta_fast": 1.0}, "is not above rotary-beta-slow"),
        ({**OURS["yarn"][0], "rotary_mscale": 1.0}, "does nothing without the other"),
        ({**OURS["yarn, all set"][0], "rotary_attention_factor": 1.0}, "does nothing beside rotary-attention-factor"),
        ({"rotary_emb_base_in_windows": 1e4}, "no layer has a window"),
        ({"rotary_emb_base_in_windows": 1e4, "sliding_window_width": 4}, ""),
        *((settings, "") for settings, _ in OURS.values()),
    ],
)
def test_settings_go_together(written: dict[str, Any], said: str) -> None:
    own = {key: value for key, value in written.items() if key != "sliding_window_width"}
    found = list(scaling_is_whole(Config(written), RotarySettings(**own), turned=64))
    assert [said in problem.message for problem in found] == ([True] if said else [])


def test_two_turned_dimensions_have_no_dynamic_base() -> None:
    (problem,) = scaling_is_whole(Config(OURS["dynamic"][0]), RotarySettings(**OURS["dynamic"][0]), turned=2)
    assert "more than two turned dimensions" in problem.message
