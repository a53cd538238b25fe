"""Secrets after their name: which names belong to secrets, and where their values are.

Values follow in `api_key=...`, `--token ...`, headers, XML, phrases, on the next line, in the column of a table, and in
a section of settings that is named like a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from ocrlab.redaction import secret_words
from ocrlab.redaction.secret_words import CODE, KEY, LETTER, OPENING, PASSWORD, TOKEN, UNSPACED_TOKENS
from ocrlab.redaction.text_spans import SECRET, Span
from ocrlab.redaction.value_shapes import CODE as PROGRAM_CODE
from ocrlab.redaction.value_shapes import NOTHING, is_code, looks_chosen, looks_drawn, looks_strong

WORDS = (
    rf"{TOKEN}|[a-z0-9]+[_-]keys?(?:[_-]data)?(?!{LETTER})|private[_-]key[_-]id(?!{LETTER})"
    rf"|connection[_-]string(?!{LETTER})"
)
PASSWORD_NAME, KEY_NAME, CODE_NAME = (re.compile(words, re.IGNORECASE) for words in (PASSWORD, KEY, CODE))
SECRET_NAME = re.compile(rf"{PASSWORD}|{CODE}|(?<!{LETTER})(?:{WORDS})", re.IGNORECASE)
AT_THE_END = re.compile(
    rf"{PASSWORD}|{CODE}|{UNSPACED_TOKENS}|{TOKEN}[_\d]*$|(?<!{LETTER})(?:{WORDS})[_\d]*$|(?:^|[_-])pass$",
    re.IGNORECASE,
)
SHORT_WORD = re.compile(r"(?:^|[_-])pw(?:$|[_-])", re.IGNORECASE)  # also short for many other words
HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
FOLDERS = ("PWD", "OLDPWD")  # of the shell, not passwords
# Names of the parts of a text, a model or a mapping, and values that are code, markers or nothing.
ORDINARY_NAME = re.compile(
    r"(?:^|[_-])(?:pad|eos|bos|unk|sep|cls|class|mask|special|image|img|start|end|stop|first|last|next|prev|previous|new|per"
    r"|num|n|max|added|blank|begin|input|output|word|char|pos|reg|register|query|prompt|patch|sot|eot|unexpected|invalid|dist)"
    r"[_-]token$|(?:^|[_-])(?:sort|primary|foreign|missing|unexpected|extra|dict|state|group|cache|index|data|batch|metric|num"
    r"|n|label|image|row|column|public|partition|input|output|dispatch|wait|target|required|unknown|param|config)[_-]keys?$"
    r"|(?:^|[_-])(?:forward|backward|first|second|single|num|n|multi|two|by|test|all|render|warmup|train|val)[_-]?pass$"
    r"|[_-](?:policy|len(?:gth)?|count|hint|field|type|file|path|name|expir\w*|ttl|url|rules|manager|provider|min|max|required"
    r"|reset|version|usage|class|rate|limit|error|exception|warning|santa|env|var|ref|store|helper)s?$",
    re.IGNORECASE,
)
# The keys that open something; any other name that ends in `key` mostly is that of an entry in a mapping.
ACCESS_KEY = re.compile(
    r"(?:api|access|secret|private|auth[a-z]*|account|licen[sc]e|encryption|signing|shared|master|storage|service|session"
    r"|user|app|client|ssh|deploy|wandb|comet|neptune|kaggle|openai|hf|aws|azure|gcp)[_-]?keys?[_\d]*$",
    re.IGNORECASE,
)
ANY_KEY = re.compile(r"[A-Za-z0-9+/=-]{16,}[\"',;)\]}]*$")
LONG = 24  # characters; what is shorter and drawn at random has a digit
COUNT = re.compile(r"\d{1,3}(?:\.\d{1,3}){0,3}(?:px|em|pt|%)?[,;:)\]}]*$")  # or a version, or a size
IDS = re.compile(r"\d+,\s{0,20}[\"'][^\"'\n]{1,60}[\"']: ?\d+\b")  # of a vocabulary: numbers beside numbers
IDS_BEFORE = re.compile(r": ?\d+,\s{0,20}[\"']\Z")
MESSAGE = re.compile(rf"[A-Z]{LETTER}*(?: {LETTER}+){{2,}}[.!]$")
IS_NAME = re.compile(r"[\"']\s{0,4}:")  # `"password": {"type": "string"}`
LINK = (
    r"—|–|->|→|⇒|is|was|ist|war|lautet|heißt|est|était|es|era|fue|è|é|foi|jest|był[oa]?|to|är|er|on|была?|равен|from|von|auf"
    r"|zu|a|à|на"
)
ANSWER = re.compile(  # the password? - hunter2x; use this password to proceed: hunter2x, each on a line of its own
    rf"(?:[^\n?]{{0,60}}[?:]|[ \t](?:{LINK}))[ \t]{{0,9}}\r?\n(?:[ \t]{{0,9}}\r?\n)?"
    r"(?:(?!\s*(?:run|step|epoch|id|file|time)\w*:)[^\n]{0,40}?:[ \t]{1,4})?[ \t]{0,9}"
    r"(?P<value>[^\s\"'<>]{6,80})[ \t]{0,9}(?=\r?\n|\Z)"
)
NUMBER = re.compile(r"[-+]?[\d.]{1,9}(?:e-?\d+)?(?:[,;:)\]}].*)?$")
SENTENCE = re.compile(rf"{LETTER}+ {LETTER}+(?![\w=:])")
QUOTE = r"(?:\\{0,3}[\"']|&quot;|&#0?39;|&#x27;|&#34;|%2[27])"
SPACE = r"[ \t\u00a0\u3000]{0,40}"
MARKUP = r"(?:(?:[ \t]?</?[a-z]\w{0,9}(?: [^<>\n]{0,80})?>){1,4}[ \t]?)?"  # colours of a cell: </span> <span class="o">

HEADER = re.compile(r"(authorization\\{0,3}[\"']?\s{0,4}[:=]\s{0,4}\\{0,3}[\"']?)(\w+ +)?([^\s\"',\\]+)", re.IGNORECASE)
BEARER = re.compile(r"\bbearer +(?=[^\s\"',\\]*\d)([^\s\"',\\]{12,})", re.IGNORECASE)
SCHEMES = ("bearer", "basic", "token", "digest", "apikey", "negotiate")

# What stands between a name and its value, in any spelling. What may as well be the next column of a table is `weak`:
# there only a value that looks drawn is hidden.
BETWEEN = re.compile(
    rf"{QUOTE}?(?:\[\w{{1,20}})?\]?(?:{SPACE}:{SPACE}(?:str|bytes|Any|SecretStr)(?: ?\| ?None)?{SPACE}=(?!=)"
    rf"|{MARKUP}{SPACE}(?:[=!]=?>?|:=|->|<-|→|⇒|\.{{3,40}}|[：＝]|:(?!:|//)|%3[aAdD])\*{{0,2}}{MARKUP}|(?P<copula>[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]{{1,8}}[:：]?)|(?=[「『«„“])"
    r"|(?P<weak>,[ \t]?|[ \t]{0,40}[|│┃][ \t]{0,40}|[ \t]{2,40}|\t"
    r"|(?: \w{1,20}){0,3}(?:</\w+>\s{0,9}){1,3}(?:<\w[^>\n]{0,80}>){1,3}))"
    rf"{SPACE}(?:str[ \t]{{2,20}})?(?:!(?:vault|secret|str|binary|encrypted)[\w/:-]{{0,20}} )?\{{?"
    rf"(?:(?:(?:[a-z]\w{{0,30}}\.){{0,3}}[A-Z]\w{{0,40}}|str|bytes)\((?=[bru]?{QUOTE}))?"
)
LONGEST_CELL = 300  # characters to the end of its line
ASIDE = re.compile(rf"{LETTER}+ \(\d")  # `password: medium (3 of 5)`
KEY_ID = re.compile(r"\b(?:RSA|DSA|EDDSA|ECDSA)(?: key)? [0-9A-F]{16}$")
CELL_END = re.compile(r"[ \t]{0,40}[|│┃]")  # of a box that is drawn
CALL = re.compile(rf"\((?=[bru]?{QUOTE})")
BESIDE = re.compile(rf"[ \t]{{1,4}}(?={QUOTE}|[«„“»]|[^\s\"'<(=:]{{4}})")  # SQL, .netrc, `password hunter2`
AFTER_A_WORD = re.compile(rf"[ \t]{{1,4}}(?:{LETTER}{{1,20}} )?(?={QUOTE}|[^\s\"'<(=:]{{16}})")
LIST = re.compile(rf"[\[(]\s{{0,20}}(?=[bru]?{QUOTE})")
COMMA = re.compile(rf"\s{{0,20}},\s{{0,20}}(?=[bru]?{QUOTE})")
PAIR_OF = re.compile(
    r"credential|credenc|credenz|zugangsdaten|anmeldedaten|identifiants|poświadcz|inloggegevens|dane.logow|donn.es|datos|dati|dados|данные",
    re.I,
)
SECOND = re.compile(r"(?P<parting>[ \t]{0,2}[/:|,][ \t]{0,2}|[ \t])(?P<value>[^\s\"'<>]{1,200})")
PAIR = re.compile(  # name="password" value="...", - name: API_KEY, and value: ... below
    rf"{QUOTE}?[,\s{{]{{1,40}}{QUOTE}?(?:value|val|default|wert|valeur|valor|valore|content|значение){QUOTE}?{SPACE}[:=]{SPACE}",
    re.IGNORECASE,
)
ELEMENT = re.compile(
    rf"{QUOTE}?(?:[ \t][^<>\n]{{0,200}})?(?:>|&gt;)\s{{0,40}}(?:<!\[CDATA\[)?"
    r"(?P<value>[^<>\s&](?:[^<>\n&]|&(?!lt;)){0,400}?)(?:\]\]>)?\s{0,40}(?:</|&lt;/)"
)
NEXT_LINE = re.compile(
    rf"{QUOTE}?{SPACE}[:=：]{SPACE}(?:[|>][-+]?)?[ \t]{{0,9}}[\\(]?\r?\n(?P<indent>[ \t]{{1,80}})(?:- )?"
    r"[\"']?(?P<value>[^\s\"']{6,4000})[\"']?[ \t]{0,40}(?=\r?\n|\Z)"
)
OPTION = re.compile(
    rf"(?<![\w-])(?:--|-[pr][\s\"',]{{1,4}})(?P<name>{LETTER}[\w.-]{{0,79}})(?:\\{{0,3}}[\"'],\s?|[ \t\0]{{1,4}})(?!-)"
)
SHORT = re.compile(r"(?<![\w-])-[pr][\s\"',]{1,4}\Z")
BARE = (
    r"(?:[^\s\"'&\\<\0%;,，。；、」』»“”`\u3040-\u309f]|<(?!/)|%(?!2[267])|&(?![\w.-]{0,40}(?:[=;\s]|%3[dD]|$))"
    r"|[;,](?! ?[A-Za-z][\w ]{0,40}=))"
)
VALUE = re.compile(
    rf"[bfru]?(?:(?P<plain>[\"'])(?P<text>(?:\\.|(?!(?P=plain))[^\\\n]){{0,8000}})(?P=plain)"
    rf"|(?P<quote>{QUOTE})(?P<inside>[^\n]{{0,8000}}?)(?P=quote)"
    rf"|[«»„“‘「『`][ \u00a0]?(?P<fancy>[^\n«»„“”’」』`]{{1,400}}?)[ \u00a0]?[«»“”’」』`])"
    rf"|{QUOTE}?(?P<bare>{BARE}{{1,200}})"
)
REST = re.compile(rf"{BARE}*")
RANDOM = re.compile(r"(?=[^\s\"'<]{0,60}\d)(?=[^\s\"'<]{0,60}[A-Za-z])[^\s\"'<(\[{]{8,}$")

# Prose: `Invalid API key: 0123...`, `the token abc... has expired`. Without a word before it a key is mostly that of a
# mapping or a module, so that only hexadecimal digits, or a mixture of cases and digits, are a secret.
BEHIND = re.compile(r"(?: (?:is|was|of|for|given|provided))?[ \t:：=]{1,4}[\"'`<(\[]?(?P<value>[\w+/=.-]{16,256})")
TAIL = re.compile(r"[\w+/=.-]*")
ACCESS_PHRASE = re.compile(
    r"\b(?:api|access|secret|account|license|auth\w{0,12}|signing|shared)[ -]?(?:keys?|tokens?)$", re.I
)
ALONE = re.compile(r"(?:token|key|password|secret)$", re.IGNORECASE)
MIXED = re.compile(r"[0-9a-f]{32,}$|(?=[A-Za-z+/=]*\d)(?=[a-z\d+/=]*[A-Z])(?=[A-Z\d+/=]*[a-z])[A-Za-z0-9+/=]{20,}$")
# `the password for ana is ...`, `пароль пользователя ana — ...`, `Password for 'https://x': ...`, `from ... to ...`
PROSE = re.compile(
    rf"(?P<words>(?:[ \t][^\s;,!?。]{{1,60}}){{0,5}}?)(?:[ \t]?(?:[:：]|==?>?)[ \t]"
    rf"|[ \t](?:{LINK})[ \t](?!\w+ \w+ \S+: ))"
    r"[\"'«„“`(\[]?[ \t]?(?P<value>[^\s\"'<>«»“”`]{4,200})"
)
TO = re.compile(r"[\"'»”`!?]? (?:to|auf|zu|in|a|à|en|на) [\"'«„“`]?(?P<value>[^\s\"'<>«»“”`]{6,200})")
PIN = re.compile(r"(?:^|[_-])pin$", re.IGNORECASE)
VALUE_FIRST = re.compile(  # `hunter2 is the password`
    r" (?:is|are|as|ist|sind|als|est|sont|comme|es|son|como|è|sono|come|é)"
    r" (?:(?:the|my|your|a|das|dein|mein|le|mon|votre|la|tu|su|mi|il|sua|minha) )?$"
)
CHANGED = re.compile(r"[\"'»”`]? (?:->|=>|→) [\"'«„“`]?(?P<value>[^\s\"'<>«»“”`]{4,200})")  # "before" -> "after"
BEFORE, AFTER = 80, 40  # characters before a word in which its identifier begins, and in which a word belongs to it
UNSPACED = "\u0e00"  # from here on letters of languages that do not part words: Thai, Chinese, Japanese, Korean
# A table: its header names the secret, the cells of that column hold it.
BORDER = re.compile(r"[\s|+:=-]*$")
ROWS, LONGEST_ROW = 200, 2000
PARTINGS = ("|", "│", "┃", "\t", ";", ",", "  ")
CELL = re.compile(r"\S+(?: \S+)*")
# INSERT INTO users (name, password) VALUES ('ana', '...')
INSERT = re.compile(r"[^()\n]{0,400}\)\s{0,20}values\s{0,20}\((?P<values>[^()\n]{1,2000})\)", re.IGNORECASE)
QUOTED = re.compile(r"'([^'\n]{1,400})'")
# Settings below `secrets:`, and the data of a Secret of Kubernetes.
SECTION = re.compile(
    r"(?m:^)(?P<indent>[ \t]{0,40})(?:- )?"
    r"(?:[\w-]{0,30}(?:secrets|credentials|passwords|tokens|api[_-]?keys):|(?:string)?data:)[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
IS_SECRET_KIND = re.compile(r"^[ \t]*\"?kind\"?: ?\"?Secret\b", re.MULTILINE)
SETTING = re.compile(
    r"\r?\n(?P<indent>[ \t]{1,80})(?:- )?[\w./-]{1,80}:[ \t]{1,9}"
    r"[\"']?(?P<value>[^\s\"']{6,4000})[\"']?[ \t]*(?=\r?\n|\Z)"
)


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Return True if a parameter or environment variable has a name like a secret: `wandb_api_key`, `dbPassword`."""
    name = HUMPS.sub("_", name)
    return SECRET_NAME.search(name) is not None or (KEY_NAME.search(name) and OPENING.search(name)) is not None


