"""What is in a dataset: the work of `neox data inspect`, in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen
from neox_causal_lm.api import build_order

from neox_core.data.records import require_as_prepared
from neox_core.data.sources import open_source
from neox_core.data.tokenizer import load_tokenizer
from neox_core.errors import DataError, run_main
from neox_core.plan.runfile import ComponentRef
from neox_core.terminal import echo, echo_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from neox_core.contracts import DataBackend, Tokenizer, TokenSource

SHOWN = 64
BARS, WIDTH = 12, 40


@frozen
class Shown:
    """What `neox data inspect` was asked for.

    document: the one to show. samples: how many samples to show, of seq_length tokens, in the order of `seed`.
    histogram: draw the lengths of the documents.
    """

    document: int = 0
    samples: int = 0
    seq_length: int = 256
    seed: int = 1234
    histogram: bool = False


def inspect(prefix: Path, backend: ComponentRef, tokenizer: ComponentRef | None, shown: Shown) -> str:
    """Lines: the size of the dataset, the lengths of its documents, samples, and the beginning of one document.

    As text where a tokenizer is given. Opening the dataset has checked its index against its tokens. Raises DataError
    when the dataset cannot be read, has no such document, or holds ids that the tokenizer does not have.
    """
    reader: DataBackend = backend.make()
    source = open_source(reader, backend, prefix)
    told, sizes = require_as_prepared(reader.files(prefix)), source.sizes
    _require(prefix, shown.document, len(sizes))
    decoder: Tokenizer | None = None
    if tokenizer is not None:
        decoder = load_tokenizer(tokenizer)
    ids = source.read(shown.document)
    more = ", the first of them:" if len(ids) > SHOWN else ""
    lines = [
        f"{prefix}: {len(sizes):,} documents, {int(sizes.sum(dtype=np.int64)):,} tokens, stored as {source.dtype}",
        f"integrity: the index fits the tokens; {'files begin and end as prepared' if told else 'no record of them'}",
        f"tokens a document: {sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}",
        *(histogram(sizes) if shown.histogram else ()),
        *_samples(prefix, source, decoder, shown),
        f"document {shown.document}: {len(ids):,} tokens{more}",
        _text(prefix, f"document {shown.document}", ids[:SHOWN], decoder),
    ]
    return "\n".join(lines)


def facts(prefix: Path, backend: ComponentRef, tokenizer: ComponentRef | None, shown: Shown) -> dict[str, Any]:
    """A dataset and one document as `inspect` shows them, as plain values. Raises what `inspect` raises."""
    reader: DataBackend = backend.make()
    source = open_source(reader, backend, prefix)
    told, sizes = require_as_prepared(reader.files(prefix)), source.sizes
    _require(prefix, shown.document, len(sizes))
    decoder = None if tokenizer is None else load_tokenizer(tokenizer)
    ids = source.read(shown.document)
    text = None if decoder is None else _text(prefix, f"document {shown.document}", ids[:SHOWN], decoder)
    first = [int(token) for token in ids[:SHOWN]]
    return {
        "prefix": str(prefix),
        "documents": len(sizes),
        "tokens": int(sizes.sum(dtype=np.int64)),
        "dtype": str(source.dtype),
        "as_prepared": bool(told),
        "document_tokens": {"least": int(sizes.min()), "most": int(sizes.max()), "median": float(np.median(sizes))},
        "document": {"number": shown.document, "tokens": len(ids), "first_ids": first, "text": text},
    }


def _require(prefix: Path, document: int, count: int) -> None:
    if not 0 <= document < count:
        raise DataError(f"{prefix}: has no document {document}", hint=f"it has {count}, counted from 0")


def histogram(sizes: NDArray[np.integer[Any]]) -> list[str]:
    """Bars of how many documents have how many tokens; each goes up to twice the length of the one before."""
    top = max(1, int(sizes.max()))
    ends = [0, *(2**power for power in range(top.bit_length() + 1) if 2 ** (power - 1) < top)]
    counts = [
        int(np.count_nonzero((sizes > low) & (sizes <= high))) for low, high in zip([-1, *ends], ends, strict=False)
    ]
    skipped = max(0, len(ends) - BARS)
    if skipped:  # the shortest go together
        ends, counts = ends[skipped:], [sum(counts[: skipped + 1]), *counts[skipped + 1 :]]
    longest = max(counts)
    return [
        f"{f'<= {end:,}':>14} tokens {count:>12,} {'█' * -(-count * WIDTH // longest)}".rstrip()
        for end, count in zip(ends, counts, strict=True)
    ]


def _samples(prefix: Path, source: TokenSource, decoder: Tokenizer | None, shown: Shown) -> list[str]:
    """Of each sample the pieces of documents that it is made of, and what eod-mask-loss takes out of its loss."""
    if not shown.samples:
        return []
    try:
        documents = np.arange(len(source.sizes))
        order = build_order(source.sizes, documents, shown.seq_length, shown.samples, shown.seed)
    except ValueError:
        raise DataError(f"{prefix}: holds no token") from None
    lines = []
    for index in range(shown.samples):
        lines.append(f"sample {index} of {shown.seq_length} tokens, and the one after them:")
        ids: list[int] = []
        for document, offset, length in order.pieces(index):
            piece = source.read(document, offset, length)
            lines.append(f"  | document {document} from token {offset}: {len(piece)} tokens")
            lines.append(f"  |   {_text(prefix, f'document {document}', piece, decoder)!r}")
            ids.extend(int(token) for token in piece)
        if decoder is not None:
            masked = [place for place, token in enumerate(ids[:-1]) if token == decoder.eod]
            lines.append(f"  eod-mask-loss leaves {len(masked)} of {len(ids) - 1} out of the loss{_places(masked)}")
    return lines


def _places(masked: Sequence[int]) -> str:
    return f": what follows token {', '.join(map(str, masked))}" if masked else ""


def _text(prefix: Path, where: str, ids: NDArray[Any], decoder: Tokenizer | None) -> str:
    tokens = [int(token) for token in ids]
    if decoder is None:
        return " ".join(map(str, tokens))
    if max(tokens, default=0) >= decoder.vocab_size:
        raise DataError(
            f"{prefix}: {where} has id {max(tokens)}, the tokenizer ends at {decoder.vocab_size - 1}",
            hint="give the vocabulary that the dataset was prepared with",
        )
    return decoder.decode(tokens)


def main() -> None:
    """`python -m neox_data.inspect JSON`: prefix, backend, tokenizer or null, the fields of a Shown, and as_json."""
    raw = json.loads(sys.argv[1])
    tokenizer = ComponentRef(**raw["tokenizer"]) if raw["tokenizer"] else None
    asked = Path(raw["prefix"]), ComponentRef(**raw["backend"]), tokenizer, Shown(**raw["shown"])
    if raw["as_json"]:
        echo_json(facts(*asked))
    else:
        echo(inspect(*asked))


if __name__ == "__main__":
    run_main(main)
