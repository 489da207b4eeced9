"""Commands with what they said in one piece, and Pythons that see one plugin alone."""

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from attrs import frozen
from warm_start import Template

ROOT = Path(__file__).resolve().parents[2]
LATER = 10
BEHIND = ("nice", "-n", str(LATER))


def run(*argv: str | Path, cwd: Path = ROOT, behind: bool = False) -> None:
    """Run a command and show what it said in one piece. Raises CalledProcessError.

    behind: others, whose tests have deadlines, come first where processors are short.

    Through a file: a process that the command leaves behind could hold a pipe open for ever.
    """
    with shown() as said:
        command = [*(BEHIND if behind else ()), *(str(part) for part in argv)]
        done = subprocess.run(command, cwd=cwd, stdout=said, stderr=subprocess.STDOUT, check=False)
    done.check_returncode()


@contextmanager
def shown() -> Iterator[IO[str]]:
    """A file for what a command says, which is shown at the end."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        yield said
        said.seek(0)
        sys.stdout.write(said.read())
    sys.stdout.flush()


@frozen
class Alone:
    """A Python of its own that sees one plugin. template: imports what every plugin's tests import, and forks."""

    python: Path
    paths: Sequence[Path]
    template: Template | None

    def run(self, module: str, *argv: str | Path, cwd: Path, behind: bool) -> None:
        """As `run`, of a module."""
        words = [str(self.python), "-m", module, *map(str, argv)]
        if self.template is None:
            run(*words, cwd=cwd, behind=behind)
            return
        job = {
            "run": {"mod_name": module},
            "words": words,
            "argv": words[1:2] + words[3:],
            "python": words[0],
            "path": [str(each) for each in (cwd, *self.paths)],
            "env": dict(os.environ),
            "folder": str(cwd),
            "session": False,
            "parent": os.getpid(),
            "limits": [],
            "cpus": sorted(os.sched_getaffinity(0)),
            "nice": LATER if behind else 0,
        }
        with shown() as said, Path(os.devnull).open() as nothing:
            process = self.template.fork(job, [nothing.fileno(), said.fileno(), said.fileno()])
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code:
            raise subprocess.CalledProcessError(code, words)


def make_python(folder: Path, paths: Sequence[Path], template: Template | None) -> Alone:
    """A Python of its own, every process of which sees this one's libraries and `paths`, whatever its environment."""
    venv.create(folder, symlinks=True, clear=True)
    (site,) = folder.glob("lib/python*/site-packages")
    mine = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
    (site / "neox-under-test.pth").write_text("\n".join([mine, *map(str, paths), ""]), encoding="utf-8")
    return Alone(folder / "bin" / "python", [site, *paths], template)
