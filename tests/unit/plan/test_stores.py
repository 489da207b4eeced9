"""Addresses in `save` and `load`: the store that they name, and what is refused before a run starts."""

import json
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from neox_core.config.stores import address_fault, split_address
from neox_core.errors import ConfigError
from neox_core.hooks.component import GROUP
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import Resolved, prepare_run
from neox_core.plan.runfile import plan_of, to_json

QUICKSTART = Path(__file__).resolve().parents[3] / "configs/quickstart.yml"


def resolve(*sets: str, without: str = "", resume: str = "must", folder: Path | None = None) -> Resolved:
    points = [each for each in entry_points(group=GROUP) if not each.value.startswith(without or "nothing")]
    sets = ("save-interval=5", *sets)
    catalog = load_plugins(points, {})
    return prepare_run(
        [QUICKSTART], sets, catalog=catalog, machine=Machine(0, 2), start=False, resume=resume, folder=folder
    )


def test_an_address_names_a_store_and_the_run_has_a_local_folder() -> None:
    plan = resolve("save=file:///mnt/run").plan
    (store,) = plan.checkpoint.stores
    assert (store.url, store.component.name, plan.run_dir) == ("file:///mnt/run", "file", "runs/quickstart")
    assert store.folder == "runs/quickstart/.store/file/mnt/run"
    assert plan.plugins["neox-fsspec"] == "0.1.0"
    assert plan.checkpoint.save_folder is None
    raw = json.loads(to_json(plan))
    assert plan_of(raw, Path("run.json"), ConfigError, planner=raw["architecture"]["planner"]) == plan


def test_save_and_load_may_name_two_stores_or_one() -> None:
    plan = resolve("save=FILE:///mnt/run", "load=file:///old/run", folder=Path("here")).plan
    assert [each.folder for each in plan.checkpoint.stores] == ["here/.store/file/mnt/run", "here/.store/file/old/run"]
    both = resolve("save=file:///mnt/run", resume="auto").plan.checkpoint
    assert (both.load, len(both.stores)) == ("file:///mnt/run", 1)


def test_a_local_path_asks_no_store() -> None:
    plan = resolve("save=out", "load=old").plan
    assert (plan.checkpoint.stores, plan.checkpoint.save_folder, plan.run_dir) == ((), "out", "out")
    assert "neox-fsspec" not in plan.plugins


@pytest.mark.parametrize(
    ("sets", "without", "said"),
    [
        (("save=s3://bucket/run",), "neox_fsspec", r"save: no store 's3'.*pip install \./plugins/neox-fsspec"),
        (("load=ftp://host/run",), "", r"load: no store 'ftp'; installed: file, s3"),
        (("save=file://",), "", r"save: is not an address of a folder in a store \(write protocol://bucket/folder"),
        (("load=file:///a/../b",), "", r"load: is not an address of a folder in a store"),
    ],
)
def test_what_no_store_can_be_is_refused_with_the_way_out(sets: tuple[str, ...], without: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(*sets, without=without)
    assert re.search(said, str(raised.value), re.DOTALL), str(raised.value)


@pytest.mark.parametrize("place", ["me:hush@bucket/run", "bucket/run?sig=hush", "hush@bucket"])
@pytest.mark.parametrize("protocol", ["file", "ftp"])
def test_credentials_in_an_address_are_refused_and_not_repeated(place: str, protocol: str) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(f"save={protocol}://{place}", f"load={protocol}://{place}")
    assert "hush" not in str(raised.value)
    assert protocol == "ftp" or str(raised.value).count("must not hold credentials") == 2


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("out", None),
        ("/data/out", None),
        ("s3:/out", None),
        (None, None),
        ("S3://Bucket/run/", ("s3", "Bucket/run")),
        ("file:///mnt/run", ("file", "/mnt/run")),
    ],
)
def test_which_paths_are_addresses(path: str | None, found: tuple[str, str] | None) -> None:
    assert split_address(path) == found
    assert found is None or address_fault(found[1]) == ("", "")
