"""How the stages of a pipeline share the output layer: `pipe-partition-method: time+head`."""

from itertools import combinations, pairwise, product
from random import Random
from typing import Any

import pytest
import torch
from neox_deepspeed.shared_head import WHOLE, SharedOutputs, cut_with_head, dealt
from torch import Tensor

from neox_core.errors import ConfigError


def seconds(costs: list[float], parts: tuple[int, ...], shares: tuple[float, ...]) -> float:
    """Two steps of the schedule, simulated: in the first one the last stage goes forward and all have the head."""
    last, head = len(parts) - 2, costs[-1]
    loads = [sum(costs[begin : min(end, len(costs) - 1)]) for begin, end in pairwise(parts)]
    forward = [load / 3 for load in loads]
    backward = [2 * load / 3 for load in loads]
    first = [forward[at] if (last - at) % 2 == 0 else backward[at] for at in range(last + 1)]
    second = [backward[at] if (last - at) % 2 == 0 else forward[at] for at in range(last + 1)]
    return max(own + share * head for own, share in zip(first, shares, strict=True)) + max(second)


def deals(stages: int, steps: int) -> list[tuple[float, ...]]:
    """Every way to share the head in parts of 1 / steps."""
    ways = product(range(steps + 1), repeat=stages)
    return [tuple(each / steps for each in way) for way in ways if sum(way) == steps]


@pytest.mark.parametrize("stages", [2, 3])
def test_no_other_deal_is_faster(stages: int) -> None:
    """Of two stages no other cut either; of more, the cut is the best among its neighbours."""
    random = Random(stages)
    for _ in range(15):
        costs = [float(random.randint(1, 9)) for _ in range(random.randint(stages, 7))] + [random.uniform(0.5, 40.0)]
        size = len(costs)
        found, shares = cut_with_head(costs, (0, *range(size - stages + 1, size + 1)), lambda _: True)
        taken = seconds(costs, found, tuple(share / WHOLE for share in shares))
        assert sum(shares) == WHOLE
        assert min(shares[:-1]) >= 0 < shares[-1]
        cuts = [(0, *inner, size) for inner in combinations(range(1, size), stages - 1)]
        near = [cut for cut in cuts if sum(abs(a - b) for a, b in zip(cut, found, strict=True)) <= 1]
        best = min(seconds(costs, cut, deal) for cut in (cuts if stages == 2 else near) for deal in deals(stages, 12))
        assert taken <= best + 0.01 * costs[-1]


def test_a_cut_that_is_not_allowed_is_left_out() -> None:
    costs = [1.0, 1.0, 1.0, 1.0, 5.0]
    assert cut_with_head(costs, (0, 4, 5), lambda _: True)[0] == (0, 3, 5)
    assert cut_with_head(costs, (0, 4, 5), lambda cut: cut[1] > 3)[0] == (0, 4, 5)


def test_the_last_stage_has_some_of_it_even_where_others_are_idle() -> None:
    assert cut_with_head([0.0, 9.0, 1.0], (0, 1, 3), lambda cut: cut == (0, 1, 3))[1] == (WHOLE - 1, 1)


@pytest.mark.parametrize("length", [1, 2, 8, 511, 512, 2048])
def test_every_position_is_dealt_once(length: int) -> None:
    for shares in ((512, 512), (341, 683), (1023, 1), (0, 1024), (300, 0, 724), (1, 1, 1, 1021)):
        counts = dealt(shares, length)
        assert (len(counts), sum(counts)) == (len(shares), length)
        assert min(counts) >= 0 < counts[-1]


def test_many_positions_are_dealt_in_multiples_that_a_loss_takes_at_once() -> None:
    assert dealt((455, 569), 512) == [224, 288]
    assert dealt((455, 569), 128) == [56, 72]


class Zero:
    """Outputs whose cross-entropy is 0."""

    def __init__(self, trains: bool = True) -> None:
        self.trains = trains

    def cross_entropy(self, labels: Tensor) -> Tensor:
        return torch.zeros((), requires_grad=self.trains)


def test_what_cannot_be_shared_is_refused() -> None:
    """The other stages would wait for ever, or compute what nobody takes."""
    own: Any = Zero()
    outputs, labels = SharedOutputs(own, ()), torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(
        ConfigError, match="the objective takes scores of a batch, and the stages of this pipeline share"
    ):
        outputs.scores(labels)
    with pytest.raises(ConfigError, match="the objective takes logits"):
        outputs.logits()
    with pytest.raises(ConfigError, match="the objective takes no cross-entropy with a gradient of a batch"):
        outputs.require_asked()
    assert float(outputs.cross_entropy(labels).detach()) == 0
    outputs.require_asked()
    with pytest.raises(ConfigError, match="the objective takes the cross-entropy twice"):
        outputs.cross_entropy(labels)
    unused: Any = Zero(trains=False)
    outputs = SharedOutputs(unused, ())
    outputs.cross_entropy(labels)
    with pytest.raises(ConfigError, match="the objective takes no cross-entropy with a gradient"):
        outputs.require_asked()