@lru_cache(maxsize=4096)
def names_secret(name: str) -> bool:
    """Return True if the value after `name` is a secret: stricter than is_secret, as texts hold tokens and keys."""
    last = HUMPS.sub("_", name.rpartition(".")[2])
    return (AT_THE_END.search(last) or KEY_NAME.search(last)) is not None and ORDINARY_NAME.search(last) is None


def hides(name: str, value: str, around: str = "", *, quoted: bool = False) -> bool:
    """Return True if `value` after `name`, with the words `around` it, is a secret: not a number, nothing, or code."""
    if not quoted and PROGRAM_CODE.match(value):
        return False
    folder = value.startswith(("/", "~", ".")) and (name in FOLDERS or "credential" in name.lower())
    if not names_secret(name) or NOTHING.match(value) or folder:
        return False
    if SECRET in value and "://" not in value:
        return True  # a part of it looked random
    plain = HUMPS.sub("_", name)
    if CODE_NAME.search(plain):
        return is_code(value) or (looks_chosen(value) and not PIN.search(plain))
    word = value.strip(".,;:()[]{}")
    if (value.isalpha() and not value.isascii()) or (word.replace("_", "").isalpha() and names_secret(word)):
        return False  # a word about it, or another variable
    if PASSWORD_NAME.search(plain):  # people choose them, so that they may be words
        if COUNT.match(value):
            return False
        return SHORT_WORD.search(plain) is None or looks_chosen(value)
    if plain.lower().endswith("pass"):
        return looks_chosen(value)
    foreign = KEY_NAME.search(name) is not None
    random = len(value) >= 10 and looks_drawn(value.strip("\"',;)]}"))
    if NUMBER.match(value) or not (len(value) >= LONG or random or foreign or any(map(str.isdigit, value))):
        return False  # tokens and keys are drawn: `new_key = prefix` and `token: Token` are code
    if foreign:
        opens = OPENING.search(f"{name} {around}") is not None and looks_chosen(value)
        return opens or random or looks_strong(value)
    opens = ACCESS_KEY.search(plain) is not None or not name.lower().endswith(("key", "keys"))
    return opens or ANY_KEY.match(value) is not None


