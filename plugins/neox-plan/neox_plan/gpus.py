"""GPUs by name: what a plan needs to know of them. From the vendors' data sheets."""

from attrs import frozen
from neox_plain.api import PEAKS

from neox_core.errors import UsageError
from neox_core.untrusted import short


@frozen
class Gpu:
    """A GPU and its links.

    * tflops: dense, with 16-bit inputs. tflops_fp32: with fp32 inputs, without TF32.
    * gib: of memory. link, network: GB/s that it sends at once to the GPUs of its host, and to other hosts.
    """

    name: str
    tflops: float
    tflops_fp32: float
    gib: float
    link: float
    network: float


GPUS = {
    each.name: each
    for each in (
        Gpu("V100", *PEAKS["V100"], 32, 150, 12.5),
        Gpu("A100", *PEAKS["A100"], 80, 300, 25),
        Gpu("A100-40GB", *PEAKS["A100"], 40, 300, 25),
        Gpu("L4", *PEAKS["L4"], 24, 32, 12.5),
        Gpu("L40S", *PEAKS["L40S"], 48, 32, 25),
        Gpu("H100", *PEAKS["H100"], 80, 450, 50),
        Gpu("H200", *PEAKS["H200"], 141, 450, 50),
        Gpu("B200", *PEAKS["B200"], 180, 900, 50),
        Gpu("MI300X", *PEAKS["MI300X"], 192, 448, 50),
    )
}


def find_gpu(name: str) -> Gpu:
    """Raises UsageError for a name that is not in the table."""
    found = GPUS.get(name.upper())
    if found is None:
        raise UsageError(f"no GPU {short(name)!r} is known", hint=f"write one of {', '.join(GPUS)}")
    return found
