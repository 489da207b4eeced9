"""What `neox data` refuses by itself, and what it hands to the process that does the work."""

import json
import os
import subprocess
import sys

import pytest

from neox_core.cli.main import neox


@pytest.fixture
def handed_over(monkeypatch):
    """The (module, arguments) that would be executed."""
    calls = []

    def execute(path, argv):
        with os.fdopen(os.dup(int(argv[-1]))) as file:
            calls.append((argv[-2], json.load(file)))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execute)
    return calls


def run(*args):
    with pytest.raises(SystemExit) as left:
        neox.main(["data", *args])
    return left.value.code


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["a.txt", "--vocab-file", "v.json"], 2, "tokenizer GPT2BPETokenizer needs --merge-file"),
        (["a.txt", "--vocab-file", "v.json", "--merge-file", "m", "--vocab-size", "300"], 2, "leave one out"),
        (["stdlib", "a.txt"], 2, "cannot be combined"),
        (["stdlib", "--json-key", "x"], 2, "cannot be combined"),
        (["a.txt", "--vocab-size", "256"], 2, "257"),
        ([], 2, "SOURCES"),
        (["a.txt", "--tokenizer-type", "GPT2BPETokeniser"], 3, "did you mean 'GPT2BPETokenizer'"),
        (["a.txt", "--set", "mmap-warmup=yes"], 2, "--set: error: mmap_warmup: must be true or false"),
        (["a.txt", "--data-impl", "lasy"], 3, "no data backend 'lasy'"),
    ],
)
def test_what_cannot_be_done_is_said(handed_over, capsys, args, code, says):
    assert run("prepare", *args, "--out", "out") == code
    assert says in capsys.readouterr().err
    assert not handed_over