def looks_plausible(value: str) -> bool:
    """Return whether a word after a word for a password, without a sign between them, can be one."""
    return looks_chosen(value) or is_code(value)


def looks_issued(value: str) -> bool:
    return len(value) >= 16 and looks_drawn(value, 0.36)


def looks_in_column(value: str) -> bool:
    return RANDOM.match(value) is not None or looks_issued(value)


def spans(text: str) -> Iterator[Span]:
    """Yield the values after the names of secrets; only the text around such a word is inspected closely."""
    lower = text.lower()
    done = line = table = 0
    for word in secret_words.find(text, lower):
        if word.start() >= line:
            start, end = text.rfind("\n", 0, word.start()) + 1, text.find("\n", word.start())
            line = len(text) if end < 0 else end
            yield from _header_spans(text, lower, start, line)
        if word.start() < done:
            continue
        at, done = _identifier(text, word.start(), word.end())
        name = text[at:done].lstrip("-._0123456789")
        begin = done - len(name)
        if names_secret(name[:80]):
            around = text[max(start, at - AFTER) : at]
            for span in _value_spans(text, at, begin, done, around):
                yield span
                done = max(done, span[1])
            if start >= table and not name.lower().endswith("pass"):
                table, columns = _column_spans(text, start, line, begin, begin + len(name))
                yield from columns
        phrase = BEHIND.match(text, done)
        if phrase and _phrase_holds_secret(text[max(0, at - 16) : done], text[at:done], phrase["value"].rstrip(".")):
            rest = TAIL.match(text, phrase.end())
            yield phrase.start("value"), rest.end() if rest else phrase.end(), SECRET
    if ":" in text:
        yield from _section_spans(text)


