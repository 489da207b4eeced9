"""The engine on two ranks against one, and what it refuses.

In one process it is compared with a plain torch loop by neox-deepspeed's tests of both engines.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from attrs import evolve
from neox_author.testing.outputs import WholeLogits
from neox_author.testing.plans import example_plan
from neox_plain import average
from neox_plain.api import Engine, build_engine
from torch import Tensor, nn

from neox_core.errors import PluginError
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import ComponentRef, RunPlan
from neox_core.run.optimizer import build_optimizer

ADAM = ComponentRef(
    "optimizer", "Adam", "neox-adam", "0.1.0", "neox_adam.optim:adam", "neox_adam.settings:AdamSettings"
)
CAUSAL_LM = ComponentRef("objective", "causal-lm", "neox-causal-lm", "0.1.0", "neox_causal_lm.objective:CausalLM")
LRS = (0.01, 0.02, 0.005)
WEIGHT_DECAY, CLIPPING = 0.1, 0.3
ALONE = Groups(None, None, 0, 1)


class Twice(torch.optim.SGD):
    """Computes gradients again, a little downhill."""

    def __init__(self, params: Any, settings: None) -> None:
        super().__init__(params, lr=0.01)

    @torch.no_grad()
    def step(self, closure: Any) -> None:  # type: ignore[override]  # torch lets it be None
        moved = [each for group in self.param_groups for each in group["params"] if each.grad is not None]
        for weight in moved:
            weight.sub_(weight.grad, alpha=0.05)
        closure()
        super().step()


class Tiny(nn.Module):
    draws, documents, sparse_weights = False, None, ()

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(16, 8)
        self.out = nn.Linear(8, 16)
        self.unused: Any = nn.LayerNorm(3)

    def forward(self, compute: Callable[[Any], Tensor], *, routing: None = None) -> Tensor:
        return compute(lambda tokens: WholeLogits(self.out(self.embed(tokens))))


def make_plan(accumulation: int = 1) -> RunPlan:
    plan = example_plan(Path("unused"), ranks=(1,))
    return evolve(
        plan,
        objective=CAUSAL_LM,
        optim=evolve(plan.optim, optimizer=ADAM, weight_decay=WEIGHT_DECAY, gradient_clipping=CLIPPING),
        batch=evolve(plan.batch, gradient_accumulation=accumulation),
    )


def twice(plan: RunPlan) -> RunPlan:
    optimizer = evolve(ADAM, name="Twice", target=f"{__name__}:Twice", settings_class=None)
    return evolve(plan, optim=evolve(plan.optim, optimizer=optimizer, uses=("closure",), weight_decay=0.0))


def make_engine(plan: RunPlan, groups: Groups = ALONE) -> Engine:
    model = Tiny()
    context = BuildContext(torch.device("cpu"), torch.float32, groups, seed=1)
    return build_engine(plan, model, build_optimizer(plan.optim, model), context)


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(16, (2, 9), generator=generator) for _ in range(count)]


def train(engine: Engine, stream: Iterator[Tensor]) -> None:
    for lr in LRS:
        engine.train_step(stream, lr)


def test_a_parameter_without_a_group_is_refused() -> None:
    plan, model = make_plan(), Tiny()
    optimizer = torch.optim.SGD(model.out.parameters(), lr=0.1)
    with pytest.raises(PluginError, match=r"no group for the parameter (unused|embed)"):
        build_engine(plan, model, optimizer, BuildContext(torch.device("cpu"), torch.float32, ALONE, seed=1))


BUCKETS = (1, 300, 25 << 20)
"""A bucket for each parameter, several, and one."""


def rank_main(rank: int, folder: str) -> None:
    """One of two ranks: trains once for each size of a bucket."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    groups, plan = Groups(None, dist.group.WORLD, rank, 2), make_plan(accumulation=2)
    for average.BUCKET in BUCKETS:
        model = Tiny()
        if rank:
            model.out.weight.data.zero_()  # what the first rank has counts
        context = BuildContext(torch.device("cpu"), torch.float32, groups, seed=1)
        engine = build_engine(plan, model, build_optimizer(plan.optim, model), context)
        train(engine, iter(dealt(rank)))
        engine.close()
        torch.save(weights_of(engine), f"{folder}/{average.BUCKET}-{rank}.pt")
    engine = make_engine(twice(plan), groups)
    train(engine, iter(dealt(rank)))
    engine.close()
    torch.save(weights_of(engine), f"{folder}/twice-{rank}.pt")
    dist.barrier()  # or a rank that is quicker takes the connections of the other with it
    dist.destroy_process_group()
    assert "deepspeed" not in sys.modules


def dealt(rank: int) -> list[Tensor]:
    """Every other batch."""
    return batches(4 * len(LRS))[rank::2]


def weights_of(engine: Engine) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in engine.model.named_parameters()}


@pytest.mark.ranks
def test_two_ranks_train_as_one_with_twice_the_batches(tmp_path: Path) -> None:
    """One of its modules has no gradient: its weights decay anyway, and have a state, which a resumed run needs."""
    argv = [sys.executable, __file__]
    ranks = [subprocess.Popen([*argv, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [each.wait(timeout=300) for each in ranks] == [0, 0]
    alone = make_engine(make_plan(accumulation=4))
    train(alone, iter(batches(4 * len(LRS))))
    assert alone.optimizer.state[alone.model.unused.weight]
    for bucket in BUCKETS:
        first, second = (torch.load(tmp_path / f"{bucket}-{rank}.pt") for rank in range(2))
        for name, weight in weights_of(alone).items():
            assert torch.equal(first[name], second[name]), name
            torch.testing.assert_close(first[name], weight, rtol=1e-5, atol=1e-6, msg=name)

    alone = make_engine(twice(make_plan(accumulation=4)))
    train(alone, iter(batches(4 * len(LRS))))
    first, second = (torch.load(tmp_path / f"twice-{rank}.pt") for rank in range(2))
    for name, weight in weights_of(alone).items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], weight, rtol=1e-5, atol=1e-6, msg=name)


def test_it_imports_no_deepspeed() -> None:
    program = "import sys, neox_core.run.run, neox_plain.engine; sys.exit('deepspeed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


if __name__ == "__main__":
    rank_main(int(sys.argv[1]), sys.argv[2])
