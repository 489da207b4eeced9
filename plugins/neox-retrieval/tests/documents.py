"""A data set of blocks with titles, and the commands that read it."""

import os
import subprocess
from pathlib import Path

import numpy as np
from neox_author.testing import build, load_only

from neox_core.interpreter import python

NEOX = python("neox_core")
WORDS = 59
DOCUMENTS = 200
RUN = """
tokenizer-type: BertWordPieceLowerCase
vocab-file: vocab.txt
data-path: text
split: 80,10,10
"""
BLOCKS = "titles-data-path: title\nblock-data-path: blocks\nreport-topk-accuracies: [1, 5]\nlog-interval: 1\n"


def neox(folder: Path, *words: str, fails: bool = False) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*NEOX, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == fails, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def write_documents(folder: Path) -> None:
    """Documents of 2 to 6 sentences, each with a title of its own; words are w0 to w58."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *(f"w{each}" for each in range(WORDS))]) + "\n")
    writer = load_only("neox-data-indexed").find("data backend", "mmap")
    made = build(writer)
    draw = np.random.default_rng(3)
    text, titles = (writer.load()(made).create(folder / name, 64) for name in ("text", "title"))
    for document in range(DOCUMENTS):
        sizes = draw.integers(4, 14, draw.integers(2, 7)).tolist()
        about = draw.integers(5, 64, 6)
        text.add_document(draw.choice(about, sum(sizes)).tolist(), sizes)
        titles.add_document([5 + document % WORDS, int(about[0])], [2])
    text.close()
    titles.close()