def _phrase_holds_secret(before: str, name: str, value: str) -> bool:
    """Return whether the value in `... API key: value` is a secret."""
    if ACCESS_PHRASE.search(before) and any(letter.isdigit() for letter in value):
        return True
    return (
        ALONE.search(name) is not None
        and ORDINARY_NAME.search(before.replace(" ", "_")) is None
        and MIXED.match(value) is not None
    )


def _identifier(text: str, start: int, end: int) -> tuple[int, int]:
    """Return where the identifier around a word begins and ends."""
    first, last = max(0, start - BEFORE), min(len(text), end + BEFORE)
    while start > first and (text[start - 1].isalnum() or text[start - 1] in "_.-"):
        start -= 1
    if text[end - 1] < UNSPACED:
        while end < last and (text[end].isalnum() or text[end] in "_.-"):
            end += 1
        while text[end - 1] in ".-":
            end -= 1
    return start, end


def _header_spans(text: str, lower: str, start: int, end: int) -> Iterator[Span]:
    """Yield what a header holds."""
    if lower.find("authorization", start, end) >= 0:
        for match in HEADER.finditer(text, start, end):
            scheme, value = match.group(2) or "", match.group(3)
            has_scheme = scheme.strip().lower() in SCHEMES or (not scheme and len(value) >= 8)
            if has_scheme and value.lower() not in SCHEMES and not NOTHING.match(value):
                yield match.start(3), match.end(3), SECRET
    if lower.find("bearer", start, end) >= 0:
        yield from ((match.start(1), match.end(1), SECRET) for match in BEARER.finditer(text, start, end))


