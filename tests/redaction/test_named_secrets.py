"""Values after the names of secrets, in the layouts that logs, tables and pages have."""

from __future__ import annotations

import pytest

from ocrlab import redaction
from ocrlab.redaction import named_secrets

KEY = "Qq7hunter2xyz0123456"


@pytest.mark.parametrize(
    "text",
    [
        "aws_secret_access_key = {}",
        "[default]\naws_access_key_id=x\naws_secret_access_key={}\nregion=eu",
        '{{"private_key_id": "{}"}}',
        "{{&quot;api_key&quot;: &quot;{}&quot;}}",
        "api_key&#x27;: &#x27;{}&#x27;",
        "('wandb_api_key', '{}')",
        "| wandb_api_key | {} |",
        "│ api_key │ {} │",
        "api_key        {}",
        "<tr><td>api_key</td><td>{}</td></tr>",
        "<dt>api_key</dt> <dd class='x'>{}</dd>",
        "api_key%3D{}%26n%3D1",
        "\x1b[32mapi_key\x1b[0m\x1b[1m=\x1b[0m\x1b[31m'{}'\x1b[0m",
        "Invalid API key: {}",
        "ValueError: the access token was '{}'",
        "wandb: ERROR API key {} rejected",
        "machine api.example.org login me password {}",
        "python train.py --api-key\0{}\0--lr\01",
        "https://example.org/?access_token={}&x=1",
    ],
)
def test_layouts(text: str) -> None:
    cleaned, count = redaction.clean_and_count(text.format(KEY))
    assert KEY not in cleaned and count == 1 and "(secret)" in cleaned
    assert redaction.clean_and_count(cleaned) == (cleaned, 0)
    assert cleaned.replace("(secret)", KEY) == text.format(KEY), "nothing else is gone"


def test_a_bare_key_of_hexadecimal_digits_behind_the_word() -> None:
    assert redaction.clean("token " + "0a1b2c3d" * 5 + " expired") == "token (secret) expired"


@pytest.mark.parametrize(
    "text",
    [
        "Missing key encoder.layer1.0.conv1.weight_orig",
        'KeyError: "key encoder_layer4_1_bn2_num_batches_tracked1"',
        "token    count    loss",
        "cls_token | pos_embed | 768",
        "('token', 'embedding')",
        "sort key: name, 20 keys 40 values",
        "size mismatch for cls_token: (1, 1, 768)",
        "key 0123456789",
        "the key of group 12 is 3",
        "max_tokens  4096",
        "api_key        none",
        "password: ",
        "secret of 12",
        "author: somebody0815 keyboard: us-intl-2024",
        "monkey=banana12345678901234",
        "<td>token</td><td>embedding</td>",
        "tokens  12345678a",
        "new_key = parent_key + delimiter",
        "result[new_key] = prefix1.conv2",
        "def barrier(token: Token | None)",
        'port_key = "MASTER_PORT"',
        "optim_key = f'optimizer_{idx}'",
        "callback_key=layer4.1.bn2.weight",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redaction.clean(text) == text


def test_mappings_hide_texts_and_keep_what_is_no_secret() -> None:
    mapping = {"token": None, "auth": True, "api_key": 12345678, "key_rate": 0.5, "secrets": ["a", "b"], "hf_token": ""}
    expected = {
        "token": None,
        "auth": True,
        "api_key": "(secret)",
        "key_rate": 0.5,
        "secrets": "(secret)",
        "hf_token": "",
    }
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


def test_in_texts_tokens_and_keys_are_mostly_something_else() -> None:
    assert named_secrets.names_secret("wandb.api_key") and named_secrets.names_secret("HF_TOKEN")
    assert not any(
        map(named_secrets.names_secret, ("cls_token", "missing_keys", "auth_mode", "tokens", "forward_pass", "pass"))
    )
    assert named_secrets.hides("PWD", "x9f8e7") and not named_secrets.hides("PWD", "/srv/x")
    assert named_secrets.hides("password", "12345678") and not named_secrets.hides("api_key", "1e-3")
    assert not named_secrets.hides("token", "os.environ['X']") and not named_secrets.hides("token", "None")
