"""config.yaml as flat settings: what `config.save` writes comes back, and what is not a config is refused in words."""

import sys
from typing import Any

import pytest

from ocrlab.config import schema as configs
from ocrlab.config.fields import flat
from ocrlab.errors import ConfigError
from ocrlab.reports.run_history import config_reader


def plain(config: configs.Config) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in flat(config).items()}


@pytest.mark.parametrize("words", [
    (),
    ("optim.lr=1e-5", "optim.weight_decay=0", "data=/mnt/päges/a (1)", "trainer.max_minutes=1e6"),
    ("name='none'", "data=~/x: no", "runs=yes", "tracking.user=010", "augment.scale=[0.1,3]"),
    ("name=2026-11-22", "data=it's # not a comment", "val_split=.5", "train_split=- x"),
    ("data=" + "a long name " * 12 + "x",),
])  # fmt: skip
def test_what_save_writes_is_read_as_it_was(tmp_path, words: tuple[str, ...]) -> None:
    path = tmp_path / "config.yaml"
    config = configs.load(overrides=list(words))
    path.write_text(configs.dump(config))
    settings = config_reader.parse(path.read_text(encoding="utf-8"), str(path))
    expected = plain(config)
    texts = {key: str(value) for key, value in expected.items()}
    assert {key: str(value) for key, value in settings.items()} == texts or settings == expected
    assert settings.keys() == expected.keys()


@pytest.mark.parametrize(
    "text",
    [
        "lr: 0.1  # why\nwidth: 3\n", "# a comment\nlr: 0.1\nwidth: 3\n", '"lr": 0.1\r\nwidth: 3\r\n',
        "{lr: 0.1, width: 3}\n", "lr:    0.1\nwidth: 3",
    ],
)  # fmt: skip
def test_yaml_as_people_write_it_is_read(tmp_path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(text.encode())
    assert config_reader.parse(text, str(path)) == {"lr": 0.1, "width": 3}


@pytest.mark.parametrize("text", ["lr: 1\nlr: 2\n", "a:\n  b: 1\n  b: 2\n", "lr: [\n", "- 1\n"])
def test_what_is_no_config_is_refused_in_words(tmp_path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml|twice"):
        config_reader.parse(text, str(path))


def test_without_a_yaml_package_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"config\.yaml needs a YAML parser\. pip install pyyaml"):
        config_reader.parse("a: 1\n")


@pytest.mark.parametrize(
    ("text", "value"),
    [("010", 10), ("1e5", 1e5), ("yes", "yes"), ("2026-11-22", "2026-11-22"), ("0x1f", "0x1f"), ("1:30", "1:30"),
     ("'10'", "10"), ("'none'", "none"), ("[a, 2]", ("a", 2)),
     ('"x: y"', "x: y"), ("|\n  two\n  lines\n", "two\nlines\n"),
     ("!!python/name:os.system x", "x")],
)  # fmt: skip
def test_surprises_of_yaml_do_not_happen(text: str, value: object) -> None:
    assert config_reader.parse(f"a: {text}") == {"a": value}


def test_anchors_cannot_stand_for_a_billion_values() -> None:
    lines = [
        "a: &a {x: 1, y: 2}",
        *(f"{n}: &{n} {{x: *{m}, y: *{m}}}" for m, n in zip("abcdef", "bcdefg", strict=True)),
    ]
    with pytest.raises(ConfigError, match="not a plain value"):
        config_reader.parse("\n".join(lines))
