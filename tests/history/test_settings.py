"""The quick reader of config.yaml says the same as the real one, and leaves to that what it does not know."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from ocrlab import config as configs
from ocrlab.errors import ConfigError
from ocrlab.history import settings
from ocrlab.settings.fields import flat


def plain(config: configs.Config) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in flat(config).items()}


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("optim.lr=1e-5", "optim.weight_decay=0", "data=/mnt/päges/a (1)", "trainer.max_minutes=1e6"),
        ("name='none'", "data=~/x: no", "runs=yes", "tracking.user=010", "augment.scale=[0.1,3]"),
        ("name=2026-11-22", "data=it's # not a comment", "val_split=.5", "train_split=- x"),
        ("data=" + "a long name " * 12 + "x",),
    ],
)
def test_what_save_writes_is_read_as_it_was(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "config.yaml"
    config = configs.load(overrides=list(words))
    configs.save(config, path)
    found = settings.parse(path.read_text(encoding="utf-8"), str(path))
    expected = plain(config)
    texts = {key: str(value) for key, value in expected.items()}
    assert {key: str(value) for key, value in found.items()} == texts or found == expected
    assert found.keys() == expected.keys()


def test_the_usual_config_never_needs_the_real_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_parsed", lambda path: pytest.fail("the real parser was asked"))
    for words in ([], ["data=/mnt/data/päges (1)", "optim.lr=1e-5", "name=none of it", "post.unclip=1.5"]):
        config = configs.load(overrides=words)
        assert settings.parse(configs.dump(config)) == plain(config)


@pytest.mark.parametrize(
    "text",
    [
        "lr: 0.1  # why\nwidth: 3\n",
        "# a comment\nlr: 0.1\nwidth: 3\n",
        '"lr": 0.1\r\nwidth: 3\r\n',
        "{lr: 0.1, width: 3}\n",
        "lr:    0.1\nwidth: 3",
    ],
)
def test_other_yaml_goes_through_the_real_parser(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(text.encode())
    assert settings.parse(text, str(path)) == {"lr": 0.1, "width": 3}


@pytest.mark.parametrize(
    "text", ["lr: 1\nlr: 2\n", "a:\n  b: 1\n  b: 2\n", "lr: [\n", "- 1\n", "a: !!python/name:os.system x\n"]
)
def test_what_is_no_config_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml|twice"):
        settings.parse(text, str(path))


def test_without_a_yaml_package_the_plain_kind_is_read_and_the_other_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any) -> Any:
        if name == "yaml" or "ocrlab.settings" in name:
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert settings.parse("a:\n  b: 1\n  c:\n  - x\n  - 2.5\n", "x") == {"a.b": 1, "a.c": ("x", 2.5)}
    with pytest.raises(ConfigError, match="needs a YAML parser"):
        settings.parse("a: [1]\n", str(tmp_path / "config.yaml"))


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("8", 8), ("none", None), ("True", True), ("resnet18", "resnet18"), ("010", 10), ("-2", -2)],
)
def test_values_of_the_command_line(text: str, value: object) -> None:
    assert settings.said(text) == value
    assert type(settings.said(text)) is type(value)


@pytest.mark.parametrize(
    "text", ["010", "1e5", "yes", "2026-11-22", ".inf", "0x1f", "1:30", "[a]", "&a b", "'a", "x: y"]
)
def test_what_yaml_reads_in_a_way_of_its_own_is_left_to_it(text: str) -> None:
    with pytest.raises(settings.NotPlain):
        settings.scalar(text)
