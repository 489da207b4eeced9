"""The page in a real browser: it loads without an error, shows the numbers of the files, fits a phone, runs nothing."""

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from neox_report.attention import attention_of
from neox_report.describe import Report, in_text
from neox_report.page import write_page

from neox_core.cli.main import neox
from neox_core.errors import NeoxError, UsageError

pytestmark = pytest.mark.ranks
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"><b>\u2028\x1b[31m"


@pytest.fixture
def load(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Loads the page of runs; whatever the browser complains of fails the test."""
    said: list[str] = []
    opened = []

    def load(*folders: Path, width: int = 1200, scheme: str = "light", attention: bool = False) -> Any:
        page_file = tmp_path / "page.html"
        page_file.write_text(write_page(Report(folders, attention).content()), encoding="utf-8")
        phone = width < 600
        context = browser.new_context(
            viewport={"width": width, "height": 800},
            color_scheme=scheme,
            has_touch=phone,
            is_mobile=phone,
            offline=True,
        )
        opened.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on(
            "request",
            lambda request: (
                said.append(request.url) if not request.url.startswith(("file:", "data:", "blob:")) else None
            ),
        )
        page.goto(page_file.as_uri())
        page.wait_for_selector("main[aria-busy=false]", timeout=60_000)
        return page

    yield load
    for each in opened:
        each.close()
    assert said == []


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def drawn(page: Any, figure: str) -> list[dict[str, Any]]:
    """What plotly.js has drawn: x and y of each line."""
    script = (
        "name => document.querySelector(`[data-figure='${name}'] .plot`).data.map(t => ({x: [...t.x], y: [...t.y]}))"
    )
    lines: list[dict[str, Any]] = page.evaluate(script, figure)
    return lines


def test_the_numbers_of_a_real_run(load: Callable[..., Any], trained: Path) -> None:
    page = load(trained, attention=True)
    lines = [each for each in lines_of(trained) if "loss" in each]
    for figure, name, scale in (
        ("Training loss", "loss", 1),
        ("Learning rate", "lr", 1),
        ("Gradient norm", "grad_norm", 1),
        ("Tokens per second", "tokens_per_s", 1),
        ("MFU", "mfu", 100),
        ("Memory", "memory_gib", 1),
        ("Data wait", "data_wait_s", 1),
        ("Skipped steps", "skipped_steps", 1),
        ("World size", "world_size", 1),
    ):
        (line,) = drawn(page, figure)
        assert line["x"] == [each["step"] for each in lines]
        assert line["y"] == pytest.approx([each[name] * scale for each in lines], rel=1e-5), figure
    (valid,) = drawn(page, "Validation and test loss")
    assert valid["x"] == [6, 12]
    last = lines[-1]
    said = page.inner_text("[data-figure='Training loss'] figcaption")
    assert said.startswith(f"6 values, from {lines[0]['loss']:.5g} at step 2 to ")
    assert f"to {last['loss']:.5g} at step 12" in said
    card = page.inner_text(".card")
    assert "finished" in card
    assert "12 of 12" in card
    start = next(each for each in lines_of(trained) if "startup_total_s" in each)
    text = page.inner_text("#startup")
    for name, shown in (
        ("total", r"([\d.]+) s from the command to the end of step 1\."),
        ("imports", r"\bimports\s+([\d.]+) s"),
    ):
        # Nearly half a unit: of a half, a browser rounds up what Python rounds to even.
        assert float(re.search(shown, text)[1]) == pytest.approx(start[f"startup_{name}_s"], rel=0, abs=0.00501), name
    assert page.inner_text("#checkpoints").count("step-0000") == 2
    assert "step-00000012 (latest)" in page.inner_text("#checkpoints")
    assert "saved" in page.text_content("#messages")
    assert "torch" in page.inner_text("#environment")
    assert "layers 1, 3" in page.inner_text("#attention")
    assert "train.train_iters" in page.text_content("#config")
    assert page.locator("#pipeline").count() == 0
    assert page.locator("#differences").count() == 0


def test_zoom_axis_and_other_numbers(load: Callable[..., Any], trained: Path) -> None:
    page = load(trained)
    area = page.locator("[data-figure='Training loss'] .nsewdrag").bounding_box()
    page.mouse.move(area["x"] + area["width"] * 0.3, area["y"] + area["height"] / 2)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] * 0.6, area["y"] + area["height"] / 2, steps=4)
    page.mouse.up()
    script = "document.querySelector(\"[data-figure='Training loss'] .plot\").layout.xaxis.range"
    first, last = page.evaluate(script)
    assert 2 < first < last < 9
    page.check("input[value=time]")
    assert 0 < drawn(page, "Training loss")[0]["x"][0] < 1
    page.locator("#curves summary").click()
    page.wait_for_selector("[data-figure='step_s'] .main-svg")
    assert drawn(page, "step_s")[0]["y"] == pytest.approx(
        [each["step_s"] for each in lines_of(trained) if "loss" in each], rel=1e-5
    )
    page.locator("#config summary").click()
    page.fill("#config input", "train_iters")
    assert page.locator("#config tbody tr").count() == 1


def test_a_phone_and_the_dark(load: Callable[..., Any], trained: Path) -> None:
    for width, scheme in ((360, "dark"), (1200, "light")):
        page = load(trained, width=width, scheme=scheme)
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        back, text = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
        luminance = [sum(map(int, re.findall(r"\d+", each)[:3])) for each in (back, text)]
        assert (
            (luminance[0] < 150 < 500 < luminance[1]) if scheme == "dark" else (luminance[1] < 150 < 500 < luminance[0])
        )
        plot = page.evaluate("getComputedStyle(document.querySelector('.plot .xtick text')).fill")
        assert plot == text
        box = page.locator("[data-figure='Training loss'] .plot").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def test_text_of_a_run_is_text(load: Callable[..., Any], make_run: Callable[..., Path]) -> None:
    name = "<b>run<img src=x onerror=alert(1)>"
    rows = [{"step": step, "time": 1e9 + step, "loss": 3.0 - step / 10, EVIL: 1.0} for step in (1, 2)]
    one = make_run(name, rows, neox_version=EVIL, plugins={EVIL: EVIL})
    other = make_run("<a href='javascript:alert(1)'>two", rows)
    start = {"step": 0, "time": 1e9, "start": {"host": EVIL, EVIL: EVIL}}
    said = [{"step": 1, "time": 1e9, "said": EVIL}, {"step": 2, "time": 1e9, "said": f"sample:\n{EVIL}"}]
    (one / "messages.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (start, *said)))
    (one / "failure.json").write_text(json.dumps({"message": EVIL, "hint": EVIL}))
    (one / "profiles").mkdir()
    profile = {"steps": EVIL, "device": EVIL, "ops": [{"name": EVIL, "calls": EVIL, "cpu_ms": 1.0, "device_ms": None}]}
    (one / "profiles" / "rank0.json").write_text(json.dumps(profile))
    page = load(one, other)
    assert page.title() == f"{name}, <a href='javascript:alert(1)'>two - neox report"
    assert page.locator("main img, main script, main b, main a:not([href^='#'])").count() == 0
    shown = page.text_content("main")
    for text in ("<img src=x onerror=", "</script><script>", r"\x1b[31m", r"\u2028"):
        assert text in shown
    assert name in page.text_content(".card h3")
    plot = "document.querySelector(\"[data-figure='Training loss'] .plot\")"
    page.evaluate(f"Plotly.Fx.hover({plot}, [{{curveNumber: 0, pointNumber: 0}}])")
    assert "<b>run<img" in page.text_content("[data-figure='Training loss'] .hoverlayer")
    assert page.locator(".plot a:not(.modebar-btn)").count() == 0


def test_a_script_that_is_not_the_pages_own_is_not_run(
    browser: Any, make_run: Callable[..., Path], tmp_path: Path
) -> None:
    text = write_page(Report([make_run("run", [])], attention=False).content())
    planted = text.replace("<main", "<script>document.title = 'owned'</script><main")
    assert planted != text
    (tmp_path / "planted.html").write_text(planted, encoding="utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "planted.html").as_uri())
    page.wait_for_selector("main[aria-busy=false]")
    assert page.title() == "run - neox report"
    page.close()


def test_several_runs_with_rewinds_restarts_a_pipeline_and_gaps(
    load: Callable[..., Any], make_run: Callable[..., Path]
) -> None:
    start = {"startup_host_s": 1.0, "startup_total_s": 1.0}
    rows: list[dict[str, Any]] = [{"step": 1, "time": 1e9, **start}]
    rows += [
        {"step": step, "time": 1e9 + step, "loss": None if step == 3 else 9.0 - step, "world_size": 4.0}
        for step in (1, 2, 3, 4)
    ]
    rows += [
        {"step": 2, "time": 1e9 + 5, "rewound_from": 4.0, "skipped_first_sample": 8.0, "skipped_last_sample": 15.0}
    ]
    rows += [{"step": 3, "time": 1e9 + 7200, **start}, {"step": 3, "time": 1e9 + 7201, "loss": 1.5, "world_size": 2.0}]
    one = make_run("one", rows, cluster={"pipeline_parallel": 4}, batch={"gradient_accumulation": 8}, train={"seed": 9})
    other = make_run("two", [{"step": 1, "time": 2e9, "loss": 5.0}])
    page = load(one, other)
    first, second = drawn(page, "Training loss")
    assert (first["x"], first["y"]) == ([1, 2, 3, 4, 3], [8.0, 7.0, None, 5.0, 1.5])
    assert (second["x"], second["y"]) == ([1], [5.0])
    assert drawn(page, "World size")[0]["y"] == [4, 4, 4, 4, 2]
    captions = page.locator("[data-figure='Training loss'] figcaption p").all_inner_texts()
    assert captions == [
        "one loss".removesuffix(" loss")
        + ": 5 values, from 8 at step 1 to 1.5 at step 3; lowest 1.5 at step 3, highest 8 at step 1."
        " 1 values were not finite.",
        "two: 1 value, 5 at step 1.",
    ]
    history = page.inner_text("#history")
    assert history.count("restarted") == 1
    assert "from step 4 to 2, without samples 8 to 15" in history
    assert "27.3 % of the time" in page.inner_text("#pipeline")  # 3 / 11
    assert page.locator("#pipeline rect").count() == 4 * 2 * (8 + 4 - 1)
    differs = dict(
        page.eval_on_selector_all(
            "#differences tbody tr",
            "rows => rows.map(r => [r.cells[0].textContent, r.cells[1].textContent + '|' + r.cells[2].textContent])",
        )
    )
    assert differs["train.seed"] == "9|7"
    assert differs["cluster.pipeline_parallel"] == "4|1"
    assert "train.train_iters" not in differs


def test_a_long_run_makes_a_small_page(make_run: Callable[..., Path]) -> None:
    folder = make_run("long", [])
    with (folder / "metrics.jsonl").open("w") as file:
        file.writelines(
            f'{{"step": {n}, "time": {1e9 + n}, "loss": {1 + 1 / n}, "lr": 0.1}}\n' for n in range(1, 60_001)
        )
    content = Report([folder], attention=False).content()
    loss = content["runs"][0]["series"]["loss"]
    assert loss["count"] == 60_000
    assert len(loss["value"]) < 2000
    assert loss["last"] == {"step": 60_000, "value": 1 + 1 / 60_000}
    assert len(json.dumps(content)) < 300_000


def test_the_command_and_its_errors(trained: Path, make_run: Callable[..., Path], tmp_path: Path) -> None:
    def report(*words: object) -> tuple[int, str, str]:
        done = CliRunner().invoke(neox, ["report", *map(str, words)])
        return done.exit_code, done.stdout, done.stderr

    out = tmp_path / "page.html"
    assert report(trained, "--no-attention", "--out", out) == (0, f"wrote {out}\n", "")
    assert out.read_text().startswith("<!doctype html>")
    assert "MIT" in out.read_text()
    code, said, _ = report(trained, "--json", "--no-attention")
    assert (code, json.loads(said)["runs"][0]["state"]) == (0, "finished")
    os.mkfifo(tmp_path / "fifo")
    for words, expected in (
        ((tmp_path,), "not the folder of a run"),
        ((trained / "step-00000012",), "a checkpoint, not the folder of a run"),
        ((trained, "--out", tmp_path / "none" / "page.html"), "cannot be written"),
        ((trained, "--out", tmp_path / "fifo"), "fifo: cannot be written: is not a regular file"),
        ((*[trained] * 21,), "at most 20"),
        ((trained, "--serve", "--json"), "exclude each other"),
        ((trained, "--serve", "--host", "256.1.1.1"), "cannot be served at"),
    ):
        code, said, error = report(*words)
        assert (code, said) == (2, ""), error
        assert expected in error
        assert "Traceback" not in error
    pipe = make_run("pipe")
    os.mkfifo(pipe / "metrics.jsonl")
    code, _, error = report(pipe)
    assert code == 2
    assert "metrics.jsonl: cannot be read" in error


def test_attention_of_a_plan_that_cannot_be_drawn(make_run: Callable[..., Path]) -> None:
    other = json.loads((make_run("one") / "run.json").read_text())["architecture"]
    unknown = {**other, "name": "unknown"}
    assert attention_of(make_run("two", architecture=unknown)) == "the architecture unknown draws none"
    huge = make_run("huge", model={"seq_length": 1 << 40})
    assert "drawn" in attention_of(huge)


def test_no_more_than_a_page_of_runs(trained: Path) -> None:
    with pytest.raises(UsageError, match="21 runs"):
        Report([trained] * 21)


ODD: tuple[Any, ...] = (
    *(None, True, -1, 1e308, 10**30, "", "a\0b", "s3://x", [], [1], {}, {"a": 1}, [[1]], -5, "\x1b[2J"),
    [{"op": 1, "asked": 2, "offers": 3}],
    [{"name": 1, "slots": "x", "devices": 5}],
    [{"prefix": 1, "weight": None}],
    {"kind": 1, "name": 2, "plugin": 3, "version": 4, "target": 5, "settings": {"q": 1}},
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(inner, (*path, key))


def test_a_run_file_with_any_value_anywhere_is_shown_or_refused(make_run: Callable[..., Path]) -> None:
    folder = make_run("odd", [{"step": 1, "time": 1.0, "loss": 1.0}], cluster={"pipeline_parallel": 2})
    plan = (folder / "run.json").read_text()
    draw = random.Random(0)
    paths = [*places(json.loads(plan))]
    for _ in range(300):
        changed = json.loads(plan)
        *around, last = draw.choice(paths)
        block = changed
        for key in around:
            block = block[key]
        block[last] = draw.choice(ODD)
        (folder / "run.json").write_text(json.dumps(changed))
        with suppress(NeoxError):
            in_text(Report([folder], attention=False).content())
