"""What is in a dataset: the work of `neox data inspect`, in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neox_core.errors import DataError, run_main
from neox_core.plan.runfile import ComponentRef

if TYPE_CHECKING:
    from neox_core.contracts import Tokenizer, TokenSource

SHOWN = 64


def inspect(prefix: Path, backend: ComponentRef, tokenizer: ComponentRef | None, document: int) -> str:
    """A few lines: the size of the dataset, and the beginning of one document, as text where a tokenizer is given.

    Raises DataError when the dataset cannot be read or has no such document.
    """
    target, settings = backend.load()
    source: TokenSource = target(settings).open(prefix)
    sizes = source.sizes
    if not 0 <= document < len(sizes):
        raise DataError(f"{prefix}: has no document {document}", hint=f"it has {len(sizes)}, counted from 0")
    ids = source.read(document)
    lines = [
        f"{prefix}: {len(sizes):,} documents, {int(sizes.sum(dtype=np.int64)):,} tokens, stored as {source.dtype}",
        f"tokens a document: {sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}",
        f"document {document}: {len(ids):,} tokens" + (", the first of them:" if len(ids) > SHOWN else ""),
    ]
    shown = [int(token) for token in ids[:SHOWN]]
    if tokenizer is None:
        return "\n".join([*lines, " ".join(map(str, shown))])
    decoder_target, decoder_settings = tokenizer.load()
    decoder: Tokenizer = decoder_target(decoder_settings)
    if max(shown, default=0) >= decoder.vocab_size:
        raise DataError(
            f"{prefix}: document {document} has id {max(shown)}, the tokenizer ends at {decoder.vocab_size - 1}",
            hint="give the vocabulary that the dataset was prepared with",
        )
    return "\n".join([*lines, decoder.decode(shown)])


def main() -> None:
    """`python -m neox_core.build.inspect JSON`: prefix, backend, tokenizer or null, document."""
    raw = json.loads(sys.argv[1])
    tokenizer = ComponentRef(**raw["tokenizer"]) if raw["tokenizer"] else None
    text = inspect(Path(raw["prefix"]), ComponentRef(**raw["backend"]), tokenizer, raw["document"])
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    run_main(main)
