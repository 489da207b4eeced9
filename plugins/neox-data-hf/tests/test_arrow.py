import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from neox_author.testing import assert_light, build, load_only

from neox_core.errors import DataError

REFERENCE = Path(__file__).parent / "data"
IDS = pa.list_(pa.int32())
DOCUMENTS = [[1, 2, 3], [], [70000], list(range(50)), [5, 6]]


def backend(**settings):
    entry = load_only("neox-data-hf").registry.find("data backend", "hf")
    return entry.load()(build(entry, **settings))


def write(folder, files, kind=IDS, column="input_ids", **state):
    """A folder as save_to_disk of datasets leaves it; files: rows of each batch of each file."""
    folder.mkdir(exist_ok=True)
    names = [f"data-{number:05}-of-{len(files):05}.arrow" for number in range(len(files))]
    for name, batches in zip(names, files, strict=True):
        schema = pa.schema([("text", pa.string()), (column, kind)])
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for rows in batches:
                arrays = [pa.array(["x"] * len(rows)), pa.array(rows, kind)]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
    record = {"_data_files": [{"filename": name} for name in names], "_split": "train", **state}
    (folder / "state.json").write_text(json.dumps(record))
    return folder


def documents_of(source):
    return [source.read(index).tolist() for index in range(len(source.sizes))]


def test_listing_is_light():
    assert_light("neox-data-hf")


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.list_(pa.int64()), pa.large_list(pa.uint32())])
def test_rows_are_documents(tmp_path, kind):
    folder = write(tmp_path / "d", [[DOCUMENTS[:2], DOCUMENTS[2:3]], [DOCUMENTS[3:]]], kind)
    source = backend().open(folder)
    assert backend().recognises(folder)
    assert documents_of(source) == DOCUMENTS
    assert source.sizes.tolist() == [len(document) for document in DOCUMENTS]
    assert source.sizes.dtype == np.int32
    assert source.read(3, 10, 5).tolist() == [10, 11, 12, 13, 14]
    assert source.dtype.kind in "iu"
    assert not source.read(0).flags.writeable
    assert [file.name for file in backend().files(folder)][-1] == "state.json"


def test_a_dataset_of_no_rows_is_read(tmp_path):
    assert len(backend().open(write(tmp_path / "d", [[]])).sizes) == 0


def test_another_column_can_hold_the_ids(tmp_path):
    folder = write(tmp_path / "d", [[DOCUMENTS]], column="ids")
    assert documents_of(backend(hf_column="ids").open(folder)) == DOCUMENTS
    with pytest.raises(DataError, match="has no column 'input_ids'; it has text, ids"):
        backend().open(folder)


def cut(folder):
    file = folder / "data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes()[:-200])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "state.json").unlink(), r"state\.json: no such file"),
        (lambda folder: (folder / "state.json").write_text("[]"), r"state\.json: cannot be read"),
        (lambda folder: (folder / "dataset_dict.json").write_text("{}"), "holds several datasets"),
        (lambda folder: (folder / "data-00000-of-00001.arrow").unlink(), r"\.arrow: cannot be read"),
        (lambda folder: (folder / "data-00000-of-00001.arrow").write_bytes(b"no arrow"), r"\.arrow: cannot be read"),
        (cut, r"\.arrow: cannot be read"),
        (lambda folder: write(folder, [[DOCUMENTS]], _indices_files=[{"filename": "i"}]), "is a selection of rows"),
        (lambda folder: write(folder, [[[["a"]]]], pa.list_(pa.string())), "not lists of ids"),
        (lambda folder: write(folder, [[[[1, None], [2]]]]), "has empty cells"),
        (
            lambda folder: (folder / "state.json").write_text('{"_data_files": [{"filename": "../x"}]}'),
            "outside of its folder",
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_file(tmp_path, damage, says):
    folder = write(tmp_path / "d", [[DOCUMENTS]])
    damage(folder)
    with pytest.raises(DataError, match=says):
        backend().open(folder)


def test_reading_beyond_a_document_is_refused(tmp_path):
    source = backend().open(write(tmp_path / "d", [[DOCUMENTS]]))
    with pytest.raises(IndexError, match="document 0 has 3 tokens, not 2 to 4"):
        source.read(0, 2, 2)
    with pytest.raises(IndexError, match="no document 5"):
        source.read(5)


def test_it_is_read_only(tmp_path):
    with pytest.raises(DataError, match="is read only"):
        backend().create(tmp_path / "x", 10)


def test_what_datasets_wrote_is_read():
    expected = [[1, 2, 3], [], [70000, 5], list(range(20))]
    for folder in ("plain", "dict/train"):
        assert documents_of(backend().open(REFERENCE / folder)) == expected
    with pytest.raises(DataError, match="holds several datasets") as raised:
        backend().open(REFERENCE / "dict")
    assert "train" in raised.value.hint
    with pytest.raises(DataError, match="holds string, not lists of ids"):
        backend(hf_column="text").open(REFERENCE / "plain")
