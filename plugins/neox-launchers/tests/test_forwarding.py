"""Which variables other hosts get: the rule. What real ranks find, test_hosts.py tries."""

from pathlib import Path

import pytest
from neox_author.testing import check_launcher, example_plan, load_only
from neox_launchers.forwarding import PRIVATE, Forwarded, forwarded, looks_secret, read_private, write_private
from neox_launchers.host_settings import HostSettings

from neox_core.errors import ConfigError


@pytest.mark.parametrize("launcher", ["pdsh", "openmpi", "mpich", "slurm"])
@pytest.mark.parametrize("asked", [(), ("NEOX_*",), ("NEOX_API_KEY",)])
def test_no_command_line_shows_a_secret(tmp_path, monkeypatch, launcher, asked):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    plan = example_plan(tmp_path, ranks=[2, 2])
    command = check_launcher(load_only("neox-launchers"), launcher, plan, launcher_env=asked)
    words = " ".join([*command.argv, *command.env])
    assert "NEOX_API_KEY" not in words
    assert "CUDA_VISIBLE_DEVICES" not in words
    said = [each for each in command.notes if "NEOX_API_KEY" in each]
    if asked:
        what = "do not get, because it looks like a secret" if asked[0].endswith("*") else f"get in {PRIVATE}"
        assert [what in each for each in said] == [True]
    else:
        assert not said


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "db_passwd", "MYSQL_PWD",
     "GOOGLE_APPLICATION_CREDENTIALS", "COMET_APIKEY", "HTTP_AUTHORIZATION", "SSH_PRIVATE"],
)  # fmt: skip
def test_names_that_look_like_secrets(name):
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name", ["NCCL_DEBUG", "TOKENIZERS_PARALLELISM", "PYTHONPATH", "HF_HOME", "KEYMAP", "UCX_TLS", "FI_PROVIDER"]
)
def test_names_that_do_not(name):
    assert not looks_secret(name)


def test_a_password_in_an_address_is_a_secret():
    assert looks_secret("HF_ENDPOINT", "https://me:word@hub.example/x")
    assert not looks_secret("HF_ENDPOINT", "https://hub.example:443/x@y")
    assert forwarded(HostSettings(), {"HF_ENDPOINT": "http://a:b@c"}, Path("/none")).withheld == ["HF_ENDPOINT"]


def test_a_variable_that_is_named_and_not_set_is_an_error():
    with pytest.raises(ConfigError, match="launcher-env: MINE is not set here"):
        forwarded(HostSettings(launcher_env=("MINE",)), {})
    assert forwarded(HostSettings(launcher_env=("MINE_*",)), {}, Path("/none")) == Forwarded()


@pytest.mark.parametrize("name", ["*", "A-B", "A=B", "", "A*B", "A\n", "1A", "A**"])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ValueError, match="names of variables"):
        HostSettings(launcher_env=(name,))


def test_the_file_is_read_as_deepspeed_reads_it(tmp_path):
    home, here = tmp_path / "home", tmp_path / "here"
    for folder, text in ((home, "A=1\nB=x=y \n\n# A=9\n"), (here, "A=2\nMY_TOKEN=t\n")):
        folder.mkdir()
        (folder / ".deepspeed_env").write_text(text)
    found = forwarded(HostSettings(), {"HOME": str(home), "NCCL_A": "n"}, here)
    assert found.shown == {"NCCL_A": "n", "A": "2", "B": "x=y"}
    assert found.private == {"MY_TOKEN": "t"}
    assert found.files == [str(home / ".deepspeed_env"), str(here / ".deepspeed_env")]
    (here / "other").write_text("C=3")
    assert forwarded(HostSettings(), {"HOME": str(home), "DS_ENV_FILE": "other"}, here).shown["C"] == "3"


@pytest.mark.parametrize("text", [b"NCCL_DEBUG\n", b"\xff=1\n", b"A B=1\n", b"=1\n", b"A=\0\n"])
def test_a_file_that_sets_no_variable_is_one_error(tmp_path, text):
    (tmp_path / ".deepspeed_env").write_bytes(text)
    with pytest.raises(ConfigError, match=r"\.deepspeed_env:(1:1: sets no variable| cannot be read as text)"):
        forwarded(HostSettings(), {"HOME": str(tmp_path / "none")}, tmp_path)


def test_the_file_for_the_hosts_is_for_its_user_alone(tmp_path):
    (tmp_path / PRIVATE).write_text("of a run before")
    (tmp_path / PRIVATE).chmod(0o644)
    write_private(tmp_path, {"A_KEY": 'a "b"'})
    assert (tmp_path / PRIVATE).stat().st_mode & 0o777 == 0o600
    assert read_private(tmp_path) == {"A_KEY": 'a "b"'}
    write_private(tmp_path, {})
    assert read_private(tmp_path) == {}
