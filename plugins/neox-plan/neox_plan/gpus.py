"""GPUs by name: what a plan needs to know of them. From the vendors' data sheets."""

from attrs import frozen

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
        Gpu("V100", 125.0, 15.7, 32, 150, 12.5),
        Gpu("A100", 312.0, 19.5, 80, 300, 25),
        Gpu("A100-40GB", 312.0, 19.5, 40, 300, 25),
        Gpu("L4", 121.0, 30.3, 24, 32, 12.5),
        Gpu("L40S", 362.0, 91.6, 48, 32, 25),
        Gpu("H100", 989.0, 67.0, 80, 450, 50),
        Gpu("H200", 989.0, 67.0, 141, 450, 50),
        Gpu("B200", 2250.0, 80.0, 180, 900, 50),
        Gpu("MI300X", 1307.0, 163.4, 192, 448, 50),
    )
}


def find_gpu(name: str) -> Gpu:
    """Raises UsageError for a name that is not in the table."""
    found = GPUS.get(name.upper())
    if found is None:
        raise UsageError(f"no GPU {short(name)!r} is known", hint=f"write one of {', '.join(GPUS)}")
    return found