def _value_spans(text: str, at: int, begin: int, end: int, around: str) -> Iterator[Span]:
    """Yield the value after a secret's name from `begin` to `end`, its identifier at `at`: an option's, or any."""
    name = text[begin:end][:80]
    if text.startswith(SECRET, end):
        return
    for layout in (ELEMENT.match(text, end), NEXT_LINE.match(text, end)):
        if layout and hides(name, layout["value"], around):
            below = layout.groupdict().get("indent")
            if below is None or (len(below) > _indent(text, at) and looks_chosen(layout["value"])):
                yield *layout.span("value"), SECRET
                return
    short = SHORT.search(text, max(0, at - 6), at)
    option = OPTION.match(text, short.start() if short else at)
    between = None if text[max(0, at - 1) : begin].startswith(".") else BETWEEN.match(text, end)
    plain = HUMPS.sub("_", name)
    password = PASSWORD_NAME.search(plain) is not None or CODE_NAME.search(plain) is not None
    chosen = [
        CALL.match(text, end) if password or text[begin].isupper() else None,
        (BESIDE if password else AFTER_A_WORD).match(text, end),
    ]
    for match in (option, PAIR.match(text, end), between, *chosen):
        if match is None:
            continue
        groups = match.groupdict()
        weak = (
            looks_in_column
            if groups.get("weak")
            else (looks_plausible if password else looks_issued)
            if match in chosen or groups.get("copula")
            else bool
        )
        several = LIST.match(text, match.end() - text.startswith("(", match.end() - 1))
        values = list(_values(text, several.end() if several else match.end(), all_of=several is not None))
        prose = match is between and match.group().endswith(" ") and SENTENCE.match(text, match.end())
        ids = IDS.match(text, match.end()) or IDS_BEFORE.search(text, max(0, at - 30), at)
        boxed = password and (groups.get("weak") or "").strip() in ("|", "│", "┃")
        limit = min(len(text), match.end() + LONGEST_CELL)
        line_end = text.find("\n", match.end(), limit) if boxed else -1
        cell = CELL_END.search(text, match.end(), line_end if line_end >= 0 else limit) if boxed else None
        if cell and looks_chosen(text[match.end() : cell.start()].replace(" ", "")):
            yield match.end(), cell.start(), SECRET
            return
        secrets = [
            (start, _rest(text, start) if bare else stop, SECRET)
            for start, stop, bare in values
            if hides(name, text[start:stop], around, quoted=not bare)
            and not (bare and ASIDE.match(text, start))
            and not KEY_ID.search(text[max(0, start - 20) : stop])
            and not (bare and ids and text[start:stop].strip(",}").isdigit())
            and not (match.group().endswith("{") and IS_NAME.match(text, stop))
            and not MESSAGE.match(text[start:stop])
            and weak(text[start:stop].rstrip(",;:.)]}|"))
            and ((len(values) == 1 and not prose) or looks_chosen(text[start:stop]))
            and text[start:stop] != SECRET
        ]
        if secrets:
            second = SECOND.match(text, secrets[-1][1]) if PAIR_OF.search(name) else None
            yield from secrets
            change = CHANGED.match(text, secrets[-1][1])
            if change and not NOTHING.match(change["value"]):
                yield *change.span("value"), SECRET
            if second and (second["parting"].strip() or looks_chosen(second["value"])):
                yield *second.span("value"), SECRET
            return
    place = _drawn_below(text, at) if password else None
    if place and text[slice(*place)] != SECRET:
        yield *place, SECRET
        return
    answer = ANSWER.match(text, end) if password else None
    if answer and looks_chosen(answer["value"]):
        yield *answer.span("value"), SECRET
        return
    link = VALUE_FIRST.search(text, max(0, at - 16), at) if password else None
    if link:
        word = text[max(0, link.start() - 60) : link.start()].rpartition(" ")[2].strip("\"'«„“`»”")
        start = text.rfind(word, 0, link.start())
        if looks_chosen(word):
            yield start, start + len(word), SECRET
    insert = INSERT.match(text, end)
    if insert:
        for quoted in QUOTED.finditer(text, *insert.span("values")):
            if looks_chosen(quoted[1]):
                yield *quoted.span(1), SECRET
        return
    prose = PROSE.match(text, end)
    if prose and _prose_holds_secret(name, f"{around} {name} {prose['words']}", prose["value"].rstrip(".,;:!?)]}")):
        stop = prose.start("value") + len(prose["value"].rstrip(".,;:!?)]}"))
        yield prose.start("value"), stop, SECRET
        other = TO.match(text, stop)
        if other and looks_chosen(other["value"]):
            yield other.start("value"), other.start("value") + len(other["value"].rstrip(".,;:!?)]}")), SECRET


