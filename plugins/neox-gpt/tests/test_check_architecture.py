"""The decoder keeps every clause of an architecture, in each layout."""

from neox_author.testing import check_architecture, load_only
from neox_author.testing.clauses import heard


def test_the_decoder_keeps_every_clause() -> None:
    told: dict[str, str] = {}
    with heard(told.setdefault):
        check_architecture(load_only("neox-gpt"), "gpt")
    assert [clause for clause, why_not in told.items() if why_not] == []
    assert {"TP 2 with sequence parallelism equals one process", "PP 2 equals one process with dropout"} <= {*told}
