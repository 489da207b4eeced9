"""A retriever from a BERT to its index, by the commands: losses of two ranks, a kill, other files, what is found."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from click.testing import CliRunner
from documents import BLOCKS, DOCUMENTS, NEOX, RUN, neox, write_documents
from neox_gpt.api import saved_run
from neox_retrieval.commands import evaluate, index, search
from neox_retrieval.opened import Opened, open_run
from neox_retrieval.questions import held_out, held_out_blocks, rates, table_of
from neox_retrieval.search import Exact
from neox_retrieval.search import build as build_index
from neox_retrieval.vectors import DONE, FACTS, FILE, Facts, Unfinished, begin, read_vectors
from safetensors.numpy import load_file, save_file
from towers import BERT, MODEL, RETRIEVER

from neox_core.checkpoint.read import read_weights
from neox_core.errors import ConfigError, DataError, NeoxError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.stored.saved import find_checkpoint

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("retrieval")
    write_documents(folder)
    plain = "\n".join(each for each in MODEL.splitlines() if "token-id" not in each)
    (folder / "bert.yml").write_text(f"{plain}\n{BERT}{RUN}save: bert\n")
    (folder / "retriever.yml").write_text(f"{plain}\n{RETRIEVER}{RUN}{BLOCKS}bert-load: bert\n")
    neox(folder, "train", "bert.yml")
    neox(folder, "train", "retriever.yml", "--set", "save=one", "--set", "train_micro_batch_size_per_gpu=8")
    return folder


@pytest.fixture(scope="module")
def opened(out: Path) -> Opened:
    before = Path.cwd()
    os.chdir(out)
    try:
        checkpoint, plan = saved_run("one", load_plugins())
        return open_run(plan, checkpoint, torch.device("cpu"))
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def folder(out: Path) -> Path:
    """The index, which one rank began and was killed, and two ranks ended."""
    small = ["--set", "indexer-batch-size=1", "--set", "indexer-log-interval=1", "--set", "bert-load=null"]
    command = [*NEOX, "retrieval", "index", "retriever.yml", "--set", "ict-load=one", *small]
    process = subprocess.Popen(command, cwd=out, stdout=subprocess.PIPE, text=True)
    done, until = out / "blocks" / DONE, time.monotonic() + 120
    while not (done.exists() and b"\x01" * 10 in done.read_bytes()):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.002)
    for each in reversed(family(process.pid)):
        os.kill(each, signal.SIGKILL)
    lines = process.communicate()[0]
    assert "batch 3 of" in lines, "a line for each batch"
    assert not (out / "blocks" / FILE).exists()
    with pytest.raises(DataError, match="its index is not finished"):
        read_vectors(out / "blocks", json_facts(out / "blocks"))
    told = neox(out, "retrieval", "index", "retriever.yml", "--set", "ict-load=one", *small, "--set", "num_gpus=2")
    assert "continues: " in told
    assert "as vectors of 6" in told
    return out / "blocks"


def family(process: int) -> list[int]:
    """A process and those that it has started, the ranks last."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(each for child in children for each in family(int(child)))]


def json_facts(folder: Path) -> Facts:
    return Facts(**json.loads((folder / FACTS).read_text()))


def first_weights(out: Path, name: str) -> dict[str, Any]:
    found = find_checkpoint(out / name)
    assert found is not None
    return dict(read_weights(found))


def losses(run: Path) -> list[tuple[float, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["loss"], row["objective_top5_acc"]) for row in rows if "loss" in row]


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("zero-3", ["train_micro_batch_size_per_gpu=4", "engine=deepspeed", "zero_optimization.stage=3"]),
        ("tensor", ["train_micro_batch_size_per_gpu=8", "engine=deepspeed", "model-parallel-size=2"]),
    ],
)
def test_two_ranks_train_as_one(out: Path, name: str, sets: list[str]) -> None:
    """The second loss depends on the gradients of the first step."""
    given = [part for each in (f"save={name}", "num_gpus=2", *sets) for part in ("--set", each)]
    neox(out, "train", "retriever.yml", *given)
    expected, found = losses(out / "one"), losses(out / name)
    assert len(expected) == 2
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_both_encoders_start_as_the_bert(out: Path) -> None:
    neox(
        out, "train", "retriever.yml", "--set", "save=start", "--set", "extra-save-iters=[0]", "--set", "train-iters=1"
    )
    bert, found = first_weights(out, "bert"), dict(read_weights(out / "start/step-00000000"))
    of_bert = {name for name in bert if not name.startswith("transform.")}
    for tower in ("query", "block"):
        assert {name for name in found if name.startswith(f"{tower}.")} == {f"{tower}.{name}" for name in of_bert}
        assert all(torch.equal(found[f"{tower}.{name}"], bert[name]) for name in of_bert)
    assert {name for name in found if "head" in name} == {
        f"{tower}_head.{kind}" for tower in ("query", "block") for kind in ("weight", "bias")
    }


