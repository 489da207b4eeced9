"""A GPU without numbers, for a process whose first argument is pretended_gpu.cpp, compiled. Import it before torch.

Tensors "on the GPU" are torch's fake ones, which have a device, a dtype and a shape; those of the host are real. What
is read back is True, zero, or a tensor of ones; False for what DeepSpeed reads, which is whether a gradient is
infinite.
"""

import contextlib
import ctypes
import sys
import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)  # before torch

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map_only  # noqa: E402

DEVICE = torch.device("cuda", 0)
THEIRS = "deepspeed/"
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
        self.faults.append(f"{what} at {innermost(traceback.extract_stack())}")

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
            return (
                not theirs(self.faults[-1])
                if args[0].dtype == torch.bool
                else 0.0
                if args[0].dtype.is_floating_point
                else 0
            )
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


def innermost(stack: traceback.StackSummary) -> str:
    """The innermost places of a stack, without torch's and this file's."""
    frames = (frame for frame in reversed(stack) if frame.filename != __file__ and "/torch/" not in frame.filename)
    return " < ".join(f"{_named(Path(frame.filename))}:{frame.lineno}" for frame in islice(frames, 4))


def _named(file: Path) -> str:
    return f"{THEIRS if '/deepspeed/' in file.as_posix() else ''}{file.name}"


def theirs(fault: str) -> bool:
    """Whether DeepSpeed itself waits: at ZeRO and in fp16 it looks at each step whether the gradient is finite."""
    return f" at {THEIRS}" in fault


def _memory(tensor: Tensor) -> int:
    return 0 if isinstance(tensor, FakeTensor) else tensor.untyped_storage()._cdata


def apply(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """In place of Module._apply, which sets `data`: a fake tensor cannot take the place of a real one so."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and (new := fn(parameter.detach())).device != parameter.device:
                part._parameters[name] = nn.Parameter(new)
    return module


def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
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


SILENT = ("set_device", "manual_seed", "empty_cache", "reset_peak_memory_stats")


def pretend_cuda(device: Gpu) -> None:
    """What DeepSpeed asks torch.cuda for. Its timers and streams are no concern of a step."""
    stream = SimpleNamespace(
        wait_stream=lambda other: None, device=DEVICE, synchronize=lambda: device.note("a synchronization")
    )
    stream.record_event = stream.wait_event = stream.record = lambda *_: stream
    stream.query = lambda: True
    stream.stream_id, stream.device_index, stream.device_type = 0, 0, 1
    answers: dict[str, Any] = dict.fromkeys(SILENT, lambda *_: None)
    answers |= {"is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0}
    answers |= {"current_stream": lambda *_: stream, "default_stream": lambda *_: stream}
    answers |= dict.fromkeys(("Stream", "Event"), lambda *_, **__: stream)
    answers |= dict.fromkeys(
        ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), lambda *_: 0
    )
    answers |= {"synchronize": lambda *_: device.note("a synchronization"), "get_device_capability": lambda *_: (9, 0)}
    answers["get_device_properties"] = lambda *_: SimpleNamespace(
        total_memory=2**30, name="pretended", major=9, minor=0
    )
    answers["stream"] = lambda _: contextlib.nullcontext()
    answers["nvtx"] = SimpleNamespace(range_push=lambda _: None, range_pop=lambda: None)
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
