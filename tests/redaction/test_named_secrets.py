"""Values behind the names of secrets, in the layouts that logs, tables and pages have."""

from __future__ import annotations

import pytest

from ocrlab import redaction

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
    cleaned, count = redaction.counted(text.format(KEY))
    assert KEY not in cleaned and count == 1 and "(secret)" in cleaned
    assert redaction.counted(cleaned) == (cleaned, 0)
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
    assert redaction.counted(mapping) == (expected, 2)
