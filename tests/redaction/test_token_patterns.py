"""Secrets that show by their shape, wherever they stand, and tokens by what their issuers put in front."""

import random
import string

import pytest

from ocrlab import redaction

LETTERS = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
SOURCE = random.Random(7)  # the same in every process: pytest's workers compare the names of tests


def random_text(length: int, letters: str = LETTERS) -> str:
    return "7" + "".join(SOURCE.choices(letters, k=length - 1))


@pytest.mark.parametrize("text, expected", [
    (
        "origin https://x-access-token:{}@example.org/a/b.git (fetch)",
        "origin https://(secret)@example.org/a/b.git (fetch)",
    ),
    ("https://{}@dev.example.org/a", "https://(secret)@dev.example.org/a"),
    ("postgres://me:p/{}@db:5432/x", "postgres://(secret)@db:5432/x"),
    ("https://me:p@{}@host/x", "https://(secret)@host/x"),
    ("x?sv=2022&sig={}%3D&se=1", "x?sv=2022&sig=(secret)&se=1"),
    ("<a href='x?a=1&amp;sig={}&amp;b=2'>", "<a href='x?a=1&amp;sig=(secret)&amp;b=2'>"),
    ("x?X-Amz-Signature={}&n=1", "x?X-Amz-Signature=(secret)&n=1"),
    ("AccountName=a;AccountKey={}==", "AccountName=a;AccountKey=(secret)"),
    ("Cookie: session={}; b=2\nHost: x", "Cookie: (secret)\nHost: x"),
    ("{{'Set-Cookie': 'sid={}'}}", "{'Set-Cookie': '(secret)'}"),
    ("$ curl -s -u me:{} example.org", "$ curl -s -u me:(secret) example.org"),
    ("curl --proxy-user 'me:{}' x", "curl --proxy-user 'me:(secret)' x"),
    ("mysql -h db -u me -p{} shop", "mysql -h db -u me -p(secret) shop"),
    ("sshpass -p {} ssh host", "sshpass -p (secret) ssh host"),
    ("sent Basic {}== and", "sent Basic (secret) and"),
    (
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{}\n-----END",
        "-----BEGIN RSA PRIVATE KEY----- (secret) -----END",
    ),
    ("-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{}", "-----BEGIN PGP PRIVATE KEY BLOCK----- (secret) "),
    (
        "POST https://hooks.slack.com/services/T0A/B0B/{} 404",
        "POST https://hooks.slack.com/services/T0A/B0B/(secret) 404",
    ),
    ("https://chat.example/api/webhooks/118/{}?wait=1", "https://chat.example/api/webhooks/118/(secret)?wait=1"),
    (
        "https://api.telegram.org/bot7381920462:AA{}x/sendMessage",
        "https://api.telegram.org/bot7381920462:(secret)/sendMessage",
    ),
    ("wandb: Paste an API key from your page: " + "7f" * 20, "wandb: Paste an API key from your page: (secret)"),
    ('{{"username":"a","key":"' + "7f" * 16 + '"}}', '{"username":"a","key":"(secret)"}'),
    ("of client abc8Q~{}xx here", "of client (secret) here"),
    ('{{"c": "AccountName=a;AccountKey=ab\\u002B{}=="}}', '{"c": "AccountName=a;AccountKey=(secret)"}'),
    ("UID=sa;PWD={};", "UID=sa;PWD=(secret);"),
    ("-----BEGIN PRIVATE KEY-----\\nMIIE{}\\n-----END", "-----BEGIN PRIVATE KEY----- (secret) -----END"),
])  # fmt: skip
def test_in_addresses_and_texts(text: str, expected: str) -> None:
    assert redaction.clean(text.format(f"aB3{random_text(29)}")) == expected
    assert redaction.clean_and_count(expected) == (expected, 0)


def test_the_nameless_half_of_a_cloud_key() -> None:
    missed = 0
    for _ in range(300):
        key = "".join(SOURCE.choices(LETTERS + "+/", k=40))
        missed += key in redaction.clean(f"AKIA{random_text(16, string.ascii_uppercase)},{key}\n")
    assert missed <= 9, "those whose kind of character changes seldom"


def test_keys_of_trackers_that_have_no_name_beside_them() -> None:
    key = random_text(40, HEX)
    assert redaction.clean(f"wandb login --relogin {key}") == "wandb login --relogin (secret)"
    assert redaction.clean(f"wandb: using local-{key} of a server") == "wandb: using (secret) of a server"
    assert redaction.clean(f"commit {key}") == f"commit {key}"


@pytest.mark.parametrize(
    "token",
    [
        *(
            f"{front}{random_text(40)}"
            for front in ("sk-proj-", "hf_", "gsk_", "r8_", "npm_", "GOCSPX-", "ghs_", "glpat-")
        ),
        *(f"{front}{random_text(40)}" for front in ("sk_live_", "rk_test_", "hvs.", "tskey-auth-", "glsa_", "whsec_")),
        *(f"{front}{random_text(40, HEX)}" for front in ("rubygems_", "dop_v1_", "local-")),
        *(
            f"SG.{random_text(22)}.{random_text(43)}", f"pypi-AgEIcHlwaS5vcmc{random_text(60)}",
            f"dapi{random_text(32, HEX)}", f"ak-{random_text(22)}",
        ),
        *(f"${kind}${random_text(8)}${random_text(22)}" for kind in ("1", "apr1")),
        *(f"${kind}$rounds=5000${random_text(16)}${random_text(length)}" for kind, length in (("5", 43), ("6", 86))),
        *(
            f"$6${random_text(16)}${random_text(86)}",
            f"$y$j9T${random_text(22)}${random_text(43)}",
            f"$2b$12${random_text(53)}",
        ),
        f"$argon2id$v=19$m=10240,t=10,p=8${random_text(22)}${random_text(43)}",
        *(
            f"AIza{random_text(35)}", f"ASIA{random_text(16, string.ascii_uppercase)}",
            f"shpat_{random_text(32, HEX)}", f"xapp-1-{random_text(24)}",
        ),
    ],
)  # fmt: skip
def test_tokens(token: str) -> None:
    assert redaction.clean(f"using {token}, then") == "using (secret), then"
    assert redaction.clean(f'{{"a": "{token}"}}') == '{"a": "(secret)"}'


@pytest.mark.parametrize("front", ["sk-", "gsk_", "hf_", "glpat-", "xai-", "tvly-"])
def test_keys_in_which_separators_stand_anywhere(front: str) -> None:
    key = front + "-".join(random_text(9) for _ in range(3)) + "_" + random_text(9)  # base64url has 2 in 64
    assert redaction.clean(f"using {key}, then") == "using (secret), then"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "pypi-server", "npm_config_registry", "local-rank", "dapi2", "as-is",
            "as-implementedinthereference", "sk-learn",
        ),
        *("$1$2$3", "costs $5$ or $6$ each", "$2a$", "$y$x$", "\\(\\alpha$1$\\beta$2$\\)", "${1}$argon2id"),
        *(
            "SG.loss", "r8_conv", "hvs.py", "sk_live_", "1//0", "eyJust", "AKIA is a prefix", "gl_c_xyz",
            "ak-47", "v1.0-rc2.Linux-x86_64", "live_Epoch3_Batch20_Loss4", "API-Lr3_B16-Adam2_SGD_X2",
            "key-Epoch3_conv2dBlock_L4",
        ),
    ],
)  # fmt: skip
def test_words_that_begin_like_a_token_stay(text: str) -> None:
    assert redaction.clean(text) == text
