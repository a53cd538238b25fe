"""Which names are those of secrets, and which values are none."""

from __future__ import annotations

import re
from functools import lru_cache

SERVICES = "admin|db|database|ftp|imap|ldap|login|mail|mongo|mysql|pg|postgres|proxy|redis|root|smtp|ssh|user|vnc|vpn"
PASSWORDS = rf"passwords?|passwd|passphrase|pwd|secrets?|credentials?|(?:{SERVICES})_?pass"
WORDS = rf"{PASSWORDS}|token|auth|bearer|apikeys?|[a-z0-9]+[_-]keys?|private[_-]key[_-]id|connection[_-]string"
SECRET = re.compile(rf"(?:^|[_.\-])(?:{WORDS})(?:$|[_.\-\d])", re.IGNORECASE)
HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
FOLDERS = ("PWD", "OLDPWD")  # of the shell, not passwords
AT_THE_END = re.compile(rf"(?:{PASSWORDS})(?![a-z])|(?:^|[_-])(?:{WORDS})[_\d]*$", re.IGNORECASE)
# Names of the parts of a text, a model or a mapping, and values that are code, markers or nothing.
ORDINARY = re.compile(
    r"(?:^|[_-])(?:pad|eos|bos|unk|sep|cls|class|mask|special|image|img|start|end|stop|first|last|next|prev|previous|new|per"
    r"|num|n|max|added|blank|begin|input|output|word|char|pos|reg|register|query|prompt|patch|sot|eot|unexpected|invalid|dist)"
    r"[_-]token$|(?:^|[_-])(?:sort|primary|foreign|missing|unexpected|extra|dict|state|group|cache|index|data|batch|metric|num"
    r"|n|label|image|row|column|public|partition|input|output|dispatch|wait|target|required|unknown|param|config)[_-]keys?$",
    re.IGNORECASE,
)
# The keys that open something; any other name that ends in `key` mostly is that of an entry in a mapping.
OF_ACCESS = re.compile(
    r"(?:api|access|secret|private|auth[a-z]*|account|licen[sc]e|encryption|signing|shared|master|storage|service|session"
    r"|user|app|client|ssh|deploy|wandb|comet|neptune|openai|hf|aws|azure|gcp)[_-]?keys?[_\d]*$",
    re.IGNORECASE,
)
ANY_KEY = re.compile(r"[A-Za-z0-9+/=-]{16,}[\"',;)\]}]*$")
LONG = 24  # characters; what is shorter and drawn at random has a digit
NUMBER = re.compile(r"[-+]?[\d.]{1,9}(?:e-?\d+)?(?:[,;:)\]}].*)?$")
NOTHING = re.compile(
    r"(?:none|null|nil|true|false|str|bytes|int|any|self|\*+|\.\.\.)?[,;:.)\]}]*$|<[^>]*>|\[|\{|\(\w+\)|[A-Za-z_][\w.]*[(\[]",
    re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Return True if a parameter or environment variable is named like a secret: `wandb_api_key`, `dbPassword`."""
    return SECRET.search(HUMPS.sub("_", name)) is not None


@lru_cache(maxsize=4096)
def names_secret(name: str) -> bool:
    """Return True if the value after `name` is a secret: stricter than is_secret, as texts hold tokens and keys."""
    last = HUMPS.sub("_", name.rpartition(".")[2])
    return is_secret(last) and AT_THE_END.search(last) is not None and ORDINARY.search(last) is None


def hides(name: str, value: str) -> bool:
    """Return True if `value` behind `name` is a secret: not a number, nothing, or a piece of code."""
    if not names_secret(name) or NOTHING.match(value) or (name in FOLDERS and value.startswith(("/", "~", "."))):
        return False
    if re.search(PASSWORDS, name, re.IGNORECASE):
        return True  # people choose them, so that they may be words
    if NUMBER.match(value) or (len(value) < LONG and not any(letter.isdigit() for letter in value)):
        return False  # tokens and keys are drawn: `new_key = prefix` and `token: Token` are code
    return (
        OF_ACCESS.search(HUMPS.sub("_", name)) is not None
        or not name.lower().endswith(("key", "keys"))
        or (ANY_KEY.match(value) is not None)
    )
