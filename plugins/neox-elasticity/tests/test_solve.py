"""The solver against DeepSpeed 0.19.6 (reference.json), against closed cases, and against a search of all batches."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from neox_elasticity.batch import faults, plan_batch
from neox_elasticity.settings import ElasticityBlock, ElasticitySettings
from neox_elasticity.solve import HIGHLY_COMPOSITE, micro_batch, other_batch, sharing, solve

from neox_core.config.problem import MisfitError

sys.path.insert(0, str(Path(__file__).parent))

from random_blocks import blocks

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text(encoding="utf-8"))
EACH = 100


def found(values: dict[str, Any], gpus: int) -> list[Any] | None:
    """In the form of reference.json."""
    block = ElasticityBlock(**values)
    width = block.num_gpus_per_node % block.model_parallel_size
    if width or (block.version == 0.1 and any(faults(block))):
        return None
    try:
        fit = solve(block)
    except ValueError:
        return None
    copies = gpus // block.model_parallel_size
    fits = copies in fit.copies
    micro = micro_batch(fit.batch, copies, block.micro_batch_sizes) if fits and block.model_parallel_size == 1 else None
    other = other_batch(block, copies) if not fits and block.version == 0.2 else None
    return [fit.batch, list(fit.copies), micro, other]


def test_ten_thousand_blocks_give_the_numbers_of_deepspeed() -> None:
    drawn = [*blocks()]
    assert len(drawn) == EACH * len(REFERENCE["hashes"]) == 10_000
    for case in REFERENCE["cases"]:  # first those that can be read
        values, gpus = drawn[case["number"]]
        assert (values, gpus) == (case["block"], case["gpus"])
        assert found(values, gpus) == case["found"], values
    assert len(REFERENCE["cases"]) == 200
    mine = [json.dumps(found(*each), separators=(",", ":")) for each in drawn]
    hashes = [
        hashlib.sha256("\n".join(mine[at : at + EACH]).encode()).hexdigest()[:16] for at in range(0, len(mine), EACH)
    ]
    assert hashes == REFERENCE["hashes"]


def test_highly_composite_numbers_are_the_records_of_divisors() -> None:
    divisors = [0] * 5041
    for each in range(1, len(divisors)):
        for multiple in range(each, len(divisors), each):
            divisors[multiple] += 1
    records = [at for at in range(1, len(divisors)) if divisors[at] > max(divisors[:at])]
    assert list(HIGHLY_COMPOSITE[: len(records)]) == records
    assert len(HIGHLY_COMPOSITE) == 38


def test_closed_cases() -> None:
    # 12 is the only candidate: 2 x 6; 6 micro-batches of 2 are shared by the divisors of 6
    block = ElasticityBlock(max_train_batch_size=12, micro_batch_sizes=[2], version=0.1)
    assert (solve(block).batch, solve(block).copies) == (12, (1, 2, 3, 6))
    # 2 x 12, 3 x 6 and 6 x 4 under 25: 24 has divisors of 12 and of 8, 18 those of 9 and of 6
    both = ElasticityBlock(max_train_batch_size=25, micro_batch_sizes=[2, 3], version=0.1)
    assert (solve(both).batch, solve(both).copies) == (24, (1, 2, 3, 4, 6, 8, 12))
    # nodes of 4 GPUs, two copies each: under 25 // 2 a node, 12 samples for 1, 2, 3, 4 or 6 nodes
    nodes = evolve(both, version=0.2, num_gpus_per_node=4, model_parallel_size=2)
    assert (solve(nodes).batch, solve(nodes).copies) == (24, (2, 4, 6, 8, 12))


@pytest.mark.parametrize("large", [True, False])
def test_of_equally_flexible_batches_the_largest_or_the_smallest(large: bool) -> None:
    # 5 x 1 and 7 x 1 under 9, each for one copy alone
    block = ElasticityBlock(max_train_batch_size=9, micro_batch_sizes=[5, 7], prefer_large_batch=large, version=0.1)
    assert solve(block).batch == (7 if large else 5)


def test_every_number_of_copies_gets_whole_micro_batches_and_no_other_does() -> None:
    micro, batch = [2, 3, 5], 120
    by_search = [n for n in range(1, batch + 1) if any(batch % (n * size) == 0 for size in micro)]
    assert list(sharing(batch, micro, 1, batch)) == by_search
    assert sharing(batch, micro, 5, 10) == tuple(n for n in by_search if 5 <= n <= 10)
    for copies in by_search:
        assert batch // copies % micro_batch(batch, copies, micro) == 0


def test_the_plan_multiplies_to_the_batch_on_every_number_of_ranks() -> None:
    block = ElasticityBlock(enabled=True, max_train_batch_size=100, micro_batch_sizes=[2, 4, 6], model_parallel_size=1)
    for copies in solve(block).copies:
        plan = plan_batch(ElasticitySettings(elasticity=block), copies, copies)
        assert plan.train_batch == solve(block).batch
        assert plan.micro_batch in block.micro_batch_sizes
        assert plan.micro_batch * plan.gradient_accumulation * copies == plan.train_batch


def test_bounds_in_gpus_hold_where_they_are_not_whole_nodes() -> None:
    block = ElasticityBlock(
        enabled=True, max_train_batch_size=96, micro_batch_sizes=[2], num_gpus_per_node=4, min_gpus=6, max_gpus=18
    )
    settings = ElasticitySettings(elasticity=block)
    assert [n for n in range(1, 40) if _fits(settings, n)] == [8, 12, 16]
    assert 4 in solve(block).copies  # as DeepSpeed has it, which rounds to whole nodes


def _fits(settings: ElasticitySettings, ranks: int) -> bool:
    try:
        plan = plan_batch(settings, ranks, ranks)
    except MisfitError:
        return False
    return plan is not None and plan.data_parallel == ranks


def test_a_large_block_is_solved_quickly_enough_to_be_read_from_a_hostile_file() -> None:
    sizes = [*range(1, 65)]
    block = ElasticityBlock(max_train_batch_size=2**31 - 1, micro_batch_sizes=sizes, max_gpus=2**31 - 1, version=0.1)
    assert solve(block).batch <= 2**31 - 1
