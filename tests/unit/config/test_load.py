"""Files and --set to one mapping with places; every kind of bad input is one clear error."""

import json
from pathlib import Path
from typing import Any

import pytest

from neox_core.config.read.load import LastWins, load


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def messages(*files: Path, sets: tuple[str, ...] = ()) -> list[str]:
    return [f"{each.where}: {each.key}: {each.message}" for each in load(files, sets).problems]


NEOX_STYLE = """\
# A comment
{
   "pipe_parallel_size": 1, # another

   "optimizer": {
     "type": "Adam",
     "params": {
       "lr": 0.0006,
       "betas": [0.9, 0.95],
       "eps": 1.0e-8,
     }
   },
   "overlap_comm": True,
   "min-lr": 1e-5,
   "allgather-bucket-size": 5e8,
}
"""


def test_gpt_neox_flow_style_with_trailing_commas_and_comments(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yml", NEOX_STYLE)
    loaded = load([file])
    assert not loaded.problems
    assert loaded.values == {
        "pipe_parallel_size": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 0.0006, "betas": [0.9, 0.95], "eps": 1e-8}},
        "overlap_comm": True,
        "min_lr": 1e-5,
        "allgather_bucket_size": 5e8,
    }
    assert loaded.where("optimizer.params.lr") == f"{file}:8:8"
    assert loaded.where("min_lr") == f"{file}:14:4"
    assert loaded.spelled("min_lr") == "min-lr"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-5", 1e-5),
        ("5e8", 5e8),
        ("-1.5E+3", -1500.0),
        (".5", 0.5),
        ("010", 10),
        ("0x1f", 31),
        ("0o17", 15),
        ("-1_000", -1000),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("off", "off"),
        ("~", None),
        ("null", None),
        ("", None),
        ("'1'", "1"),
        ("2020-01-01", "2020-01-01"),
        ("12:30:45", "12:30:45"),
        ("969, 30, 1", "969, 30, 1"),
    ],
)
def test_yaml_1_2_scalars(tmp_path: Path, written: str, value: Any) -> None:
    read = load([write(tmp_path / "a.yml", f"key: {written}\n")])
    assert not read.problems
    assert read.values["key"] == value
    assert type(read.values["key"]) is type(value)


def test_infinity_and_nan_are_read_and_left_to_the_type_to_refuse(tmp_path: Path) -> None:
    values = load([write(tmp_path / "a.yml", "a: .inf\nb: -.INF\nc: .nan\n")]).values
    assert values["a"] == float("inf")
    assert values["b"] == float("-inf")
    assert values["c"] != values["c"]


@pytest.mark.parametrize(("name", "text"), [("a.yml", "lr: {}"), ("a.toml", "lr = {}"), ("a.json", '{{"lr": {}}}')])
def test_a_number_that_would_be_read_as_0_is_an_error(tmp_path: Path, name: str, text: str) -> None:
    for number in ("1e-400", "-0.002e-321"):
        (problem,) = load([write(tmp_path / name, text.format(number))]).problems
        assert "too close to 0" in problem.message + problem.hint
        assert problem.where.startswith(str(tmp_path / name))
    for number in ("0.0", "0e-400", "1e-320"):
        assert load([write(tmp_path / name, text.format(number))]).values == {"lr": float(number)}


def test_toml_yaml_and_json_read_alike(tmp_path: Path) -> None:
    expected = {
        "num_layers": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 0.1, "betas": [0.9, 0.95]}},
        "rope_fusion": False,
    }
    toml = 'num-layers = 2\nrope_fusion = false\n[optimizer]\ntype = "Adam"\nparams = {lr = 0.1, betas = [0.9, 0.95]}\n'
    files = [
        write(tmp_path / "a.toml", toml),
        write(tmp_path / "a.json", json.dumps(expected, indent=1)),
        write(tmp_path / "a.yaml", json.dumps(expected)),
    ]
    for file in files:
        loaded = load([file])
        assert not loaded.problems
        assert loaded.values == expected


