"""Other names for settings, refused ones, and the nearest right one."""

from __future__ import annotations

import pytest

from ocrlab.config.aliases import ALIASES, REFUSED, find, nearest
from ocrlab.config.schema import keys
from ocrlab.errors import ConfigError


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
        ("batchsize", "batch_size"),
        ("batch-size", "batch_size"),
        ("learning-rate", "optim.lr"),
        ("optimizer.warmup_step", "optim.warmup_steps"),
        ("trainer.lr", "optim.lr"),
        ("epochs", "trainer.max_epochs"),
        ("hardwear", "hardware"),
    ],
)
def test_the_nearest_name_is_reported(name, right):
    with pytest.raises(ConfigError) as caught:
        find(name, keys(), "command line")
    assert f"The nearest is {right}." in str(caught.value)


def test_nothing_is_guessed_where_nothing_is_alike():
    assert nearest("zzz", keys()) is None
    assert nearest("trainer.zzz", keys()) is None, "a shared group does not count as similar"
