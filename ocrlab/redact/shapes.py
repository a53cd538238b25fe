"""Secrets that show by their shape: tokens with the prefix of their issuer, private keys, credentials in addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ocrlab.redact.spans import Span, begins

SECRET = "(secret)"
# Each begins with what its issuer puts in front, so that no hash or word is one. The literal is searched first: fast.
PREFIXES = tuple(
    (prefix, re.compile(re.escape(prefix) + rest))
    for prefix, rest in (
        ("sk-", r"[\w-]{16,}"),
        ("hf_", r"[A-Za-z0-9]{16,}"),
        *((f"gh{letter}_", r"[A-Za-z0-9]{16,}") for letter in "pousr"),
        ("github_pat_", r"\w{16,}"),
        ("glpat-", r"[\w-]{16,}"),
        *((f"A{kind}", r"[A-Z0-9]{16}(?![A-Za-z0-9])") for kind in ("KIA", "SIA")),
        *((f"xox{letter}-", r"[\w-]{10,}") for letter in "abeprs"),
        ("AIza", r"[\w-]{30,}"),
        ("ya29.", r"[\w-]{20,}"),
        ("eyJ", r"[\w-]{6,}\.[\w-]{6,}\.[\w-]{6,}"),
        ("nvapi-", r"[\w-]{30,}"),
        ("wandb_v1_", r"\w{20,}"),
        ("dckr_pat_", r"[\w-]{16,}"),
        ("npm_", r"[A-Za-z0-9]{30,}"),
        ("sk_live_", r"\w{16,}"),
        ("local-", r"[0-9a-f]{40}(?![0-9a-f])"),  # of a tracker's own server
    )
)
PRIVATE = re.compile(r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)([A-Za-z0-9+/=\s\\]+)")
USER_AND_PASSWORD = re.compile(r"://(?![^/\s'\"@:]{0,99}:\d{1,5}[/\s])([^/\s'\"@:<>]{0,99}:[^\s'\"<>]{0,299})@")
ACCOUNT = re.compile(r"://([^/\s'\"@:<>?#]{1,299})@")
NOBODY = ("git", "hg", "anonymous", SECRET)
QUERY = re.compile(
    r"(?:[?&;]|%26|%3F|\\u0026)(?:amp;)?(?:sig|signature|sharedaccesssignature|key|code|x-(?:amz|goog)-(?:signature|credential"
    r"|security-token))(?:=|%3D)(?!\()([^&\s\"'<>\\;]{6,})",
    re.IGNORECASE,
)
COOKIE = re.compile(
    r"\bcookie\\{0,3}[\"']?\s{0,2}:\s{0,2}\\{0,3}[\"']?((?!\()[\w.-]{1,60}=[^\r\n\"'<>\\]{6,})", re.IGNORECASE
)
LOGIN = re.compile(r"\bwandb login (?:--?[\w=-]{1,40} ){0,4}([0-9a-f]{40})(?![0-9a-f])")
# Programs that take a password by a letter, or in a line of their own.
CURL = re.compile(
    r"\bcurl\b[^\n]{0,300}?\s(?:-u|--user|--proxy-user|-U)(?:\s{0,4}|=)[\"']?[^\s:\"'/]{1,80}:(?!//)"
    r"((?!\()[^\s\"']{1,200})"
)
MYSQL = re.compile(r"\bmysql(?:dump|admin|import)?\b[^\n]{0,300}?\s-p((?!\()[^\s\"']{1,200})")
SSHPASS = re.compile(r"\bsshpass\s{1,4}-p\s{0,4}[\"']?((?!\()[^\s\"']{1,200})")
BASIC = re.compile(r"\bBasic +((?=[A-Za-z+/]*[\d=])[A-Za-z0-9+/]{12,200}={0,2})(?![\w=])")
WORDS = (
    *(("ookie", COOKIE), ("OOKIE", COOKIE), ("wandb login", LOGIN), ("curl", CURL), ("mysql", MYSQL)),
    *(("sshpass", SSHPASS), ("Basic ", BASIC)),
)
# The secret half of an AWS key has 40 characters and nothing in front. Drawn at random its kind of character (upper,
# lower, digit, other) changes 25 times, give or take 3; in a path or a name in CamelCase that long some 14 times.
LONG = re.compile(r"[A-Za-z0-9/+]{40,}")
CHANGE = re.compile(r"[a-z]+|[A-Z]+|\d+|[/+]+")
LENGTH, CHANGES, DISTINCT = 40, 18, 20


def spans(text: str) -> Iterator[Span]:
    """Yield what is a secret by its shape."""
    if "://" in text:
        yield from ((found.start(1), found.end(1), SECRET) for found in USER_AND_PASSWORD.finditer(text))
        for found in ACCOUNT.finditer(text):
            if found[1] not in NOBODY:
                yield found.start(1), found.end(1), SECRET
    if "PRIVATE KEY" in text:
        yield from (
            (found.start(2), found.end(2), f" {SECRET} ") for found in PRIVATE.finditer(text) if found[2].strip()
        )
    if "=" in text or "%3" in text:
        yield from ((found.start(1), found.end(1), SECRET) for found in QUERY.finditer(text))
    for word, told in WORDS:
        if word in text:
            yield from ((found.start(1), found.end(1), SECRET) for found in told.finditer(text))
    for prefix, pattern in PREFIXES:
        if prefix in text:
            for found in pattern.finditer(text):
                if begins(text, found.start(), "_-"):
                    yield found.start(), found.end(), SECRET
    if len(text) >= 40:
        yield from _unnamed(text)


def _unnamed(text: str) -> Iterator[Span]:
    for found in LONG.finditer(text):
        value = found.group()
        if (
            len(value) != LENGTH
            or not begins(text, found.start(), "._-=")
            or text[found.end() : found.end() + 1] in ("=", "_")
        ):
            continue
        mixed = any(c.islower() for c in value) and any(c.isupper() for c in value) and any(c.isdigit() for c in value)
        if mixed and len(set(value)) >= DISTINCT and len(CHANGE.findall(value)) > CHANGES:
            yield found.start(), found.end(), SECRET
