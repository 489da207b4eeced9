"""`check_mixer(trained=True)`: a decoder with the mixer of docs/plugins/mixer.md trains in a layout, and resumes."""

from typing import Any

import pytest
from neox_author.testing import in_layouts
from neox_author.testing.clauses import heard
from neox_gpt.testing import check_mixer

BOTH = ("TP 2 x PP 2", 4, {"model_parallel_size": 2, "pipe_parallel_size": 2})
ZERO_2 = ("ZeRO 2 on two ranks", 2, {"zero_optimization": {"stage": 2}})


@pytest.fixture(autouse=True)
def one_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_layouts, "LAYOUTS", (ZERO_2,))


def test_a_sound_mixer_trains_in_it(gated: Any) -> None:
    told: dict[str, str] = {}
    with heard(told.setdefault):
        check_mixer(gated[0], "gated-linear", trained=True, gate_divisor=4.0)
    assert told["ZeRO 2 on two ranks trains as one rank"] == ""
    assert told["PP 2 equals one process"] == ""


def test_state_that_a_checkpoint_does_not_have_is_named(gated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mixer counts itself starts at 0 in a run that resumes."""
    catalog, layer, _ = gated

    class Counts(layer.GatedLinear):
        seen = 0

        def at_step(self, step: int) -> None:
            self.seen += 1

        def forward(self, x: Any, *rest: Any) -> Any:
            return super().forward(x, *rest) * (1 + self.seen)

    monkeypatch.setattr(layer, "GatedLinear", Counts)
    with pytest.raises(AssertionError, match=r"it resumes to the bit \(ZeRO 2 on two ranks\)"):
        check_mixer(catalog, "gated-linear", trained=True)


def test_a_mixer_that_makes_much_of_rounding_trains_in_it(gated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It divides by the size of what it sums over ranks, and Adam by the size of what comes of that."""
    catalog, layer, _ = gated

    class Divides(layer.GatedLinear):
        def forward(self, x: Any, *rest: Any) -> Any:
            out = super().forward(x, *rest)
            return out * (out.square().mean(-1, keepdim=True) + 1e-6).rsqrt()

    monkeypatch.setattr(layer, "GatedLinear", Divides)
    monkeypatch.setattr(in_layouts, "LAYOUTS", (BOTH,))
    check_mixer(catalog, "gated-linear", trained=True)
