"""Which names are those of secrets."""

from __future__ import annotations

import pytest

from ocrlab import redaction
from ocrlab.redaction import secret_names


@pytest.mark.parametrize(
    "name",
    ["PASSWORD", "wandb_api_key", "WANDB_API_KEY", "hf_token", "token", "mySecret", "db-password", "apikey", "pwd1"],
)
def test_names_of_secrets(name: str) -> None:
    assert redaction.is_secret(name)


@pytest.mark.parametrize("name", ["batch_size", "author", "keyboard", "tokenizer", "max_steps", "secretary", "monkey"])
def test_names_that_only_look_like_it(name: str) -> None:
    assert not redaction.is_secret(name)


def test_in_texts_tokens_and_keys_are_mostly_something_else() -> None:
    assert secret_names.names_secret("wandb.api_key") and secret_names.names_secret("HF_TOKEN")
    assert not any(
        map(secret_names.names_secret, ("cls_token", "missing_keys", "auth_mode", "tokens", "forward_pass", "pass"))
    )
    assert secret_names.hides("PWD", "x9f8e7") and not secret_names.hides("PWD", "/srv/x")
    assert secret_names.hides("password", "12345678") and not secret_names.hides("api_key", "1e-3")
    assert not secret_names.hides("token", "os.environ['X']") and not secret_names.hides("token", "None")