def test_a_bert_of_another_shape_is_refused(out: Path) -> None:
    other = ("--set", "save=other", "--set", "train-iters=1")
    assert "another model: hidden_size is 32 there and 64 here" in neox(
        out, "train", "retriever.yml", *other, "--set", "hidden-size=64", fails=True
    )


def test_vectors_are_those_of_the_blocks(folder: Path, opened: Opened) -> None:
    """Of all of them, whichever rank embedded a block, and however many at once."""
    expected = opened.embed_blocks(range(opened.facts.blocks))
    assert len(expected) > 300
    np.testing.assert_allclose(load_file(folder / FILE)["vectors"], expected, rtol=0, atol=1e-6)
    assert not (folder / DONE).exists()


@pytest.mark.parametrize("exact", [True, False])
def test_a_search_is_that_of_all_products(folder: Path, opened: Opened, exact: bool) -> None:
    if not exact:
        pytest.importorskip("faiss")
    vectors = read_vectors(folder, opened.facts)
    queries = opened.embed_queries([f"w{each} w{each + 1}" for each in range(20)])
    whole = queries @ load_file(folder / FILE)["vectors"].T
    products, numbers = build_index(vectors, gpu=False, exact=exact).search(queries, 7)
    np.testing.assert_allclose(products, -np.sort(-whole, axis=1)[:, :7], rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(whole, numbers, 1), products, rtol=0, atol=1e-5)
    if exact:
        small = Exact(_Small(vectors))
        np.testing.assert_array_equal(small.search(queries, 7)[1], numbers)


class _Small:
    """Vectors in parts of 13, so that the best are in several."""

    def __init__(self, vectors: Any) -> None:
        self._vectors = vectors

    def slices(self) -> Any:
        return self._vectors.slices(13)


