"""Commands and ranks that tests start are forks of a process that has imported torch, which takes 1.3 s each time.

`python -m neox_core ...`, `neox ...`, agents and ranks are processes of their own as ever, each a child of the one that
starts it, with its own arguments, environment, streams, folder and session. What almost every run imports of neox and
DeepSpeed is imported before, too; none of it has been used. Whatever else is asked for, such as another option of
Python, or a folder in the path with another neox, is started without this.
"""

import atexit
import ctypes
import faulthandler
import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from become_another import drop, forget_results, leave, let_signals_be, receive, show, written

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a script that started this in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else all that tests start would ignore Ctrl-C, too

MODULES = ("neox_core", "neox_core.cli.process", "neox_core.run.rank", "neox_launchers.elastic")
"""Those that are started so; of other modules, most import no torch."""
USUAL = (
    "neox_core.plan.resolve",
    "neox_core.run.run",
    "neox_launchers.torch_agent",
    "neox_gpt.architecture",
    "neox_plain.engine",
    "neox_deepspeed.pipeline",
)
"""What most runs import, where it is installed."""
AS_IT_IS = (None, None, True, (), None, None, None, 0, False, *[-1] * 6, True, None, None, None, -1, False)
"""How a process is started that gets what this one has, as `Popen._execute_child` is told."""
READ_ONCE = (
    "PYTHON",
    "LC_",
    "LANG",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "OMP_",
    "KMP_",
    "GOMP_",
    "MKL_",
    "OPENBLAS_",
    "TORCH_",
    "DEEPSPEED_",
)
"""How environment variables begin that Python, torch, neox and what they load read when they are loaded."""
MALLOC = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_MMAP_MAX_": -4}
"""Options of the C library, and their numbers for `mallopt`."""
MAY_DIFFER = {"PYTHONPATH", "PYTHONSAFEPATH", "OMP_NUM_THREADS", "TORCH_EXTENSIONS_DIR", *MALLOC}
MAY_DIFFER |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING"}
LIBRARIES = ("torch", "numpy")
"""What a fork of a fork keeps of what its parent has imported: their modules register things once for all."""
ROOM = 32000
"""Bytes of the command line and of the environment that others can see of a fork."""
PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import warm_start
del sys.path[0]
warm_start.main()
"""
"""The template. With -P, which its forks have too, a script does not find what stands beside it."""
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of `prctl`."""
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class Template:
    """A process that has imported torch, and forks for this one. more: modules that it imports, too."""

    def __init__(self, *more: str) -> None:
        self.environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self.owner = os.getpid()
        subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, str(theirs.fileno()), "torch", *more, "x" * ROOM],
            env={**self.environment, "NEOX_ROOM": "x" * ROOM},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    def fork(self, job: dict[str, Any], streams: Sequence[int]) -> int:
        """The id of a process that does the job. Of its forks' forks, an orphan becomes a child of this process."""
        text = json.dumps(job).encode()
        with self._lock:
            ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._socket, [len(text).to_bytes(4, "big")], streams)
                self._socket.sendall(text)
                return int.from_bytes(receive(self._socket, 4), "big")
            finally:
                ctypes.CDLL(None).prctl(SUBREAPER, 0, 0, 0, 0)


class Prepared(Template):
    """A template that is a fork of this process, which has not done anything yet: it need not import torch again."""

    def __init__(self) -> None:
        self.environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self.owner = os.getpid()
        if os.fork() == 0:
            self._socket.close()
            sys.path.remove(str(Path.cwd()))  # which is this process's own first place
            theirs.recv(1, socket.MSG_PEEK)  # until there is something to do, or the other process is gone
            serve(theirs, USUAL)
        theirs.close()


