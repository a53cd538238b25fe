"""Values after the names of secrets, in the layouts that logs, tables and pages have."""

import pytest

from ocrlab import redaction


def test_a_bare_key_of_hexadecimal_digits_behind_the_word() -> None:
    assert redaction.clean("token " + "0a1b2c3d" * 5 + " expired") == "token (secret) expired"


def test_mappings_hide_texts_and_keep_what_is_no_secret() -> None:
    mapping = {"token": None, "auth": True, "api_key": 12345678, "key_rate": 0.5, "secrets": ["a", "b"], "hf_token": ""}
    expected = {
        "token": None, "auth": True, "api_key": "(secret)", "key_rate": 0.5, "secrets": "(secret)",
        "hf_token": "",
    }  # fmt: skip
    assert redaction.clean_and_count(mapping) == (expected, 2)


@pytest.mark.parametrize(
    "name",
    ["PASSWORD", "wandb_api_key", "WANDB_API_KEY", "hf_token", "token", "mySecret", "db-password", "apikey", "pwd1"],
)
def test_names_of_secrets(name: str) -> None:
    assert redaction.is_secret(name)


@pytest.mark.parametrize("name", ["batch_size", "author", "keyboard", "tokenizer", "max_steps", "secretary", "monkey"])
def test_names_that_only_look_like_it(name: str) -> None:
    assert not redaction.is_secret(name)


def test_sixteen_digits_may_be_a_secret_and_a_comma_hides_no_lines() -> None:
    for text in ('api_key = "9f86d081884c7d65"', "DB_PASSWORD=9F86D081884C7D65", "password: swordfish (change it)"):
        assert "(secret)" in redaction.clean(text)
    log = "no username, password, using the public mirror\nstep 12\nTraceback\nRuntimeError: x\n  5%|x | 3/60"
    assert redaction.clean(log) == log
    for harmless in ("No password required:\nrun_id: a1b2c3d4\n", "password rotation done. Next:\nrun: train_v2\n"):
        assert redaction.clean(harmless) == harmless
