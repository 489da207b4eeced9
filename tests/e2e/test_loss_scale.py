"""fp16 on two ranks, of which one overflows: the step is left out on both, and the scale goes where it should.

A run that is resumed between two overflows goes on as the one that was not interrupted.
"""

import json
from typing import Any

import pytest

pytestmark = pytest.mark.ranks

DYNAMIC = {"loss_scale": 0, "initial_scale_power": 8, "loss_scale_window": 3}
# overflows on rank 1 -> the scale after each of ten steps, by hand. With hysteresis 2 the second overflow halves it;
# the step after three without one doubles it. At stage 0 DeepSpeed has no hysteresis.
CASES: dict[str, tuple[int, dict[str, Any], list[int], list[int]]] = {
    "stage 0": (0, DYNAMIC, [1, 2], [256, 128, 64, 64, 64, 64, 128, 128, 128, 256]),
    "stage 1": (1, {**DYNAMIC, "hysteresis": 2}, [1, 2], [256, 256, 128, 128, 128, 128, 256, 256, 256, 512]),
    "stage 2": (2, {**DYNAMIC, "hysteresis": 1}, [1], [256, 128, 128, 128, 128, 256, 256, 256, 512, 512]),
    "stage 3": (3, {**DYNAMIC, "hysteresis": 2}, [1, 2], [256, 256, 128, 128, 128, 128, 256, 256, 256, 512]),
    "in a row": (
        1,
        {**DYNAMIC, "loss_scale_window": 100, "hysteresis": 2, "consecutive_hysteresis": True},
        [1, 3, 4],
        [256, 256, 256, 256, 128, 128, 128, 128, 128, 128],
    ),
    "least": (
        1,
        {**DYNAMIC, "hysteresis": 1, "min_loss_scale": 100},
        [1, 2],
        [256, 128, 100, 100, 100, 100, 200, 200, 200, 400],
    ),
    "static": (1, {"loss_scale": 128}, [1, 2], [128] * 10),
    "lost": (
        1,
        {**DYNAMIC, "initial_scale_power": 2, "hysteresis": 1},
        [*range(5, 10)],
        [4, 4, 4, 8, 8, 4, 2, 1, 1, 1],
    ),
    "lost at stage 3": (3, {"loss_scale": 128}, [*range(5, 10)], [128] * 10),
}
IN_FP32 = {"fp32": {"zero": 0}, "plain": {"zero": 0, "engine": "plain"}}
"""Under `stop` on a GPU: nobody looks before the last step, when all gradients are bad on both ranks."""
SAVED = 2
RESUMED = ("stage 0", "stage 1", "stage 3")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, start: Any) -> dict[str, list[list[dict[str, Any]]]]:
    """What each rank saw after each step, by case."""
    out = tmp_path_factory.mktemp("scales")
    cases = []  # a resumed run right after its first part: ZeRO 3 leaves its own matrix products in a process
    for name, (zero, fp16, overflows, _) in CASES.items():
        case = {"name": name, "zero": zero, "fp16": fp16, "overflows": overflows}
        cases.append(case)
        if name in RESUMED:
            half = str(out / "ranks" / name / f"step-{SAVED:08d}")
            cases.append({**case, "name": f"{name} on", "load": half})
    cases += [{"name": name, "overflows": [7], **case} for name, case in IN_FP32.items()]
    start("loss_scale.py", out, cases)
    left = out / "ranks"
    names = [case["name"] for case in cases]
    return {name: [json.loads((left / f"{name}-{rank}.json").read_text()) for rank in range(2)] for name in names}


@pytest.mark.parametrize("name", CASES)
def test_scale_and_steps_after_an_overflow_on_one_rank(seen: dict[str, Any], name: str) -> None:
    _, _, overflows, scales = CASES[name]
    for rank in seen[name]:
        assert [step["scale"] for step in rank] == scales
        assert [step["skipped"] for step in rank] == [sum(each <= step for each in overflows) for step in range(10)]
        weights = [step["weights"] for step in rank]
        still = [step for step in range(1, 10) if weights[step] == weights[step - 1]]
        assert still == overflows


@pytest.mark.parametrize("name", ["lost", "lost at stage 3", *IN_FP32])
def test_the_rank_and_the_parameter_that_overflow_are_found(seen: dict[str, Any], name: str) -> None:
    assert [rank[-1]["found"] for rank in seen[name]] == [[], ["embedding.weight"]]


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_goes_on_with_scale_window_and_hysteresis(seen: dict[str, Any], name: str) -> None:
    for straight, resumed in zip(seen[name], seen[f"{name} on"], strict=True):
        assert resumed == straight[SAVED:]
