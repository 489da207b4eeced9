"""Masks: their statistics, what they depend on, and that a part of a tensor gets its part of the mask."""

import math

import pytest
import torch
from neox_gpt.dropout import EMBEDDING, attended_site, attention_site, drop, drop_probabilities, mlp_site
from torch import Tensor

from neox_core.parallel.sample_keys import sample_keys


def keys(first: int = 0, count: int = 4, seed: int = 1) -> Tensor:
    return sample_keys(seed, first, count, "cpu")


def mask(p: float = 0.25, site: int = 5, **place: int) -> Tensor:
    return drop(torch.ones(4, 64, 96), p, keys(**place), site) != 0


@pytest.mark.parametrize("p", [0.1, 0.25, 0.9])
def test_what_stays_is_a_share_of_1_minus_p_and_is_scaled_by_its_inverse(p: float) -> None:
    kept = mask(p)
    deviation = math.sqrt(p * (1 - p) / kept.numel())
    assert abs(kept.double().mean() - (1 - p)) < 4 * deviation
    x = torch.randn(4, 64, 96)
    torch.testing.assert_close(drop(x, p, keys(), 5), torch.where(kept, x / (1 - p), 0.0))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_rows_columns_and_samples_are_independent(dim: int) -> None:
    """Of two fair coins half agree, whichever pair of slices is looked at."""
    kept = mask(0.5).movedim(dim, 0).flatten(1).double() * 2 - 1
    agreement = (kept @ kept.T / kept.shape[1]).fill_diagonal_(0)
    assert agreement.abs().max() < 6 / math.sqrt(kept.shape[1])


def test_every_place_and_seed_has_a_mask_of_its_own() -> None:
    sites = [EMBEDDING, *(site(layer) for layer in range(4) for site in (attention_site, attended_site, mlp_site))]
    assert len(set(sites)) == len(sites)
    masks = [mask(0.5, site) for site in sites] + [mask(0.5, seed=2), mask(0.5, first=4)]
    shares = [float((one == other).double().mean()) for one in masks for other in masks if one is not other]
    assert max(abs(share - 0.5) for share in shares) < 0.02


def test_a_part_gets_its_part_of_the_mask() -> None:
    x = torch.randn(4, 64, 96)
    whole = drop(x, 0.3, keys(), 5)
    assert torch.equal(drop(x[2:], 0.3, keys(first=2, count=2), 5), whole[2:])
    assert torch.equal(drop(x[:, 40:], 0.3, keys(), 5, first_position=40), whole[:, 40:])
    probs = torch.rand(4, 6, 16, 16)
    whole = drop_probabilities(probs, 0.3, keys(), 5)
    assert torch.equal(drop_probabilities(probs[:, 2:], 0.3, keys(), 5, first_head=2), whole[:, 2:])
    assert torch.equal(drop_probabilities(probs[..., 8:, :], 0.3, keys(), 5, 0, 8), whole[..., 8:, :])
    assert torch.equal(drop_probabilities(probs[..., :9], 0.3, keys(), 5), whole[..., :9])


def test_nothing_is_done_without_keys_or_probability() -> None:
    x = torch.ones(1, 2, 3)
    assert drop(x, 0.5, None, 1) is x
    assert drop(x, 0.0, keys(count=1), 1) is x
    assert not drop(x, 1.0, keys(count=1), 1).any()


def test_samples_beyond_32_bits_have_keys_of_their_own() -> None:
    assert keys(first=2**33, count=1) != keys(first=0, count=1)
    assert int(keys(count=1000).min()) >= 0
    assert int(keys(count=1000).max()) < 2**32
