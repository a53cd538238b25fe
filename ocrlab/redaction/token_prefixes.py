"""What issuers of tokens put in front of them, so that no hash or word is taken for one."""

from __future__ import annotations

import re

# The literal is searched first, which is fast.
PREFIXES = tuple(
    (prefix, re.compile(re.escape(prefix) + rest))
    for prefix, rest in (
        # models and data
        ("sk-", r"[\w-]{16,}"),
        ("hf_", r"[A-Za-z0-9]{16,}"),
        ("nvapi-", r"[\w-]{30,}"),
        ("gsk_", r"[A-Za-z0-9]{30,}"),
        ("xai-", r"[A-Za-z0-9]{40,}"),
        ("r8_", r"[A-Za-z0-9]{30,}"),
        ("rpa_", r"[A-Z0-9]{30,}"),
        ("pcsk_", r"\w{30,}"),
        *((f"a{letter}-", r"(?=[A-Za-z]*\d)[A-Za-z0-9]{22}(?![\w-])") for letter in "ks"),
        # trackers
        ("wandb_v1_", r"\w{20,}"),
        ("local-", r"[0-9a-f]{40}(?![0-9a-f])"),  # of a tracker's own server
        ("eyJhcGlfYWRkcmVzcyI6", r"[\w+/=-]{20,}"),  # base64 of {"api_address":
        ("lsv2_", r"\w{30,}"),
        # code and packages
        *((f"gh{letter}_", r"[A-Za-z0-9]{16,}") for letter in "pousr"),
        ("github_pat_", r"\w{16,}"),
        *((f"gl{kind}-", r"[\w-]{16,}") for kind in ("pat", "dt", "rt", "ptt", "ft", "imt", "oas", "soat", "cbt")),
        ("dckr_pat_", r"[\w-]{16,}"),
        ("dckr_oat_", r"[\w-]{16,}"),
        ("npm_", r"[A-Za-z0-9]{30,}"),
        ("pypi-", r"[\w-]{60,}"),
        ("rubygems_", r"[0-9a-f]{40,}"),
        # clouds and services
        *((f"A{kind}", r"[A-Z0-9]{16}(?![A-Za-z0-9])") for kind in ("KIA", "SIA")),
        ("AIza", r"[\w-]{30,}"),
        ("ya29.", r"[\w-]{20,}"),
        ("GOCSPX-", r"[\w-]{20,}"),
        ("1//0", r"[\w-]{40,}"),
        ("dapi", r"[0-9a-f]{32}(?:-\d)?(?![0-9A-Za-z])"),
        *((f"do{letter}_v1_", r"[0-9a-f]{40,}") for letter in "por"),
        ("hvs.", r"[\w-]{20,}"),
        ("hvb.", r"[\w-]{20,}"),
        *((f"gl{kind}_", r"[\w+/=-]{30,}") for kind in ("sa", "c")),
        ("tskey-", r"[\w-]{16,}"),
        ("AGE-SECRET-KEY-1", r"[A-Z0-9]{40,}"),
        ("SG.", r"[\w-]{16,}\.[\w-]{30,}"),
        *((f"{kind}_{stage}_", r"\w{16,}") for kind in ("sk", "rk") for stage in ("live", "test")),
        ("whsec_", r"[\w+/=]{24,}"),
        *((f"xox{letter}-", r"[\w-]{10,}") for letter in "abeprs"),
        ("xapp-", r"\d-[\w-]{20,}"),
        *((f"shp{kind}_", r"[0-9a-fA-F]{32}") for kind in ("at", "ca", "pa", "ss")),
        ("sntrys_", r"[\w+/=-]{30,}"),
        # hashes of passwords (crypt(5), PHC strings), which can be guessed from
        ("$1$", r"[./\w]{1,8}\$[./A-Za-z0-9]{22}(?![./\w])"),
        ("$apr1$", r"[./\w]{1,8}\$[./A-Za-z0-9]{22}(?![./\w])"),
        ("$5$", r"(?:rounds=\d+\$)?[./\w]{1,16}\$[./A-Za-z0-9]{43}(?![./\w])"),
        ("$6$", r"(?:rounds=\d+\$)?[./\w]{1,16}\$[./A-Za-z0-9]{86}(?![./\w])"),
        ("$y$", r"[./\w]+\$[./\w]+\$[./A-Za-z0-9]{43}(?![./\w])"),
        *((f"$2{version}$", r"\d\d\$[./A-Za-z0-9]{53}(?![./\w])") for version in "aby"),
        ("$argon2", r"(?:id?|d)\$v=\d+\$m=\d+,t=\d+,p=\d+\$[\w+/]{8,}\$[\w+/]{16,}"),
        ("eyJ", r"[\w-]{6,}\.[\w-]{6,}\.[\w-]{6,}"),
    )
)
