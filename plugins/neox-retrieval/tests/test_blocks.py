"""Blocks and samples, against documents of which every id names its sentence."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neox_bert.api import special_tokens
from neox_retrieval.blocks import all_blocks
from neox_retrieval.objective import InverseCloze
from neox_retrieval.objective_section import InverseClozeSettings
from towers import CLS, PAD, QUERY, SEP, SEQ, Source, datasets, of_split, resolved

from neox_core.errors import DataError

BLOCK = SEQ - QUERY
DOCUMENTS = [[10, 10, 9, 5, 5], [4], [27, 3, 3], [6, 0, 6], [40, 2]]
TITLES = [[3], [1], [2], [30], [2]]


def samples(folder: Path, *sets: str, sources: Any = None, wanted: int = 0, split: str = "train", **given: Any) -> Any:
    plan = of_split(resolved(folder, *sets).plan, 1.0, 0.0, 0.0)
    held = sources or datasets(text=Source(DOCUMENTS), titles=Source(TITLES))
    return InverseCloze(plan, InverseClozeSettings(**given)).samples(split, held, 64, (wanted,))


def rows(made: Any) -> Any:
    found = np.full((len(made), SEQ + 1), -1, np.int64)
    for index, row in enumerate(found):
        made.read(index, row)
    return found


def piece(ids: Any) -> list[int]:
    """Ids without what fills them up."""
    return [each for each in ids.tolist() if each != PAD]


def sentences(ids: Any) -> list[int]:
    """The sentences that are in some ids."""
    return list(dict.fromkeys(each for each in piece(ids) if each < CLS))


def test_a_block_has_as_many_whole_sentences_as_fit(tmp_path: Path) -> None:
    plan = resolved(tmp_path).plan
    found = all_blocks(plan, datasets(text=Source(DOCUMENTS)), special_tokens(plan.model), 64)
    assert found.rows.tolist() == [
        [0, 0, 3],
        [0, 3, 5],
        [1, 5, 6],
        [2, 6, 8],
        [2, 8, 9],
        [3, 9, 12],
        [4, 12, 13],
        [4, 13, 14],
    ]
    assert [len(piece(found.tokens(each))) - 2 for each in range(8)] == [29, 10, 4, 30, 3, 12, 30, 2], "one is cut"


def test_a_block_starts_with_the_title_of_its_document(tmp_path: Path) -> None:
    plan = resolved(tmp_path, f"titles-data-path={tmp_path / 'titles'}").plan
    held = datasets(text=Source(DOCUMENTS), titles=Source(TITLES))
    found = all_blocks(plan, held, special_tokens(plan.model), 64)
    assert found.rows[:2].tolist() == [[0, 0, 2], [0, 2, 5]], "the title takes room"
    for block, (document, first, end) in enumerate(found.rows.tolist()):
        ids = piece(found.tokens(block))
        size = min(TITLES[document][0], BLOCK // 2)
        assert ids[: size + 2] == [CLS, *[document] * size, SEP]
        assert ids[-1] == SEP
        assert len(ids) <= BLOCK
        text = [each for each in range(first, end) for _ in range(int(Source(DOCUMENTS).sizes[each]))]
        assert ids[size + 2 : -1] == text[: BLOCK - size - 3]


def test_titles_of_another_number_than_the_documents_are_refused(tmp_path: Path) -> None:
    held = datasets(text=Source(DOCUMENTS), titles=Source(TITLES[1:]))
    with pytest.raises(DataError, match=r"titles: has 4 titles, and .*text has 5 documents"):
        samples(tmp_path, f"titles-data-path={tmp_path / 'titles'}", sources=held)


@pytest.mark.parametrize(("share", "low", "high"), [(0.0, 0.0, 0.0), (0.3, 0.25, 0.35), (1.0, 1.0, 1.0)])
def test_a_share_of_the_blocks_keeps_its_query(tmp_path: Path, share: float, low: float, high: float) -> None:
    """A query is one sentence of the block; the block has all others."""
    made = samples(tmp_path, wanted=1000, query_in_block_prob=share)
    kept = []
    for index, row in enumerate(rows(made)):
        (query,) = sentences(row[:QUERY])
        _, first, end, number = made.identify(np.array([index]))[0].tolist()
        assert number == index
        sizes = Source(DOCUMENTS).sizes
        block = {each for each in range(first, end) if sizes[each]}
        within = {*sentences(row[QUERY:])}
        assert query in block
        assert len(piece(row[:QUERY])) == min(QUERY, 2 + sizes[query])
        if len(block) > 1:
            assert within in (block, block - {query})
            kept.append(query in within)
    assert low <= np.mean(kept) <= high, "four standard deviations"


def test_documents_of_one_sentence_are_trained_on_where_they_are_asked_for(tmp_path: Path) -> None:
    def documents(**given: Any) -> set[int]:
        made = samples(tmp_path, **given)
        return {int(each) for each in made.identify(np.arange(len(made)))[:, 0]}

    assert documents() == {0, 2, 3}, "4 has no block of two sentences, 1 no two sentences"
    assert documents(use_one_sent_docs=True) == {0, 1, 2, 3, 4}
    assert documents(query_in_block_prob=1.0) == {0, 2, 3, 4}
    one = rows(samples(tmp_path, use_one_sent_docs=True, query_in_block_prob=0.0))
    alone = [row for row in one if sentences(row[:QUERY]) == [5]]
    assert [sentences(row[QUERY:]) for row in alone] == [[5]], "nothing would be left without it"


def test_a_pass_has_each_block_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    made = samples(tmp_path, wanted=40)
    blocks = [made.block(index) for index in range(len(made))]
    number = len(made.kept)
    turns = [blocks[at : at + number] for at in range(0, len(blocks), number)]
    assert all(Counter(turn) == Counter(turns[0]) for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1
    again = rows(samples(tmp_path, wanted=4))
    np.testing.assert_array_equal(again, rows(made)[: len(again)])
    other = rows(samples(tmp_path, "seed=8", wanted=40))
    assert not np.array_equal(other, rows(made))


def test_splits_share_no_document(tmp_path: Path) -> None:
    plan = of_split(resolved(tmp_path).plan, 0.4, 0.6, 0.0)
    made = {}
    for split in ("train", "valid"):
        objective = InverseCloze(plan, InverseClozeSettings(use_one_sent_docs=True))
        found = objective.samples(split, datasets(text=Source(DOCUMENTS)), 64, (0,))
        made[split] = {*found.identify(np.arange(len(found)))[:, 0].tolist()}
    assert made == {"train": {0, 1}, "valid": {2, 3, 4}}


def test_an_id_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    made = samples(tmp_path)
    small = InverseCloze(of_split(resolved(tmp_path).plan, 1.0, 0.0, 0.0), InverseClozeSettings())
    few = small.samples("train", datasets(text=Source(DOCUMENTS)), 2, (0,))
    assert len(made) == len(few)
    with pytest.raises(DataError, match="an id is not among 2"):
        rows(few)


def test_without_a_block_of_two_sentences_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no document for train has a block of two sentences"):
        samples(tmp_path, sources=datasets(text=Source([[4], [5]])))
