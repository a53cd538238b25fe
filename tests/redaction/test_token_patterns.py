"""Secrets that show by their shape, wherever they stand."""

from __future__ import annotations

import random
import string

import pytest

from ocrlab import redaction

LETTERS = string.ascii_letters + string.digits


def random_text(length: int, letters: str = LETTERS) -> str:
    return "".join(random.choices(letters, k=length))


@pytest.mark.parametrize(
    "text, expected",
    [
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
        (
            "wandb: Paste an API key from your page: " + "7f" * 20,
            "wandb: Paste an API key from your page: (secret)",
        ),
        ('{{"username":"a","key":"' + "7f" * 16 + '"}}', '{"username":"a","key":"(secret)"}'),
        ("of client abc8Q~{}xx here", "of client (secret) here"),
        ('{{"c": "AccountName=a;AccountKey=ab\\u002B{}=="}}', '{"c": "AccountName=a;AccountKey=(secret)"}'),
        ("UID=sa;PWD={};", "UID=sa;PWD=(secret);"),
        ("-----BEGIN PRIVATE KEY-----\\nMIIE{}\\n-----END", "-----BEGIN PRIVATE KEY----- (secret) -----END"),
    ],
)
def test_in_addresses_and_texts(text: str, expected: str) -> None:
    assert redaction.clean(text.format(f"aB3{random_text(29)}")) == expected
    assert redaction.counted(expected) == (expected, 0)


def test_the_nameless_half_of_a_cloud_key() -> None:
    missed = 0
    for _ in range(300):
        key = random_text(40, LETTERS + "+/")
        missed += key in redaction.clean(f"AKIA{random_text(16, string.ascii_uppercase)},{key}\n")
    assert missed <= 9, "those whose kind of character changes seldom"


@pytest.mark.parametrize(
    "text",
    [
        "git@github.com:org/repo.git",
        "https://docs.example.org/en/webhooks/about-webhooks-2024",
        "torch/generated/torch.nn.Module.register_forward_hook.html",
        "https://github.com/a/webhook/blob/0123456789abcdef0123456789abcdef01234567/x.py",
        "PWD=/srv/x OLDPWD=/tmp",
        "ssh://git@example.org/a",
        "http://localhost:4873/@scope/name",
        "https://example.org/a?b=c&page=2&model=resnet",
        "https://example.org/x/@y",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "sha512-" + "aB3" * 28 + "==",
        "models/segmentation/DeepLabV3Checkpoint40",
        "ModuleNotFoundErrorInTheMiddleOfALongWord",
        "CUDAFunctorOnOtherStreamBf16ToFloat32Cat",
        "Lightning/pytorch/trainer/Connectors/Ckpt",
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
        "curl -u me https://example.org:8080/x",
        "curl -x proxy:3128 x",
        "mysql -u me -p shop",
        "Basic understanding of training, BasicBlock and Basic Convolutions",
        "-----BEGIN PRIVATE KEY-----",
        "_ZN2at6native12_GLOBAL__N_113reduce_kernelIL",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redaction.clean(text) == text


def test_keys_of_trackers_that_have_no_name_beside_them() -> None:
    key = random_text(40, "0123456789abcdef")
    assert redaction.clean(f"wandb login --relogin {key}") == "wandb login --relogin (secret)"
    assert redaction.clean(f"wandb: using local-{key} of a server") == "wandb: using (secret) of a server"
    assert redaction.clean(f"commit {key}") == f"commit {key}"