def _drawn_below(text: str, at: int) -> tuple[int, int] | None:
    """Return where the value of a name is that a traceback draws below its line: `└ 'hunter2x'` in the same column."""
    column, line = at - text.rfind("\n", 0, at) - 1, at
    for _ in range(10):
        line = text.find("\n", line + 1)
        if line < 0:
            return None
        if text.startswith("\u2514 ", line + 1 + column):
            value = VALUE.match(text, line + 3 + column)
            return value.span("text") if value and value["text"] else None
        if text[line + 1 : line + 2 + column].strip(" \u2502"):
            return None
    return None


def _values(text: str, at: int, *, all_of: bool) -> Iterator[tuple[int, int, bool]]:
    """Yield where the value at a place begins and ends, and whether it has no quotes; of a list all of them."""
    value = VALUE.match(text, at)
    while value:
        group = next(name for name in ("text", "inside", "fancy", "bare") if value[name] is not None)
        yield *value.span(group), group == "bare"
        comma = COMMA.match(text, value.end()) if all_of else None
        value = VALUE.match(text, comma.end()) if comma else None


def _rest(text: str, start: int) -> int:
    """Return where a value without quotes ends, of which only the beginning was looked at."""
    bare = REST.match(text, start)
    assert bare is not None, "it matches nothing too"
    value = bare.group().rstrip(",;)]}")
    return start + len(value) + value.endswith(SECRET[:-1])