def test_the_same_blocks_have_the_same_numbers_again(folder: Path, out: Path, opened: Opened) -> None:
    before = (folder / FILE).read_bytes(), (folder / FACTS).read_bytes()
    assert "are there" in neox(
        out, "retrieval", "index", "retriever.yml", "--set", "load=one", "--set", "bert-load=null"
    )
    again = ["load=one", "block-data-path=again", "indexer-batch-size=50", "indexer-log-interval=3"]
    told = neox(out, "retrieval", "index", "retriever.yml", *(part for each in again for part in ("--set", each)))
    batches = -(-opened.facts.blocks // 50)
    assert re.findall(r"batch (\d+) of (\d+)", told) == [(str(each), str(batches)) for each in range(3, batches + 1, 3)]
    assert (out / "again" / FACTS).read_bytes() == before[1]
    np.testing.assert_allclose(
        load_file(out / "again" / FILE)["vectors"], load_file(folder / FILE)["vectors"], rtol=0, atol=1e-6
    )
    assert (folder / FILE).read_bytes() == before[0]


def test_search_prints_title_text_and_product(folder: Path, out: Path, opened: Opened) -> None:
    told = neox(out, "retrieval", "search", "w3 w4 w5", "--load", "one", "-k", "3").splitlines()
    queries = opened.embed_queries(["w3 w4 w5"])
    products, numbers = Exact(read_vectors(folder, opened.facts)).search(queries, 3)
    assert len(told) == 6
    for rank, (product, number) in enumerate(zip(products[0].tolist(), numbers[0].tolist(), strict=True)):
        title = opened.words(opened.blocks.title(number))
        assert told[2 * rank] == f"{rank + 1}. {title} ({number}, {product:.3f})"
        assert told[2 * rank + 1].strip() == opened.words(opened.blocks.body(number))


def test_evaluate_counts_what_is_found(folder: Path, out: Path, opened: Opened) -> None:
    """Of questions whose answers are the nearest, the second nearest, and none of the blocks."""
    texts = ["w3 w4 w5", "w7 w8", "w9"]
    _, numbers = Exact(read_vectors(folder, opened.facts)).search(opened.embed_queries(texts), 2)
    lines = [
        {"question": texts[0], "block": int(numbers[0, 0])},
        {"question": texts[1], "block": int(numbers[1, 1])},
        {"question": texts[2], "answers": ["w99 nowhere"]},
        {
            "question": texts[2],
            "answers": ["nowhere", opened.words(opened.blocks.body(int(numbers[2, 0]))[:5]).upper()],
        },
    ]
    (out / "questions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    told = neox(out, "retrieval", "evaluate", "questions.jsonl", "--load", "one", "-k", "1", "-k", "2", "--bm25")
    table = [line.split(" | ") for line in told.splitlines() if line.startswith("| ")]
    assert table[0][0].strip("| ") == "first"
    assert [row[1] for row in table[1:]] == ["50.0%", "75.0%"]
    found = json.loads(neox(out, "retrieval", "evaluate", "questions.jsonl", "--load", "one", "-k", "2", "--json"))
    assert (found["questions"], found["first"]["2"]["retriever"]) == (4, 0.75)


def test_bm25_finds_rare_words(folder: Path, opened: Opened, out: Path) -> None:
    """A held-out sentence that stays in its block is found by its words; of chance there is k / blocks."""
    pytest.importorskip("bm25s")
    questions = held_out(opened, 20)
    sentences = opened.blocks.sentences
    trained = int(DOCUMENTS * 0.9)
    for each in questions:
        document, first, end = opened.blocks.rows[each.block].tolist()
        assert document >= trained
        assert first <= each.sentence < end
        assert each.text == opened.words(sentences.read(each.sentence, each.sentence + 1, 64))
    assert len({each.block for each in questions}) == 20
    exact = Exact(read_vectors(folder, opened.facts))
    told = table_of(rates(opened, exact, questions, [1, 5], held_out_blocks(opened, {}), bm25=True))
    row = told[-1].split(" | ")
    assert float(row[2].rstrip("%")) > 50
    assert row[3].strip("| ") == f"{5 / opened.facts.blocks:.2%}"


def test_without_their_sentences_blocks_are_embedded_again(folder: Path, opened: Opened) -> None:
    """The table is that of all products with the new vectors in place."""
    questions = held_out(opened, 20)
    replaced = held_out_blocks(opened, {each.block: each.sentence for each in questions})
    exact = Exact(read_vectors(folder, opened.facts))
    told = table_of(rates(opened, exact, questions, [1, 9], replaced, bm25=False))
    vectors = load_file(folder / FILE)["vectors"]
    for each in questions:
        row = torch.from_numpy(opened.blocks.tokens(each.block, each.sentence))[None]
        vectors[each.block] = opened.run.model.embed_blocks(row).detach().numpy()
    products = opened.embed_queries([each.text for each in questions]) @ vectors.T
    for k, line in zip((1, 9), told[-2:], strict=True):
        best = np.argsort(-products, axis=1)[:, :k]
        share = np.mean([each.block in row for each, row in zip(questions, best, strict=True)])
        assert line.startswith(f"| {k} | {share:.1%} |")


def damaged(folder: Path, tmp_path: Path, how: str) -> Path:
    """A copy of the index with a fault."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("run"))
    facts, file = json.loads((copy / FACTS).read_text()), copy / FILE
    data, vectors = file.read_bytes(), load_file(file)["vectors"]
    if how == "truncated":
        file.write_bytes(data[: len(data) // 2])
    elif how == "not finite":
        vectors[7, 2] = np.nan
        save_file({"vectors": vectors}, file)
    elif how == "short":
        save_file({"vectors": vectors[:-1]}, file)
    elif how == "half":
        save_file({"vectors": vectors.astype(np.float16)}, file)
    elif how == "another tensor":
        save_file({"other": vectors}, file)
    elif how == "header":
        file.write_bytes((1 << 60).to_bytes(8, "little") + data[8:])
    elif how == "gone":
        file.unlink()
    elif how == "no facts":
        (copy / FACTS).unlink()
    elif how == "list":
        (copy / FACTS).write_text("[1]")
    else:
        (copy / FACTS).write_text(json.dumps({**facts, **json.loads(how)}))
    return copy


FAULTS = {
    "truncated": "cannot be read",
    "not finite": "a vector is not finite",
    "short": "holds F32",
    "half": "holds F16",
    "another tensor": "cannot be read",
    "header": "cannot be read",
    "gone": "cannot be read",
    "no facts": "no vectors of blocks here",
    "list": "not a JSON object",
    '{"model": "else"}': "its vectors are of another model",
    '{"documents": "else"}': "its vectors are of other documents, titles or lengths",
    '{"blocks": 1000000000000000}': "says 1000000000000000 vectors",
    '{"blocks": "1"}': "does not say what its vectors are",
    '{"more": 1}': "does not say what its vectors are",
}


@pytest.mark.parametrize("how", FAULTS)
def test_files_that_are_not_its_own_are_one_error(folder: Path, opened: Opened, tmp_path: Path, how: str) -> None:
    with pytest.raises(DataError, match=FAULTS[how]):
        build_index(read_vectors(damaged(folder, tmp_path, how), opened.facts), gpu=False, exact=True).search(
            opened.embed_queries(["w1"]), 3
        )


def test_the_command_says_it_in_one_error(folder: Path, out: Path, tmp_path: Path) -> None:
    copy = damaged(folder, tmp_path, '{"model": "else"}')
    told = neox(out, "retrieval", "search", "w1", "--load", "one", "--blocks", str(copy), fails=True)
    assert told.count("error:") == 1
    assert "its vectors are of another model" in told


def test_an_index_of_other_blocks_is_made_from_the_start(opened: Opened, tmp_path: Path) -> None:
    """What is there of the same blocks is kept, and nothing else, nor files of other lengths."""
    facts = Facts(5, 2, "m", "d")
    vectors = np.arange(10, dtype=np.float32).reshape(5, 2)

    def write(some: list[int]) -> None:
        part = Unfinished(tmp_path, facts)
        part.write(np.array(some), vectors[some])
        part.close()

    assert begin(tmp_path, facts) is False
    write([0, 1, 3])
    assert begin(tmp_path, facts) is False
    assert Unfinished(tmp_path, facts).pending().tolist() == [2, 4]
    with pytest.raises(DataError, match="2 blocks have no vector"):
        Unfinished(tmp_path, facts).finish()
    begin(tmp_path, evolve(facts, model="n"))
    assert len(Unfinished(tmp_path, facts).pending()) == 5
    begin(tmp_path, facts)
    (tmp_path / DONE).write_bytes(b"\x01" * 4)
    begin(tmp_path, facts)
    assert len(Unfinished(tmp_path, facts).pending()) == 5
    write([4, 2, 3, 0, 1])
    Unfinished(tmp_path, facts).finish()
    np.testing.assert_array_equal(load_file(tmp_path / FILE)["vectors"], vectors)
    assert begin(tmp_path, facts) is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["index", "retriever.yml", "--set", "load=one", "--set", "ict-load=one", "--set", "bert-load=null"],
         "load and ict-load both name the retriever"),
        (["index", "retriever.yml"], "nothing names the retriever"),
        (["index", "retriever.yml", "--set", "load=one", "--set", "block-data-path=null"], "block-data-path is not"),
        (["index", "bert.yml"], "architecture is not retriever"),
        (["search", "w1", "--load", "bert"], "is not a retriever"),
        (["evaluate", "--load", "one"], "name a file or --held-out"),
    ],
)  # fmt: skip
def test_what_the_commands_refuse(words: list[str], said: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(out)
    command = {"index": index, "search": search, "evaluate": evaluate}[words[0]]
    found = CliRunner().invoke(command, words[1:]).exception
    assert isinstance(found, NeoxError)
    assert said in found.message + found.hint


def test_held_out_sentences_are_no_more_than_there_are(opened: Opened) -> None:
    with pytest.raises(DataError, match="can be asked for, not 999"):
        held_out(opened, 999)


def test_faiss_on_a_gpu_needs_one(folder: Path, opened: Opened) -> None:
    faiss = pytest.importorskip("faiss")
    if faiss.get_num_gpus():
        pytest.skip("there is one")
    with pytest.raises(ConfigError, match="finds no GPU"):
        build_index(read_vectors(folder, opened.facts), gpu=True)
    with pytest.raises(NeoxError, match="faiss-use-gpu"):
        build_index(read_vectors(folder, opened.facts), gpu=True, exact=True)
