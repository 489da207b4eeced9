"""Recomputed activations: the same losses and gradients from less memory, by torch's function and by DeepSpeed's."""

import gc
from collections.abc import Iterator

import pytest
import torch
from attrs import evolve
from neox_deepspeed.recompute import configure_recompute, recompute_by_deepspeed
from neox_deepspeed.testing import process_group_of_one
from neox_gpt.block import Block
from neox_gpt.build import build_model
from neox_gpt.config.plan import GPTPlan
from neox_gpt.gpt import GPT
from neox_gpt.recompute import recompute_by_torch, recompute_parted
from neox_gpt.testing import example_decoder
from torch import Tensor

from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.parallel.row import Recompute
from neox_core.parallel.sample_keys import sample_keys
from neox_core.parallel.tensor import TensorParallel
from neox_core.plan.runfile import ComponentRef, RecomputePlan

GROUPS = Groups(None, None, 0, 1)


def part(kind: str, target: str, settings_class: str | None = None) -> ComponentRef:
    return ComponentRef(kind, "any", "neox-any", "0.1.0", target, settings_class)


ROTARY = part("position", "neox_positions.rotary:Rotary", "neox_positions.settings:RotarySettings")
RPE = part("position", "neox_positions.rpe:RelativeBias", "neox_positions.settings:RelativeSettings")
PLAN: GPTPlan = evolve(
    example_decoder(),
    num_layers=4,
    hidden_size=32,
    num_attention_heads=4,
    intermediate_size=64,
    seq_length=24,
    max_position_embeddings=24,
    norm=part("norm", "neox_norms.layernorm:LayerNorm", "neox_norms.settings:LayerNormSettings"),
    activation=part("activation", "neox_activations.gelu:Gelu"),
    position=ROTARY,
    hidden_dropout=0.2,
    attention_dropout=0.1,
    reset_position_ids=True,
)
TOKENS = torch.randint(64, (3, 25), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch, process_group_of_one(tmp_path_factory.mktemp("store")):
        monkeypatch.setenv("DS_ACCELERATOR", "cpu")
        import deepspeed.comm
        import deepspeed.ops

        monkeypatch.setattr(deepspeed.ops, "__compatible_ops__", {"deepspeed_shm_comm": False})  # takes 45 s to build
        deepspeed.comm.init_distributed("gloo", dist_init_required=False)
        yield


def model_of(plan: GPTPlan, recompute: Recompute | None) -> GPT:
    context = BuildContext(torch.device("cpu"), torch.float32, GROUPS, seed=3)
    if recompute is None:
        return build_model(plan, 64, context, eod=5).train()
    plan = evolve(plan, recompute=RecomputePlan(recompute.layers))
    return build_model(plan, 64, context, eod=5, recompute_by=recompute.by).train()


def step(model: GPT) -> tuple[Tensor, dict[str, Tensor]]:
    loss = model.loss(TOKENS[:, :-1], TOKENS[:, 1:], sample_keys(7, 0, 3, "cpu"))
    loss.backward()
    return loss.detach(), {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def recompute_by(name: str, layers: int = 1, **options: bool) -> Recompute:
    if name == "torch":
        return Recompute(layers, recompute_by_torch)
    configure_recompute(RecomputePlan(layers, deepspeed=True, num_checkpoints=4, **options), GROUPS)
    return Recompute(layers, recompute_by_deepspeed)


@pytest.mark.parametrize("name", ["torch", "deepspeed"])
@pytest.mark.parametrize("layers", [1, 3, 4])
@pytest.mark.parametrize("position", [ROTARY, RPE], ids=["rotary", "rpe"])
def test_loss_and_gradients_are_those_without(name: str, layers: int, position: ComponentRef) -> None:
    plan = evolve(PLAN, position=position)
    loss, gradients = step(model_of(plan, None))
    again, same = step(model_of(plan, recompute_by(name, layers)))
    assert torch.equal(loss, again)
    assert gradients.keys() == same.keys()
    for key, gradient in gradients.items():
        torch.testing.assert_close(same[key], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["torch", "deepspeed"])
@pytest.mark.parametrize(("layers", "segments"), [(1, 4), (2, 2), (3, 2)])
def test_each_layer_runs_twice_in_so_many_segments(
    monkeypatch: pytest.MonkeyPatch, name: str, layers: int, segments: int
) -> None:
    ran: list[int] = []
    plain = Block.forward

    def counting(self: Block, x: Tensor, position: object, scope: object, layer: int) -> Tensor:
        ran.append(layer)
        return plain(self, x, position, scope, layer)

    monkeypatch.setattr(Block, "forward", counting)
    chosen = recompute_by(name, layers)
    called: list[Tensor] = []

    def by(function: object, x: Tensor, *shared: Tensor) -> Tensor:
        called.append(x)
        return chosen.by(function, x, *shared)

    step(model_of(PLAN, Recompute(layers, by)))
    assert sorted(ran) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(called) == segments
    ran.clear()
    model = model_of(PLAN, Recompute(layers, by)).eval()
    with torch.no_grad():
        model.loss(TOKENS[:, :-1], TOKENS[:, 1:])
    assert ran == [0, 1, 2, 3]


INPUT = 4 * 3 * 24 * 32
"""Bytes of what a layer gets."""


def held(recompute: Recompute | None) -> int:
    """Bytes that a forward pass through 8 layers leaves for the backward pass."""
    plan = evolve(PLAN, hidden_dropout=0.0, attention_dropout=0.0, reset_position_ids=False, num_layers=8)
    model = model_of(plan, recompute)
    before = tensors_alive()
    loss = model.loss(TOKENS[:, :-1], TOKENS[:, 1:])
    after = tensors_alive()
    del loss
    return after - before


@pytest.mark.parametrize("name", ["torch", "deepspeed"])
def test_less_is_held_until_the_backward_pass(name: str) -> None:
    """Of a layer its input alone: 4 bytes of each of the hidden numbers, next to some 20 times as much."""
    assert held(recompute_by(name)) < 8 * INPUT * 2 + 200_000 < held(None)


def test_a_rank_of_two_keeps_half_of_each_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank is imagined: it has the same."""
    forward = lambda x, tensor: torch.cat([x, x], -1)  # noqa: E731
    monkeypatch.setattr("neox_core.parallel.tensor._RESTORE", (forward, lambda x, tensor: x.chunk(2, -1)[0]))
    parted = Recompute(1, recompute_parted(TensorParallel(None, 0, 2)))
    assert held(Recompute(1, recompute_by_torch)) - held(parted) == 8 * INPUT // 2


def tensors_alive() -> int:
    gc.collect()
    found = {}
    for each in gc.get_objects():
        if type(each) is Tensor and each.device.type == "cpu":
            storage = each.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def test_profile_says_how_long_each_segment_takes(capsys: pytest.CaptureFixture[str]) -> None:
    step(model_of(PLAN, recompute_by("deepspeed", profile=True)))
    said = capsys.readouterr().out
    assert (said.count("| fwd:"), said.count("| backward:")) == (4, 4)
    step(model_of(PLAN, recompute_by("deepspeed")))
    assert "| fwd:" not in capsys.readouterr().out


def test_the_device_is_waited_for_around_each_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.accelerator import get_accelerator

    waits: list[int] = []
    monkeypatch.setattr(get_accelerator(), "synchronize", lambda *_: waits.append(1))
    step(model_of(PLAN, recompute_by("deepspeed")))
    without = len(waits)
    step(model_of(PLAN, recompute_by("deepspeed", synchronize=True)))
    assert len(waits) - 2 * without >= 4 * 2
