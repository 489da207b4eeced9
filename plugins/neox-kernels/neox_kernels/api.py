"""What other plugins and benchmarks may use: the time and the traffic of a kernel."""

from neox_kernels.measure import times_of
from neox_kernels.roofline import Traffic, traffic_of

__all__ = ["Traffic", "times_of", "traffic_of"]
