"""What `neox report` takes for samples: of both files that a run writes them into."""

import json
from pathlib import Path

from neox_report.messages import messages_of, samples_of


def test_samples_of_both_files_by_step_and_each_once(tmp_path: Path) -> None:
    said = [{"step": 8, "time": 9.0, "said": "sample:\nend"}, {"step": 1, "time": 1.0, "said": "hello"}]
    # a run that was killed after step 4 and resumed from step 2 writes those of step 4 again
    wrote = [(2, "a"), (2, "b"), (4, "c\x1b[31m"), (4, "c\x1b[31m"), (8, "end")]
    rows = [{"step": step, "time": float(number), "sample": text} for number, (step, text) in enumerate(wrote)]
    (tmp_path / "messages.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in said))
    foreign = ["not json", '{"step": 3, "time": 1.0, "sample": 7}']
    (tmp_path / "samples.jsonl").write_text("".join(f"{each}\n" for each in (*map(json.dumps, rows), *foreign)))
    found = samples_of(tmp_path, messages_of(tmp_path))
    assert [(each.step, each.text) for each in found] == [(2, "a"), (2, "b"), (4, "c\\x1b[31m"), (8, "end")]


def test_a_run_without_samples_has_none(tmp_path: Path) -> None:
    assert samples_of(tmp_path, messages_of(tmp_path)) == []
