"""Which implementation computes an op: a kernel of a plugin, or the reference in plain torch."""

from attrs import Factory, frozen

from neox_core.config.schema.setting import setting


@frozen
class KernelsSection:
    """Which code computes an op."""

    kernels: dict[str, str] = setting(
        Factory(dict),
        help="By op: auto, reference or the name of a kernel; `neox kernels list` shows them.",
        changes="speed",
    )
