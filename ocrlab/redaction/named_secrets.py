"""Secrets behind their name: which names are those of secrets, and where their values stand.

Values follow in `api_key=...`, `--token ...`, headers, phrases and cells of a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from string import ascii_letters, digits

from ocrlab.redaction.text_spans import SECRET, Span

SERVICES = "admin|db|database|ftp|imap|ldap|login|mail|mongo|mysql|pg|postgres|proxy|redis|root|smtp|ssh|user|vnc|vpn"
PASSWORDS = rf"passwords?|passwd|passphrase|pwd|secrets?|credentials?|(?:{SERVICES})_?pass"
WORDS = rf"{PASSWORDS}|token|auth|bearer|apikeys?|[a-z0-9]+[_-]keys?|private[_-]key[_-]id|connection[_-]string"
SECRET_NAME = re.compile(rf"(?:^|[_.\-])(?:{WORDS})(?:$|[_.\-\d])", re.IGNORECASE)
HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
FOLDERS = ("PWD", "OLDPWD")  # of the shell, not passwords
AT_THE_END = re.compile(rf"(?:{PASSWORDS})(?![a-z])|(?:^|[_-])(?:{WORDS})[_\d]*$", re.IGNORECASE)
# Names of the parts of a text, a model or a mapping, and values that are code, markers or nothing.
ORDINARY_NAME = re.compile(
    r"(?:^|[_-])(?:pad|eos|bos|unk|sep|cls|class|mask|special|image|img|start|end|stop|first|last|next|prev|previous|new|per"
    r"|num|n|max|added|blank|begin|input|output|word|char|pos|reg|register|query|prompt|patch|sot|eot|unexpected|invalid|dist)"
    r"[_-]token$|(?:^|[_-])(?:sort|primary|foreign|missing|unexpected|extra|dict|state|group|cache|index|data|batch|metric|num"
    r"|n|label|image|row|column|public|partition|input|output|dispatch|wait|target|required|unknown|param|config)[_-]keys?$",
    re.IGNORECASE,
)
# The keys that open something; any other name that ends in `key` mostly is that of an entry in a mapping.
ACCESS_KEY = re.compile(
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

WORD = re.compile(r"pass(?:w|phrase|\b)|pwd|secret|credential|token|auth|bearer|key|connection", re.IGNORECASE)
LOWER = re.compile(r"pass(?:w|phrase|\b)|pwd|secret|credential|token|auth|bearer|key|connection")
QUOTE = r"(?:\\{0,3}[\"']|&quot;|&#0?39;|&#x27;|&#34;)"

HEADER = re.compile(r"(authorization\\{0,3}[\"']?\s{0,4}[:=]\s{0,4}\\{0,3}[\"']?)(\w+ +)?([^\s\"',\\]+)", re.IGNORECASE)
BEARER = re.compile(r"\bbearer +(?=[^\s\"',\\]*\d)([^\s\"',\\]{12,})", re.IGNORECASE)
SCHEMES = ("bearer", "basic", "token", "digest", "apikey", "negotiate")

# `name = value` in any spelling. The name is matched once, without a way back (the lookahead), so that time is linear.
# What may as well be the next column of a table is `weak`: there only a value that looks drawn is hidden.
NAMED = re.compile(
    rf"(?<![\w.])(?<![\w.]-)(?=(?P<name>[A-Za-z_][\w.-]{{0,79}}))(?P=name){QUOTE}?\]?"
    r"(?:[ \t]{0,4}:[ \t]{0,4}(?:str|bytes|Any|SecretStr)(?: ?\| ?None)?[ \t]{0,4}=(?!=)"
    r"|[ \t]{0,4}(?:==?>?|:=|:(?!:|//)|%3[aAdD])"
    r"|(?P<weak>,[ \t]?|[ \t]{0,40}[|│┃][ \t]{0,40}|[ \t]{2,40}|\t|(?:</\w+>\s{0,9}){1,3}(?:<\w[^>\n]{0,80}>){1,3}))"
    r"[ \t]{0,4}"
)
OPTION = re.compile(
    r"(?<![\w-])(?:--|-[pr][\s\"',]{1,4})(?P<name>[A-Za-z_][\w.-]{0,79})(?:\\{0,3}[\"'],\s?|[ \t\0]{1,4})(?!-)"
)
SHORT = re.compile(r"(?<![\w-])-[pr][\s\"',]{1,4}\Z")
VALUE = re.compile(
    rf"[bfru]?(?P<quote>{QUOTE})(?P<inside>[^\n]*?)(?P=quote)|{QUOTE}?(?P<bare>(?:[^\s\"'&\\<\0%]|<(?!/)|%(?!2[267])){{1,200}})"
)
REST = re.compile(r"(?:[^\s\"'&\\<\0%]|<(?!/)|%(?!2[267]))*")
RANDOM = re.compile(r"(?=[^\s\"'<]{0,60}\d)(?=[^\s\"'<]{0,60}[A-Za-z])[^\s\"'<(\[{]{8,}$")

# Prose: `Invalid API key: 0123...`, `the token abc... has expired`. Without a word before it a key is mostly that of a
# mapping or a module, so that only hexadecimal digits, or a mixture of cases and digits, are a secret.
BEHIND = re.compile(r"(?: (?:is|was|of|for|given|provided))?[ \t:=]{1,4}[\"'`<(\[]?(?P<value>[\w+/=.-]{16,256})")
TAIL = re.compile(r"[\w+/=.-]*")
ACCESS_PHRASE = re.compile(
    r"\b(?:api|access|secret|account|license|auth\w{0,12}|signing|shared)[ -]?(?:keys?|tokens?)$", re.I
)
ALONE = re.compile(r"(?:token|key|password|secret)$", re.IGNORECASE)
MIXED = re.compile(r"[0-9a-f]{32,}$|(?=[A-Za-z+/=]*\d)(?=[a-z\d+/=]*[A-Z])(?=[A-Z\d+/=]*[a-z])[A-Za-z0-9+/=]{20,}$")
NETRC = re.compile(r"\blogin[ \t]{1,4}\S{1,80}[ \t]{1,4}password[ \t]{1,4}(?!\()(\S+)", re.IGNORECASE)
IDENTIFIER = ascii_letters + digits + "_.-"
BEFORE, AFTER = 80, 130  # characters around the word in which the name, and what stands between it and its value, lie


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Return True if a parameter or environment variable is named like a secret: `wandb_api_key`, `dbPassword`."""
    return SECRET_NAME.search(HUMPS.sub("_", name)) is not None


