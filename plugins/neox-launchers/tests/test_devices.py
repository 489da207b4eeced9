"""Which devices the ranks of a host see, and in which order."""

import pytest
from neox_launchers.environment import visible_devices
from neox_launchers.nvlink import nvlink_order

from neox_core.errors import UsageError
from neox_core.plan.runfile import Host


def topology(size, links):
    """As `nvidia-smi topo -m` prints it, legend included."""
    head = "\t\x1b[4mGPU0\t" + "\t".join(f"GPU{each}" for each in range(1, size)) + "\tNIC0\tCPU Affinity\x1b[0m"
    cell = lambda row, column: links.get((row, column), links.get((column, row), "SYS"))  # noqa: E731
    rows = [
        f"GPU{row}\t" + "\t".join(" X " if row == each else cell(row, each) for each in range(size)) + "\tNODE\t0-31"
        for row in range(size)
    ]
    legend = ["NIC0\t" + "\t".join(["NODE"] * size) + "\t X ", "", "Legend:", "", "  NV#  = Connection by NVLinks"]
    return "\n".join([head, *rows, *legend])


@pytest.mark.parametrize(
    ("size", "links", "order"),
    [
        (4, {(0, 2): "NV4", (1, 3): "NV4"}, (0, 2, 1, 3)),
        (4, {}, (0, 1, 2, 3)),
        (4, {(row, column): "NV12" for row in range(4) for column in range(4)}, (0, 1, 2, 3)),
        (4, {(0, 1): "NV1", (0, 3): "NV2", (1, 2): "NV2"}, (0, 3, 1, 2)),
        (3, {(1, 2): "NV1"}, (1, 2, 0)),
        (4, {(0, 1): "PIX", (0, 3): "NV1"}, (0, 3, 1, 2)),
    ],
)
def test_linked_devices_are_neighbours(size, links, order):
    assert nvlink_order(topology(size, links), range(size)) == order


def test_only_devices_that_are_taken_are_paired():
    links = {(0, 2): "NV4", (1, 3): "NV4"}
    assert nvlink_order(topology(4, links), (0, 1, 3)) == (1, 3, 0)
    assert visible_devices(Host("a", 4), {}, topology(4, links)) == {"CUDA_VISIBLE_DEVICES": "0,2,1,3"}
    env = {"CUDA_VISIBLE_DEVICES": "3,2,1"}
    assert visible_devices(Host("a", 3), env, topology(4, links)) == {"CUDA_VISIBLE_DEVICES": "3,1,2"}
    with pytest.raises(UsageError, match="needs numbers"):
        visible_devices(Host("a", 1), {"CUDA_VISIBLE_DEVICES": "GPU-8a"}, topology(4, links))


@pytest.mark.parametrize(
    ("devices", "now", "visible"),
    [
        ((), None, None),
        ((0, 1), None, None),
        ((0, 1), "4,5,6", None),
        ((0, 2), None, "0,2"),
        ((1,), None, "1"),
        ((1, 2), "4,5,6", "5,6"),
    ],
)
def test_ranks_take_the_devices_that_were_chosen(devices, now, visible):
    environ = {} if now is None else {"CUDA_VISIBLE_DEVICES": now}
    expected = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_devices(Host("a", len(devices) or 2, devices), environ) == expected


def test_a_device_that_is_hidden_cannot_be_chosen():
    with pytest.raises(UsageError, match="shows 2 devices, and device 2 is asked for"):
        visible_devices(Host("a", 1, (2,)), {"CUDA_VISIBLE_DEVICES": "0,1"})
