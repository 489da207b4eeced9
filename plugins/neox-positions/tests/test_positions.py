"""The positions against Hugging Face's rotary embedding and closed forms in float64."""

import math
from types import SimpleNamespace

import pytest
import torch
from neox_author.testing import assert_light, build, load_only
from neox_gpt.api import PositionShape
from neox_gpt.testing import check_position
from neox_positions.alibi import Alibi, slopes
from neox_positions.learned import Learned
from neox_positions.none import NoPosition
from neox_positions.plugin import neox_check_config
from neox_positions.rotary import Rotary
from neox_positions.rpe import RelativeBias
from neox_positions.settings import RelativeSettings, RotarySettings
from neox_positions.sinusoidal import Sinusoidal
from transformers import GPTNeoXConfig, T5Config
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from neox_core.errors import ConfigError

SHAPE = PositionShape(hidden_size=64, num_heads=2, head_dim=32, max_positions=40)


def test_listing_is_light() -> None:
    assert_light("neox-positions")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("learned", {}),
        ("sinusoidal", {}),
        ("none", {}),
        ("rotary", {}),
        ("rotary", {"rotary_pct": 0.25}),
        ("rotary", {"rotary_pct": 0.5, "rotary_emb_base": 500_000.0}),
        ("rpe", {}),
        ("rpe", {"rpe_num_buckets": 6, "rpe_max_distance": 9}),
        ("alibi", {}),
    ],
)
def test_keeps_the_contract(name: str, settings: dict[str, float]) -> None:
    check_position(load_only("neox-positions"), name, **settings)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("base", [10000.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_equals_hugging_face(share: float, base: float, dtype: torch.dtype) -> None:
    theirs = GPTNeoXRotaryEmbedding(
        GPTNeoXConfig(
            hidden_size=SHAPE.hidden_size,
            num_attention_heads=SHAPE.num_heads,
            rope_parameters={"rope_type": "default", "rope_theta": base, "partial_rotary_factor": share},
        )
    )
    ours = Rotary(SHAPE, RotarySettings(rotary_pct=share, rotary_emb_base=base))
    random = torch.Generator().manual_seed(0)
    query, key = (torch.randn(3, SHAPE.num_heads, 20, SHAPE.head_dim, generator=random).to(dtype) for _ in range(2))
    positions = torch.stack((torch.arange(20), torch.arange(20) + 900, torch.arange(20).flip(0)))
    expected = apply_rotary_pos_emb(query, key, *theirs(query, positions))
    got = ours.rotate(query, key, ours.prepare(positions, dtype))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4 if dtype == torch.float32 else 2e-2, atol=2e-4)
        assert one.dtype == dtype
    turned = int(share * SHAPE.head_dim)
    assert torch.equal(got[0][..., turned:], query[..., turned:])
    assert not torch.equal(got[0][..., :turned], query[..., :turned])


def test_rotary_turns_by_the_papers_angle() -> None:
    """Dimension i with dimension i + n / 2, by position * base^(-2 i / n)."""
    ours = Rotary(SHAPE, RotarySettings(rotary_pct=0.5))
    x = torch.zeros(1, 1, 1, SHAPE.head_dim, dtype=torch.float64)
    x[..., 3] = 1.0
    turned, _ = ours.rotate(x, x, ours.prepare(torch.tensor([17]), torch.float64))
    angle = 17 * 10000 ** (-2 * 3 / 16)
    expected = torch.zeros_like(x)
    expected[..., 3], expected[..., 3 + 8] = math.cos(angle), math.sin(angle)
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-5)


def test_rotary_keeps_lengths() -> None:
    ours = Rotary(SHAPE, RotarySettings())
    x = torch.randn(1, 2, 9, SHAPE.head_dim, generator=torch.Generator().manual_seed(0))
    turned, _ = ours.rotate(x, x, ours.prepare(torch.arange(9) * 1000, torch.float32))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("share", "turned"), [(0.1, 3), (0.03, 0)])
def test_rotary_refuses_a_share_that_makes_no_pairs(share: float, turned: int) -> None:
    with pytest.raises(ConfigError, match=f"turns {turned} of 32 dimensions"):
        Rotary(SHAPE, RotarySettings(rotary_pct=share))


@pytest.mark.parametrize(
    ("share", "said"), [(0.25, ""), (1.0, ""), (0.1, "turns 3 of the 32"), (0.03, "turns 0 of the 32")]
)
def test_that_share_is_refused_on_the_host_already(share: float, said: str) -> None:
    catalog = load_only("neox-positions")
    entry = catalog.find("position", "rotary")
    chosen = SimpleNamespace(entry=entry, settings=build(entry, rotary_pct=share))
    values = {"hidden-size": 64, "num-attention-heads": 2, "head-dim": None}
    config = SimpleNamespace(components=lambda kind: (chosen,), value=values.__getitem__, is_set=lambda key: False)
    (problems,) = catalog.manager.hook.neox_check_config(config=config)
    assert [problem.key for problem in problems] == (["rotary-pct"] if said else [])
    assert all(said in problem.message for problem in neox_check_config(config))


