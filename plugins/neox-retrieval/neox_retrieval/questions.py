"""Questions with known blocks, and how often a search finds these."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen
from neox_causal_lm.api import split_documents

from neox_core.contracts.objective import SPLITS
from neox_core.errors import DataError
from neox_core.untrusted import parse_object, read_file, short

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neox_retrieval.opened import Opened
    from neox_retrieval.search import Index

LEAST = 8
"""Tokens of a held-out sentence that is asked."""
FORM = 'a line is {"question": text, "answers": [text, ...]} or {"question": text, "block": number}'


@frozen
class Question:
    """text: what is asked. block: the number of the right block, or None: one with any of `answers` in it is right.

    sentence: of a held-out one, its number.
    """

    text: str
    block: int | None = None
    answers: tuple[str, ...] = ()
    sentence: int = -1


@frozen
class Replaced:
    """Blocks without one of their sentences, and their vectors, fp32 [blocks, size]."""

    without: Mapping[int, int]
    numbers: NDArray[np.int64]
    vectors: NDArray[np.float32]


def asked(path: Path, blocks: int) -> list[Question]:
    """The questions of a .jsonl file. Raises DataError for a line that is none."""
    found = []
    for number, line in enumerate(read_file(path, DataError).splitlines(), 1):
        if not line.strip():
            continue
        where = Path(f"{path}:{number}")
        raw = parse_object(line, where, DataError)
        text, block, answers = raw.get("question"), raw.get("block"), raw.get("answers")
        if not isinstance(text, str) or not text.strip() or (block is None) == (answers is None):
            raise DataError(f"{where}: is not a question", hint=FORM)
        if block is not None:
            if type(block) is not int or not 0 <= block < blocks:
                raise DataError(f"{where}: block {short(block)} is none of 0 to {blocks - 1}", hint=FORM)
            found.append(Question(text, block))
        elif isinstance(answers, list) and answers and all(isinstance(each, str) and plain(each) for each in answers):
            found.append(Question(text, answers=tuple(answers)))
        else:
            raise DataError(f"{where}: `answers` is not a list of texts", hint=FORM)
    if not found:
        raise DataError(f"{path}: has no question", hint=FORM)
    return found


def held_out(opened: Opened, number: int) -> list[Question]:
    """Sentences of documents that are for the test, else for validation: of different blocks, chosen by the seed.

    Raises DataError where there are not so many blocks with two sentences.
    """
    plan, blocks = opened.run.plan, opened.blocks
    split = "test" if plan.data.split[2] else "valid"
    place, sentences = SPLITS.index(split), blocks.sentences
    documents = split_documents(sentences.of, plan.data.split)[place]
    own = np.flatnonzero((blocks.rows[:, 0] >= documents.start) & (blocks.rows[:, 0] < documents.stop))
    draw, found = np.random.default_rng([plan.train.seed, 2, place]), list[Question]()
    for block in draw.permutation(own).tolist():
        within = blocks.filled(block)
        long = [each for each in within if sentences.source.sizes[each] >= LEAST]
        if len(within) < 2 or not long:
            continue
        sentence = long[int(draw.integers(len(long)))]
        text = opened.words(sentences.read(sentence, sentence + 1, blocks.vocab_size))
        found.append(Question(text, block, sentence=sentence))
        if len(found) == number:
            return found
    message = f"{sentences.prefix}: {len(found)} blocks of the documents for {split} can be asked for, not {number}"
    raise DataError(message, hint="ask for fewer, or change split")


def held_out_blocks(opened: Opened, without: Mapping[int, int]) -> Replaced:
    """Embed blocks again, each without one sentence. without: block -> sentence."""
    numbers = np.array(sorted(without), dtype=np.int64)
    vectors = np.empty((0, opened.facts.size), np.float32)
    if len(numbers):
        vectors = opened.embed_tokens([opened.blocks.tokens(each, without[each]) for each in numbers.tolist()])
    return Replaced(without, numbers, vectors)


def rates(
    opened: Opened,
    index: Index,
    questions: Sequence[Question],
    counts: Sequence[int],
    replaced: Replaced,
    *,
    bm25: bool,
) -> dict[str, Any]:
    """For each of `counts`, how often the right block is among the first so many: by `first`, then by who looked."""
    most, total = counts[-1], opened.facts.blocks
    vectors = opened.embed_queries([each.text for each in questions])
    found = {"retriever": _neighbours(index, vectors, min(most + len(replaced.numbers), total), replaced, most)}
    if bm25:
        found["BM25"] = _by_words(opened, questions, most, replaced)
    firsts = {name: np.array(_places(opened, questions, numbers)) for name, numbers in found.items()}
    shares = {k: {name: float((each < k).mean()) for name, each in firsts.items()} for k in counts}
    if any(each.block is not None for each in questions):
        shares = {k: each | {"chance": k / total} for k, each in shares.items()}
    return {"questions": len(questions), "blocks": total, "first": shares}


def table_of(rated: Mapping[str, Any]) -> list[str]:
    """What `rates` found, as a table in Markdown."""
    columns = list(next(iter(rated["first"].values())))
    lines = [f"{rated['questions']} questions, {rated['blocks']:,} blocks", "", f"| first | {' | '.join(columns)} |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for k, shares in rated["first"].items():
        cells = (f"{share:.2%}" if name == "chance" else f"{share:.1%}" for name, share in shares.items())
        lines.append(f"| {k} | {' | '.join(cells)} |")
    return lines


def plain(text: str) -> list[str]:
    """The words of a text, without case and accents."""
    bare = "".join(each for each in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(each))
    return re.findall(r"\w+", bare)


def answers_in(words: Sequence[str], answers: Sequence[str]) -> bool:
    """Whether one of the answers is in a text, as words in a row."""
    line = f" {' '.join(words)} "
    return any(f" {' '.join(plain(each))} " in line for each in answers)


def text_of(opened: Opened, block: int, without: int | None = None) -> str:
    """Title and text of a block."""
    ids = opened.blocks.title(block), opened.blocks.body(block, without)
    return "\n".join(opened.words(each) for each in ids if each)


def _neighbours(
    index: Index, vectors: NDArray[np.float32], wide: int, replaced: Replaced, most: int
) -> NDArray[np.int64]:
    """The first `most` blocks of each query, int64 [queries, most], with the vectors of `replaced` in place."""
    products, numbers = index.search(vectors, wide)
    if len(replaced.numbers):
        stale = np.isin(numbers, replaced.numbers)
        own = np.broadcast_to(replaced.numbers, (len(vectors), len(replaced.numbers)))
        products = np.concatenate([np.where(stale, -np.inf, products), vectors @ replaced.vectors.T], axis=1)
        numbers = np.concatenate([numbers, own], axis=1)
    order = np.argsort(-products, axis=1, kind="stable")[:, :most]
    return np.take_along_axis(numbers, order, 1)


def _by_words(opened: Opened, questions: Sequence[Question], most: int, replaced: Replaced) -> NDArray[np.int64]:
    """The same by BM25 over the words of titles and texts."""
    import bm25s

    texts = (text_of(opened, block, replaced.without.get(block)) for block in range(opened.facts.blocks))
    tokens: Any = bm25s.tokenize([" ".join(plain(each)) for each in texts], stopwords=None, show_progress=False)
    ranker: Any = bm25s.BM25()
    ranker.index(tokens, show_progress=False)
    asked_for = bm25s.tokenize([" ".join(plain(each.text)) for each in questions], stopwords=None, show_progress=False)
    numbers: NDArray[np.int64] = ranker.retrieve(asked_for, k=most, show_progress=False).documents
    return numbers


def _places(opened: Opened, questions: Sequence[Question], numbers: NDArray[np.int64]) -> list[int]:
    """For each question the place of the first right block among the found ones, from 0; their number: none is."""
    places = []
    for question, found in zip(questions, numbers.tolist(), strict=True):
        right = (
            [each == question.block for each in found]
            if question.block is not None
            else [answers_in(plain(text_of(opened, each)), question.answers) for each in found]
        )
        places.append(right.index(True) if True in right else len(found))
    return places
