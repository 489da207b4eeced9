"""Files of questions, and the memory that an index takes."""

import subprocess
import sys
from pathlib import Path

import pytest
from neox_retrieval.questions import asked

from neox_core.errors import DataError


def test_memory_of_indexing_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """A file of 4 GB of vectors is begun, and batches at both of its ends are written, in 200 MB more than nothing."""
    code = """
import resource, sys
from pathlib import Path
import numpy as np
from neox_retrieval.vectors import Facts, Unfinished, begin
facts = Facts(8_000_000, 128, "m", "d")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin(Path(sys.argv[1]), facts)
vectors = Unfinished(Path(sys.argv[1]), facts)
assert len(vectors.pending()) == 8_000_000
for first in (0, 7_999_000):
    vectors.write(np.arange(first, first + 1000), np.ones((1000, 128), np.float32))
assert len(vectors.pending()) == 7_998_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200_000, "kB"
    assert (tmp_path / "vectors.part").stat().st_blocks * 512 < 10_000_000, "the rest is a hole"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "has no question"),
        ("[1]", ":1: not a JSON object"),
        ('{"question": 3, "block": 1}', ":1: is not a question"),
        ('{"question": "a"}', "is not a question"),
        ('{"question": "a", "block": 1, "answers": ["b"]}', "is not a question"),
        ('{"question": "a", "block": 10}', "block 10 is none of 0 to 9"),
        ('{"question": "a", "block": true}', "block True is none of"),
        ('{"question": "a", "answers": []}', "`answers` is not a list of texts"),
        ('{"question": "a", "answers": ["!"]}', "`answers` is not a list of texts"),
    ],
)
def test_a_line_that_is_no_question_is_refused(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(line)
    with pytest.raises(DataError, match=said):
        asked(tmp_path / "q.jsonl", 10)
