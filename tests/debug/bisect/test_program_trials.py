from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from ocrlab.debug.bisect import factors, program_trials, sample_lists
from ocrlab.errors import ConfigError


def test_each_key_in_which_two_files_differ_is_a_factor(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("a: {b: 1, c: [1, 2]}\nd: x\nonly: true\nsame: 0\n")
    (tmp_path / "good.yaml").write_text("a: {b: 2, c: [1]}\nd: x\nsame: 0\nnew: {deep: 1}\n")
    words = [f"cfg={tmp_path / 'bad.yaml'}:{tmp_path / 'good.yaml'}", "w=4:0"]
    flips = program_trials.split_config_files(factors.parse_factors(words))
    sides = [(factor.name, factor.bad, factor.good) for factor in flips]
    assert sides == [
        ("a.b", "1", "2"),
        ("a.c", "[1, 2]", "[1]"),
        ("only", "true", "(absent)"),
        ("new.deep", "(absent)", "1"),
        ("w", "4", "0"),
    ]
    start = program_trials.starter(["train.py", "--config={cfg}", "{w}"], flips)
    (factor, env) = start(0b00001, None, tmp_path / "one")
    assert (factor[2], env) == ("0", {})
    content = yaml.safe_load(Path(factor[1].partition("=")[2]).read_text())
    assert content == {"a": {"b": 1, "c": [1]}, "d": "x", "same": 0, "new": {"deep": 1}}
    whole, _ = start(0b11111, None, tmp_path / "two")
    assert yaml.safe_load(Path(whole[1].partition("=")[2]).read_text())["only"] is True


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib")
def test_toml_reads_back_as_it_was(tmp_path: Path) -> None:
    import tomllib

    text = 'lr = 0.1\nnames = ["a \\"b\\"", "ü"]\nwhen = 2026-11-25T08:00:00\n'
    text += '[a.b]\nc = true\nd = inf\n[[rows]]\n"x y" = 1\n'
    (tmp_path / "bad.toml").write_text(text, encoding="utf-8")
    (tmp_path / "good.toml").write_text(text.replace("c = true", "c = false"), encoding="utf-8")
    flips = program_trials.split_config_files(
        factors.parse_factors([f"c={tmp_path / 'bad.toml'}:{tmp_path / 'good.toml'}"])
    )
    assert [(factor.name, factor.bad, factor.good) for factor in flips] == [("a.b.c", "true", "false")]
    for run, name in ((1, "bad"), (0, "good")):
        words, _ = program_trials.starter(["train.py", "{c}"], flips)(run, None, tmp_path / f"run-{run}")
        written = tomllib.loads(Path(words[1]).read_text(encoding="utf-8"))
        assert written == tomllib.loads((tmp_path / f"{name}.toml").read_text(encoding="utf-8"))


def test_files_that_cannot_be_taken_apart_are_refused(tmp_path: Path) -> None:
    for name, content in (("a", {"x": 1}), ("b", {"x": 1}), ("c", [1]), ("d", {"w": 2})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))

    def split(bad: str, good: str, *more: str) -> object:
        words = [f"f={tmp_path / bad}.json:{tmp_path / good}.json", *more]
        return program_trials.split_config_files(factors.parse_factors(words))

    with pytest.raises(ConfigError, match="have the same content"):
        split("a", "b")
    with pytest.raises(ConfigError, match="has no keys to compare"):
        split("a", "c")
    with pytest.raises(ConfigError, match="Two factors are called"):
        split("a", "d", "x=1:0")
    with pytest.raises(ConfigError, match="z.json does not exist"):
        split("a", "z")


def test_a_section_that_is_null_or_gone_on_the_other_side(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("ema: {decay: 0.9, every: 2}\nplan: {kind: cos, warmup: 5}\nlr: 1\nclip: {}\n")
    (tmp_path / "good.yaml").write_text("plan: null\nlr: 1.0\nclip: {}\n")
    flips = program_trials.split_config_files(
        factors.parse_factors([f"c={tmp_path / 'bad.yaml'}:{tmp_path / 'good.yaml'}"])
    )
    assert [factor.name for factor in flips] == ["ema.decay", "ema.every", "plan", "lr"]
    assert (flips[2].good, flips[3].bad, flips[3].good) == ("null", "1", "1.0")
    start = program_trials.starter(["train.py", "{c}"], flips)

    def written(run: int) -> object:
        words, _ = start(run, None, tmp_path / str(run))
        return yaml.safe_load(Path(words[1]).read_text())

    assert written(0b0000) == {"plan": None, "lr": 1.0, "clip": {}}
    assert written(0b1110) == {"ema": {"every": 2}, "plan": {"kind": "cos", "warmup": 5}, "lr": 1, "clip": {}}


FLIPS = factors.parse_factors(["workers=8:0", "OMP_NUM_THREADS=8:1", "amp=--amp:"])


def test_words_are_filled_in_and_the_rest_is_environment() -> None:
    start = program_trials.starter(["train.py", "--workers={workers}", "{amp}", "", "x{y}z{"], FLIPS)
    assert start(0b111, None, Path()) == (["train.py", "--workers=8", "--amp", "", "x{y}z{"], {"OMP_NUM_THREADS": "8"})
    assert start(0, None, Path()) == (["train.py", "--workers=0", "", "x{y}z{"], {"OMP_NUM_THREADS": "1"})


def test_a_name_in_braces_that_is_no_factor_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a factor"):
        program_trials.starter(["train.py", "--workers={worker}"], FLIPS)


@pytest.mark.parametrize("words", [["--workers", "8"], ["--workers=8"], ["workers=8"]])
def test_a_value_that_was_left_in_the_command_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="never be flipped"):
        program_trials.starter(["train.py", *words], FLIPS)


def test_samples_that_the_command_does_not_take_are_refused(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a\nb\n")
    samples = sample_lists.read_samples(f"rows={tmp_path / 'list.txt'}")
    with pytest.raises(ConfigError, match="never be flipped") as error:
        program_trials.starter(["train.py", "--list", str(tmp_path / "list.txt")], [], samples)
    assert "Needed: {rows}" in str(error.value)
    assert program_trials.starter(["train.py"], [], samples)(0, None, tmp_path)[1] == {
        "rows": str(tmp_path / "list.txt")
    }
