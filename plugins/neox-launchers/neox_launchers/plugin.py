"""What neox-launchers offers."""

from neox_core.api import Component, hookimpl
from neox_launchers.settings import LauncherSettings


@hookimpl
def neox_launchers():
    return [
        Component(
            "local",
            "neox_launchers.local:local",
            LauncherSettings,
            summary="One process a rank on this machine, watched by torch's elastic agent",
            needs=("torch",),
        ),
        Component(
            "pdsh",
            "neox_launchers.pdsh:pdsh",
            LauncherSettings,
            summary="The same on each host of a hostfile, over ssh",
            needs=("torch",),
        ),
        Component(
            "openmpi",
            "neox_launchers.mpi:openmpi",
            LauncherSettings,
            summary="The same on each host of a hostfile, by mpirun",
            needs=("torch",),
        ),
        *(
            Component(
                name,
                "neox_launchers.mpi:hydra",
                LauncherSettings,
                summary=f"The same by the mpirun of {library}",
                needs=("torch",),
            )
            for name, library in (("mvapich", "MVAPICH"), ("mpich", "MPICH"), ("impi", "Intel MPI"))
        ),
        Component(
            "slurm",
            "neox_launchers.slurm:slurm",
            LauncherSettings,
            summary="The same on each host of a Slurm allocation, by srun",
            needs=("torch",),
        ),
    ]
