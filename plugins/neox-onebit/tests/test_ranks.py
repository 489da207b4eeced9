"""Two and four real processes over gloo, against the papers' recurrences in float64."""

import sys
from pathlib import Path

import pytest
import torch
from neox_author.testing.two_ranks import import_for_ranks, on_ranks

sys.path.insert(0, str(Path(__file__).parent))

from drive_ranks import CASES, COMMON, DECAY, STEPS, drive, gradients, make, rate, start
from references import (
    LENGTH,
    deepspeeds_adam,
    is_as_expected,
    one_bit_adam,
    one_bit_lamb,
    variance_steps,
    zero_one_adam,
)

from neox_core.errors import CheckpointError

BETA1, BETA2 = COMMON["betas"]
MEETS = {
    "zeroone": set(range(21, 30)) | {31, 33, 35, 37, 38, 42, 46, 47},
    "uncorrected": {13, 14, 15, 16, 17, 19, 21, 22, 26, 27, 32, 37, 42, 47},
}
"""In octaves of 9 and 5 steps after the freeze: every step, every second, every fourth, and the last of an octave."""


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, tmp_path_factory):
    """(number, what each rank saw of each case, folder)."""
    folder, size = tmp_path_factory.mktemp(f"ranks{request.param}"), request.param
    import_for_ranks(())
    on_ranks(size, lambda rank, _: drive(folder, rank, size), "every rank steps")
    seen = {case: [torch.load(folder / f"{case}-{rank}.pt") for rank in range(size)] for case in CASES}
    return size, seen, folder


def last(seen, case, rank=0):
    return seen[case][rank][-1]["weights"]


def test_one_bit_adam_is_the_papers(ranks):
    size, seen, _ = ranks
    expected = one_bit_adam(STEPS, size, 10, 0.1)
    assert all(map(is_as_expected, last(seen, "adam"), expected))


def test_one_bit_adam_is_deepspeeds_where_that_is_asked_for(ranks):
    """Each number, for five compressed steps; later one whose sign was rounding has changed the scale of all."""
    size, seen, _ = ranks
    for one, other in zip(seen["deepspeed"][0][13]["weights"], deepspeeds_adam(14, size, 10), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-6, atol=2e-6)
    after = seen["deepspeed"][0][29]["weights"]
    assert all(map(is_as_expected, after, deepspeeds_adam(30, size, 10)))
    assert not any(map(is_as_expected, after, one_bit_adam(30, size, 10, 0.0)))


@pytest.mark.parametrize("case", ["zeroone", "uncorrected"])
def test_zero_one_adam_is_the_papers(ranks, case):
    size, seen, _ = ranks
    settings = CASES[case][1]
    expected = zero_one_adam(
        STEPS,
        size,
        settings["var_freeze_step"],
        settings["var_update_scaler"],
        MEETS[case],
        settings["variance_floor"],
        corrected=case == "zeroone",
    )
    for rank in range(size):
        assert all(map(is_as_expected, last(seen, case, rank), expected[rank]))


def test_one_bit_lamb_is_the_papers(ranks):
    size, seen, _ = ranks
    expected, factors = one_bit_lamb(STEPS, size, 12, 0.1, 0.8, (0.01, 2.0), 0.05)
    assert all(map(is_as_expected, last(seen, "lamb"), expected))
    mine = [[float(after["states"][index]["factor"]) for after in seen["lamb"][0][12:]] for index in range(3)]
    for one, other in zip(mine, factors, strict=True):
        assert one == pytest.approx(other, rel=1e-3)
        assert all(abs(b / a - 1) <= 0.05 + 1e-5 for a, b in zip([1.0, *one], one, strict=False))
        assert max(map(abs, one)) <= 4.0


def test_ranks_have_the_same_weights_whenever_they_meet(ranks):
    size, seen, _ = ranks
    for case in CASES:
        for step in range(1, STEPS + 1):
            if case not in MEETS or step in MEETS[case] or step <= CASES[case][1]["var_freeze_step"]:
                first, *others = (seen[case][rank][step - 1]["weights"] for rank in range(size))
                assert all(torch.equal(*pair) for other in others for pair in zip(first, other, strict=True)), step


def test_before_the_freeze_it_is_adam_to_the_bit(ranks):
    """Of torch, on the mean gradient: what one rank has of a batch of as many times the size."""
    size, seen, _ = ranks
    weights = start()
    adam = torch.optim.AdamW(
        [{"params": weights[:1], "weight_decay": DECAY}, {"params": weights[1:], "weight_decay": 0.0}],
        fused=True,
        **COMMON,
    )
    weights_alone = start()
    alone = make("adam", weights_alone)
    for step in range(1, 11):
        for optimizer, trained in ((adam, weights), (alone, weights_alone)):
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
            for index, weight in enumerate(trained):
                total = sum(gradients(step, rank)[index] for rank in range(size))
                weight.grad = total / size
            optimizer.step()
        for mine, torchs, one in zip(seen["adam"][0][step - 1]["weights"], weights, weights_alone, strict=True):
            if size == 2:  # the sum of four depends on their order
                assert torch.equal(mine, torchs)
            torch.testing.assert_close(mine, torchs.detach(), rtol=1e-5, atol=1e-6)
            assert torch.equal(torchs, one)


