"""`neox report`."""

from __future__ import annotations

from pathlib import Path

import click

from neox_core.errors import UsageError
from neox_core.files import replacing
from neox_core.terminal import echo, echo_json


@click.command()
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write. Default: report.html in the folder of the first run.",
)
@click.option("--serve", is_flag=True, help="Serve the page instead, as it is at the time, until Ctrl-C.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="With --serve: the address. Another one opens it to others."
)
@click.option(
    "--port", default=8600, show_default=True, type=click.IntRange(0, 65535), help="With --serve; 0: a free one."
)
@click.option(
    "--attention/--no-attention", default=True, help="Draw which blocks each layer's attention sees; imports torch."
)
@click.option("--json", "as_json", is_flag=True, help="What the page shows as a JSON object; no page.")
def report(
    folders: tuple[Path, ...], out: Path | None, serve: bool, host: str, port: int, attention: bool, as_json: bool
) -> None:
    """Write one HTML file about RUN..., the folders of runs: curves, start-up, pipeline, config, checkpoints.

    The page needs no network. Several runs are drawn into the same figures, with what differs between their configs.
    """
    from neox_report.describe import Report

    if sum((out is not None, serve, as_json)) > 1:
        raise click.UsageError("--out, --serve and --json exclude each other")
    runs = Report(folders, attention)
    if as_json:
        echo_json(runs.content())
        return
    if serve:
        from neox_report.serve import serve_runs

        serve_runs(runs, host, port)
        return
    from neox_report.page import write_page

    text = write_page(runs.content())
    path = out or folders[0] / "report.html"
    try:
        with replacing(path) as new:
            new.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror or error}", hint="name another file with --out"
        ) from error
    echo(f"wrote {path}")
