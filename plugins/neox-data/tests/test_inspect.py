"""`neox data inspect` as a user runs it."""

import subprocess
import sys

import pytest

NEOX = [sys.executable, "-m", "neox_core"]
TEXT = "def f(x):\n    return x\n"


def neox(*args, cwd, code=0):
    done = subprocess.run([*NEOX, "data", *map(str, args)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    (folder / "a.txt").write_text(TEXT)
    (folder / "b.txt").write_text("abc" * 100)
    neox("prepare", "a.txt", "b.txt", "--out", "out", "--vocab-size", "257", cwd=folder)
    return folder


def test_it_shows_size_and_text(folder):
    shown = neox("inspect", "out/out", "--vocab-file", "out/vocab.json", "--merge-file", "out/merges.txt", cwd=folder)
    bytes_of = [len(TEXT) + 1, 301]  # a token for each byte, and one for the end
    assert f"2 documents, {sum(bytes_of)} tokens, stored as uint16" in shown
    assert f"tokens a document: {bytes_of[0]} to 301, median {sum(bytes_of) / 2:.0f}" in shown
    assert shown.endswith(f"document 0: {bytes_of[0]} tokens\n{TEXT}<|endoftext|>\n")


def test_without_a_vocabulary_it_shows_ids(folder):
    shown = neox("inspect", "out/out", "--document", 1, cwd=folder)
    assert "document 1: 301 tokens, the first of them:" in shown
    assert len(shown.splitlines()[-1].split()) == 64


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["out/out", "--document", "2"], 4, "has no document 2"),
        (["out/other"], 4, "other.idx: no such file"),
        (["out/out", "--vocab-file", "out/vocab.json"], 2, "merge"),
        (["out/out", "--samples", "1", "--seed", "-1"], 2, "1<=x<=4294967295"),  # as in a config
    ],
)
def test_what_cannot_be_shown_is_said(folder, args, code, says):
    shown = neox("inspect", *args, cwd=folder, code=code)
    assert says in shown
    assert "Traceback" not in shown
