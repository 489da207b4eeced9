"""A GPU without numbers: `python pretended_gpu.py LIBRARY FOLDER` runs steps on it and says what they waited for.

Tensors "on the GPU" are torch's fake ones, which have a device, a dtype and a shape; those of the host are real. What
is read back is True, zero, or a tensor of ones. LIBRARY is pretended_gpu.cpp, compiled. Prints a JSON object: case ->
list of faults.
"""

import contextlib
import ctypes
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)  # before torch

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from attrs import evolve  # noqa: E402
from neox_gpt.architecture import GPTArchitecture  # noqa: E402
from neox_gpt.attention import flex  # noqa: E402
from neox_gpt.build import build_model  # noqa: E402
from neox_gpt.config.plan import GPTPlan  # noqa: E402
from neox_gpt.testing import example_run  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map_only  # noqa: E402

from neox_core.checkpoint.state import TrainState  # noqa: E402
from neox_core.contracts.engine import Peak  # noqa: E402
from neox_core.contracts.host import RunInfo  # noqa: E402
from neox_core.parallel.context import BuildContext  # noqa: E402
from neox_core.parallel.groups import Groups, build_groups  # noqa: E402
from neox_core.parallel.row import Routing  # noqa: E402
from neox_core.parallel.sample_keys import sample_keys  # noqa: E402
from neox_core.plan.runfile import ComponentRef, RecomputePlan  # noqa: E402
from neox_core.run.loop import train  # noqa: E402
from neox_core.run.report import Report  # noqa: E402

DEVICE = torch.device("cuda", 0)
SIZES = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal"}
"""Ops whose result has a size or a value that the host must know."""
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class Gpu(TorchDispatchMode):
    """Runs every op that touches the device on fake tensors, and writes down what a real one would make the host wait
    for, and what it would refuse.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self._fake = FakeTensorMode()
        self._pinned: set[int] = set()

    def note(self, what: str) -> None:
        self.faults.append(f"{what} at {_ours(traceback.extract_stack())}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        name = func._schema.name.removeprefix("aten::")
        tensors = [each for each in leaves if isinstance(each, Tensor)]
        if name == "is_pinned":
            return _memory(args[0]) in self._pinned
        if name == "_pin_memory":
            copy = args[0].clone()
            self._pinned.add(_memory(copy))
            return copy
        devices = {each.type for each in leaves if isinstance(each, torch.device)}
        if "cuda" not in devices | {each.device.type for each in tensors}:
            return func(*args, **kwargs)
        if name == "_local_scalar_dense":
            self.note("the host reads a number")
            return True if args[0].dtype == torch.bool else 0.0 if args[0].dtype.is_floating_point else 0
        host = [each for each in tensors if each.device.type == "cpu"]
        if name in ("_to_copy", "copy_"):
            target = kwargs.get("device", args[0].device) if name == "_to_copy" else args[0].device
            source = args[0] if name == "_to_copy" else args[1]
            if source.device.type == "cuda" and target.type == "cpu":
                self.note("a copy to the host")
                return args[0].fill_(1) if name == "copy_" else torch.ones(source.shape, dtype=source.dtype)
            free = kwargs.get("non_blocking") or (name == "copy_" and args[2:] == (True,))
            if source.device.type == "cpu" and not (free and _memory(source) in self._pinned):
                self.note("a copy from the host that is not from page-locked memory, or waited for")
        elif name in SIZES or (name == "repeat_interleave" and "output_size" not in kwargs):
            self.note(f"{name} has a size that the host must know")
        elif name in INDEXED and any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1]):
            self.note(f"{name} by a mask has a size that the host must know")
        elif any(each.dim() or "_fused_" in name for each in host):
            self.note(f"{name} mixes devices")
        made_fake = lambda each: each if isinstance(each, FakeTensor) else self._fake.from_tensor(each)  # noqa: E731
        args, kwargs = tree_map_only(Tensor, made_fake, (args, kwargs))
        with self._fake:
            return func(*args, **kwargs)


class Made(TorchFunctionMode):
    """`torch.tensor` of numbers for the device, as the copy that it is: the dispatcher is not shown it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        made = func in (torch.tensor, torch.as_tensor) and "cuda" in str(kwargs.get("device"))
        device = kwargs.pop("device") if made else None
        return func(*args, **kwargs).to(device) if made else func(*args, **kwargs)


