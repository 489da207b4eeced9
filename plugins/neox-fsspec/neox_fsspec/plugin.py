"""What neox-fsspec offers."""

from neox_core.api import Component, hookimpl

_CHECKPOINTS = "neox_fsspec.checkpoints:Checkpoints"


@hookimpl
def neox_stores() -> list[Component]:
    return [
        Component(
            "file",
            "neox_fsspec.folder:Folder",
            summary="A folder as a store: file:///mnt/disk/run",
            planner=_CHECKPOINTS,
        ),
        Component(
            "s3",
            "neox_fsspec.objects:s3",
            summary="S3 and servers like it: s3://bucket/run",
            needs=("s3fs",),
            planner=_CHECKPOINTS,
        ),
    ]
