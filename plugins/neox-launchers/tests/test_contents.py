"""What the digest of a package notices: an edit, also one that keeps the version, the size or the time."""

import base64
import hashlib
import os
import sys

import pytest
from neox_launchers.contents import contents, package_digest


def record_line(root, name):
    data = (root / name).read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A wheel with two modules and a library, as pip installs it; the list is written last."""
    info = tmp_path / "some_thing-1.0.dist-info"
    for folder in (tmp_path / "some_thing", info):
        folder.mkdir()
    (tmp_path / "some_thing" / "__init__.py").write_text("SCALE = 1\n")
    (tmp_path / "some_thing" / "lib.so").write_bytes(b"123")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-thing\nVersion: 1.0\n")
    lines = [record_line(tmp_path, f"some_thing/{name}") for name in ("__init__.py", "lib.so")]
    scripts = "../../bin/thing,sha256=x,3\nsome_thing-1.0.dist-info/direct_url.json,sha256=y,3\n"
    (info / "RECORD").write_text("".join(lines) + scripts + f"{info.name}/RECORD,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_an_edited_module_of_the_same_version_size_or_list_is_noticed(installed):
    before, module = package_digest("some-thing"), installed / "some_thing" / "__init__.py"
    assert package_digest("some_thing") == before
    at = module.stat().st_mtime
    module.write_text("SCALE = 2\n")  # the same size
    os.utime(module, (at + 60, at + 60))
    edited = package_digest("some-thing")
    module.write_text("SCALE = 10\n")
    os.utime(module, (at - 60, at - 60))  # an older time
    longer = package_digest("some-thing")
    (installed / "some_thing" / "lib.so").write_bytes(b"1234")
    library = package_digest("some-thing")
    assert len({before, edited, longer, library}) == 4


def test_where_a_package_is_installed_and_when_it_was_touched_do_not_count(installed):
    before = package_digest("some-thing")
    record = installed / "some_thing-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text().replace("sha256=x", "sha256=z").replace("sha256=y", "sha256=w"))
    assert package_digest("some-thing") == before


@pytest.mark.parametrize("told", [True, False], ids=["by pip", "by another installer"])
def test_an_editable_package_counts_by_its_files(tmp_path, monkeypatch, told):
    info, source = tmp_path / "site" / "neox_mine-1.0.dist-info", tmp_path / "src" / "mine"
    info.mkdir(parents=True)
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("")
    (source / "part.py").write_text("A = 1\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: neox-mine\nVersion: 1.0\n")
    (info / "RECORD").write_text("neox_mine.pth,sha256=x,3\n")
    if told:
        (info / "direct_url.json").write_text('{"url": "file:///there", "dir_info": {"editable": true}}')
    (info / "entry_points.txt").write_text("[neox.plugins]\nmine = mine.plugin\n")
    for folder in (tmp_path / "site", tmp_path / "src"):
        monkeypatch.syspath_prepend(folder)
    before = package_digest("neox-mine")
    (source / "part.py").write_text("A = 2\n")
    assert package_digest("neox-mine") != before
    assert "mine" not in sys.modules


def test_a_run_counts_its_plugins_and_what_they_require():
    found = contents(["neox-launchers", "nowhere"])
    assert {"neox-core", "neox-launchers", "torch", "attrs", "nowhere"} <= found.keys()
    assert found["nowhere"] == "not installed"
    assert all(len(digest) == 64 for name, digest in found.items() if name in ("neox-core", "torch"))