class Fork:
    """This process, which is a fork of the template: it forks itself."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.modules = frozenset(sys.modules)
        self.path = [*sys.path]
        self.owner = 0  # whoever it is

    def fork(self, job: dict[str, Any], streams: Sequence[int]) -> int:
        """The id of a child that does the job."""
        read, write = os.pipe()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        child = os.fork()
        if child == 0:
            let_signals_be()  # one that comes meanwhile is the child's, not for a handler of this process
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if child == 0:
            become(job, streams, self, lambda: os.write(write, b"."))
        os.close(write)
        os.read(read, 1)
        os.close(read)
        return child


class Start:
    """In the place of `Popen._execute_child`."""

    def __init__(self) -> None:
        self.as_ever = subprocess.Popen._execute_child
        self.source: Template | Fork | None = None

    def install(self) -> None:
        """From now on, in this process and all that it starts so."""

        def start(popen: Any, args: Any, *how: Any) -> None:
            job = self.job(args, *how)
            if job is None:
                self.as_ever(popen, args, *how)
                return
            if self.source is None or self.source.owner not in (0, os.getpid()):
                self.source = Template(*USUAL)
            pipes = how[9:15]  # of stdin, stdout and stderr, (to read, to write) each
            theirs = (pipes[0], pipes[3], pipes[5])
            popen.pid = self.source.fork(job, [own if fd == -1 else fd for own, fd in enumerate(theirs)])
            popen._child_created = True
            popen._close_pipe_fds(*pipes)

        subprocess.Popen._execute_child = start

    def job(self, args: Any, *how: Any) -> dict[str, Any] | None:
        """What a fork has to do; None where only a process from the beginning can be it."""
        executable, preexec_fn, close_fds, pass_fds, cwd, env, _, _, shell, *_ = how
        _, *who, umask, session = how[15:21]
        if executable or preexec_fn or not close_fds or pass_fds or shell or who != [None] * 3 or umask != -1:
            return None
        if how[21:] not in ((), (-1,)) or not isinstance(args, (list, tuple)):
            return None
        words = [os.fsdecode(each) for each in args]
        environment = dict(os.environ if env is None else env)
        before = os.environ if self.source is None else self.source.environment
        if environment.get("DS_ACCELERATOR", "cpu") != "cpu":  # DeepSpeed is imported for a CPU
            return None
        for key in {*environment, *before}:
            if key.startswith(READ_ONCE) and key not in MAY_DIFFER and environment.get(key) != before.get(key):
                return None
        folder = str(cwd or Path.cwd())
        safe = words[1:2] == ["-P"]
        python, option, *rest = [words[0], *words[1 + safe :], ""]
        if python == sys.executable and option == "-m" and rest[0] in MODULES:
            run, argv, first = {"mod_name": rest[0]}, ["-m", *rest[1:-1]], folder
        elif python == str(Path(sys.executable).with_name("neox")) and Path(python).exists():
            run, argv, first = {"path_name": python}, words, str(Path(python).parent)
        else:
            return None
        if not Path(folder).is_dir() or not all(isinstance(each, str) for each in environment.values()):
            return None
        safe = safe or bool(environment.get("PYTHONSAFEPATH"))
        path = [*([] if safe else [first]), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
        if any(has_another(Path(each)) for each in path):
            return None
        return {
            "run": run,
            "words": words,
            "argv": argv,
            "path": path,
            "env": environment,
            "folder": folder,
            "session": session,
            "parent": os.getpid(),
            "limits": [(each, resource.getrlimit(each)) for each in LIMITS],
            "cpus": sorted(os.sched_getaffinity(0)),
        }


def has_another(folder: Path) -> bool:
    """Whether a folder has a package of which a fork has the one that is installed."""
    return any((folder / name).is_dir() and folder.resolve() != place for name, place in places().items())


@cache
def places() -> dict[str, Path]:
    """The folder of each package that is imported before, by name."""
    specs = {name: find_spec(name) for name in (*{each.partition(".")[0] for each in USUAL}, "deepspeed")}
    return {name: Path(spec.origin).resolve().parents[1] for name, spec in specs.items() if spec and spec.origin}


START = Start()


def can_fork() -> bool:
    """Where torch is installed; elsewhere there is nothing to save."""
    return sys.platform == "linux" and sys.version_info >= (3, 11) and find_spec("torch") is not None


def install() -> None:
    if can_fork():
        START.install()


def become(job: dict[str, Any], streams: Sequence[int], source: Fork, ready: Callable[[], object]) -> NoReturn:
    """In the fork: be the process that was asked for. ready: called when it is so for other processes."""
    forget(source)
    let_signals_be()
    if job["session"]:
        os.setsid()
    for number, limit in job["limits"]:
        if resource.getrlimit(number) != tuple(limit):
            resource.setrlimit(number, limit)
    os.sched_setaffinity(0, job["cpus"])
    for own, fd in enumerate([os.dup(fd) for fd in streams]):
        os.dup2(fd, own)
    os.nice(job.get("nice", 0))
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ |= job["env"]
    show(job["words"], job["env"])
    ready()
    os.closerange(3, 1 << 16)
    for name in MALLOC.keys() & job["env"].keys():
        ctypes.CDLL(None).mallopt(MALLOC[name], int(job["env"][name]))
    begin(job, source)


def begin(job: dict[str, Any], source: Fork) -> NoReturn:
    """Run what is asked for, in a process that others take for it."""
    os.execv = partial(exec_in_place, os.execv, source)
    sys.path[:] = [*job["path"], *source.path]
    sys.argv[:] = job["argv"]
    sys.stdin = sys.__stdin__ = open(0, encoding=sys.stdin.encoding, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = written(1, "strict")
    sys.stderr = sys.__stderr__ = written(2, "backslashreplace")
    threads = job["env"].get("OMP_NUM_THREADS", "")
    sys.modules["torch"].set_num_threads(int(threads) if threads.isdigit() else len(job["cpus"]))
    if python := job.get("python"):  # that of another environment, whose processes are not forks of this one
        sys.executable = python
        sys.prefix = sys.exec_prefix = str(Path(python).parents[1])
        START.source = Prepared()
    leave(job["run"])


def exec_in_place(as_ever: Callable[..., Any], source: Fork, path: str, words: Sequence[str]) -> None:
    """In the place of `os.execv`: files without a place in the other program stay open."""
    job = START.job(words, *AS_IT_IS) if threading.active_count() == 1 else None
    if job is None:
        as_ever(path, words)
        return
    os.execv = as_ever
    forget(source)
    let_signals_be()
    show(job["words"], job["env"])
    begin(job, source)


def forget(source: Fork) -> None:
    """What the process that was forked knew beyond the libraries, without tearing any of it down."""
    gc.disable()
    START.source = source
    for name in [*sys.modules]:
        if name not in source.modules and name.partition(".")[0] not in LIBRARIES:
            drop(name)
        elif name.startswith("neox_"):
            forget_results(sys.modules[name])
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    threading._threading_atexits.clear()
    if pools := sys.modules.get("concurrent.futures.thread"):  # whose workers wait to be told that all ends
        threading._register_atexit(pools._python_exit)
    subprocess._active.clear()
    faulthandler.disable()
    signal.set_wakeup_fd(-1)
    sys.excepthook = sys.__excepthook__
    gc.freeze()
    gc.enable()


def serve(connection: socket.socket, modules: Sequence[str]) -> NoReturn:
    """In the template, which imports modules: a fork for each job, a child of the process that asked for it."""
    environment = dict(os.environ)
    import_before(modules)
    source = Fork(environment)
    while True:
        length, fds, *_ = socket.recv_fds(connection, 4, 3)
        if not length:  # the other process is gone
            os._exit(0)
        job = json.loads(receive(connection, int.from_bytes(length, "big")))
        middle = os.fork()
        if middle == 0:
            if os.fork():
                os._exit(0)
            while os.getppid() != job["parent"]:
                time.sleep(0.0002)
            become(job, fds, source, partial(connection.sendall, os.getpid().to_bytes(4, "big")))
        os.waitpid(middle, 0)
        for fd in fds:
            os.close(fd)


def import_before(modules: Sequence[str]) -> None:
    """Import what forks then have. Those that are run as a program are left out: Python warns of one that is there."""
    for each in modules:
        if each not in USUAL:
            import_module(each)
        elif find_spec(each.partition(".")[0]) is not None:
            import_module(each)
            if each.startswith("neox_deepspeed.") and not sys.modules["torch"].cuda.is_available():
                import_module("neox_deepspeed.silence_deepspeed").quiet_engine(debug=False)
                import_module("neox_deepspeed.patches").import_deepspeed("cpu")
    for each in {*sys.modules} & {*MODULES} - {"neox_core"}:
        drop(each)


def main() -> None:
    """Be the template: the command line has its socket, and what to import."""
    del os.environ["NEOX_ROOM"]
    START.install()
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:-1])
