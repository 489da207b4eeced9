"""Samples of sentences: what they are made of, and how often."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from encoders import CLS, PAD, SEP, example_encoder
from neox_author.testing.plans import example_plan
from neox_bert.objective import MaskedLM
from neox_bert.settings import MaskedLMSettings

from neox_core.errors import DataError

SENTENCES, SIZE, DOCUMENTS, SEQ = 5, 4, 30, 32


class Source:
    """DOCUMENTS of SENTENCES, in each of which all ids are the number of the sentence."""

    def __init__(self, sentences: int = SENTENCES) -> None:
        self.bounds = np.arange(DOCUMENTS + 1) * sentences
        self.sizes = np.full(DOCUMENTS * sentences, SIZE, np.int32)

    def read(self, sentence: int) -> Any:
        return np.full(SIZE, sentence, np.int32)


def samples(split: str = "train", source: Any = None, wanted: int = 0, seed: int = 1, **settings: Any) -> Any:
    """Of a run with `masked-lm`, as arrays."""
    plan = example_plan(Path("unused"), ranks=(1,))
    plan = evolve(
        plan,
        model=evolve(example_encoder(), seq_length=SEQ, padded_vocab_size=644),
        data=evolve(plan.data, prefix="text", split=(0.5, 0.5, 0.0)),
        train=evolve(plan.train, seed=seed),
    )
    given = MaskedLMSettings(**{"short_seq_prob": 0.0, **settings})
    datasets: Any = SimpleNamespace(streamed=False, source=lambda prefix: source or Source())
    made = MaskedLM(plan, given).samples(split, datasets, 644, (wanted,))
    rows = np.full((len(made), SEQ + 1), -1, np.int64)
    for index, row in enumerate(rows):
        made.read(index, row)
    return rows


def pieces(row: Any) -> list[list[int]]:
    """The sentences of each piece, in order."""
    text = row[:-1].tolist()
    assert text[0] == CLS
    text = text[1 : text.index(PAD) if PAD in text else None]
    assert text[-1] == SEP
    found: list[list[int]] = [[]]
    for each in text[:-1]:
        if each == SEP:
            found.append([])
        elif not found[-1] or found[-1][-1] != each:
            found[-1].append(each)
    return found


def test_a_pass_reads_each_sentence_of_its_documents_once() -> None:
    rows = samples(sentence_pairs="none")
    read = Counter(each for row in rows for piece in pieces(row) for each in piece)
    assert read == Counter(range(15 * SENTENCES))
    assert (rows[:, -1] == PAD).all()
    valid = {each for row in samples("valid", sentence_pairs="none") for piece in pieces(row) for each in piece}
    assert valid == set(range(15 * SENTENCES, 30 * SENTENCES))


def test_passes_have_orders_of_their_own() -> None:
    rows = samples(sentence_pairs="none", wanted=40)
    first, second, rest = rows[:15], rows[15:30], rows[30:]
    assert sorted(map(tuple, first)) == sorted(map(tuple, second))
    assert not np.array_equal(first, second)
    assert len(rest) == 15
    assert not np.array_equal(samples(sentence_pairs="none", seed=2), first)
    np.testing.assert_array_equal(samples(sentence_pairs="none"), first)


def test_a_second_piece_follows_the_first_or_is_of_another_document() -> None:
    rows = samples(sentence_pairs="next-sentence", wanted=600)
    for row in rows:
        one, two = pieces(row)
        if row[-1]:
            assert one[0] // SENTENCES != two[0] // SENTENCES
        else:
            assert two[0] == one[-1] + 1
    assert abs(rows[:, -1].mean() - 0.5) < 0.08, "four standard deviations of 600 tosses"


def test_a_document_of_one_sentence_has_no_next_one() -> None:
    rows = samples(source=Source(1), sentence_pairs="next-sentence")
    assert (rows[:, -1] == 1).all()


def test_pieces_are_swapped_half_of_the_time() -> None:
    rows = samples(sentence_pairs="order", wanted=600)
    for row in rows:
        one, two = pieces(row)
        assert (one[0] > two[0]) == bool(row[-1])
        assert min(one + two) // SENTENCES == max(one + two) // SENTENCES
    assert abs(rows[:, -1].mean() - 0.5) < 0.08


def test_long_text_is_cut_to_the_sample() -> None:
    rows = samples(source=Source(12), sentence_pairs="order", wanted=50)
    assert max((row[:-1] != PAD).sum() for row in rows) == SEQ
    for row in rows:
        assert (row[:-1] == SEP).sum() == 2


@pytest.mark.parametrize(("share", "low", "high"), [(0.0, 0.0, 0.0), (0.3, 0.2, 0.4), (1.0, 0.7, 1.0)])
def test_short_samples_are_as_many_as_asked_for(share: float, low: float, high: float) -> None:
    rows = samples(source=Source(40), sentence_pairs="none", short_seq_prob=share, wanted=1000)
    short = np.mean([(row[:-1] != PAD).sum() < SEQ - SIZE for row in rows])
    ends = 15 / 40  # of documents, whose last sample may be short as well
    assert low <= short <= high + (ends if share < 1 else 0)


@pytest.mark.parametrize(
    ("source", "said"),
    [(Source(0), "hold no token"), (SimpleNamespace(sizes=np.zeros(0, np.int32), bounds=np.zeros(1, int)), "none of")],
)
def test_a_dataset_without_sentences_is_refused(source: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        samples(source=source)


def test_an_id_of_another_vocabulary_is_refused() -> None:
    source = Source()
    source.read = lambda sentence: np.full(SIZE, 700, np.int32)
    with pytest.raises(DataError, match=r"sentence \d+: an id is not among 644"):
        samples(source=source, sentence_pairs="none")