@lru_cache(maxsize=4096)
def names_secret(name: str) -> bool:
    """Return True if the value after `name` is a secret: stricter than is_secret, as texts hold tokens and keys."""
    last = HUMPS.sub("_", name.rpartition(".")[2])
    return is_secret(last) and AT_THE_END.search(last) is not None and ORDINARY_NAME.search(last) is None


def hides(name: str, value: str) -> bool:
    """Return True if `value` behind `name` is a secret: not a number, nothing, or a piece of code."""
    if not names_secret(name) or NOTHING.match(value) or (name in FOLDERS and value.startswith(("/", "~", "."))):
        return False
    if re.search(PASSWORDS, name, re.IGNORECASE):
        return True  # people choose them, so that they may be words
    if NUMBER.match(value) or (len(value) < LONG and not any(letter.isdigit() for letter in value)):
        return False  # tokens and keys are drawn: `new_key = prefix` and `token: Token` are code
    opens = ACCESS_KEY.search(HUMPS.sub("_", name)) is not None or not name.lower().endswith(("key", "keys"))
    return opens or ANY_KEY.match(value) is not None


def spans(text: str) -> Iterator[Span]:
    """Yield what stands behind the names of secrets; only what is around such a word is looked at closely."""
    lower = text.lower()
    done = line = 0
    for word in LOWER.finditer(lower) if len(lower) == len(text) else WORD.finditer(text):
        if word.start() >= line:
            start, end = text.rfind("\n", 0, word.start()) + 1, text.find("\n", word.start())
            line = len(text) if end < 0 else end
            yield from _header_spans(text, lower, start, line)
        if word.start() < done:
            continue
        at, done = _identifier(text, word.start(), word.end())
        name = text[at:done].lstrip("-." + digits)
        for span in _value_spans(text, at, done - len(name)) if names_secret(name[:80]) else ():
            yield span
            done = max(done, span[1])
        phrase = BEHIND.match(text, done)
        if phrase and _phrase_holds_secret(text[max(0, at - 16) : done], text[at:done], phrase["value"].rstrip(".")):
            rest = TAIL.match(text, phrase.end())
            yield phrase.start("value"), rest.end() if rest else phrase.end(), SECRET


def _phrase_holds_secret(before: str, name: str, value: str) -> bool:
    """Tell whether the value in `... API key: value` is a secret."""
    if ACCESS_PHRASE.search(before) and any(letter.isdigit() for letter in value):
        return True
    return ALONE.match(name) is not None and MIXED.match(value) is not None


def _identifier(text: str, start: int, end: int) -> tuple[int, int]:
    """Return where the identifier around a word begins and ends."""
    head, tail = text[max(0, start - BEFORE) : start], text[end : end + BEFORE]
    return start - len(head) + len(head.rstrip(IDENTIFIER)), end + len(tail) - len(tail.lstrip(IDENTIFIER))


def _header_spans(text: str, lower: str, start: int, end: int) -> Iterator[Span]:
    """Yield what a header, or a line of .netrc, holds."""
    if lower.find("authorization", start, end) >= 0:
        for match in HEADER.finditer(text, start, end):
            scheme, value = match.group(2) or "", match.group(3)
            has_scheme = scheme.strip().lower() in SCHEMES or (not scheme and len(value) >= 8)
            if has_scheme and value.lower() not in SCHEMES and not value.startswith("("):
                yield match.start(3), match.end(3), SECRET
    if lower.find("bearer", start, end) >= 0:
        yield from ((match.start(1), match.end(1), SECRET) for match in BEARER.finditer(text, start, end))
    if lower.find("password", start, end) >= 0 and lower.find("login", start, end) >= 0:
        yield from ((match.start(1), match.end(1), SECRET) for match in NETRC.finditer(text, start, end))


def _value_spans(text: str, at: int, name: int) -> Iterator[Span]:
    """Yield the value after a secret's name that begins at `name`, its identifier at `at`: an option's, or any."""
    short = SHORT.search(text, max(0, at - 6), at)
    for match in (OPTION.match(text, short.start() if short else at), NAMED.match(text, name)):
        value = VALUE.match(text, match.end()) if match else None
        if match is None or value is None:
            continue
        group = "inside" if value["bare"] is None else "bare"
        weak = match.groupdict().get("weak") and not RANDOM.match(value[group].rstrip(",;:.)]}|"))
        if weak or not hides(match["name"], value[group]):
            continue
        start, end = value.span(group)
        if group == "bare":
            rest = REST.match(text, start)
            assert rest is not None, "it matches nothing too"
            end = start + len(rest.group().rstrip(",;)]}"))
        yield start, end, SECRET
