"""docs/plugins.md does what it says: its code is built, installed and tested, in a folder of its own."""

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from neox_core.errors import ConfigError
from neox_core.hooks.component import GROUP
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "plugins/neox-example-lion"
BLOCK = re.compile(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_of_the_page() -> dict[str, str]:
    return dict(BLOCK.findall((ROOT / "docs/plugins.md").read_text()))


def test_the_page_holds_the_whole_example() -> None:
    code = code_of_the_page()
    files = {str(path.relative_to(EXAMPLE)) for path in EXAMPLE.rglob("*") if path.suffix in (".py", ".toml")}
    assert code.keys() == files - {"neox_example_lion/__init__.py"}
    for path, text in code.items():
        assert text == (EXAMPLE / path).read_text(), path


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's distribution, installed by pip from its wheel."""
    project, wheels, target = (tmp_path_factory.mktemp(name) for name in ("project", "wheels", "target"))
    for path, text in {**code_of_the_page(), "neox_example_lion/__init__.py": "", "README.md": "# Lion\n"}.items():
        (project / path).parent.mkdir(exist_ok=True)
        (project / path).write_text(text)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(project)]
    subprocess.run(build, check=True, timeout=120)
    (wheel,) = wheels.glob("*.whl")
    install = [*pip, "install", "-q", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, timeout=120)
    (target / "test_lion.py").write_text((project / "tests/test_lion.py").read_text())
    return target


def run(installed: Path, *argv: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *argv]
    done = subprocess.run(command, cwd=installed, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_plugin_is_the_one_that_is_found(installed: Path) -> None:
    code = "from importlib.metadata import files; print(files('neox-example-lion')[0].locate().resolve())"
    assert str(installed) in run(installed, "-c", code)
    text = run(installed, "-m", "neox_core", "plugins", "info", "ExampleLion")
    assert text.startswith("optimizer ExampleLion: Sign of momentum (arXiv:2302.06675)\n")
    assert "plugin    neox-example-lion 0.1.0" in text
    assert "use       optimizer.type: ExampleLion" in text
    assert re.search(r"lr +number +0\.0001 +Peak learning rate\.", text)


def test_its_test_passes(installed: Path) -> None:
    text = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "test_lion.py")
    assert re.search(r"\b4 passed", text), text


def test_the_section_and_the_rule_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/plugins/section.md").read_text()
    (code,) = re.findall(r"^```python\n(from attrs import frozen.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "budget_of_the_page.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    points = [*entry_points(group=GROUP), EntryPoint("neox-budget", "budget_of_the_page", GROUP)]
    catalog, machine = load_plugins(points, {}), Machine(0, 2)
    config = ROOT / "configs/quickstart.yml"  # 2200 steps of 128 tokens or more

    def resolve(tokens: int) -> None:
        prepare_run([config], [f"max_tokens={tokens}"], catalog=catalog, machine=machine, start=False)

    resolve(2200 * 128)
    with pytest.raises(ConfigError, match=r"max_tokens: the run sees 281600 tokens or more .*fewer train-iters"):
        resolve(2200 * 128 - 1)
    with pytest.raises(ConfigError, match="max_tokens: must be"):
        resolve(0)