def test_sinusoidal_is_the_papers_table() -> None:
    """arXiv:1706.03762, 3.5, sines before cosines; an odd width drops the last cosine."""
    for hidden in (64, 7):
        shape = PositionShape(hidden_size=hidden, num_heads=1, head_dim=hidden, max_positions=40)
        table = Sinusoidal(shape, None).embed(torch.zeros(1, 40, hidden, dtype=torch.float64), torch.arange(40))[0]
        half = math.ceil(hidden / 2)
        for position in (0, 1, 39):
            for index in range(hidden):
                angle = position / 10000 ** (2 * (index % half) / hidden)
                expected = math.sin(angle) if index < half else math.cos(angle)
                assert table[position, index].item() == pytest.approx(expected, abs=1e-5)


def test_learned_adds_the_row_of_the_position() -> None:
    learned = Learned(SHAPE, None)
    assert learned.weight.shape == (40, 64)
    learned.weight.data.copy_(torch.arange(40.0)[:, None].expand(40, 64))
    out = learned.embed(torch.ones(2, 3, 64), torch.tensor([[0, 5, 39], [7, 7, 1]]))
    assert torch.equal(out[:, :, 0], torch.tensor([[1.0, 6.0, 40.0], [8.0, 8.0, 2.0]]))
    with pytest.raises(IndexError):
        learned.embed(torch.ones(1, 1, 64), torch.tensor([40]))


def table(position: NoPosition, seq: int, heads: int) -> torch.Tensor:
    """[heads, seq, seq] of biases; ahead of the query they do not matter."""
    bias = position.score_bias(position.prepare(torch.arange(seq), torch.float32))
    assert bias is not None
    at = torch.arange(seq)
    return bias(torch.arange(heads)[:, None, None], at[:, None], at).expand(heads, seq, seq)


@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 20), (7, 100), (2, 300)])
def test_rpe_equals_t5s_decoder(buckets: int, farthest: int) -> None:
    theirs = T5Attention(
        T5Config(
            d_model=64,
            d_kv=8,
            num_heads=8,
            is_decoder=True,
            relative_attention_num_buckets=buckets,
            relative_attention_max_distance=farthest,
        ),
        has_relative_attention_bias=True,
        layer_idx=0,
    )
    shape = PositionShape(hidden_size=64, num_heads=8, head_dim=8, max_positions=320)
    ours = RelativeBias(shape, RelativeSettings(rpe_num_buckets=buckets, rpe_max_distance=farthest))
    assert ours.weight.shape == (buckets, 8)
    ours.weight.data.copy_(theirs.relative_attention_bias.weight.data.normal_())
    expected = theirs.compute_bias(320, 320)[0]
    assert torch.equal(table(ours, 320, 8).tril(), expected.tril())


def test_rpe_beyond_the_farthest_distance_is_one_bucket() -> None:
    ours = RelativeBias(SHAPE, RelativeSettings(rpe_num_buckets=4, rpe_max_distance=6))
    ours.weight.data.copy_(torch.arange(4.0)[:, None].expand(4, 2))
    row = table(ours, 9, 2)[1, 8].flip(0)  # distances 0 to 8
    assert row.tolist() == [0, 1, 2, 2, 3, 3, 3, 3, 3]  # 2 * (1 + log(d / 2) / log(3)), rounded down


@pytest.mark.parametrize(
    ("farthest", "said"),
    [(128, ""), (17, ""), (16, "16 is not beyond the 16 distances that have a bucket of their own")],
)
def test_rpe_refuses_a_distance_within_the_exact_buckets(farthest: int, said: str) -> None:
    entry = load_only("neox-positions").find("position", "rpe")
    chosen = SimpleNamespace(entry=entry, settings=build(entry, rpe_max_distance=farthest))
    problems = list(neox_check_config(SimpleNamespace(components=lambda kind: (chosen,))))
    assert [(problem.key, problem.message) for problem in problems] == ([("rpe-max-distance", said)] if said else [])


def test_alibi_is_the_papers() -> None:
    """arXiv:2108.12409, section 3: 8 heads have 1/2 to 1/256; 12 heads those and 2^-0.5, 2^-1.5 ... 2^-3.5."""
    assert slopes(8).tolist() == [2.0**-power for power in range(1, 9)]
    assert slopes(16)[:3].tolist() == pytest.approx([2**-0.5, 2**-1, 2**-1.5])
    assert slopes(12).tolist() == pytest.approx(
        [2.0**-power for power in range(1, 9)] + [2 ** -(n + 0.5) for n in range(4)]
    )
    assert slopes(1).tolist() == [2.0**-8]
    shape = PositionShape(hidden_size=64, num_heads=8, head_dim=8, max_positions=40)
    biases = table(Alibi(shape, None), 6, 8)
    assert biases[0, 5].tolist() == [-2.5, -2.0, -1.5, -1.0, -0.5, 0.0]
    assert biases[7, 5, 0].item() == -5 / 256


def test_only_learned_and_rpe_have_parameters() -> None:
    assert [name for name, _ in Learned(SHAPE, None).named_parameters()] == ["weight"]
    assert [name for name, _ in RelativeBias(SHAPE, RelativeSettings()).named_parameters()] == ["weight"]
    others = (Sinusoidal(SHAPE, None), Rotary(SHAPE, RotarySettings()), NoPosition(SHAPE, None), Alibi(SHAPE, None))
    for other in others:
        assert not other.state_dict()


def test_none_changes_nothing() -> None:
    none = NoPosition(SHAPE, None)
    x = torch.randn(1, 2, 9, 32)
    assert none.embed(x, torch.arange(9)) is x
    assert none.rotate(x, x, none.prepare(torch.arange(9), x.dtype)) == (x, x)
