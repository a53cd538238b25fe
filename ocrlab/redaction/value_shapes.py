"""How secrets look: drawn at random by a program, or chosen by a person; and what stands in place of a secret."""

from __future__ import annotations

import base64
import itertools
import re

KIND = re.compile(r"[a-z]+|[A-Z]+|\d+")
LONGEST_LOWER = re.compile(r"[a-z]{6}")  # in random text seldom, in names often
PREFIX = re.compile(r"(?:[A-Za-z0-9]{1,12}[_-]){1,4}")  # acme_live_
NAME = 0.6  # of the characters of TestNamedTupleInput_0 are small letters, of a random token 0.42
NUMBERS = re.compile(r"\d+")
LONG = 20  # characters
NOT_CHOSEN = re.compile(
    r".*[\\()\[\]{}=<>]|.*://|.*\.\w{1,4}$|v?[\d.,:x-]+%?$|(?:utf|base|sha|md|aes|rsa|fp|bf|int|rank)-?\d+$|(?:gpu|cpu|cuda|node)"
    r"|\d+[a-z]{1,2}$|[$%]\w+%?$",
    re.IGNORECASE,
)
RECOVERY = re.compile(r"(?=[A-Z-]*\d)[A-Z0-9]{4,16}(?:-[A-Z0-9]{4,16}){0,7}$")
NOT_ALNUM = re.compile(r"[^A-Za-z0-9]")
STATES = (  # what is reported of a secret, and no secret
    r"required|missing|invalid|incorrect|wrong|empty|expired|denied|unset|not|is|must|should|cannot|needed|yes|no|changed"
    r"|fehlt|falsch|ungültig|leer|erforderlich|abgelaufen|nicht|manquant|invalide|vide|absent|requis|obligatoire"
    r"|obligatori[ao]|falta|incorrect[ao]|inválid[ao]|vac[ií]a|mancante|errat[ao]|non|não|ontbreekt|onjuist|brak|не"
    r"|неверн\w{1,3}|пуст\w{0,3}|отсутствует|错误|无效"
)
NO_VALUES = (  # what stands in the place of a secret and is none
    r"(?:none|null|nil|true|false|str|bytes|int|any|self|secretstr|default|bcrypt|\*+|\.\.\.)?[,;:.)\]}]*$",
    r"x+$|your\W|<[^>]*>",  # placeholders
    r"\[|\{(?!\S*\d)|\([\w ]+\)?(?![\w+/=])",  # a list, a mapping or a format, an aside
    r"\$\{|\$\w+\W*$|\$\(|%\w+%|\{\{",  # a variable of a shell or a template
    r"!\w+$|[|>][-+]?$",  # a tag of YAML, or a block that begins
    r"#[0-9a-f]{3,8}[;}]",  # a colour of a style sheet
    rf"(?:{STATES})[,;:.!]*$",
)
CODE = re.compile(r"[A-Za-z_][\w.]*[(\[]")  # a call or an item
NOTHING = re.compile("|".join(NO_VALUES), re.IGNORECASE)


def looks_drawn(word: str, share: float = 0.42) -> bool:
    """Return whether the kind of character changes as often as in random text, more often than in words and names.

    In random letters and digits, 62 of 100 differ in kind from the one before; in hexadecimal digits 47, in CamelCase
    about 30.
    """
    kinds = KIND.findall(word)
    if not word.isalnum() or not word.isascii() or word.isdigit() or len(kinds) < share * len(word):
        return False
    return any(map(str.isdigit, word)) or share < 0.3 or lower_share(word) <= NAME


def lower_share(word: str) -> float:
    """Return the share of small letters: high in names."""
    return sum(map(str.islower, word)) / max(len(word), 1)


def looks_random(token: str, shortest: int = LONG) -> bool:
    """Return whether a token has random capitals, small letters and digits, after a prefix or without one."""
    return _is_random(token, shortest) or _is_random(PREFIX.sub("", token, count=1), shortest)


def _is_random(token: str, shortest: int) -> bool:
    longest = max(re.split("[_-]", token), key=len)
    letters = NOT_ALNUM.sub("", token)
    long = min(len(letters), len(longest) + 4) >= shortest
    if not is_mixed(letters) or not long or LONGEST_LOWER.search(token) or _is_encoded_text(token):
        return False
    return lower_share(letters) <= NAME and looks_drawn(letters, 0.42 if len(NUMBERS.findall(letters)) > 1 else 0.65)


def is_mixed(text: str) -> bool:
    """Return whether a text has capitals, small letters and digits."""
    return all(any(map(kind, text)) for kind in (str.islower, str.isupper, str.isdigit))


def _is_encoded_text(token: str) -> bool:
    """Return whether a token is base64 of a text, as ids of some services are: UGFja2FnZS01NzA4OTExNg."""
    try:
        return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("ascii").isprintable()
    except ValueError:
        return False


def looks_chosen(value: str) -> bool:
    """Return whether a word in a sentence looks like a password: letters with digits, signs, or capitals inside."""
    value = value.strip("\"'.,;:!?)]}")
    if len(value) < 6 or NOT_CHOSEN.match(value) or not any(letter.isalpha() for letter in value):
        return False
    inner = sum(a.islower() and b.isupper() for a, b in itertools.pairwise(value))
    return inner >= 2 or any(letter.isdigit() or letter in "!@#$%^&*?+~" for letter in value)


def looks_strong(value: str) -> bool:
    """Return whether a word looks like a password even where nothing names one: digits beside capitals or signs."""
    digits = any(letter.isdigit() for letter in value)
    mixed = any(letter.isupper() for letter in value) and any(letter.islower() for letter in value)
    return looks_chosen(value) and digits and (mixed or any(letter in "!@#$%^&*?+~" for letter in value))


def is_code(value: str) -> bool:
    """Return whether a value looks like a PIN, a one-time code or a code for recovery."""
    value = value.strip(".,;)")
    return (value.isdigit() and 4 <= len(value) <= 10) or RECOVERY.match(value) is not None
