"""What must not stand in a report, and what may."""

from __future__ import annotations

import socket

import pytest

from ocrlab import redact


@pytest.mark.parametrize(
    "name",
    ["PASSWORD", "wandb_api_key", "WANDB_API_KEY", "hf_token", "token", "mySecret", "db-password", "apikey", "pwd1"],
)
def test_names_of_secrets(name: str) -> None:
    assert redact.is_secret(name)


@pytest.mark.parametrize("name", ["batch_size", "author", "keyboard", "tokenizer", "max_steps", "secretary", "monkey"])
def test_names_that_only_look_like_it(name: str) -> None:
    assert not redact.is_secret(name)


def test_secrets_of_the_environment_and_of_addresses_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("PWD", "/tmp/somewhere")
    assert redact.clean("/tmp/somewhere/runs") == "/tmp/somewhere/runs"
    text = redact.clean("got 0123456789abcdef from https://me:pass@example.org/x")
    assert text == "got (WANDB_API_KEY) from https://(secret)@example.org/x"


def test_home_and_host_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/users/me")
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop-of-me")
    assert redact.clean("/users/me/runs on laptop-of-me") == "~/runs on (host)"
    assert redact.clean("/users/medium/runs, laptop-of-mega") == "/users/medium/runs, laptop-of-mega"
    assert redact.clean("/backup/users/me/runs") == "/backup/users/me/runs"


def test_values_inside_others_are_cleaned_and_numbers_stay() -> None:
    value = {"api_key": "xyz", "list": ["a://u:p@h", 3], "n": 1.5, "none": None}
    assert redact.clean(value) == {"api_key": "(secret)", "list": ["a://(secret)@h", 3], "n": 1.5, "none": None}