@pytest.mark.parametrize("command", ["prepare", "train-tokenizer"])
@pytest.mark.parametrize(
    ("out", "says"), [("", "it is empty"), ("/dev/null", "is not a folder"), ("a.txt", "is a file")]
)
def test_what_is_no_folder_is_not_written_into(handed_over, capsys, monkeypatch, tmp_path, command, out, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    assert run(command, "a.txt", "--out", out) == 2
    assert says in capsys.readouterr().err
    assert not handed_over


@pytest.mark.parametrize("more", [["--samples", "9000000"], ["--samples", "1", "--seq-length", str(10**27)]])
def test_samples_beyond_any_memory_are_refused(handed_over, capsys, more):
    assert run("inspect", "data/mine", *more) == 2
    assert "tokens are more than the 2,147,483,648 that can be shown" in capsys.readouterr().err
    assert not handed_over


def test_the_work_gets_import_paths_and_no_names_to_look_up(handed_over):
    assert run("prepare", "stdlib", "--out", "data/python") == 0
    ((module, arguments),) = handed_over
    assert module == "neox_data.prepare"
    assert arguments["corpus"]["target"] == "neox_corpora.stdlib:StandardLibrary"
    assert (arguments["name"], arguments["vocab_size"], arguments["train"]) == ("stdlib", 8192, True)
    assert arguments["backend"]["target"] == "neox_data_indexed.mmap:MmapBackend"
    assert arguments["tokenizer"]["target"] == "neox_tokenizers.bpe:GPT2BPETokenizer"


def test_a_dataset_has_the_name_of_its_folder(handed_over):
    run("prepare", "a.txt", "b.jsonl", "--out", "data/wiki/")
    assert handed_over[0][1]["name"] == "wiki"
    assert handed_over[0][1]["sources"] == ["a.txt", "b.jsonl"]


def test_a_vocabulary_that_is_given_is_not_trained(handed_over):
    run("prepare", "a.txt", "--vocab-file", "v.json", "--merge-file", "m.txt", "--out", "out")
    arguments = handed_over[0][1]
    assert arguments["train"] is False
    assert arguments["tokenizer"]["settings"] == {"vocab_file": "v.json", "merge_file": "m.txt"}


def test_the_command_is_light():
    code = "import sys, neox_data.commands; sys.exit(bool({'torch', 'numpy', 'tokenizers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_datasets_are_read_by_the_backend_that_their_first_bytes_name(handed_over, tmp_path):
    for name, magic in (("new", b"MMIDIDX\0\0"), ("old", b"TNTIDX\0\0")):
        (tmp_path / f"{name}.idx").write_bytes(magic)
    new, old = str(tmp_path / "new"), str(tmp_path / "old")
    run("merge", new, old, "--out", "all", "--data-impl", "cached")
    run("verify", old, "--vocab-size", "50")
    run("inspect", new, "--samples", "2", "--histogram")
    (merge, merged), (verify, verified), (inspect, inspected) = handed_over
    assert [merge, verify, inspect] == [f"neox_data.{name}" for name in ("merge", "verify", "inspect")]
    assert [each["name"] for each in merged["backends"]] == ["mmap", "lazy"]
    assert merged["written_as"]["name"] == "cached"
    assert (verified["backend"]["name"], verified["tokenizer"], verified["vocab_size"]) == ("lazy", None, 50)
    assert inspected["shown"] == {"document": 0, "histogram": True, "samples": 2, "seq_length": 256, "seed": 1234}


def test_preparing_hands_over_how_it_is_done(handed_over):
    run("prepare", "a.jsonl", "--json-keys", "a,b", "--json-key", "c", "--workers", "3", "--skip-bad", "--out", "out")
    ((_, request),) = handed_over
    assert request["json_keys"] == ["a", "b", "c"]
    assert (request["workers"], request["skip_bad"], request["ftfy"], request["resume"]) == (3, True, False, False)


NEOX = ["--input", "a.jsonl,b/c.jsonl.zst", "--output-prefix", "data/mine"]
VOCABULARY = ["--vocab", "v.json", "--merge-file", "m.txt"]  # --vocab: as in GPT-NeoX's README


def test_the_command_line_of_gpt_neox_writes_what_gpt_neox_would(handed_over, capsys):
    """As its README and its tools/datasets/corpora.py call it."""
    more = ["--dataset-impl", "cached", "--tokenizer-type", "GPT2BPETokenizer", "--append-eod", "--workers", "4"]
    assert run("prepare", *NEOX, *VOCABULARY, *more, "--num-docs", "1000", "--ftfy", "--log-interval=7") == 0
    ((_, request),) = handed_over
    assert request["sources"] == ["a.jsonl", "b/c.jsonl.zst"]
    assert (request["out"], request["name"], request["json_keys"]) == ("data", "mine_text_document", [])
    assert request["backend"]["name"] == "cached"
    assert request["tokenizer"]["settings"] == {"vocab_file": "v.json", "merge_file": "m.txt"}
    assert (request["append_eod"], request["workers"], request["ftfy"]) == (True, 4, True)
    read, *unused = capsys.readouterr().err.splitlines()
    assert "read as: neox data prepare a.jsonl b/c.jsonl.zst --out data --vocab-file v.json" in read
    assert [line.split(": ")[1] for line in unused] == ["--num-docs", "--log-interval"]


def test_gpt_neox_appends_no_token_unless_it_is_asked_to(handed_over, capsys):
    run("prepare", *NEOX, *VOCABULARY)
    run("prepare", "a.jsonl", "--out", "data/mine", "--dataset-impl", "mmap")
    assert [request["append_eod"] for _, request in handed_over] == [False, True]
    assert "note: --append-eod: is not given: no token ends a document" in capsys.readouterr().err


def test_keys_of_gpt_neox_are_words_of_their_own(handed_over):
    run("prepare", *NEOX, "--jsonl-keys", "title", "body", *VOCABULARY)
    run("prepare", *NEOX, *VOCABULARY, "--jsonl-keys", "body")
    assert [(request["json_keys"], request["name"]) for _, request in handed_over] == [
        (["title", "body"], "mine"),  # each has its key in the name
        (["body"], "mine_body_document"),
    ]


def test_a_line_in_todays_words_is_left_alone(handed_over, capsys):
    run("prepare", "a.jsonl", "--out", "out", "--name", "mine", "--vocab-file", "v.json", "--merge-file", "m.txt")
    assert handed_over[0][1]["name"] == "mine"
    run("prepare", "--help")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([*NEOX], "give --vocab-file"),  # a vocab.json learnt for it would lie among others' files
        ([*NEOX, "--mask-before-token", "0,1"], "datasets of labels are not in this version"),
        ([*NEOX, "--tokenizer-path", "there"], "--vocab-file FOLDER/tokenizer.json"),
        ([*NEOX, "--only-last"], "write each conversation as one text"),
        (["--input"], "--input needs a value"),
        (["--input", "a.jsonl", "--output-prefix", "data/"], "--name"),
        (
            ["a.jsonl", "--out", "o", "--name", "../x", "--vocab-file", "v", "--merge-file", "m"],
            "not the name of a file",
        ),
        ([*NEOX, *VOCABULARY, "--inputs", "b"], "No such option"),
    ],
)
def test_what_gpt_neox_takes_and_this_does_not_says_what_to_write(handed_over, capsys, args, says):
    assert run("prepare", *args) == 2
    assert says in capsys.readouterr().err
    assert not handed_over


def test_an_input_of_gpt_neox_is_a_path_and_never_a_corpus(handed_over):
    run("prepare", "--input", "enwik8", "--output-prefix", "data/mine", *VOCABULARY)
    assert (handed_over[0][1]["corpus"], handed_over[0][1]["sources"]) == (None, ["./enwik8"])


def test_a_corpus_has_a_name_and_stands_alone(handed_over, capsys):
    run("prepare", "enwik8", "--out", "out")
    ((_, request),) = handed_over
    assert request["sources"] == []
    assert request["corpus"]["target"] == "neox_corpora.enwik8:Enwik8"
    assert request["name"] == "enwik8"
    assert run("prepare", "enwik8", "a.txt", "--out", "out") == 2
    assert "`enwik8` cannot be combined" in capsys.readouterr().err
