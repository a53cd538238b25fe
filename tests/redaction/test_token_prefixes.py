"""Tokens are known by what their issuers put in front, and only if something drawn follows."""

from __future__ import annotations

import random
import string

import pytest

from ocrlab import redaction
from ocrlab.redaction.token_prefixes import PREFIXES

LETTERS = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
SOURCE = random.Random(7)  # the same in every process: pytest's workers compare the names of tests


def random_text(length: int, letters: str = LETTERS) -> str:
    return "7" + "".join(SOURCE.choices(letters, k=length - 1))


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
            f"SG.{random_text(22)}.{random_text(43)}",
            f"pypi-AgEIcHlwaS5vcmc{random_text(60)}",
            f"dapi{random_text(32, HEX)}",
            f"ak-{random_text(22)}",
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
            f"AIza{random_text(35)}",
            f"ASIA{random_text(16, string.ascii_uppercase)}",
            f"shpat_{random_text(32, HEX)}",
            f"xapp-1-{random_text(24)}",
        ),
    ],
)
def test_tokens(token: str) -> None:
    assert redaction.clean(f"using {token}, then") == "using (secret), then"
    assert redaction.clean(f'{{"a": "{token}"}}') == '{"a": "(secret)"}'
    assert redaction.clean(f"x_{token}") == f"x_{token}", "the end of a longer name"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "pypi-server",
            "npm_config_registry",
            "local-rank",
            "dapi2",
            "as-is",
            "as-implementedinthereference",
            "sk-learn",
        ),
        *("$1$2$3", "costs $5$ or $6$ each", "$2a$", "$y$x$", "\\(\\alpha$1$\\beta$2$\\)", "${1}$argon2id"),
        *("SG.loss", "r8_conv", "hvs.py", "sk_live_", "1//0", "eyJust", "AKIA is a prefix", "gl_c_xyz", "ak-47"),
    ],
)
def test_words_that_begin_like_a_token_stay(text: str) -> None:
    assert redaction.clean(text) == text


def test_no_prefix_is_there_twice() -> None:
    names = [prefix for prefix, _ in PREFIXES]
    assert len(names) == len(set(names))