def test_the_mean_of_parameter_plus_errors_is_conserved(ranks):
    """x - rate / size * (mean of what workers have lost + what servers have) moves by the exact mean momentum."""
    size, seen, _ = ranks
    shapes = [weight.shape for weight in start()]
    for step in range(11, STEPS + 1):
        before, after = (seen["adam"][0][place] for place in (step - 2, step - 1))
        lost_before, lost = (lost_in_all(seen, "adam", place, shapes) for place in (step - 2, step - 1))
        for index, shape in enumerate(shapes):
            state = after["states"][index]
            m, v = (before["states"][index]["exp_avg"].double(), state["exp_avg_sq"].double())
            assert torch.equal(v, seen["adam"][0][10]["states"][index]["exp_avg_sq"].double())
            scale = rate(step) / (1 - BETA1**step) / ((v / (1 - BETA2**10)).sqrt() + COMMON["eps"])
            mean = sum(gradients(step, rank)[index].double() for rank in range(size)) / size
            exact = BETA1 * m + (1 - BETA1) * mean
            keep = 1 - rate(step) * (DECAY if index == 0 else 0.0)
            left = after["weights"][index].double() - scale * lost[index]
            right = keep * before["weights"][index].double() - scale * (exact + lost_before[index])
            torch.testing.assert_close(left, right, rtol=0, atol=2e-6)
            assert shape == left.shape


@pytest.mark.parametrize("case", [case for case in CASES if case != "deepspeed"])
def test_errors_that_all_ranks_miss_are_noticed(ranks, case):
    size, _, folder = ranks
    stored = torch.load(folder / f"{case}-stored-0.pt")
    optimizer = make(case, [torch.nn.Parameter(weight.clone()) for weight in stored["weights"]])
    optimizer.load_own_state([{}] * size)
    optimizer.load_state_dict(stored["state"])
    with pytest.raises(CheckpointError, match="errors of all ranks are missing"):
        optimizer.load_own_state([{}] * size)


def lost_in_all(seen, case, place, shapes):
    """Mean error of the workers plus that of the servers, by parameter."""
    owns = [each[place]["own"] for each in seen[case]]
    if not owns[0]:
        return [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    blocks = sum(own["worker_error"].double() for own in owns) / len(owns)
    blocks = blocks + torch.cat([own["server_error"].double() for own in owns if "server_error" in own])
    found, row = [], 0
    for shape in shapes:
        rows = -(-shape.numel() // LENGTH)
        found.append(blocks[row : row + rows].reshape(-1)[: shape.numel()].view(shape))
        row += rows
    return found


def test_the_variance_of_zero_one_adam_changes_at_its_steps_alone(ranks):
    _, seen, _ = ranks
    for case in ("zeroone", "uncorrected"):
        settings, states = CASES[case][1], [after["states"][0]["exp_avg_sq"] for after in seen[case][0]]
        changed = [step for step in range(2, STEPS + 1) if not torch.equal(states[step - 1], states[step - 2])]
        assert changed == variance_steps(settings["var_freeze_step"], settings["var_update_scaler"])[1:]


def test_the_running_trust_ratio_is_frozen(ranks):
    _, seen, _ = ranks
    coefficients = [[float(state["coeff"]) for state in after["states"]] for after in seen["lamb"][0]]
    assert coefficients[11] == coefficients[-1]
    assert coefficients[10] != coefficients[11]


def test_a_compressed_step_sends_less_than_a_28th_of_fp32(ranks):
    size, _, folder = ranks
    for rank in range(size):
        found = torch.load(folder / f"bytes-{rank}.pt")
        numbers = 2 * 256 * 1024 + 1024 + 256
        assert found["torch.float32"] == {"allreduce_": pytest.approx(2 * (size - 1) / size * 4 * numbers, abs=8)}
        for case in ("adam", "lamb"):
            assert set(found[case]) == {"alltoall_base_", "allgather_"}
            sent = sum(found[case].values())
            assert sum(found["torch.float32"].values()) >= 28 * sent
            signs = 2 * (size - 1) / size * numbers / 8
            assert sent == pytest.approx(signs * 36 / 32, rel=0.02)  # of a row of 256, signs and a scale
            assert sum(found["torch.bfloat16"].values()) >= 14 * sent


@pytest.mark.parametrize("case", [case for case in CASES if case != "deepspeed"])
def test_another_number_of_ranks_goes_on_with_the_sum_of_what_was_lost(ranks, case):
    """One rank takes over from several: its weights are their mean, its first momentum makes good all that is lost."""
    size, seen, folder = ranks
    stored = [torch.load(folder / f"{case}-stored-{rank}.pt") for rank in range(size)]
    weights = [torch.nn.Parameter(weight.clone()) for weight in stored[0]["weights"]]
    optimizer = make(case, weights)
    optimizer.load_state_dict(stored[0]["state"])
    optimizer.load_own_state([each["own"] for each in stored])
    means = [sum(each["weights"][index] for each in stored) / size for index in range(len(weights))]
    for weight, mean in zip(weights, means, strict=True):
        torch.testing.assert_close(weight.detach(), mean, rtol=1e-5, atol=1e-6)
    shapes = [weight.shape for weight in weights]
    lost = lost_in_all(seen, case, 38, shapes)
    kept = optimizer.own_state()["worker_error"]
    row = 0
    for each, shape in zip(lost, shapes, strict=True):
        rows = -(-shape.numel() // LENGTH)
        torch.testing.assert_close(
            kept[row : row + rows].reshape(-1)[: shape.numel()].view(shape).double(), each, rtol=1e-5, atol=1e-6
        )
        row += rows
    if case in ("adam", "lamb"):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        before = [optimizer.state[weight]["exp_avg"].clone() for weight in weights]
        optimizer.step()
        for weight, momentum, each in zip(weights, before, lost, strict=True):
            expected = BETA1 * momentum + (1 - BETA1) + each
            torch.testing.assert_close(optimizer.state[weight]["exp_avg"], expected.float(), rtol=1e-4, atol=1e-5)
        assert not optimizer.own_state()["worker_error"].any()
