"""How long a user waits: `neox plugins list`, `neox train --dry-run`, and `neox train` to its first optimizer step.

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


def first_step() -> dict[str, float]:
    """Seconds from the start of `neox train` on the quick start to the end of its first step, in all and by part."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "save": folder,
            "train-iters": 2,
            "save-interval": 2,
            "eval-iters": 0,
            "log-interval": 1,
            "sample-prompt": "null",
        }
        seconds(
            "train", str(CONFIG), *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))
        )
        for line in (Path(folder) / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            if "startup_total_s" in row:
                return {key: value for key, value in row.items() if key.startswith("startup_")}
    raise SystemExit("the run logged no start-up times")


def main() -> None:
    times: dict[str, list[float]] = {"plugins list": [], "train --dry-run": []}
    parts: dict[str, list[float]] = {}
    for _ in range(RUNS):
        times["plugins list"].append(seconds("plugins", "list"))
        times["train --dry-run"].append(seconds("train", str(CONFIG), "--dry-run"))
        for name, value in first_step().items():
            parts.setdefault(name, []).append(value)
    for case, values in {**times, **parts}.items():
        append_row("startup", case, "s", values)


if __name__ == "__main__":
    main()
