"""How long a user waits: `neox plugins list`, `neox config check` on a file of 100 keys, `neox train --dry-run`, and
`neox train` to its first optimizer step, also resumed, with each engine. `--light` leaves out what trains.

Whole processes, in alternation, medians; rows are appended to benchmarks/results.csv.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import append_row

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "quickstart.yml"
RUNS = 7


def seconds(*argv: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "neox_core", *argv], cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - started


def first_steps(engine: str) -> dict[str, float]:
    """Seconds from `neox train` on the quick start to the end of its first step, in all and by part; then resumed."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "engine": engine,
            "save": folder,
            "train-iters": 2,
            "exit-interval": 1,
            "eval-iters": 0,
            "log-interval": 1,
            "sample-prompt": "null",
        }
        words = ("train", str(CONFIG), *(f"--set={key}={value}" for key, value in settings.items()))
        seconds(*words)
        seconds(*words, "--resume", "auto")
        rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    started, resumed = (row for row in rows if "startup_total_s" in row)
    told = {f"{engine}: ": started, f"{engine}, resumed: ": resumed}
    return {how + key: value for how, row in told.items() for key, value in row.items() if key.startswith("startup_")}


def hundred_keys(folder: Path) -> Path:
    """The quick start, and keys at their defaults until it has 100 values."""
    from neox_core.config.read.load import load
    from neox_core.config.schema.convert import fields_of
    from neox_core.config.schema.sections import CORE_SECTIONS
    from neox_core.errors import NeoxError
    from neox_core.plan.resolve import prepare_run

    file, text = folder / "hundred.yml", CONFIG.read_text(encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    config = prepare_run([CONFIG], start=False).config
    chosen = [each.entry.component for kind in config.chosen.values() for each in kind if not each.path]
    owners = [section.settings for section in (*CORE_SECTIONS, *(each for one in chosen for each in one.sections))]
    owners += [each.settings for each in chosen if each.settings]
    fields = [each for owner in owners for each in fields_of(owner) if not each.required]
    for each in (field for field in fields if isinstance(field.default, int | float | str)):
        longer = f"{text}{each.name}: {json.dumps(each.default)}\n"
        if each.name in load([file]).values or len(load([file]).places) >= 100:
            continue
        file.write_text(longer, encoding="utf-8")
        try:
            prepare_run([file], start=False)
            text = longer
        except NeoxError:
            file.write_text(text, encoding="utf-8")
    if len(load([file]).places) < 100:
        raise SystemExit("too few keys have a default")
    return file


def main() -> None:
    light = "--light" in sys.argv[1:]
    times: dict[str, list[float]] = {"plugins list": [], "config check, 100 keys": [], "train --dry-run": []}
    parts: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if not (ROOT / "data" / "stdlib").exists():
            seconds("data", "prepare", "stdlib", "--out", "data/stdlib")  # as `make train` does
        hundred = str(hundred_keys(Path(folder)))
        for _ in range(RUNS):
            times["plugins list"].append(seconds("plugins", "list"))
            times["config check, 100 keys"].append(seconds("config", "check", hundred))
            times["train --dry-run"].append(seconds("train", str(CONFIG), "--dry-run"))
            for engine in () if light else ("deepspeed", "plain"):
                for name, value in first_steps(engine).items():
                    parts.setdefault(name, []).append(value)
    for case, values in {**times, **parts}.items():
        append_row("startup", case, "s", values)


if __name__ == "__main__":
    main()
