"""Temperature, top-k, top-p, min-p and the repetition penalty: worked out by hand, and as transformers does them."""

import math

import pytest
import torch
from neox_gpt.generation.sampling import Sampling, draw, probabilities
from torch import Tensor

GIVEN = [0.1, 0.5, 0.05, 0.3, 0.05]


@pytest.fixture
def logits() -> Tensor:
    """Log-probabilities of GIVEN, moved by a constant, which changes nothing."""
    return torch.tensor(GIVEN).log() + 7


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, GIVEN),
        ({"top_k": 2}, [0, 0.5 / 0.8, 0, 0.3 / 0.8, 0]),
        ({"top_k": 1}, [0, 1, 0, 0, 0]),
        ({"top_k": 99}, GIVEN),
        ({"top_p": 0.79}, [0, 0.5 / 0.8, 0, 0.3 / 0.8, 0]),
        ({"top_p": 0.85}, [0.1 / 0.9, 0.5 / 0.9, 0, 0.3 / 0.9, 0]),
        ({"top_p": 1e-6}, [0, 1, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.7}, [0, 0.5 / 0.8, 0, 0.3 / 0.8, 0]),
        ({"temperature": 0}, [0, 1, 0, 0, 0]),
        ({"min_p": 0.21}, [0, 0.5 / 0.8, 0, 0.3 / 0.8, 0]),
        ({"min_p": 0.19}, [0.1 / 0.9, 0.5 / 0.9, 0, 0.3 / 0.9, 0]),
        ({"min_p": 1}, [0, 1, 0, 0, 0]),
    ],
)
def test_closed_form(logits: Tensor, settings: dict[str, float], expected: list[float]) -> None:
    sampling = Sampling(**{"temperature": 1.0, "top_p": 1.0, **settings})
    torch.testing.assert_close(
        probabilities(logits, sampling), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-9
    )


def test_top_p_is_of_what_top_k_left(logits: Tensor) -> None:
    """Of the two likeliest, 0.5 and 0.3, the first has 0.625: a top-p of 0.6 keeps it alone, of 0.63 both."""
    alone = probabilities(logits, Sampling(temperature=1.0, top_k=2, top_p=0.6))
    both = probabilities(logits, Sampling(temperature=1.0, top_k=2, top_p=0.63))
    assert [int((one > 0).sum()) for one in (alone, both)] == [1, 2]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_is_a_power_of_the_probabilities(logits: Tensor, temperature: float) -> None:
    powers = [p ** (1 / temperature) for p in GIVEN]
    expected = torch.tensor([power / sum(powers) for power in powers], dtype=torch.float64)
    got = probabilities(logits, Sampling(temperature=temperature, top_p=1.0))
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


def test_draws_follow_the_probabilities(logits: Tensor) -> None:
    """A chi-square test with 3 degrees of freedom: 16.3 is passed by chance once in a thousand."""
    sampling = Sampling(temperature=1.0, top_k=4, top_p=1.0)
    generator = torch.Generator().manual_seed(1)
    draws = torch.tensor([draw(logits, sampling, generator) for _ in range(4000)])
    counts = torch.bincount(draws, minlength=5).double()
    expected = probabilities(logits, sampling) * 4000
    likely = expected > 0
    assert counts[~likely].sum() == 0
    assert float(((counts - expected)[likely] ** 2 / expected[likely]).sum()) < 16.3


def test_equal_logits_still_give_exactly_k() -> None:
    kept = probabilities(torch.zeros(50), Sampling(temperature=1.0, top_k=7, top_p=1.0)) > 0
    assert int(kept.sum()) == 7


def test_half_precision_logits_far_apart() -> None:
    got = probabilities(torch.tensor([60000.0, -60000.0], dtype=torch.float16), Sampling(temperature=1e-3, top_p=1.0))
    assert got.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"top_k": 0},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0},
        {"temperature": math.inf},
    ],
)
def test_senseless_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Sampling(**wrong)


@pytest.mark.parametrize("seed", range(8))
def test_as_transformers_does(seed: int) -> None:
    """All of them at once, in the order in which `generate` of transformers applies them."""
    transformers = pytest.importorskip("transformers")
    draws = torch.Generator().manual_seed(seed)
    logits = torch.randn(200, generator=draws, dtype=torch.float64) * 2
    seen = torch.randint(200, (30,), generator=draws)
    sampling = Sampling(temperature=0.7, top_k=40, top_p=0.93, min_p=0.02, repetition_penalty=1.3)
    processors = transformers.LogitsProcessorList(
        [
            transformers.RepetitionPenaltyLogitsProcessor(1.3),
            transformers.TemperatureLogitsWarper(0.7),
            transformers.TopKLogitsWarper(40),
            transformers.TopPLogitsWarper(0.93),
            transformers.MinPLogitsWarper(0.02),
        ]
    )
    expected = processors(seen[None], logits[None].clone())[0].softmax(0)
    got = probabilities(logits, sampling, set(seen.tolist()))
    assert 1 < int((got > 0).sum()) < 40
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


def test_a_penalty_holds_for_the_most_likely_token_too(logits: Tensor) -> None:
    greedy = Sampling(temperature=0, repetition_penalty=3.0)
    generator = torch.Generator()
    assert draw(logits, greedy, generator) == 1
    assert draw(logits, greedy, generator, {1}) == 3
