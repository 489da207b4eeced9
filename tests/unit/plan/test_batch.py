"""The arithmetic of a batch: any one or two of the three numbers, and what does not fit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neox_reference.origins import find_origins

from neox_core.config.problem import MisfitError
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.loader import load_plugins
from neox_core.plan.batch import solve_batch
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run

small = st.integers(1, 64)
TRAIN, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
ENOUGH = ((TRAIN,), (MICRO,), (TRAIN, MICRO), (TRAIN, STEPS), (MICRO, STEPS), (TRAIN, MICRO, STEPS))
PATHS = {TRAIN: "batch.train_batch", MICRO: "batch.micro_batch", STEPS: "batch.gradient_accumulation"}
CONFIG = """
num-layers: 6
hidden-size: 48
num-attention-heads: 12
max-position-embeddings: 32
seq-length: 32
data-path: none
data-impl: mmap
padded-vocab-size: 240
train-iters: 10
launcher: pdsh
optimizer: {type: Adam, params: {lr: 1e-3}}
"""


@pytest.fixture(scope="module")
def installed() -> Catalog:
    return load_plugins()


@given(small, small, small)
def test_any_sufficient_subset_gives_the_same_batch(micro: int, accumulation: int, ranks: int) -> None:
    train = micro * accumulation * ranks
    expected = (micro, accumulation, ranks, train)
    for given_train, given_micro, given_steps in (
        (train, micro, accumulation),
        (train, micro, None),
        (train, None, accumulation),
        (None, micro, accumulation),
    ):
        plan = solve_batch(given_train, given_micro, given_steps, ranks)
        assert (plan.micro_batch, plan.gradient_accumulation, plan.data_parallel, plan.train_batch) == expected


def test_accumulation_is_one_when_nothing_else_follows() -> None:
    assert solve_batch(None, 4, None, 2).train_batch == 8
    only_train = solve_batch(8, None, None, 2)
    assert (only_train.micro_batch, only_train.gradient_accumulation) == (4, 1)


@pytest.mark.parametrize(
    ("train", "micro", "steps", "ranks", "key", "said"),
    [
        (None, None, None, 1, "train_micro_batch_size_per_gpu", "is required"),
        (None, None, 4, 1, "train_micro_batch_size_per_gpu", "is required"),
        (10, 4, None, 1, "train_batch_size", "10 cannot be divided by 4 samples x 1 ranks = 4"),
        (7, None, None, 2, "train_batch_size", "7 cannot be divided by 2 ranks = 2"),
        (10, None, 3, 2, "train_batch_size", "10 cannot be divided by 3 accumulation steps x 2 ranks = 6"),
        (16, 4, 2, 1, "train_batch_size", "is 16, but 4 samples x 2 accumulation steps x 1 ranks = 8"),
    ],
)
def test_what_does_not_fit(
    train: int | None, micro: int | None, steps: int | None, ranks: int, key: str, said: str
) -> None:
    with pytest.raises(MisfitError) as caught:
        solve_batch(train, micro, steps, ranks)
    assert caught.value.message == said
    assert caught.value.key == key


@given(st.integers(1, 5000), small, small)
def test_the_hint_names_a_batch_that_fits(train: int, micro: int, ranks: int) -> None:
    try:
        solve_batch(train, micro, None, ranks)
    except MisfitError as error:
        better = int(error.hint.split()[0])
        assert better > 0
        assert solve_batch(better, micro, None, ranks).train_batch == better
    else:
        assert train % (micro * ranks) == 0


@given(
    small, small, st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 3), st.integers(0, 3), st.data()
)
@settings(max_examples=60, deadline=None)
def test_any_two_or_one_of_the_three_on_any_cluster(
    tmp_path_factory: pytest.TempPathFactory,
    installed: Catalog,
    micro: int,
    accumulation: int,
    slots: list[int],
    tensor: int,
    stages: int,
    data: st.DataObject,
) -> None:
    """From files to the plan: the numbers that are left out follow, and say from what."""
    of_a_copy = tensor * max(1, stages)
    slots = [each * of_a_copy for each in slots]
    copies = sum(slots) // of_a_copy
    values = {
        TRAIN: micro * accumulation * copies,
        MICRO: micro,
        STEPS: accumulation,
    }
    written = data.draw(st.sampled_from(ENOUGH))
    folder = tmp_path_factory.getbasetemp()
    (folder / "hosts").write_text("".join(f"h{index} slots={count}\n" for index, count in enumerate(slots)))
    sets = [f"{key}={values[key]}" for key in written]
    sets += [f"model-parallel-size={tensor}", f"pipe-parallel-size={stages}", f"hostfile={folder}/hosts"]
    (folder / "batch.yml").write_text(CONFIG)
    resolved = prepare_run([folder / "batch.yml"], sets, catalog=installed, machine=Machine(8, 8), start=False)
    plan = resolved.plan.batch
    if written == (MICRO,):
        accumulation = 1
    if written == (TRAIN,):
        micro, accumulation = micro * accumulation, 1
    assert (plan.micro_batch, plan.gradient_accumulation) == (micro, accumulation)
    assert (plan.data_parallel, plan.train_batch) == (copies, micro * accumulation * copies)
    origins = find_origins(resolved)
    for key, path in PATHS.items():
        expected = "set by --set" if key in written else "derived from "
        assert origins[path].startswith(expected)
