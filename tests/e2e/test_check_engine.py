"""DeepSpeed's engine keeps every clause alone, with ZeRO 3, and with tensor-parallel ranks in a pipeline.

The other layouts are in test_layouts.py, and the check itself tries all of them.
"""

import pytest
from neox_author.testing import check_engine, engines, load_only
from neox_author.testing.clauses import heard

pytestmark = pytest.mark.ranks

HERE = ("ZeRO 3 on two ranks", "TP 2 x PP 2")


def test_it_keeps_every_clause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "LAYOUTS", [each for each in engines.LAYOUTS if each[0] in HERE])
    told: dict[str, str] = {}
    with heard(told.setdefault):
        check_engine(load_only("neox-deepspeed"), "deepspeed")
    spread = f"{engines.SPREAD} trains as one rank"
    assert [clause for clause, why_not in told.items() if why_not] == [spread], "which DeepSpeed does not take"
    assert {f"{each} trains as one rank" for each in HERE} <= {*told}