def _prose_holds_secret(name: str, words: str, value: str) -> bool:
    """Return whether the value in `the password of ana is value` is a secret."""
    if value.startswith("(") or NOTHING.match(value):
        return False
    plain = HUMPS.sub("_", name)
    if PASSWORD_NAME.search(plain) or CODE_NAME.search(plain):
        return looks_chosen(value) if CODE_NAME.search(plain) is None else is_code(value)
    opens = OPENING.search(words) is not None and len(value) >= 12 and RANDOM.match(value) is not None
    return opens or MIXED.match(value) is not None


def _indent(text: str, at: int) -> int:
    line = text.rfind("\n", 0, at) + 1
    return len(text[line:at]) - len(text[line:at].lstrip(" \t"))


def _section_spans(text: str) -> Iterator[Span]:
    """Yield the settings below `secrets:`, and below `data:` in a Secret of Kubernetes."""
    kubernetes = "Secret" in text and IS_SECRET_KIND.search(text) is not None
    for section in SECTION.finditer(text) if "s:" in text.lower() or kubernetes else ():
        if section.group().strip().lower().endswith("data:") and not kubernetes:
            continue
        setting = SETTING.match(text, section.end())
        while setting and len(setting["indent"]) > len(section["indent"]):
            if looks_chosen(setting["value"]) and not NOTHING.match(setting["value"]):
                yield *setting.span("value"), SECRET
            setting = SETTING.match(text, setting.end())


