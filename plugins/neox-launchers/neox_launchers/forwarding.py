"""Which variables of this machine other hosts get: one rule, whatever starts their agents. Light: runs on the host."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from attrs import define, field

from neox_core.errors import ConfigError, UsageError
from neox_core.files import read_bytes
from neox_launchers.host_settings import HostSettings

LISTED = (
    *("CUDA_", "DS_", "FI_", "GLOO", "HF_", "LD_LIBRARY_PATH", "MLFLOW", "MV2", "NCCL"),
    *("PYTHON", "TORCH", "TRITON_", "UCX", "WANDB_"),
)
"""Beginnings of the names of variables that every host gets."""
OF_ONE_HOST = ("CUDA_VISIBLE_DEVICES",)
"""Not of the list, since they are right on one machine."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET_PARTS = re.compile(
    r"(^|_)(AUTH|AUTHORIZATION|COOKIES?|CREDENTIALS?|CREDS?|PASS|PASSPHRASE|PRIVATE|PWD|SAS"
    r"|[A-Z0-9]*(KEYS?|PASSWD|PASSWORDS?|SECRETS?|TOKENS?))(_|$)",
    re.IGNORECASE,
)
LOGIN = re.compile(r"://[^/@\s]*:[^/@\s]*@")
"""A user and a password in an address."""
PRIVATE = ".environment"
MAX_BYTES = 1 << 20


@define
class Forwarded:
    """What other hosts get, and why not more.

    * shown: name -> value, on the command line.
    * private: those that look like secrets and were asked for by name; in a file that only the user can read.
    * withheld: names of the list or of a pattern that look like secrets.
    * files: of `.deepspeed_env`, that were read.
    """

    shown: dict[str, str] = field(factory=dict)
    private: dict[str, str] = field(factory=dict)
    withheld: list[str] = field(factory=list)
    files: list[str] = field(factory=list)

    def in_words(self) -> tuple[str, ...]:
        """Lines for `--dry-run`. No value."""
        said = {
            "the hosts get": [*self.shown],
            f"the hosts get in {PRIVATE}, a file for its user alone": [*self.private],
            "the hosts do not get, because it looks like a secret (launcher-env can name it)": self.withheld,
            "the hosts get what is written in": self.files,
        }
        return tuple(f"{what}: {', '.join(names)}" for what, names in said.items() if names)


def forwarded(settings: HostSettings, environ: Mapping[str, str], folder: Path | None = None) -> Forwarded:
    """The variables that are listed, those of `launcher-env`, and those of `.deepspeed_env`, which win.

    environ: of this process. folder: the current one. Raises ConfigError for a variable of `launcher-env` that is not
    set, and for a line of `.deepspeed_env` that sets none.
    """
    named = [each for each in settings.launcher_env if not each.endswith("*")]
    missing = [each for each in named if each not in environ]
    if missing:
        raise ConfigError(f"launcher-env: {missing[0]} is not set here", hint=f"export {missing[0]}, or leave it out")
    beginnings = (*LISTED, *(each[:-1] for each in settings.launcher_env if each.endswith("*")))
    found = Forwarded()
    for name, value in sorted(environ.items()):
        if not NAME.fullmatch(name):  # a function of bash
            continue
        if name in named:
            _take(found, name, value)
        elif name.startswith(beginnings) and name not in OF_ONE_HOST:
            if looks_secret(name, value):
                found.withheld.append(name)
            else:
                found.shown[name] = value
    for name, value in _of_files(found.files, environ, Path() if folder is None else folder).items():
        _take(found, name, value)
    return found


def looks_secret(name: str, value: str = "") -> bool:
    """Whether a variable is to be kept from others, by its name or by a password in an address."""
    return bool(SECRET_PARTS.search(name) or LOGIN.search(value))


def write_private(run_dir: Path, private: Mapping[str, str]) -> None:
    """For the agents of all hosts, until they have met."""
    remove_private(run_dir)
    if private:
        with os.fdopen(os.open(run_dir / PRIVATE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            json.dump(dict(private), opened)


def read_private(run_dir: Path) -> dict[str, str]:
    """The variables that `write_private` left for the ranks; none where there is no file."""
    try:
        read: dict[str, str] = json.loads(read_bytes(run_dir / PRIVATE, MAX_BYTES))
    except FileNotFoundError:
        return {}
    except ValueError:
        raise UsageError(f"{run_dir / PRIVATE} cannot be read", hint="start the hosts with `neox train`") from None
    return read


def remove_private(run_dir: Path) -> None:
    """Remove what `write_private` wrote."""
    (run_dir / PRIVATE).unlink(missing_ok=True)


def _take(found: Forwarded, name: str, value: str) -> None:
    """A variable that was asked for by name."""
    for each in (found.shown, found.private):
        each.pop(name, None)
    if name in found.withheld:
        found.withheld.remove(name)
    (found.private if looks_secret(name, value) else found.shown)[name] = value


def _of_files(read: list[str], environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What `.deepspeed_env` sets: that of the home folder, then that of the current one, as DeepSpeed reads them."""
    name, pairs = environ.get("DS_ENV_FILE", ".deepspeed_env"), {}
    for file in dict.fromkeys((Path(environ.get("HOME", "~")).expanduser() / name, folder / name)):
        if not file.is_file():
            continue
        read.append(str(file))
        try:
            lines = read_bytes(file, MAX_BYTES).decode("utf-8").splitlines()
        except (OSError, ValueError):
            raise ConfigError(f"{file}: cannot be read as text", hint="lines such as: NCCL_DEBUG=INFO") from None
        for number, line in enumerate(map(str.strip, lines), 1):
            key, equals, value = line.partition("=")
            if not line or line.startswith("#"):
                continue
            if not equals or not NAME.fullmatch(key.strip()) or "\0" in value:
                raise ConfigError(f"{file}:{number}:1: sets no variable", hint="lines such as: NCCL_DEBUG=INFO")
            pairs[key.strip()] = value.strip()
    return pairs
