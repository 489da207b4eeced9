"""The same examination on every host of a hostfile, over ssh, and what the hosts do not have in common."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attrs import frozen

from neox_core.errors import NeoxError, RankError
from neox_core.interpreter import python
from neox_core.untrusted import parse_object, short, strict_converter, structured
from neox_doctor.finding import Examined, Finding

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")
SECONDS = 180
AT_ONCE = 32
MOST_BYTES = 1 << 20
SKEW = 2.0
"""Seconds that two clocks may differ, beside the time of the connection."""


@frozen
class Asked:
    """What came of asking a host. skew: its clock minus ours in seconds, uncertain by `within`.

    answered: whether the findings are its own.
    """

    findings: Sequence[Finding]
    skew: float = 0.0
    within: float = 0.0
    answered: bool = True


def ask_hosts(hosts: Sequence[str], options: Sequence[str]) -> Iterator[tuple[str, Asked]]:
    """Each host in its order, as soon as it has answered. options: of `neox doctor` there."""
    pool = ThreadPoolExecutor(min(AT_ONCE, len(hosts)))
    try:
        yield from zip(hosts, pool.map(lambda host: _ask(host, options), hosts), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def _ask(host: str, options: Sequence[str]) -> Asked:
    command = (
        f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(python('neox_core', 'doctor', '--json', *options))}"
    )
    own = shlex.split(os.environ.get("PDSH_SSH_ARGS_APPEND", ""))
    begun = time.time()
    try:
        done = subprocess.run(
            [*SSH, *own, "--", f"ssh://{host}", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return _unreachable("ssh is not installed", "install an ssh client")
    except subprocess.TimeoutExpired:
        return _unreachable(f"did not answer within {SECONDS} s", _try(host))
    took = time.time() - begun
    if done.returncode not in (0, 1):
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        hint = "neox has to be in the same folder on every host" if done.returncode != 255 else _try(host)
        return _unreachable(short(said[-1]), hint)
    try:
        if len(done.stdout) > MOST_BYTES:
            raise RankError("the answer is longer than a megabyte")
        raw = parse_object(done.stdout, Path(host), RankError)
        answer = structured(strict_converter(), raw, Examined, host, RankError)
    except NeoxError as error:
        return _unreachable(f"its answer cannot be read: {error.message}", f"look at what a login on {host} prints")
    return Asked(answer.findings, answer.clock - (begun + took), took)


def _unreachable(found: str, hint: str) -> Asked:
    return Asked([Finding("fix", "ssh", found, hint)], answered=False)


def _try(host: str) -> str:
    return f"try: ssh {f'ssh://{host}' if ':' in host else host} true"


def differences(asked: Mapping[str, Asked]) -> Iterator[Finding]:
    """What most hosts have and some have not, and clocks that differ."""
    values: dict[str, dict[str, str]] = {}
    for host, answer in asked.items():
        for finding in answer.findings:
            if finding.same:
                values.setdefault(finding.subject, {})[host] = finding.same
    for subject, by_host in values.items():
        usual, _ = Counter(by_host.values()).most_common(1)[0]
        for host, value in by_host.items():
            if value != usual:
                hint = "install the same on every host"
                yield Finding("fix", f"{subject} on {host}", _unlike(value, usual), hint)
    for host, answer in asked.items():
        if abs(answer.skew) > SKEW + answer.within:
            found = f"{abs(answer.skew):.0f} s {'ahead' if answer.skew > 0 else 'behind'}"
            yield Finding("warning", f"clock of {host}", found, "start a time service: times in logs will mislead")


def _unlike(value: str, usual: str) -> str:
    """Only the words that differ, of versions or of lists of them."""
    here, there = value.split(), usual.split()
    mine = " ".join(word for word in here if word not in there) or "nothing of this"
    theirs = " ".join(word for word in there if word not in here) or "nothing of this"
    return f"{short(mine)}; most hosts have {short(theirs)}"