def _ours(stack: traceback.StackSummary) -> str:
    """The innermost places of a stack, without torch's and this file's."""
    frames = (frame for frame in reversed(stack) if frame.filename != __file__ and "/torch/" not in frame.filename)
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in islice(frames, 4))


def _memory(tensor: Tensor) -> int:
    return 0 if isinstance(tensor, FakeTensor) else tensor.untyped_storage()._cdata


def _apply(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """In place of Module._apply, which sets `data`: a fake tensor cannot take the place of a real one so."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and (new := fn(parameter.detach())).device != parameter.device:
                part._parameters[name] = nn.Parameter(new)
    return module


def _attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """What FlexAttention computes, with its rules called as it calls them; the true one has to be compiled."""
    share = query.shape[1] // key.shape[1]
    key, value = (each[:, :, None].expand(-1, -1, share, -1, -1).flatten(1, 2) for each in (key, value))
    batch, heads, rows, columns = (torch.arange(each, device=query.device) for each in (query @ key.mT).shape)
    at = batch[:, None, None, None], heads[:, None, None], rows[:, None], columns
    scores = query @ key.mT * options["scale"]
    scores = scores if options["score_mod"] is None else options["score_mod"](scores, *at)
    return scores.masked_fill(~options["block_mask"].mask_mod(*at), -1e9).softmax(-1) @ value


@contextlib.contextmanager
def gpu() -> Iterator[Gpu]:
    mode = Gpu()
    with mode, Made():
        yield mode


def ref(kind: str, target: str, settings: str | None = None, **values: Any) -> ComponentRef:
    return ComponentRef(kind, target.rpartition(":")[2], "neox-test", "0", target, settings, values)


ROTARY = ref("position", "neox_positions.rotary:Rotary", "neox_positions.settings:RotarySettings", rotary_pct=0.5)
ALIBI = ref("position", "neox_positions.alibi:Alibi")
RELATIVE = ref("position", "neox_positions.rpe:RelativeBias", "neox_positions.settings:RelativeSettings")
BLOCKS = "neox_sparse_attention.settings:BigBirdSettings"
SPARSE = ref("sparse layout", "neox_sparse_attention.bigbird:bigbird", BLOCKS, block=8)
ADAM = ref("optimizer", "neox_adam.optim:adam", "neox_adam.settings:AdamSettings")
PLAN = example_run(Path("unused"), ranks=(1,), device="cuda")
PLAIN = evolve(
    PLAN.model,
    num_layers=1,
    hidden_size=32,
    num_attention_heads=4,
    intermediate_size=64,
    seq_length=24,
    max_position_embeddings=24,
    norm=ref("norm", "neox_norms.layernorm:LayerNorm", "neox_norms.settings:LayerNormSettings"),
    activation=ref("activation", "neox_activations.gelu:Gelu"),
    position=ROTARY,
)
LLAMA = evolve(
    PLAIN,
    norm=ref("norm", "neox_norms.rmsnorm:RMSNorm", "neox_norms.settings:RMSNormSettings"),
    activation=ref("activation", "neox_activations.gated:SwiGLU"),
    num_kv_heads=2,
    tie_embeddings=False,
)
DOCUMENTS = {"reset_attention_mask": True, "reset_position_ids": True, "eod_mask_loss": True}
DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}


TWO_SHARE = {"tensor_parallel": 2, "sequence_parallel": True}


@contextlib.contextmanager
def ranks(**layout: Any) -> Iterator[Groups]:
    """The groups of the first of as many ranks as a layout has. Their collectives leave tensors as they are."""
    cluster = evolve(PLAN.cluster, hosts=(evolve(PLAN.cluster.hosts[0], slots=layout.pop("number")),), **layout)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=cluster.world_size)
    try:
        yield build_groups(cluster)
    finally:
        dist.destroy_process_group()
        for name, value in vars(sys.modules.get("deepspeed.utils.groups", object)).items():
            if isinstance(value, dist.ProcessGroup):  # kept from one initialization to the next
                setattr(sys.modules["deepspeed.utils.groups"], name, None)


def step_of(plan: GPTPlan, *, recompute: bool = False, routed: bool = False, **layout: Any) -> list[str]:
    """The faults of a forward and backward pass."""
    with ranks(**{"number": layout.get("tensor_parallel", 1), **layout}) as groups, gpu() as device:
        plan = evolve(plan, recompute=RecomputePlan(1) if recompute else None)
        model = build_model(plan, 16, BuildContext(DEVICE, torch.bfloat16, groups, 1), eod=0)
        routing = Routing(frozenset({0}), 3, 12) if routed else None
        device.faults.clear()
        batch = torch.zeros(2, 25, dtype=torch.int64).pin_memory().to(DEVICE, non_blocking=True)
        keys = sample_keys(1, 0, 2, DEVICE) if plan.hidden_dropout else None
        model.loss(batch[:, :-1], batch[:, 1:], keys, routing=routing).backward()
        away = (name for name, each in model.named_parameters() if each.grad is None or each.grad.device != DEVICE)
        return device.faults + [f"{name} has no gradient on the device" for name in away]


def compressed_step() -> list[str]:
    """The faults of 1-bit Adam's second step that compresses: the first may look at what has been counted."""
    from neox_onebit.adam import OneBitAdam
    from neox_onebit.settings import OneBitAdamSettings

    wire: Any = SimpleNamespace(rank=0, size=2, swap=lambda parts: parts, gather=lambda part: torch.stack((part, part)))
    settings = OneBitAdamSettings(freeze_step=1, cuda_aware=True, comm_backend_name="nccl")
    with gpu() as device:
        weights = [torch.zeros(size, device=DEVICE) for size in ((5, 160), (160,), (7,))]
        optimizer = OneBitAdam([{"params": weights}], settings, wire)
        for _ in range(3):
            device.faults.clear()
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            optimizer.step()
        return device.faults


def _pretend_cuda(device: Gpu) -> None:
    """What DeepSpeed asks torch.cuda for. Its timers and streams are no concern of a step."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    answers: dict[str, Any] = dict.fromkeys(("set_device", "manual_seed", "empty_cache"), lambda *_: None)
    answers |= {"is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0}
    answers |= {"current_stream": lambda *_: stream, "default_stream": lambda *_: stream}
    answers |= dict.fromkeys(("Stream", "Event"), lambda *_, **__: stream)
    answers |= dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved"), lambda *_: 0)
    answers |= {"synchronize": lambda *_: device.note("a synchronization"), "get_device_capability": lambda *_: (9, 0)}
    answers["get_device_properties"] = lambda *_: SimpleNamespace(
        total_memory=2**30, name="pretended", major=9, minor=0
    )
    answers["nvtx"] = SimpleNamespace(range_push=lambda _: None, range_pop=lambda: None)
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)


class Saver:
    def save(self, state: TrainState) -> None:
        """Nothing is saved."""


class Never:
    def poll(self) -> bool:
        return False


def loop_of(folder: Path, model: GPTPlan, **layout: Any) -> list[str]:
    """The faults of a run of three steps that looks at the second, outside of that look, and of an evaluation:
    DeepSpeed's engine and all, at ZeRO stage 0.
    """
    os.environ |= {"LOCAL_RANK": "0", "DS_ACCELERATOR": "cuda"}
    with ranks(**{"number": 1, **layout}) as groups, gpu() as device:
        _pretend_cuda(device)
        train_batch = 4 * groups.data_size
        sizes = {"train_batch_size": train_batch, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
        plan = evolve(
            PLAN,
            model=model,
            batch=evolve(
                PLAN.batch,
                micro_batch=2,
                gradient_accumulation=2,
                train_batch=train_batch,
                data_parallel=groups.data_size,
            ),
            optim=evolve(PLAN.optim, optimizer=ADAM, weight_decay=0.1),
            train=evolve(PLAN.train, train_iters=3),
            engine={**sizes, "zero_optimization": {"stage": 0}},
        )
        from neox_deepspeed.api import build_engine

        from neox_core.run.optimizer import build_optimizer

        context = BuildContext(DEVICE, torch.float32, groups, 1)
        built = build_model(plan.model, 16, context, eod=0)
        engine = build_engine(plan, built, build_optimizer(plan.optim, built, None, GPTArchitecture.tables), context)
        info = RunInfo(
            folder, 0, 6, num_parameters=1, num_ranks=1, tokens_per_step=96, device="cuda", samples_per_step=4
        )
        look: dict[str, Any] = {
            "log_interval": 2,
            "flops_per_token": 1.0,
            "peak": Peak(None, ""),
            "stop_on_nonfinite": True,
        }
        report, seen = Report(info, [], groups, DEVICE, **look), []

        def batches() -> Iterator[Tensor]:
            while True:
                yield torch.zeros(2, 25, dtype=torch.int64)

        def lr(step: int) -> float:  # called as a step begins
            seen.append(len(device.faults))
            return 1e-3

        report.check = lambda: seen.append(len(device.faults))  # type: ignore[method-assign]  # as the last step is done
        train(engine, report.timed(batches()), list, lr, report, Saver(), Never(), TrainState(), plan)
        began, end = seen[:-1], seen[1:]  # of each step
        first, looked, last = (device.faults[at:to] for at, to in zip(began, end, strict=True))
        device.faults.clear()
        engine.evaluate(islice(batches(), 2))
        engine.close()
        return first + last + device.faults + ([] if looked else ["the look read nothing"])


def fault_of(commit: Callable[[Tensor], object]) -> list[str]:
    """What is seen of a planted fault, done with a tensor on the device."""
    with gpu() as device:
        with contextlib.suppress(RuntimeError):  # fake tensors know no sizes, and refuse to mix devices themselves
            commit(torch.zeros(3, device=DEVICE))
        return [each.partition(" at ")[0] for each in device.faults]


CASES: dict[str, Callable[[], list[str]]] = {
    "documents and a bias": lambda: step_of(evolve(LLAMA, position=ALIBI, **DOCUMENTS)),
    "dropout, recomputed, some tokens": lambda: step_of(evolve(PLAIN, **DROPOUT), recompute=True, routed=True),
    "blocks and a trained bias": lambda: step_of(
        evolve(LLAMA, position=RELATIVE, layouts=(SPARSE,), layout_of_layer=(0,))
    ),
    "1-bit Adam": compressed_step,
    "two ranks share layers, documents and a bias": lambda: step_of(
        evolve(LLAMA, position=ALIBI, **DOCUMENTS), tensor_parallel=2
    ),
    "two ranks share layers and positions, dropout, recomputed": lambda: step_of(
        evolve(PLAIN, **DROPOUT), recompute=True, **TWO_SHARE
    ),
    "a run on documents": lambda: loop_of(Path(sys.argv[2]), evolve(PLAIN, **DOCUMENTS)),
    "a run with dropout, recomputed": lambda: loop_of(
        Path(sys.argv[2]), evolve(PLAIN, recompute=RecomputePlan(1), **DROPOUT)
    ),
    "a run on two ranks, each with a model": lambda: loop_of(Path(sys.argv[2]), evolve(PLAIN, **DOCUMENTS), number=2),
    "a run on four ranks, two sharing layers": lambda: loop_of(
        Path(sys.argv[2]), evolve(PLAIN, **DOCUMENTS), number=4, **TWO_SHARE
    ),
    "planted: a number": lambda: fault_of(lambda x: x.sum().item()),
    "planted: a branch": lambda: fault_of(lambda x: bool(x.sum() > 0)),
    "planted: to the host": lambda: fault_of(lambda x: x.cpu()),
    "planted: a list": lambda: fault_of(lambda x: torch.tensor([1.0], device=x.device)),
    "planted: from the host": lambda: fault_of(lambda x: torch.ones(3).to(x.device, non_blocking=True)),
    "planted: a choice": lambda: fault_of(lambda x: x[x > 0]),
    "planted: a mask of the host": lambda: fault_of(lambda x: x.masked_fill(torch.ones(3) > 0, 0.0)),
}


def main() -> None:
    torch.cuda._lazy_init = lambda: None
    nn.Module._apply = _apply  # type: ignore[method-assign]  # in a process of its own
    flex.compiled = lambda: _attention
    found = {}
    for name, case in CASES.items():
        try:
            found[name] = case()
        except Exception as error:  # noqa: BLE001  each case is told of by itself
            found[name] = [f"{error!r:.500} at {_ours(traceback.extract_tb(error.__traceback__))}"]
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
