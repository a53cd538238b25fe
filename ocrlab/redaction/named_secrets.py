"""Values that stand behind the name of a secret: `api_key=...`, `--token ...`, headers, phrases, cells of a table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import ascii_letters, digits

from ocrlab.redaction.replace import Span
from ocrlab.redaction.secret_names import hides, names_secret

SECRET = "(secret)"
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
OF_ACCESS = re.compile(
    r"\b(?:api|access|secret|account|license|auth\w{0,12}|signing|shared)[ -]?(?:keys?|tokens?)$", re.I
)
ALONE = re.compile(r"(?:token|key|password|secret)$", re.IGNORECASE)
MIXED = re.compile(r"[0-9a-f]{32,}$|(?=[A-Za-z+/=]*\d)(?=[a-z\d+/=]*[A-Z])(?=[A-Z\d+/=]*[a-z])[A-Za-z0-9+/=]{20,}$")
NETRC = re.compile(r"\blogin[ \t]{1,4}\S{1,80}[ \t]{1,4}password[ \t]{1,4}(?!\()(\S+)", re.IGNORECASE)
IDENTIFIER = ascii_letters + digits + "_.-"
BEFORE, AFTER = 80, 130  # characters around the word in which the name, and what stands between it and its value, lie


def spans(text: str) -> Iterator[Span]:
    """Yield what stands behind the names of secrets; only what is around such a word is looked at closely."""
    lower = text.lower()
    done = line = 0
    for word in LOWER.finditer(lower) if len(lower) == len(text) else WORD.finditer(text):
        if word.start() >= line:
            start, line = _line(text, word.start())
            yield from _of_line(text, lower if len(lower) == len(text) else text.lower(), start, line)
        if word.start() < done:
            continue
        at, done = _identifier(text, word.start(), word.end())
        name = text[at:done].lstrip("-." + digits)
        for span in _values(text, at, done - len(name)) if names_secret(name[:80]) else ():
            if span:
                yield span
                done = max(done, span[1])
        phrase = BEHIND.match(text, done)
        if phrase and _phrase_holds_secret(text[max(0, at - 16) : done], text[at:done], phrase["value"].rstrip(".")):
            rest = TAIL.match(text, phrase.end())
            yield phrase.start("value"), rest.end() if rest else phrase.end(), SECRET


def _phrase_holds_secret(before: str, name: str, value: str) -> bool:
    """Tell whether the value in `... API key: value` is a secret."""
    if OF_ACCESS.search(before) and any(letter.isdigit() for letter in value):
        return True
    return ALONE.match(name) is not None and MIXED.match(value) is not None


def _identifier(text: str, start: int, end: int) -> tuple[int, int]:
    """Return where the identifier around a word begins and ends."""
    head, tail = text[max(0, start - BEFORE) : start], text[end : end + BEFORE]
    return start - len(head) + len(head.rstrip(IDENTIFIER)), end + len(tail) - len(tail.lstrip(IDENTIFIER))


def _line(text: str, at: int) -> tuple[int, int]:
    end = text.find("\n", at)
    return text.rfind("\n", 0, at) + 1, len(text) if end < 0 else end


def _of_line(text: str, lower: str, start: int, end: int) -> Iterator[Span]:
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


def _values(text: str, at: int, name: int) -> Iterator[Span | None]:
    """Yield the value behind a secret's name that begins at `name`, its identifier at `at`: an option's, or any."""
    short = SHORT.search(text, max(0, at - 6), at)
    yield _value(OPTION.match(text, short.start() if short else at), text)
    yield _value(NAMED.match(text, name), text)


def _value(name_match: re.Match[str] | None, text: str) -> Span | None:
    if name_match is None:
        return None
    value = VALUE.match(text, name_match.end())
    if value is None:
        return None
    group = "inside" if value["bare"] is None else "bare"
    if not hides(name_match["name"], value[group]):
        return None
    if name_match.groupdict().get("weak") and not RANDOM.match(value[group].rstrip(",;:.)]}|")):
        return None
    start, done = value.span(group)
    if group == "bare":
        rest = REST.match(text, start)
        assert rest is not None, "it matches nothing too"
        done = rest.end() - (len(rest.group()) - len(rest.group().rstrip(",;)]}")))
    return start, done, SECRET
