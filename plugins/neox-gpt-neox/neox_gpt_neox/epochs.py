"""`train_epochs`: the steps of so many passes over a dataset, counted as GPT-NeoX counts them at ea7aefd."""

from __future__ import annotations

import struct
import sys
from array import array
from pathlib import Path
from typing import Any

from neox_core.config.problem import MisfitError
from neox_core.plan.split import shares
from neox_gpt_neox.translate import Rewriting

KEY = "train_epochs"
HEADER = struct.Struct("<9sQBQQ")
"""Of an .idx file: magic, version, type of the ids, sequences, document bounds; then int32 sizes of sequences."""
MAGIC = b"MMIDIDX\x00\x00"
AT_ONCE = 1 << 20
"""Sizes that are read together."""
INSTEAD = "or write train-iters"
OTHER_BATCHES = {"rampup_batch_size": "starts with smaller batches", "elasticity.enabled": "chooses the batch"}
"""Keys with which the steps of a run do not have train_batch_size samples each, and why."""


class _CannotError(Exception):
    """Why the steps cannot be counted. args: message, hint."""


def translate_epochs(work: Rewriting) -> None:
    """Write `train_iters`, and for several passes the samples of one; every pass has the order of the first."""
    epochs = work.value(KEY)
    if epochs is None:
        return
    place = work.places[KEY]
    try:
        steps, one_pass = _count(work, epochs)
    except _CannotError as cannot:
        message, hint = cannot.args
        work.drop(KEY, message, hint, severity="error")
        if work.value("train_iters") is None:
            work.write("train_iters", 1, place)  # or one mistake would be reported twice
        return
    said = f"{epochs} passes over {one_pass:,} samples: read as train-iters: {steps}"
    if epochs > 1:
        said += f" and samples-per-pass: {one_pass}"
        work.write("samples_per_pass", one_pass, place)
        work.taken.discard("samples_per_pass")
    work.replace(KEY, "train_iters", steps, said)


def _count(work: Rewriting, epochs: Any) -> tuple[int, int]:
    """Steps of the run, and samples that it reads in one pass."""
    if not _is_number(epochs):
        raise _CannotError(f"must be a whole number above 0, not {epochs!r}", "")
    if work.value("train_iters") is not None:
        raise _CannotError("contradicts train-iters, as in GPT-NeoX", "remove one of the two")
    if work.value("weight_by_num_documents"):
        raise _CannotError("contradicts weight_by_num_documents, as in GPT-NeoX", "remove one of the two")
    for key, why in OTHER_BATCHES.items():
        if work.value(key):
            said = f"contradicts {key}, which {why}: the steps are counted from train_batch_size"
            raise _CannotError(said, "remove one of the two, or write train-iters")
    seq_length, batch = work.value("seq_length"), work.value("train_batch_size")
    accumulation = work.value("gradient_accumulation_steps")
    accumulation = 1 if accumulation is None else accumulation
    if not all(map(_is_number, (seq_length, batch, accumulation))) or batch % accumulation:
        hint = f"write train_batch_size, which the number of steps follows from, {INSTEAD}"
        raise _CannotError("needs numbers for seq-length and train_batch_size", hint)
    tokens = _tokens(*_dataset(work))
    together = batch // accumulation  # the samples of a micro-batch of all ranks: what is left of them is not read
    batches = max(0, tokens - 1) // seq_length // together
    if batches * epochs < accumulation:
        said = f"{epochs} passes over {tokens:,} tokens do not fill a batch of {batch} x {seq_length} tokens"
        raise _CannotError(said, "lower train_batch_size, or set a larger number")
    return batches * epochs // accumulation, batches * together


def _dataset(work: Rewriting) -> tuple[str, tuple[float, ...]]:
    """The prefix of the dataset, and the shares of its documents for training, validation and test."""
    paths, weights = work.value("train_data_paths"), work.value("train_data_weights")
    if paths is not None:
        if not isinstance(paths, list) or len(paths) != 1 or not isinstance(paths[0], str):
            said = "needs one dataset: GPT-NeoX mixes several in equal shares, whatever their sizes"
            raise _CannotError(said, f"merge them with `neox data merge`, {INSTEAD}")
        if weights is not None and any(each != 1 for each in (weights if isinstance(weights, list) else [weights])):
            raise _CannotError("contradicts train-data-weights, as in GPT-NeoX", "remove the weights")
        return paths[0], (1.0,)
    path = work.value("data_path")
    if not isinstance(path, str):
        raise _CannotError("needs a dataset, whose samples it counts", f"set data-path, {INSTEAD}")
    split = work.value("split")
    try:
        return path, shares("969, 30, 1" if split is None else split)
    except (MisfitError, TypeError):
        raise _CannotError("needs a split of one to three numbers", f"correct split, {INSTEAD}") from None


def _tokens(prefix: str, parts: tuple[float, ...]) -> int:
    """Tokens of the training documents of a dataset, which are its first."""
    path = Path(f"{prefix}.idx")
    try:
        with path.open("rb") as file:
            raw = file.read(HEADER.size)
            if len(raw) < HEADER.size or not raw.startswith(MAGIC):
                said = f"{path} is not the index of an mmap dataset, whose samples it counts"
                raise _CannotError(said, f"prepare it with `neox data prepare`, {INSTEAD}")
            documents = HEADER.unpack(raw)[3]
            if path.stat().st_size < HEADER.size + 4 * documents:
                raise _CannotError(f"{path} ends within the sizes of its documents", "prepare the dataset again")
            left, tokens = _training(documents, parts), 0
            while left > 0:
                sizes = array("i")
                sizes.frombytes(file.read(4 * min(left, AT_ONCE)))
                if sys.byteorder == "big":
                    sizes.byteswap()
                tokens += sum(sizes)
                left -= AT_ONCE
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise _CannotError(f"{path} cannot be read: {why}", f"put the dataset there, {INSTEAD}") from error
    return tokens


def _training(documents: int, parts: tuple[float, ...]) -> int:
    """The number of training documents: each split is rounded, and training gives up what that is too many."""
    counts = [round(part * documents) for part in parts]
    return max(0, counts[0] - (sum(counts) - documents))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
