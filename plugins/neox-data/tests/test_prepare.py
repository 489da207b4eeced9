"""`neox data prepare` as a user runs it: real processes, the first-party backend and tokenizer."""

import json
import os
import pty
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from neox_author.testing import build, load_only

NEOX = [sys.executable, "-m", "neox_core"]
TEXTS = ["def f(x):\n    return x\n" * 40, "caf\u00e9 \u6f22\u5b57 \U0001f600 " * 30, "one\ntwo\n" * 50]


@pytest.fixture
def corpus(tmp_path):
    """Two text files and a .jsonl file, in the order of their names."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXTS[0])
    (folder / "b.jsonl").write_text(json.dumps({"text": TEXTS[1]}) + "\n" + json.dumps({"text": ""}) + "\n")
    (folder / "c.txt").write_text(TEXTS[2])
    (folder / "empty.txt").write_text("")
    return folder


def neox(*args, cwd, code=0):
    done = subprocess.run([*NEOX, "data", *map(str, args)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def prepare(*args, cwd, code=0):
    return neox("prepare", *args, "--out", "out", cwd=cwd, code=code)


def component(plugin, kind, name, **settings):
    entry = load_only(plugin).registry.find(kind, name)
    return entry.load()(build(entry, **settings))


def dataset(folder, name="out"):
    """(tokenizer, documents as ids) of a prepared folder."""
    tokenizer = component(
        "neox-tokenizers",
        "tokenizer",
        "GPT2BPETokenizer",
        vocab_file=str(folder / "vocab.json"),
        merge_file=str(folder / "merges.txt"),
    )
    source = component("neox-data-indexed", "data backend", "mmap").open(folder / name)
    return tokenizer, [source.read(document).tolist() for document in range(len(source.sizes))]


def inodes(folder):
    return {path.name: path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


def test_texts_become_documents_and_back(corpus, tmp_path):
    done = prepare(corpus, "--vocab-size", 300, cwd=tmp_path)
    tokenizer, documents = dataset(tmp_path / "out")
    assert [tokenizer.decode(ids[:-1]) for ids in documents] == TEXTS
    assert all(ids[-1] == tokenizer.eod and tokenizer.eod not in ids[:-1] for ids in documents)
    assert f"3 documents, {sum(map(len, documents)):,} tokens" in done.stdout
    assert "left out: 2 empty documents" in done.stdout
    visible = {path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")}
    assert visible == {"out.bin", "out.idx", "vocab.json", "merges.txt", "prepared.json"}


def test_what_it_prints_is_a_config(corpus, tmp_path):
    lines = prepare(corpus, "--vocab-size", 300, cwd=tmp_path).stdout.split("put this into the config:")[1].split("\n")
    assert dict(line.split(": ") for line in lines if line) == {
        "data-path": "out/out",
        "data-impl": "mmap",
        "tokenizer-type": "GPT2BPETokenizer",
        "vocab-file": "out/vocab.json",
        "merge-file": "out/merges.txt",
    }


def test_it_is_made_again_only_when_something_changed(corpus, tmp_path):
    prepare(corpus, "--vocab-size", 300, cwd=tmp_path)
    first = inodes(tmp_path / "out")
    assert "is up to date" in prepare(corpus, "--vocab-size", 300, cwd=tmp_path).stdout
    assert inodes(tmp_path / "out") == first

    assert "is up to date" not in prepare(corpus, "--vocab-size", 300, "--no-append-eod", cwd=tmp_path).stdout
    tokenizer, documents = dataset(tmp_path / "out")
    assert [tokenizer.decode(ids) for ids in documents] == TEXTS, "without a token at the end"

    done = prepare(corpus, "--vocab-size", 300, "--no-append-eod", "--force", cwd=tmp_path)
    assert "is up to date" not in done.stdout
    assert "learning a vocabulary of 300" in done.stderr

    (corpus / "c.txt").write_text("something else, and longer than it was " * 50)
    assert "is up to date" not in prepare(corpus, "--vocab-size", 300, "--no-append-eod", cwd=tmp_path).stdout
    tokenizer, documents = dataset(tmp_path / "out")
    assert tokenizer.decode(documents[2]).startswith("something else")


def test_a_vocabulary_is_trained_once(corpus, tmp_path):
    assert "learning a vocabulary of 270" in prepare(corpus, "--vocab-size", 270, cwd=tmp_path).stderr
    assert "learning" not in prepare(corpus, "--vocab-size", 270, "--no-append-eod", cwd=tmp_path).stderr
    done = prepare(corpus, "--vocab-size", 280, cwd=tmp_path)
    assert "learning a vocabulary of 280" in done.stderr
    assert dataset(tmp_path / "out")[0].vocab_size == 280
    assert "a vocabulary of 280\n" in done.stdout


@pytest.mark.parametrize("damage", ["vocab.json", "merges.txt", "out.bin", "out.idx"])
def test_a_damaged_file_is_made_again(corpus, tmp_path, damage):
    prepare(corpus, "--vocab-size", 300, cwd=tmp_path)
    (tmp_path / "out" / damage).write_bytes(b"{}")
    assert "is up to date" not in prepare(corpus, "--vocab-size", 300, cwd=tmp_path).stdout
    tokenizer, documents = dataset(tmp_path / "out")
    assert [tokenizer.decode(ids[:-1]) for ids in documents] == TEXTS


def test_a_vocabulary_that_is_there_is_used(corpus, tmp_path):
    prepare(corpus, "--vocab-size", 300, cwd=tmp_path)
    files = ("--vocab-file", "out/vocab.json", "--merge-file", "out/merges.txt")
    done = neox("prepare", corpus / "a.txt", *files, "--out", "second", cwd=tmp_path)
    assert "vocab-file: out/vocab.json" in done.stdout
    assert sorted(path.name for path in (tmp_path / "second").iterdir()) == [
        "prepared.json",
        "second.bin",
        "second.idx",
    ]
    source = component("neox-data-indexed", "data backend", "mmap").open(tmp_path / "second" / "second")
    assert source.read(0).tolist() == dataset(tmp_path / "out")[1][0]


def test_datasets_that_share_a_folder_keep_their_checksums(corpus, tmp_path):
    prepare(corpus, "--vocab-size", 300, cwd=tmp_path)
    files = ("--vocab-file", "out/vocab.json", "--merge-file", "out/merges.txt", "--out", "both")
    for name in ("one", "other", "one"):
        neox("prepare", corpus, *files, "--name", name, "--force", cwd=tmp_path)
    manifest = json.loads((tmp_path / "both" / "prepared.json").read_text())
    assert set(manifest["sha256"]) == {"one.bin", "one.idx", "other.bin", "other.idx"}
    assert manifest["vocabulary"]
    assert "checksums" in neox("verify", "both/other", cwd=tmp_path).stdout
    (tmp_path / "both" / "other.bin").write_bytes((tmp_path / "both" / "other.bin").read_bytes()[::-1])
    assert "is not what was written" in neox("verify", "both/other", cwd=tmp_path, code=4).stderr
    tokens = ("--input", corpus / "b.jsonl", "--output-prefix", "both/one", "--append-eod", *files[:4])
    neox("prepare", *tokens, cwd=tmp_path)  # in the words of GPT-NeoX
    source = component("neox-data-indexed", "data backend", "mmap").open(tmp_path / "both" / "one_text_document")
    assert source.read(0).tolist() == dataset(tmp_path / "out")[1][1]


def test_a_broken_line_stops_it_and_the_old_dataset_stays(corpus, tmp_path):
    prepare(corpus, "--vocab-size", 300, cwd=tmp_path)
    with (corpus / "b.jsonl").open("a") as file:
        file.write('{"text": "fine"}\n{"text": broken}\n')
    done = prepare(corpus, "--vocab-size", 300, cwd=tmp_path, code=4)
    assert "b.jsonl:4: is not JSON" in done.stderr
    tokenizer, documents = dataset(tmp_path / "out")
    assert [tokenizer.decode(ids[:-1]) for ids in documents] == TEXTS
    assert not [path.name for path in (tmp_path / "out").rglob("*.partial")]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["missing"], "missing: no such file or folder"),
        (["a.txt", "--json-key", "body"], "--json-key is of no use"),
        (["a.txt", "--vocab-file", "missing.json", "--merge-file", "m"], "missing.json: no such file"),
        (["a.txt", "--tokenizer-type", "HFTokenizer"], "cannot be learnt from text"),
        (["empty.txt"], "no text"),
    ],
)
def test_what_cannot_be_done_is_said(corpus, args, says):
    assert says in prepare(*args, cwd=corpus, code=4).stderr
    out = corpus / "out"
    assert not [path for path in out.rglob("*") if path.suffix in {".bin", ".idx", ".partial"}]
    assert not (out / "prepared.json").exists()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """About 50 MB, so that writing its tokens takes many seconds."""
    folder = tmp_path_factory.mktemp("large")
    text = Path(subprocess.__file__).read_text()
    for number in range(600):
        (folder / f"{number:03}.txt").write_text(f"# {number}\n{text}")
    return folder


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_run_that_is_stopped_leaves_nothing_that_looks_finished(large, tmp_path, number, code):
    out = tmp_path / "out"
    args = [*NEOX, "data", "prepare", str(large), "--out", str(out), "--vocab-size", "300"]
    running = subprocess.Popen(args, stderr=subprocess.PIPE, text=True)
    partial = out / ".out.bin.partial"
    deadline = time.monotonic() + 60
    while not (partial.exists() and partial.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    running.send_signal(number)
    said = running.communicate(timeout=30)[1]
    assert running.returncode == code, said
    told = f"interrupted: {out}: no dataset was finished; the same command starts over\n"
    assert said.endswith(told) == (number == signal.SIGINT)
    assert not {"out.bin", "out.idx", "vocab.json", "merges.txt", "prepared.json"} & {
        path.name for path in out.iterdir()
    }
    assert partial.exists() == (number == signal.SIGKILL)


def test_memory_does_not_grow_with_the_corpus(large, tmp_path):
    code = """
