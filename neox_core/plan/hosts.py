"""The machine list of a job, filtered by include, exclude, num_nodes and num_gpus.

A hostfile has a line `NAME slots=N` for each machine, or `USER@NAME:PORT slots=N` with either part for the login over
ssh, which is not part of the name elsewhere; a slot is a device, or a process where there is none. A filter is
`NAME[:SLOT[,SLOT...]]`, joined by `@`: `worker-0@worker-1:0,2` is all of worker-0 and two slots of worker-1.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from neox_core.config.problem import MisfitError, Problem
from neox_core.files import read_bytes

DEFAULT_HOSTFILE = "/job/hostfile"

Pool = Mapping[str, tuple[int, ...]]
"""Host -> its slots, in the order of the hostfile, which is the order of the ranks."""

MAX_SLOTS = 1024
MAX_BYTES = 4 << 20
_NAME = r"\w[\w.-]{0,252}"  # what begins with - would be an option to ssh, and pdsh reads other signs
_LINE = re.compile(rf"(?P<host>({_NAME}@)?(?P<name>{_NAME})(:[1-9]\d{{0,4}})?)\s+slots=(?P<slots>\d+)", re.ASCII)


def name_of(host: str) -> str:
    """The name of a machine, of a host that may say a login: USER@NAME:PORT."""
    return host.rpartition("@")[2].partition(":")[0]


def read_hostfile(path: Path) -> tuple[Pool, list[Problem]]:
    """The pool, and what is wrong with the file, each with its line."""
    try:
        text = read_bytes(path, MAX_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        hint = "write lines such as: worker-0 slots=4; to run on this machine only, remove hostfile"
        return {}, [Problem(f"cannot read {path}: {reason}", "hostfile", hint)]
    pool: dict[str, tuple[int, ...]] = {}
    names, problems = set[str](), list[Problem]()
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        where, match = f"{path}:{number}:1", _LINE.fullmatch(entry)
        if match is None:
            problems.append(
                Problem(f"{entry!r} is not a host", "", "write: worker-0 slots=4, a line for each host", where)
            )
        elif match["name"] in names:
            problems.append(Problem(f"names {match['name']} a second time", "", "add the slots up on one line", where))
        elif len(match["slots"]) > 9 or int(match["slots"]) > MAX_SLOTS:
            problems.append(
                Problem(
                    f"gives {match['host']} more than {MAX_SLOTS} slots", "", "write one slot for each device", where
                )
            )
        elif int(match["slots"]) == 0:
            problems.append(Problem(f"gives {match['host']} no slot", "", "remove the line", where))
        else:
            names.add(match["name"])
            pool[match["host"]] = tuple(range(int(match["slots"])))
    if not pool and not problems:
        problems.append(Problem("names no host", "", "lines such as: worker-0 slots=4", str(path)))
    return pool, problems


def include(pool: Pool, text: str) -> Pool:
    """The hosts and slots of the pool that a filter names. Raises MisfitError for hosts or slots that are not in it."""
    named = _named(pool, text, "include")
    return {host: named[host] for host in pool if host in named}


def exclude(pool: Pool, text: str) -> Pool:
    """The pool without what a filter names. Raises MisfitError as `include`, and if nothing is left."""
    named = _named(pool, text, "exclude")
    rest = {host: tuple(each for each in slots if each not in named.get(host, ())) for host, slots in pool.items()}
    left = {host: slots for host, slots in rest.items() if slots}
    if not left:
        raise MisfitError("leaves no slot to run on", "exclude")
    return left


def first(pool: Pool, num_nodes: int, num_gpus: int) -> Pool:
    """The first hosts and the first slots of each; -1 is all of them. Raises MisfitError when there are fewer."""
    if num_nodes == 0 or num_nodes > len(pool):
        raise MisfitError(f"must be -1, or from 1 to {len(pool)}, the number of hosts; not {num_nodes}", "num_nodes")
    chosen = dict(list(pool.items())[: num_nodes if num_nodes > 0 else None])
    for host, slots in chosen.items():
        if num_gpus > len(slots):
            raise MisfitError(f"{host} has {len(slots)} slots, not {num_gpus}", "num_gpus")
    return {host: slots[: num_gpus if num_gpus > 0 else None] for host, slots in chosen.items()}


def _named(pool: Pool, text: str, key: str) -> dict[str, tuple[int, ...]]:
    """Host -> slots that a filter names, whole hosts with all they have."""
    found: dict[str, tuple[int, ...]] = {}
    hosts = {name_of(host): host for host in pool}
    for item in text.split("@"):
        name, colon, listed = item.strip().partition(":")
        host = hosts.get(name, name)
        if host not in pool:
            known = ", ".join(hosts)
            raise MisfitError(f"names host {host!r}, which is not one of {known}", key, "items are joined by @")
        if host in found:
            raise MisfitError(f"names host {host} twice", key, f"list its slots once, such as {host}:0,1")
        found[host] = _slots(pool, host, listed, key) if colon else pool[host]
    return found


def _slots(pool: Pool, host: str, listed: str, key: str) -> tuple[int, ...]:
    wanted = set()
    for slot in map(str.strip, listed.split(",")):
        if not slot.isdecimal() or int(slot) not in pool[host]:
            raise MisfitError(f"names slot {slot!r} of {host}, which has slots 0 to {len(pool[host]) - 1}", key)
        wanted.add(int(slot))
    return tuple(sorted(wanted))
