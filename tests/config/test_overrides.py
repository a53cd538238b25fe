"""Words and YAML files as flat settings with the place they stand at; other names for settings, presets."""

import pytest

from ocrlab.config.aliases import ALIASES, REFUSED, find
from ocrlab.config.fields import flat
from ocrlab.config.overrides import from_yaml, is_override
from ocrlab.config.presets import PRESETS
from ocrlab.config.schema import keys, load
from ocrlab.errors import ConfigError


def written(tmp_path, text: str, encoding: str = "utf-8"):
    path = tmp_path / "exp.yaml"
    path.write_text(text, encoding=encoding)
    return path


@pytest.mark.parametrize("word", ["a=b", "+a=b", "++a.b=c=d", "a.b=", "~a", "data=x.yaml"])
def test_settings_are_distinguished_from_files(word):
    assert is_override(word)


@pytest.mark.parametrize("word", ["exp.yaml", "runs/a=b/config.yaml", "./a=b.yaml", "=3", "3=4"])
def test_files_are_distinguished_from_settings(word):
    assert not is_override(word)


def test_yaml_is_flat_text_with_lines(tmp_path):
    settings = from_yaml(written(tmp_path, "a: 1\nb:\n  c: no\n  d: [1, 2e-3]\n  e: 'null'\nf.g: ~\n"))
    assert [(s.key, s.value) for s in settings] == [
        ("a", "1"), ("b.c", "no"), ("b.d", ["1", "2e-3"]), ("b.e", "null"), ("f.g", "~"),
    ]  # fmt: skip
    assert [s.empty for s in settings] == [False, False, False, False, True]
    assert settings[1].where.endswith("exp.yaml, line 3")


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_an_empty_file_says_nothing(tmp_path, text):
    assert from_yaml(written(tmp_path, text)) == []


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    assert from_yaml(written(tmp_path, "a: 1\n", "utf-8-sig"))[0].key == "a"


@pytest.mark.parametrize(("text", "message"), [
    ("a: 1\nb: 2\na: 3\n", r"a is given twice .*line 3.*line 1"),
    ("t:\n  x: 1\n  x: 1\n", r"x is given twice .*line 3"),
    ("a: 1\nb: [1\nc: 2\n", r"exp\.yaml, line \d is not YAML"),
    ("a: 1\n\tb: 2\n", r"line 2 is not YAML"),
    ("- a\n- b\n", r"line 1 is not a list of settings"),
    ("batch_size=4\n", r"line 1 is not a list of settings"),
    ("a: &x 1\nb: *x\n", r"line 2 refers to an anchor"),
    ("a: !!python/object:os.system 1\n", r"a cannot be read .*line 1"),
    ("a: {b: {c: {d: {e: 1}}}}\n", r"cannot be read"),
    ("a: [{b: 1}]\n", r"a cannot be read"),
    ("<<: {a: 1}\n", r"line 1 cannot be used"),
    ("a: 1\n---\nb: 2\n", r"not YAML"),
])  # fmt: skip
def test_a_bad_file_is_named_with_its_line(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        from_yaml(written(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        from_yaml(tmp_path / "none.yaml")
    (tmp_path / "config.yaml").write_text("a: 1\n")
    with pytest.raises(ConfigError, match=r"There is a .*config\.yaml"):
        from_yaml(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        from_yaml(tmp_path / "latin.yaml")


def test_every_alias_leads_to_a_setting_and_hides_none():
    names = keys()
    assert set(ALIASES.values()) <= names.keys()
    assert not (ALIASES.keys() | REFUSED.keys()) & names.keys()
    assert not ALIASES.keys() & REFUSED.keys()


@pytest.mark.parametrize("name", REFUSED)
def test_every_refused_name_says_what_to_do_instead(name):
    for below in (name, f"{name}.more"):
        with pytest.raises(ConfigError, match="not a setting of ocrlab") as caught:
            find(below, keys(), "command line")
        assert caught.value.do == REFUSED[name]


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("batchsize", "batch_size"), ("batch-size", "batch_size"), ("learning-rate", "optim.lr"),
        ("optimizer.warmup_step", "optim.warmup_steps"), ("trainer.lr", "optim.lr"),
        ("epochs", "trainer.max_epochs"), ("hardwear", "hardware"),
    ],
)  # fmt: skip
def test_the_nearest_name_is_reported(name, right):
    with pytest.raises(ConfigError) as caught:
        find(name, keys(), "command line")
    assert f"The nearest is {right}." in str(caught.value)


@pytest.mark.parametrize("name", ["zzz", "trainer.zzz"])
def test_nothing_is_guessed_where_nothing_but_the_group_is_alike(name):
    with pytest.raises(ConfigError, match="is not a setting") as caught:
        find(name, keys(), "command line")
    assert "nearest" not in str(caught.value)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_valid_and_takes_effect(name):
    preset = PRESETS[name]
    assert preset.settings.keys() <= keys().keys()
    assert 20 < len(preset.why) < 120 and "\n" not in preset.why
    assert preset.settings.items() <= flat(load(hardware=name)).items()


def test_the_promised_presets_are_there():
    assert {"cpu_2core", "rtx3060_12gb_i5_16core"} <= PRESETS.keys()
    assert PRESETS["rtx3060_12gb_i5_16core"].settings["trainer.precision"] == "bf16"
