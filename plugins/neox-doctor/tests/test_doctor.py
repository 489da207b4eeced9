"""`neox doctor` beside what is really wrong: a taken port, limits, folders, a torch that ends its process, hosts."""

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from neox_doctor.finding import Finding
from neox_doctor.hosts import Asked, differences

from neox_core.interpreter import python

NEOX = python("neox_core")

SMALL_TORCH = """
class version: cuda = None
class cuda:
    def is_available(): return False
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def torch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch that is imported at once; the first test has the real one."""
    place = tmp_path_factory.mktemp("torch")
    (place / "torch.py").write_text(SMALL_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(place))
    return place / "torch.py"


def doctor(*arguments: object, before: str = "", **env: str) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code, and the findings by subject."""
    words = [*NEOX, "doctor", "--json", *map(str, ("--port", free_port(), *arguments))]
    shell = ["sh", "-c", f'{before or ":"}; exec "$@"', "sh"]
    done = subprocess.run([*shell, *words], env={**os.environ, **env}, capture_output=True, check=False, timeout=120)
    assert done.stderr == b"", done.stderr
    return done.returncode, {each["subject"]: each for each in json.loads(done.stdout)["findings"]}


def test_lines_for_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH")
    words = [*NEOX, "doctor", "--port", str(free_port())]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert any(line.startswith("ok      GPUs: ") for line in done.stdout.splitlines())
    assert f"ok      python: {sys.version.split()[0]}" in done.stdout.splitlines()
    assert done.stderr == ""


def test_an_empty_folder_is_not_the_current_one(tmp_path: Path) -> None:
    done = subprocess.run([*NEOX, "doctor", "--save", ""], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "'--save': it is empty; name a folder" in done.stderr


def test_what_a_shell_limits_and_what_others_use(tmp_path: Path) -> None:
    code, found = doctor(before="ulimit -n 256")
    assert (code, found["open files"]["state"]) == (0, "warning")
    assert found["open files"]["found"].startswith("256")
    assert "ulimit -n" in found["open files"]["hint"]
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        code, found = doctor("--port", taken.getsockname()[1])
    assert (code, found["port"]["state"]) == (1, "fix")
    assert found["open files"]["found"].split(",")[0] != "256"


def test_the_folder_of_checkpoints_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    save = tmp_path / "new" / "folder"
    code, found = doctor("--save", save)
    assert (code, found[f"save, {save}"]["state"]) in ((0, "ok"), (0, "warning"))
    assert "locks and renaming work" in found[f"save, {save}"]["found"]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    code, found = doctor("--save", tmp_path / "file" / "below")
    assert (code, found[f"save, {tmp_path}/file/below"]["state"]) == (1, "fix")


def test_a_torch_that_ends_its_process_is_named(torch: Path) -> None:
    torch.write_text("import os\nos.abort()")
    code, found = doctor()
    assert code == 1
    assert found["torch"]["found"] == "cannot be used: exit code -6"
    torch.write_text("raise ImportError('libcudart \\x1b[31m is missing')")
    code, found = doctor()
    assert found["torch"]["found"] == "cannot be used: ImportError: libcudart \\x1b[31m is missing"


def test_a_plugin_that_is_switched_off_by_a_wrong_name_is_to_be_mended() -> None:
    code, found = doctor(NEOX_PLUGINS_DISABLE="neox-typo")
    assert (code, found["plugin"]["state"]) == (1, "fix")
    assert "neox-typo, which is not installed" in found["plugin"]["found"]


def test_secrets_are_not_shown() -> None:
    _, found = doctor(WANDB_API_KEY="do-not-tell", NCCL_DEBUG="INFO")
    assert "NCCL_DEBUG=INFO" in found["environment"]["found"]
    assert "do-not-tell" not in json.dumps(found)


def test_hosts_that_differ_are_named_with_what_differs() -> None:
    def host(torch: str, skew: float = 0.0) -> Asked:
        return Asked(
            [Finding("ok", "torch", torch, same=torch), Finding("ok", "plugins", "2 work", same="a 1 b 2")], skew
        )

    hosts = {
        "one": host("2.13.0"),
        "two": host("2.12.0"),
        "three": host("2.13.0", -3600.0),
        "four": host("2.13.0", 1.0),
    }
    found = {each.subject: each for each in differences(hosts)}
    assert set(found) == {"torch on two", "clock of three"}
    assert (found["torch on two"].state, found["torch on two"].found) == ("fix", "2.12.0; most hosts have 2.13.0")
    assert (found["clock of three"].state, found["clock of three"].found) == ("warning", "3600 s behind")
    assert list(differences({"one": host("1"), "two": Asked([], 0.5)})) == []


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("sshd"), reason="needs root and sshd")
def test_every_host_is_asked_over_ssh_and_one_that_is_off_is_a_line(tmp_path: Path) -> None:
    port = free_port()
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key], check=True)
    listen = "".join(f"ListenAddress 127.0.0.{number}\n" for number in (1, 2))
    (tmp_path / "config").write_text(
        f"Port {port}\n{listen}HostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\nStrictModes no\n"
        f"PidFile {tmp_path}/pid\nUsePAM no\nPasswordAuthentication no\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    options = f"-p {port} -i {tmp_path}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile={tmp_path}/known"
    (tmp_path / "hosts").write_text("".join(f"127.0.0.{number} slots=1\n" for number in (1, 2, 3)))
    with ExitStack() as stack:
        daemon = stack.enter_context(subprocess.Popen([shutil.which("sshd") or "", "-D", "-f", tmp_path / "config"]))
        stack.callback(daemon.terminate)
        while socket.socket().connect_ex(("127.0.0.2", port)):
            assert daemon.poll() is None
        words = [*NEOX, "doctor", "--hostfile", tmp_path / "hosts", "--port", str(free_port()), "--json"]
        env = {**os.environ, "PDSH_SSH_ARGS_APPEND": f"{options} -o LogLevel=ERROR"}
        done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    answer = json.loads(done.stdout)
    by_host = {host: {each["subject"]: each for each in found} for host, found in answer["hosts"].items()}
    assert done.returncode == 1
    assert set(by_host["127.0.0.1"]) == set(by_host["127.0.0.2"]) > {"python", "torch", "memory", "port"}
    assert "Connection refused" in by_host["127.0.0.3"]["ssh"]["found"]
    assert answer["between"] == []


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("Welcome to node 7", "its answer cannot be read: "),
        ('{"findings": [], "clock": "now"}', "its answer cannot be read: 127.0.0.1: "),
        ('{"findings": [{"state": "fine"}], "clock": 1.0}', "its answer cannot be read: 127.0.0.1: "),
        ("$(yes | head -c 3000000)", "its answer cannot be read: the answer is longer than a megabyte"),
    ],
)
def test_a_host_that_answers_something_else_is_a_line(tmp_path: Path, said: str, found: str) -> None:
    """A stand-in for ssh, since no honest host answers so."""
    (tmp_path / "ssh").write_text(f"#!/bin/sh\ncat <<END\n{said}\nEND\n")
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "hosts").write_text("127.0.0.1 slots=1\n")
    words = [*NEOX, "doctor", "--hostfile", tmp_path / "hosts"]
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"fix     ssh: {found}" in done.stdout
    assert done.stderr == ""


@pytest.mark.skipif(not shutil.which("ssh"), reason="needs ssh")
def test_hosts_that_do_not_answer_are_not_said_to_be_alike(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "hosts").write_text("".join(f"127.0.0.{number}:{port} slots=1\n" for number in (1, 2)))
    words = [*NEOX, "doctor", "--hostfile", tmp_path / "hosts"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"try: ssh ssh://127.0.0.2:{port} true" in done.stdout
    assert done.stdout.endswith("between hosts\nwarning hosts: 0 of 2 answered: there is nothing to compare\n")


def test_the_line_of_a_hostfile_that_is_wrong_is_named(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("one slots=2\ntwo\nthree slots=0\n")
    done = subprocess.run(
        [*NEOX, "doctor", "--hostfile", hosts], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {hosts}:2:1: 'two' is not a host, and 1 more\n")
