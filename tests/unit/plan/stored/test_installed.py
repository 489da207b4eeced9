"""A run.json that anybody may have written: what it names is not imported, what it holds is checked."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from neox_checkpoints.inspecting import describe
from neox_gpt.api import saved_run

from neox_core.errors import CheckpointError, ConfigError, PluginError
from neox_core.hooks.markers import ONE_FILE
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import ComponentRef, RunPlan, components_of, digest, read_runfile, to_json, write_runfile
from neox_core.plan.stored.installed import stored_plan
from neox_core.plan.stored.saved import sealed

Write = Callable[..., Path]


@pytest.fixture
def plan(tmp_path: Path, text: str, catalog: Any) -> RunPlan:
    (tmp_path / "tiny.yml").write_text(text)
    sets = ("tokenizer-type=HFTokenizer", "vocab-file=tokenizer.json", "monitors=[web]")
    return prepare_run([tmp_path / "tiny.yml"], sets, catalog=catalog, machine=Machine(0, 4)).plan


def pieces(plan: RunPlan) -> list[dict[str, Any]]:
    """One weight of each layer, as a manifest lists it, in one of them two parts."""
    model = plan.model
    shape = [max(model.intermediate_size, model.padded_vocab_size or 0), model.hidden_size]
    named = [{"kind": "weight", "name": f"layers.{layer}.mlp", "shape": shape} for layer in range(model.num_layers)]
    return [*named, named[0], {"kind": "state", "name": "layers.0.mlp", "shape": [10**12]}]


@pytest.fixture
def write(plan: RunPlan, tmp_path: Path) -> Write:
    """Writes a checkpoint whose checksums hold, with a run.json that is changed, or is another text."""

    def checkpoint(change: Callable[[dict[str, Any]], object] = lambda _: None, text: bytes | None = None) -> Path:
        content = json.loads(to_json(plan))
        change(content)
        run = json.dumps(content).encode() if text is None else text
        (tmp_path / "run.json").write_bytes(run)
        seal = {"size": len(run), "sha256": hashlib.sha256(run).hexdigest()}
        manifest = {"format": 1, "files": {"run.json": seal}, "pieces": pieces(plan)}
        (tmp_path / "manifest.json").write_bytes(sealed(manifest))
        return tmp_path

    return checkpoint


def every(value: Any) -> list[dict[str, Any]]:
    """The components in a plan that is plain."""
    if isinstance(value, list):
        return [found for each in value for found in every(each)]
    if not isinstance(value, dict):
        return []
    return [value] if "target" in value else [found for each in value.values() for found in every(each)]


def test_import_paths_of_a_checkpoint_are_not_used(write: Write, plan: RunPlan, catalog: Any) -> None:
    def attack(run: dict[str, Any]) -> None:
        for each in every(run):
            each |= {"target": "os:system", "settings_class": "os:abort"}
        run["checkpoint"]["schedules"] = {
            "lr schedule everything:linear": {**run["optim"]["schedule"], "target": "os:system"}
        }

    folder, read = saved_run(write(attack), catalog)
    assert folder == write()
    assert [each.name for each in components_of(read)] == [each.name for each in components_of(plan)]
    for now, before in zip(components_of(read), components_of(plan), strict=True):
        assert (now.target, now.settings_class) == (before.target, before.settings_class)
    assert {each.target for each in (read.checkpoint.schedules or {}).values()}.isdisjoint({"os:system"})


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"num_layers": 10**9}, "num_layers is 1,000,000,000, and the 2 weights of the checkpoint allow 1 to 2,000"),
        ({"num_layers": 3}, "num_unique_layers is 3, and the 2 weights of the checkpoint allow 1 to 2"),
        ({"num_layers": 10**9, "num_unique_layers": 1}, "num_layers is 1,000,000,000"),
        ({"num_unique_layers": 0}, "num_unique_layers is 0"),
        ({"num_layers": -2}, "num_layers is -2"),
        ({"hidden_size": 2**40}, "hidden_size is 1,099,511,627,776"),
        ({"intermediate_size": 2**40}, "intermediate_size is"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_kv_heads": 0}, "num_kv_heads is 0"),
        ({"padded_vocab_size": 2**40}, "padded_vocab_size is"),
        ({"padded_vocab_size": None, "make_vocab_size_divisible_by": 2**60}, "make_vocab_size_divisible_by is"),
        ({"seq_length": 2**40}, "seq_length is"),
        ({"max_position_embeddings": 2**40}, "max_position_embeddings is"),
    ],
)
def test_sizes_that_the_stored_weights_cannot_have_are_refused(
    write: Write, catalog: Any, sizes: dict[str, Any], said: str
) -> None:
    for command in (saved_run, describe):
        with pytest.raises(CheckpointError, match=said):
            command(write(lambda run: run["model"].update(sizes)), catalog)


@pytest.mark.parametrize("listed", [None, {}, [5], [{"kind": "weight", "name": [], "shape": ["x"]}]])
def test_a_manifest_that_lists_no_weights_allows_no_model(
    write: Write, catalog: Any, monkeypatch: pytest.MonkeyPatch, listed: Any
) -> None:
    monkeypatch.setitem(globals(), "pieces", lambda plan: listed)
    with pytest.raises(CheckpointError, match=r"is \d+, and the [01] weights of the checkpoint allow"):
        saved_run(write(), catalog)


@pytest.mark.parametrize("change", [{"name": "warp"}, {"plugin": "evil"}, {"kind": "activation"}])
def test_a_component_that_is_not_here_is_an_error_once_it_is_needed(write: Write, catalog: Any, change: Any) -> None:
    _, read = saved_run(write(lambda run: run["data"]["tokenizer"].update(change, target="os:system")), catalog)
    assert read.model.norm.load()
    assert read.data.tokenizer is not None
    with pytest.raises(PluginError, match="is not installed here") as caught:
        read.data.tokenizer.load()
    assert change.get("plugin", "everything") in caught.value.hint


@pytest.mark.parametrize("settings", [{"layernorm_epsilon": "x"}, {"other": 1}, {"layernorm_epsilon": [1]}])
def test_settings_that_are_none_of_the_component_are_an_error(write: Write, catalog: Any, settings: Any) -> None:
    _, read = saved_run(write(lambda run: run["model"]["norm"].update(settings=settings)), catalog)
    with pytest.raises(PluginError, match="norm everything:layernorm unknown: not its settings"):
        read.model.norm.load()


def _put(path: str, value: Any) -> Callable[[dict[str, Any]], object]:
    def change(run: dict[str, Any]) -> None:
        *blocks, key = path.split(".")
        for block in blocks:
            run = run[block]
        run[key] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run.clear(),
        lambda run: run.pop("model"),
        _put("format", 2),
        _put("extra", 1),
        _put("model", []),
        _put("model", None),
        _put("model.num_layers", "2"),
        _put("model.num_layers", 2.0),
        _put("model.num_layers", True),
        _put("model.num_layers", 1e30),
        _put("model.norm", "layernorm"),
        _put("model.norm.settings", [1]),
        _put("model.kernels", 5),
        _put("data.split", ["1", 0, 0]),
        _put("data.train", [{"prefix": 1}]),
        _put("optim.lr", "1"),
        _put("precision.dtype", "os"),
        _put("plugins", {"a": 1}),
        _put("plugins", ["a"]),
        _put("train.seed", "\x1b[31m\n" * 100_000),
        _put("extra\x1b[31m", 1),
    ],
)
def test_a_run_json_of_other_types_is_one_clear_error(write: Write, catalog: Any, change: Any) -> None:
    folder = write(change)
    with pytest.raises(CheckpointError) as caught:
        saved_run(folder, catalog)
    assert str(folder / "run.json") in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 600


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b"[]", "not a JSON object"),
        (b"\xff", "cannot be read"),
        (b'{"a":' * 200 + b"1" + b"}" * 200, "more than 64 levels"),
        (b'{"a":' * 100_000, "cannot be read"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "cannot be read"),
        (rb'{"format": 1, "run_dir": "\ud800"}', "half a surrogate pair"),
        (rb'{"\uDFFF": 1}', "half a surrogate pair"),
        (b'{"a": ' + b"9" * 5000 + b"}", "cannot be read"),
    ],
    ids=range(10),
)
def test_a_run_json_that_is_none_is_one_clear_error(write: Write, catalog: Any, content: bytes, says: str) -> None:
    with pytest.raises(CheckpointError, match=says) as caught:
        saved_run(write(text=content), catalog)
    assert len(str(caught.value)) < 600


def test_a_pair_of_surrogates_is_a_character(write: Write, catalog: Any) -> None:
    _, read = saved_run(write(_put("run_dir", "\U0001f600")), catalog)
    assert read.run_dir == "\U0001f600"


def test_run_json_of_a_checkpoint_is_compared_before_it_is_read(write: Write, catalog: Any) -> None:
    folder = write()
    (folder / "run.json").write_text("{")
    with pytest.raises(CheckpointError, match="wrong checksum"):
        saved_run(folder, catalog)
    (folder / "manifest.json").write_bytes(sealed({"format": 1, "files": {"state.json": {}}}))
    with pytest.raises(CheckpointError, match="names no checksum for run"):
        saved_run(folder, catalog)
    (folder / "manifest.json").write_bytes(sealed({"files": {"run.json": [1]}}))
    with pytest.raises(CheckpointError, match="names no checksum for run"):
        saved_run(folder, catalog)


def test_a_process_reads_the_run_file_of_the_one_that_started_it_and_no_other(
    plan: RunPlan, catalog: Any, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    write_runfile(plan, file)
    assert read_runfile(file, digest(plan)) == plan
    assert stored_plan(file, catalog).model.norm == plan.model.norm
    file.write_text(file.read_text().replace("math:floor", "os:system"))
    with pytest.raises(ConfigError, match="is not the run file that this process was started with"):
        read_runfile(file, digest(plan))


def test_a_file_of_plugins_dir_that_another_host_does_not_have_is_named() -> None:
    away = ComponentRef("norm", "mine", "mine", f"{ONE_FILE}abc", "no_such_file_of_mine:make")
    with pytest.raises(PluginError, match=r"norm mine:mine 0\+abc: .*no_such_file_of_mine") as caught:
        away.load()
    assert "one cache folder for all hosts" in caught.value.hint
