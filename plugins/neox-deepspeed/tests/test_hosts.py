"""Hostfiles, filters and counts, next to what DeepSpeed's own launcher makes of them."""

from collections.abc import Iterable, Mapping

import pytest
from deepspeed.launcher import runner
from hypothesis import given, settings
from hypothesis import strategies as st

from neox_core.config.problem import MisfitError
from neox_core.plan.hosts import exclude, first, include, read_hostfile

# DeepSpeed accepts more: text behind `slots=N`, a host in a filter twice, more hosts or
# slots than there are; neox refuses these: tests/unit/plan/test_hosts.py.
hosts = st.lists(st.sampled_from([f"worker-{index}" for index in range(5)]), min_size=1, max_size=4, unique=True)
slots = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def pools(draw: st.DrawFn) -> dict[str, int]:
    return {host: draw(st.integers(1, 4)) for host in draw(hosts)}


@st.composite
def filters(draw: st.DrawFn) -> str:
    items = [(host, draw(slots)) for host in draw(hosts)]
    return "@".join(f"{host}:{','.join(map(str, chosen))}" if chosen else host for host, chosen in items)


def plain(pool: Mapping[str, Iterable[int]]) -> list[tuple[str, tuple[int, ...]]]:
    return [(host, tuple(slots)) for host, slots in pool.items()]


@settings(deadline=None)
@given(pools())
def test_hostfiles_as_deepspeed_reads_them(tmp_path_factory: pytest.TempPathFactory, pool: dict[str, int]) -> None:
    file = tmp_path_factory.getbasetemp() / "hostfile"
    file.write_text("# pool\n" + "".join(f"{host} slots={count}\n\n" for host, count in pool.items()))
    mine, problems = read_hostfile(file)
    assert problems == []
    assert plain(mine) == plain(runner.parse_inclusion_exclusion(runner.fetch_hostfile(str(file)), "", ""))


@settings(deadline=None)
@given(pools(), filters(), st.booleans())
def test_filters_as_deepspeed_reads_them(pool: dict[str, int], text: str, inclusive: bool) -> None:
    mine = {host: tuple(range(count)) for host, count in pool.items()}
    try:
        theirs = runner.parse_inclusion_exclusion(pool, text if inclusive else "", "" if inclusive else text)
    except ValueError:
        theirs = {}
    if not theirs:  # it refuses, or continues without any host
        with pytest.raises(MisfitError):
            (include if inclusive else exclude)(mine, text)
    else:
        assert plain((include if inclusive else exclude)(mine, text)) == plain(theirs)


@settings(deadline=None)
@given(pools(), st.integers(1, 4), st.integers(1, 4))
def test_counts_as_deepspeed_reads_them(pool: dict[str, int], num_nodes: int, num_gpus: int) -> None:
    mine = {host: tuple(range(count)) for host, count in pool.items()}
    num_nodes = min(num_nodes, len(pool))
    num_gpus = min(num_gpus, *pool.values(), num_gpus)
    theirs = runner.apply_num_nodes_and_gpus(dict(mine), num_nodes, num_gpus)
    assert plain(first(mine, num_nodes, num_gpus)) == plain(theirs)