def _column_spans(text: str, start: int, end: int, begin: int, stop: int) -> tuple[int, list[Span]]:
    """Return the end of the table below a header line, and the secrets in the column that the name heads."""
    header, name, spans = text[start:end], text[begin:stop], []
    columns = {parting: sum(a < b for a, b in _cells(header, parting)) for parting in PARTINGS}
    parting = next((parting for parting in PARTINGS if columns[parting] > ("|" not in header)), "")
    heads = _cells(header, parting) if parting and len(header) < LONGEST_ROW else []
    column = next((n for n, cell in enumerate(heads) if header[slice(*cell)].strip("*`\"' ") == name), None)
    if column is None:
        return end, []
    last = end  # of the table; the line after it may be another header
    for _ in range(ROWS):
        start, end = end + 1, text.find("\n", end + 1)
        end = len(text) if end < 0 else end
        row = text[start:end]
        if len(row) > LONGEST_ROW or not row.strip():
            break
        if BORDER.match(row):
            continue
        cells = _cells(row, parting)
        if len(cells) not in (len(heads), len(heads) + (parting == "  ")):  # a row may begin with its number
            break
        aligned = (cell for cell in cells if heads[column][0] == cell[0] or heads[column][1] == cell[1])
        cell = next(aligned, None) if parting == "  " else cells[column]
        value = row[slice(*cell)].strip("\"'") if cell else ""
        if looks_chosen(value) and hides(name, value) and (PASSWORD_NAME.search(name) or len(value) >= 16):
            at = start + row.index(value, cell[0] if cell else 0)
            spans.append((at, at + len(value), SECRET))
        last = end
    return last, spans


def _cells(row: str, parting: str) -> list[tuple[int, int]]:
    """Return where the cells of a row begin and end, without the blanks around them."""
    cells, at = [], 0
    if parting == "  ":
        return [match.span() for match in CELL.finditer(row)]
    for cell in row.split(parting):
        inner = cell.strip()
        begin = at + cell.index(inner)
        cells.append((begin, begin + len(inner)))
        at += len(cell) + len(parting)
    return cells
