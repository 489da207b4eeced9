"""docs/plugins/kind.md: one package defines a kind, another offers a component, a config chooses it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/plugins/kind.md").read_text(encoding="utf-8")
CODE = dict(re.findall(r"`((?:neox_policies|acme_policy)/\w+\.py)`[^`]*:\n\n```python\n(.*?)^```$", PAGE, re.M | re.S))
DEFINER, USER = "neox-policies", "acme-policy"


def install(site: Any, *names: str) -> None:
    """The packages of the page, with a config."""
    for name in names:
        package = name.replace("-", "_")
        files = {path: text for path, text in CODE.items() if path.startswith(package)}
        site.install(name, files.pop(f"{package}/plugin.py"), files)


@pytest.fixture
def prepared(site: Any, prepare: Any, using: Any) -> Any:
    """A site with what a run needs beside the packages of the page."""
    prepare(site)
    for name, text in {
        "none": "",
        "small": "policy: small\n",
        "set": "policy: small\npolicy_iters: 50\n",
        "block": "policy: acme-policy:small\nsmall: {policy_iters: 99}\n",
        "typo": "policy: smal\n",
        "key": "policy: smal\npolicy_itters: 3\n",
        "unchosen": "policy_iters: 3\n",
    }.items():
        using(site, "Fine", text, f"{name}.yml")
    return site


def check(site: Any, *names: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.neox_each(*(["config", "check", f"{name}.yml"] for name in names))
    return found


def test_a_config_chooses_it(prepared: Any) -> None:
    install(prepared, DEFINER, USER)
    none, small, set_, block, typo, key, unchosen = check(
        prepared, "none", "small", "set", "block", "typo", "key", "unchosen"
    )
    for fine in (none, small):
        assert fine["exit_code"] == 0, fine["stderr"]
    for refused in (set_, block):
        assert refused["exit_code"] == 2, refused["stderr"]
        assert "policy: the run has 100 steps" in refused["stderr"]
        assert "change the run, or choose another policy" in refused["stderr"]
    assert typo["exit_code"] == 3
    assert "no policy 'smal'; installed: small" in typo["stderr"]
    assert "did you mean 'small'?" in typo["stderr"]
    assert "policy_itters" in key["stderr"]
    assert "did you mean policy-iters?" in key["stderr"]
    assert unchosen["exit_code"] == 2
    assert "belongs to policy small, and this config has policy: null" in unchosen["stderr"]


def test_the_commands_know_it(prepared: Any) -> None:
    install(prepared, DEFINER, USER)
    prepared.install_ours("neox-author")
    asked = [
        ["plugins", "list", "--kind", "kind"],
        ["plugins", "list", "--kind", "policy", "--json"],
        ["plugins", "list", "--kind", "polcy"],
        ["plugins", "info", "small"],
        ["plugins", "info", DEFINER],
        ["plugins", "check"],
    ]
    kinds, policies, typo, small, definer, checked = prepared.neox_each(*asked)
    assert "kind\tpolicy\tneox-policies\t1.0\tok\toffered by neox_policies, chosen by policy" in kinds["stdout"]
    (row,) = json.loads(policies["stdout"])
    assert (row["kind"], row["name"], row["plugin"], row["status"]) == ("policy", "small", USER, "ok")
    assert typo["exit_code"] == 2
    assert "'polcy' is not a kind; did you mean 'policy'?" in typo["stderr"]
    assert small["stdout"].startswith("policy small: Short runs only\n")
    assert "use       policy: small" in small["stdout"]
    assert "defines   kind policy, by the hook neox_policies" in definer["stdout"]
    assert "acme" not in checked["stdout"]
    assert "policies" not in checked["stdout"]


def test_without_the_definer_there_is_one_warning(prepared: Any) -> None:
    install(prepared, USER)
    none, small = check(prepared, "none", "small")
    said = "warning: plugin acme-policy 1.0 is broken: has a hook neox_policies that neither this core nor an installed"
    assert none["exit_code"] == 0
    assert none["stderr"].count("acme-policy") == none["stderr"].count(said) == 1
    assert small["exit_code"] != 0
    assert "Traceback" not in small["stderr"]
    assert "policy" in small["stderr"]


def test_without_a_user_the_kind_offers_nothing(prepared: Any) -> None:
    install(prepared, DEFINER)
    none, small = check(prepared, "none", "small")
    assert none["exit_code"] == 0, none["stderr"]
    assert small["exit_code"] == 3
    assert "no policy 'small'; installed: none" in small["stderr"]
