"""`python -m neox_doctor.gpus`: what torch sees, as a JSON object."""

import json
from pathlib import Path
from typing import Any

from neox_core.terminal import echo

DRIVER = Path("/proc/driver/nvidia/version")


def look() -> dict[str, Any]:
    """What torch finds: its CUDA, the driver, the GPUs by name, NCCL."""
    import torch

    driver = DRIVER.read_text(encoding="utf-8", errors="replace").splitlines()[0] if DRIVER.exists() else None
    found: dict[str, Any] = {"built": torch.version.cuda, "driver": driver, "gpus": {}, "nccl": None}
    if torch.cuda.is_available():
        for device in range(torch.cuda.device_count()):
            name = torch.cuda.get_device_name(device)
            found["gpus"][name] = found["gpus"].get(name, 0) + 1
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


if __name__ == "__main__":
    echo(json.dumps(look()))
