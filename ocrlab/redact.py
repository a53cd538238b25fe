"""What must not stand in a notebook, report or result: secrets, and the names of this person's home and host."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WORDS = r"passwords?|passwd|passphrase|pwd|secrets?|token|credentials?|auth|bearer|apikeys?|[a-z0-9]+_keys?"
SECRET = re.compile(rf"(?:^|[_.\-])(?:{WORDS})(?:$|[_.\-\d])", re.IGNORECASE)
HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
CREDENTIALS = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^/\s@'\"]+@", re.IGNORECASE)
FOLDERS = ("PWD", "OLDPWD")  # of the shell, not passwords
SHORTEST = 8  # characters; a shorter secret would be found inside ordinary words


def is_secret(name: str) -> bool:
    """Return True if a parameter or environment variable is named like a secret: `wandb_api_key`, `dbPassword`."""
    return SECRET.search(HUMPS.sub("_", name)) is not None


def clean(value: Any) -> Any:
    """Return `value` (text, or texts in dicts and lists) with secrets, home folder and host name replaced."""
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, Mapping):
        return {clean(key): "(secret)" if is_secret(str(key)) else clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return str(clean(str(value))) if isinstance(value, Path) else value


def _clean_text(text: str) -> str:
    for name, secret in os.environ.items():
        if len(secret) >= SHORTEST and secret in text and is_secret(name) and name not in FOLDERS:
            text = text.replace(secret, f"({name})")
    text = CREDENTIALS.sub(r"\g<scheme>(secret)@", text)
    home = os.path.expanduser("~").rstrip("/")
    if home.startswith("/"):
        text = re.sub(rf"(?<![\w.~-]){re.escape(home)}(?![\w.-])", "~", text)
    host = socket.gethostname()
    if len(host) > 3 and host != "localhost":
        text = re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "(host)", text)
    return text