import resource, sys
from neox_data import prepare
prepare.main()
print("KiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    peaks = []
    for files in (sorted(large.iterdir())[:12], sorted(large.iterdir())[:90]):
        ref = {"plugin": "x", "version": "0", "settings": {}}
        request = {
            "sources": [str(path) for path in files],
            "out": str(tmp_path / f"out{len(files)}"),
            "name": "tokens",
            "backend": {
                **ref,
                "kind": "data backend",
                "name": "mmap",
                "target": "neox_data_indexed.mmap:MmapBackend",
                "settings_class": "neox_data_indexed.settings:IndexedSettings",
            },
            "tokenizer": {
                **ref,
                "kind": "tokenizer",
                "name": "bpe",
                "target": "neox_tokenizers.bpe:GPT2BPETokenizer",
                "settings_class": "neox_tokenizers.settings:BPESettings",
            },
            "train": True,
            "vocab_size": 600,
            "append_eod": True,
            "json_keys": [],
            "force": False,
        }
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(request)], check=True, capture_output=True, text=True
        )
        peaks.append(int(done.stdout.split()[-1]))
    assert peaks[1] < 1.1 * peaks[0], f"KiB at the peak for 1 and 8 MB of text: {peaks}"


def test_a_terminal_gets_a_bar_and_a_file_gets_lines(corpus, tmp_path):
    ours, theirs = pty.openpty()
    args = [*NEOX, "data", "prepare", str(corpus), "--out", str(tmp_path / "out"), "--vocab-size", "300"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    subprocess.run(args, stderr=theirs, stdout=subprocess.DEVNULL, check=True, env=env)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "writing tokens" in shown
    assert "\u2501" in shown
    assert "\u2501" not in prepare(corpus, "--vocab-size", 300, "--force", cwd=tmp_path).stderr


def test_a_run_that_was_killed_and_then_ran_out_of_disk_is_gone_on_with(large, tmp_path):
    texts = [str(path) for path in sorted(large.iterdir())[:100]]  # 8 MB
    (tmp_path / "bad.jsonl").write_text('{"text": "the first"}\nbroken\n')
    args = [*NEOX, "data", "prepare", str(tmp_path / "bad.jsonl"), *texts, "--skip-bad", "--vocab-size", "300"]
    out = tmp_path / "out"
    here = [*args, "--sync-mb", "1", "--out", str(out)]
    running = subprocess.Popen(here, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (out / ".out.preparing.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    running.kill()
    assert running.wait() == -signal.SIGKILL
    assert not {"out.bin", "out.idx", "prepared.json"} & {path.name for path in out.iterdir()}
    begun = (out / ".out.bin.partial").stat().st_size

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (begun + 3_000_000,) * 2)

    done = subprocess.run([*here, "--resume"], capture_output=True, text=True, check=False, preexec_fn=full)
    assert done.returncode == 4
    assert "out: cannot be written: File too large" in done.stderr
    assert "--resume continues" in done.stderr
    done = subprocess.run([*here, "--resume"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "101 documents" in done.stdout
    assert "left out: 1 broken records, the first: " in done.stdout
    assert "bad.jsonl:2: is not JSON" in done.stdout

    whole = subprocess.run(
        [*args, "--out", str(tmp_path / "2" / "out"), "--workers", "2"], capture_output=True, check=True
    )
    for name in ("out.bin", "out.idx"):
        assert (out / name).read_bytes() == (tmp_path / "2" / "out" / name).read_bytes()
    assert whole.stdout.splitlines()[0].split(b": ")[1] == done.stdout.encode().splitlines()[0].split(b": ")[1]
    assert not [path.name for path in out.iterdir() if path.name.endswith(".partial")]


def test_a_full_disk_is_said_and_gone_on_with_when_there_is_room(tmp_path):
    """A disk of 2 MB, in a mount namespace of its own; where that is not allowed the test before this one stands."""
    text = Path(subprocess.__file__).read_text() * 40  # 3.5 MB, and more of tokens
    (tmp_path / "texts").mkdir()
    for number in range(8):
        (tmp_path / "texts" / f"{number}.txt").write_text(text[number * 400_000 : (number + 1) * 400_000])
    prepare("texts/0.txt", "--vocab-size", 300, cwd=tmp_path)
    given = "--vocab-file out/vocab.json --merge-file out/merges.txt --sync-mb 1 --workers 2"
    script = f"""
mkdir small && mount -t tmpfs -o size=2m tmpfs small || exit 99
{" ".join(NEOX)} data prepare texts --out small/out {given}; echo "first $?"
ls -A small/out
mount -o remount,size=64m small
{" ".join(NEOX)} data prepare texts --out small/out {given} --resume; echo "second $?"
cp small/out/out.bin whole.bin
"""
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    if done.returncode == 99 or "unshare" in done.stderr:
        return
    assert "out: cannot be written: No space left on device" in done.stderr
    first, second = done.stdout.split("first 4\n")
    assert not {"out.bin", "out.idx", "prepared.json"} & set(second.split("\n")[:9])
    assert "second 0" in second
    assert first == ""
    neox("prepare", "texts", "--out", "again/out", *given.split(), cwd=tmp_path)
    assert (tmp_path / "whole.bin").read_bytes() == (tmp_path / "again" / "out" / "out.bin").read_bytes()


@pytest.mark.parametrize(
    ("change", "says"),
    [(["--resume"], "nothing there to resume"), (["--resume", "--force"], "leave one out")],
)
def test_what_was_not_begun_is_not_gone_on_with(corpus, tmp_path, change, says):
    code = 2 if "--force" in change else 4
    assert says in prepare(corpus, "--vocab-size", 300, *change, cwd=tmp_path, code=code).stderr


def test_each_key_becomes_a_dataset(tmp_path):
    lines = [{"text": f"text {number}", "title": f"title {number}"} for number in range(5)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = prepare("a.jsonl", "--json-keys", "text,title", "--vocab-size", 300, cwd=tmp_path)
    for key in ("text", "title"):
        tokenizer, documents = dataset(tmp_path / "out", f"out_{key}_document")
        assert [tokenizer.decode(ids[:-1]) for ids in documents] == [line[key] for line in lines]
        assert f"out_{key}_document: 5 documents" in done.stdout
    assert "is up to date" in prepare("a.jsonl", "--json-keys", "text,title", "--vocab-size", 300, cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("kind", "files"), [("GPT2BPETokenizer", {"vocab.json", "merges.txt"}), ("SPMTokenizer", {"tokenizer.model"})]
)
def test_a_tokenizer_is_trained_alone(corpus, tmp_path, kind, files):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("of the user")
    (out / "prepared.json").write_text('{"digest": "of a dataset"}')
    args = ("train-tokenizer", corpus, "--tokenizer-type", kind, "--vocab-size", 320, "--out", "out")
    shown = neox(*args, cwd=tmp_path).stdout
    assert {path.name for path in out.iterdir() if not path.name.startswith(".")} == {*files, "mine", "prepared.json"}
    config = dict(line.split(": ") for line in shown.splitlines() if ": " in line)
    assert config.pop("tokenizer-type") == kind
    named = {key.replace("-", "_"): str(tmp_path / path) for key, path in config.items()}
    tokenizer = component("neox-tokenizers", "tokenizer", kind, **named)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in TEXTS] == TEXTS


def test_json_says_what_the_lines_say(corpus, tmp_path):
    """The counts of the dataset itself, and keys with which it is opened."""
    made, again = (json.loads(prepare("texts", "--vocab-size", "300", "--json", cwd=tmp_path).stdout) for _ in range(2))
    assert (made.pop("new"), again.pop("new")) == (True, False)
    assert made == again
    _, documents = dataset(tmp_path / "out")
    counts = {"prefix": "out/out", "documents": len(documents), "tokens": sum(map(len, documents))}
    assert made["datasets"] == [counts]
    assert made["left_out"]["empty"] == 2
    lines = prepare("texts", "--vocab-size", "300", cwd=tmp_path).stdout.partition("config:\n\n")[2].splitlines()
    assert lines == [f"{key}: {value}" for key, value in made["config"].items()]
    neox("merge", "out/out", "out/out", "--out", "both", "--json", cwd=tmp_path)
    learnt = neox("train-tokenizer", "texts", "--out", "words", "--vocab-size", "300", "--json", cwd=tmp_path)
    assert json.loads(learnt.stdout)["config"]["merge-file"] == "words/merges.txt"
