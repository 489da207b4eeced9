"""The peaks of GPUs, by the name of the device. From the vendors' data sheets."""

PEAKS = {
    "B200": (2250.0, 80.0),
    "H200": (989.0, 67.0),
    "GH200": (989.0, 67.0),
    "H100 PCIe": (756.0, 51.0),
    "H100": (989.0, 67.0),
    "A100": (312.0, 19.5),
    "L40S": (362.0, 91.6),
    "L4": (121.0, 30.3),
    "A10": (125.0, 31.2),
    "V100": (125.0, 15.7),
    "T4": (65.0, 8.1),
    "RTX 4090": (165.0, 82.6),
    "RTX 3090": (71.0, 35.6),
    "MI300X": (1307.0, 163.4),
}
"""Dense TFLOP/s with 16-bit inputs, and with fp32 inputs without TF32. A name comes before the names within it."""
