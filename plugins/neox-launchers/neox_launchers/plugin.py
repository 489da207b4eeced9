"""What neox-launchers offers."""

from neox_core.api import Component, hookimpl


def _offer(
    name: str, target: str, summary: str, settings: str = "host_settings:HostSettings", planner: str | None = None
) -> Component:
    where = f"neox_launchers.{settings}"
    return Component(name, f"neox_launchers.{target}", where, summary=summary, needs=("torch",), planner=planner)


@hookimpl
def neox_launchers() -> list[Component]:
    return [
        _offer(
            "local",
            "local:local",
            "One process a rank on this machine, watched by torch's elastic agent",
            "settings:LauncherSettings",
        ),
        _offer(
            "pdsh", "pdsh:pdsh", "The same on each host of a hostfile, over ssh", settings="host_settings:PdshSettings"
        ),
        _offer("openmpi", "mpi:openmpi", "The same on each host of a hostfile, by mpirun"),
        _offer("mvapich", "mpi:hydra", "The same by the mpirun of MVAPICH"),
        _offer("mpich", "mpi:hydra", "The same by the mpirun of MPICH"),
        _offer("impi", "mpi:intel", "The same by the mpirun of Intel MPI"),
        _offer(
            "slurm",
            "slurm:slurm",
            "The same on each host of a Slurm allocation, by srun",
            "host_settings:SlurmSettings",
            "neox_launchers.allocation:allocation",
        ),
    ]