def test_toml_and_json_know_lines(tmp_path: Path) -> None:
    toml = load([write(tmp_path / "a.toml", '\nnum-layers = 2\n[optimizer]\n"type" = "Adam"\n')])
    assert toml.where("num_layers") == f"{tmp_path}/a.toml:2:1"
    assert toml.where("optimizer.type") == f"{tmp_path}/a.toml:4:1"
    text = '{\n "num-layers": 2,\n "a": {"type": 1},\n "b": {"type": 2}\n}'
    found = load([write(tmp_path / "a.json", text)])
    assert found.where("num_layers") == f"{tmp_path}/a.json:2:2"
    assert found.where("a.type") == f"{tmp_path}/a.json", "two lines fit: then no line is better than a wrong one"


def test_the_same_key_in_two_spellings_is_one_key_at_every_depth(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yml", "a-b: {c-d: {e-f: 1}}\na_b: {c_d: {e_f: 1}}\n")
    loaded = load([file])
    assert loaded.values == {"a_b": {"c_d": {"e_f": 1}}}
    assert not loaded.problems


def test_two_spellings_with_different_values_name_both_places(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yml", "train-iters: 10\nseed: 1\ntrain_iters: 20\n")
    assert messages(file) == [
        f"{file}:3:1: train_iters: is given twice with different values; first at {file}:1:1 as train-iters"
    ]


def test_a_duplicate_key_is_an_error_even_with_one_value(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yml", "seed: 1\nseed: 1\n")
    assert messages(file) == [f"{file}:2:1: seed: is written twice; first at {file}:1:1"]
    nested = write(tmp_path / "b.json", '{"optimizer": {\n"type": "A",\n"type": "B"}}')
    assert messages(nested) == [f"{nested}:3:1: type: is written twice"]
    toml = write(tmp_path / "c.toml", "seed = 1\nseed = 2\n")
    assert "is not valid TOML: cannot overwrite a value" in messages(toml)[0]


def test_files_merge_key_by_key(tmp_path: Path) -> None:
    one = write(tmp_path / "a.yml", "seed: 1\noptimizer: {type: Adam}\n")
    two = write(tmp_path / "b.toml", "seed = 1\n[optimizer]\nparams = {lr = 0.1}\n")
    loaded = load([one, two])
    assert loaded.values == {"seed": 1, "optimizer": {"type": "Adam", "params": {"lr": 0.1}}}
    assert not loaded.problems


def test_files_that_disagree_name_both_places(tmp_path: Path) -> None:
    one = write(tmp_path / "a.yml", "optimizer: {type: Adam}\nflag: true\n")
    two = write(tmp_path / "b.yml", "\noptimizer: {type: Lion}\nflag: 1\n")
    assert messages(one, two) == [
        f"{two}:2:13: optimizer.type: is given twice with different values; first at {one}:1:13",
        f"{two}:3:1: flag: is given twice with different values; first at {one}:2:1",
    ]


def test_a_block_and_a_value_for_one_key_disagree(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.yml", "fp16: {enabled: true}\n"), write(tmp_path / "b.yml", "fp16: true\n")
    assert len(messages(one, two)) == 1
    assert len(messages(two, one)) == 1


def test_set_overrides_with_yaml_types_and_dotted_paths(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yml", "train-iters: 10\noptimizer: {type: Adam, params: {lr: 1}}\n")
    sets = ("train_iters=5e1", "optimizer.params.lr=1e-3", "optimizer.params.betas=[0.9, 0.95]", "split=1,1,1", "load=")
    loaded = load([file], sets)
    assert not loaded.problems
    assert loaded.values == {
        "train_iters": 50.0,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.9, 0.95]}},
        "split": "1,1,1",
        "load": None,
    }
    assert loaded.where("optimizer.params.lr") == "--set"
    assert loaded.where("optimizer.type") == f"{file}:2:13"


def test_set_replaces_a_block_as_a_whole_and_comes_in_order(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yml", "fp16: {enabled: true, hysteresis: 3}\nseed: 1\n")
    loaded = load([file], ("fp16={enabled: false}", "fp16.loss-scale=8", "seed={a: 1}", "new.block.key=1"))
    assert not loaded.problems
    assert loaded.values == {
        "fp16": {"enabled": False, "loss_scale": 8},
        "seed": {"a": 1},
        "new": {"block": {"key": 1}},
    }
    assert "fp16.hysteresis" not in loaded.places
    assert loaded.where("fp16.loss_scale") == loaded.where("fp16") == "--set"


def test_set_inside_a_block_leaves_the_place_of_the_block(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yml", "fp16: {enabled: true}\n")
    loaded = load([file], ("fp16.enabled=false",))
    assert loaded.where("fp16") == f"{file}:1:1"
    assert loaded.where("fp16.enabled") == "--set"


def test_set_twice_with_different_values_is_an_error() -> None:
    assert messages(sets=("seed=1", "seed=2")) == ["--set: seed: is given twice with different values"]


@pytest.mark.parametrize("text", ["seed", "=1", "a..b=1", ".a=1"])
def test_set_needs_a_key_and_a_value(text: str) -> None:
    assert messages(sets=(text,)) == [f"--set: : cannot read {text!r}"]


@pytest.mark.parametrize("key", ["optimizer.type", "''", "a.", ".a"])
def test_a_key_with_dots_is_told_how_to_be_written(tmp_path: Path, key: str) -> None:
    file = write(tmp_path / "a.yml", f"{key}: Adam\noptimizer: {{type: Lion}}\n")
    loaded = load([file])
    assert messages(file) == [f"{file}:1:1: {key}: is not a key: a key has no dots"]
    assert loaded.values == {"optimizer": {"type": "Lion"}}
    assert loaded.where("optimizer.type") == f"{file}:2:13"


BAD: dict[str, tuple[str, str | bytes, str]] = {
    "empty": ("a.yml", "", "a.yml: : is empty"),
    "blank": ("a.json", " \n", "a.json: : is empty"),
    "comment only": ("a.yml", "# nothing\n", "a.yml: : holds no keys"),
    "list": ("a.yml", "- a\n- b\n", "a.yml:1:1: : must hold keys with values, not a list"),
    "json list": ("a.json", "[1]", "a.json: : must hold an object"),
    "scalar": ("a.yml", "hello\n", "a.yml:1:1: : must hold keys with values, not a single value"),
    "not utf-8": ("a.yml", b"seed: 1\nsave: \xff\n", "a.yml:2:7: : is not UTF-8: byte 0xff"),
    "utf-16": ("a.yml", "seed: 1".encode("utf-16"), "a.yml:1:1: : is not UTF-8: byte 0xff"),
    "nul": ("a.yml", b"seed: 1\nsave: a\0b\n", "a.yml:2: : holds a NUL byte"),
    "unclosed": ("a.yml", "{\n 'seed': 1,\n", "a.yml:3:1: : is not valid YAML: while parsing a flow node"),
    "tab": ("a.yml", "a:\n\tb: 1\n", "a.yml:2:1: : is not valid YAML"),
    "two documents": ("a.yml", "a: 1\n---\nb: 2\n", "a.yml:2:1: : is not valid YAML"),
    "unknown anchor": ("a.yml", "a: *b\n", "a.yml:1:4: : is not valid YAML"),
    "toml syntax": ("a.toml", "seed = \n", "a.toml:1:8: : is not valid TOML: invalid value"),
    "json syntax": ("a.json", '{\n"seed": 1,\n}', "a.json:3:1: : is not valid JSON"),
    "python tag": ("a.yml", "save: !!python/object/apply:os.system [ls]\n", "a.yml:1:7: : the tag"),
    "own tag": ("a.yml", "save: !mine x\n", "a.yml:1:7: : the tag '!mine' is not read"),
    "binary": ("a.yml", "save: !!binary aGk=\n", "a.yml:1:7: : the tag"),
    "merge key": ("a.yml", "base: &b {c: 1}\nd:\n  <<: *b\n", "a.yml:3:3: <<: merge keys (<<) are not read"),
    "list as key": ("a.yml", "? [a]\n: 1\n", "a.yml:1:3: : a key must be plain text"),
    "forced number": ("a.yml", "seed: !!int many\n", "a.yml:1:7: : cannot read the number 'many'"),
    "forced truth": ("a.yml", "seed: !!bool yes\n", "a.yml:1:7: : cannot read the truth value 'yes'"),
    "yaml 1.1": ("a.yml", "# old\n%YAML 1.1\n---\nseed: yes\n", "a.yml:2: : is YAML 1.1, where `yes` and 010 are"),
    "recursive": ("a.yml", "a: &a\n  b: *a\n", "an alias refers to the block around it"),
    "deep": ("a.yml", "[" * 2000, "is nested too deeply"),
    "deep json": ("a.json", '{"a":' * 100_000, "is nested too deeply"),
    "deep toml": ("a.toml", "a = " + "[" * 2000, "is nested too deeply"),
    "large": ("a.yml", "a: " + "x" * (1 << 20), "is larger than 1 MiB"),
    "long": ("a.yml", "a: [" + "1," * 30_000 + "]", "holds too many values"),
    "ending": ("a.txt", "seed: 1", "a.txt: : is not a config file"),
    "huge number": ("a.json", '{"seed": ' + "9" * 5000 + "}", "number that is too long"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(tmp_path: Path, case: str) -> None:
    name, content, expected = BAD[case]
    found = messages(write(tmp_path / name, content))
    assert len(found) == 1
    assert expected in found[0]
    assert found[0].startswith(str(tmp_path))


def test_a_deep_path_of_set_is_one_clear_error() -> None:
    assert messages(sets=("a." * 5000 + "b=1",)) == ["--set: : is nested too deeply"]


def test_an_alias_bomb_does_not_expand(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    found = messages(write(tmp_path / "a.yml", "\n".join(lines)))
    assert len(found) == 1
    assert "expands to too many values" in found[0]


def test_plain_aliases_are_read(tmp_path: Path) -> None:
    loaded = load([write(tmp_path / "a.yml", "save: &folder out\nload: *folder\n")])
    assert loaded.values == {"save": "out", "load": "out"}


def test_missing_file_directory_and_unreadable(tmp_path: Path) -> None:
    (tmp_path / "folder.yml").mkdir()
    assert messages(tmp_path / "no.yml") == [f"{tmp_path}/no.yml: : cannot be read: no such file or directory"]
    assert messages(tmp_path / "folder.yml") == [f"{tmp_path}/folder.yml: : cannot be read: is a directory"]


def test_all_problems_of_all_files_are_in_one_report(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "a.yml", "seed: 1\nseed: 2\n"),
        tmp_path / "missing.yml",
        write(tmp_path / "b.json", "{"),
        write(tmp_path / "c.toml", "x = 1\n"),
    ]
    assert len(messages(*files, sets=("bad",))) == 4


def test_a_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    for name in ("a.yml", "a.json", "a.toml"):
        text = {"a.yml": "seed: 1\r\n", "a.json": '{"seed": 1}\r\n', "a.toml": "seed = 1\r\n"}[name]
        assert load([write(tmp_path / name, b"\xef\xbb\xbf" + text.encode())]).values == {"seed": 1}


def test_a_name_needs_no_yml(tmp_path: Path) -> None:
    write(tmp_path / "1.3B.yml", "a: 1\n")
    write(tmp_path / "plain", "a: 2\n")
    assert load([tmp_path / "1.3B"]).values == {"a": 1}
    assert load([tmp_path / "1.3B"]).files == (tmp_path / "1.3B.yml",)
    assert messages(tmp_path / "plain") == [f"{tmp_path}/plain: : is not a config file"]


def test_the_last_file_wins_where_it_may(tmp_path: Path) -> None:
    one = write(tmp_path / "one.yml", "a: 1\nb: {c: 1, d: 1}\ne: {f: 1}\n")
    two = write(tmp_path / "two.yml", "a: 2\nb: {c: 2}\ne: 3\n")
    loaded = load(LastWins([one, two]))
    assert loaded.values == {"a": 2, "b": {"c": 2, "d": 1}, "e": 3}
    assert [(each.key, each.severity) for each in loaded.problems] == [("a", "note"), ("b.c", "note"), ("e", "note")]
    assert loaded.where("b.c") == f"{two}:2:5"
    assert "e.f" not in loaded.places
    assert len([each for each in load([one, two]).problems if each.severity == "error"]) == 3
    twice = write(tmp_path / "twice.yml", "a-b: 1\na_b: 2\n")
    assert [each.severity for each in load(LastWins([twice])).problems] == ["error"]
