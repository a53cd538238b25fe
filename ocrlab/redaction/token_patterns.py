"""Secrets that show by their shape: tokens with the prefix of their issuer, private keys, credentials in addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ocrlab.redaction.text_spans import SECRET, Span, begins_word, looks_drawn

PRIVATE = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----|---- BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY ----")
END = re.compile(r"-----END|---- END ")
LINES = re.compile(r"Private-Lines: \d{1,3}\r?\n((?:[A-Za-z0-9+/=]{1,80}\r?\n?){1,200})")  # of PuTTY
BODY = re.compile(r"[A-Za-z0-9+/=\s\\]*")  # of a key whose end is not there
LONGEST = 16_000  # characters of a key with its headers
USER_AND_PASSWORD = re.compile(r"://(?![^/\s'\"@:]{0,99}:\d{1,5}[/\s])([^/\s'\"@:<>]{0,99}:[^\s'\"<>]{0,299})@")
ACCOUNT = re.compile(r"://([^/\s'\"@:<>?#]{1,299})@")
NOBODY = ("git", "hg", "anonymous", SECRET)
QUERY = re.compile(
    r"(?:[?&;]|%26|%3F)(?:amp;)?(?:sig|signature|sharedaccesssignature|key|code|x-(?:amz|goog)-(?:signature|credential"
    r"|security-token))(?:=|%3D)(?!\()([^&\s\"'<>\\;]{6,})",
    re.IGNORECASE,
)
COOKIE = re.compile(
    r"\bcookie\\{0,3}[\"']?\s{0,2}:\s{0,2}\\{0,3}[\"']?((?!\()[\w.-]{1,60}=[^\r\n\"'<>\\]{6,})", re.IGNORECASE
)
LOGIN = re.compile(
    r"\bwandb(?: login (?:--?[\w=-]{1,40} ){0,4}|: [^\n]{0,60}\bAPI key\b[^\n]{0,60}?)([0-9a-f]{40})(?![0-9a-f])"
)
KAGGLE = re.compile(r"\"username\\?\":\s?\\?\"[^\"]{1,80}\",\s?\\?\"key\\?\":\s?\\?\"([0-9a-f]{32})\\?\"")
ENTRA = re.compile(r"(?<![\w.~-])([\w.~-]{3}[78]Q~[\w.~-]{31,34})(?![\w~-])")
MAILCHIMP = re.compile(r"(?<![\w-])([0-9a-f]{32}-us\d{1,2})(?![\w-])")
DISCORD = re.compile(r"(?<![\w.-])([MNO][A-Za-z\d]{23,27}\.[\w-]{6}\.[\w-]{27,38})(?![\w-])")
# Programs that take a password by a letter, or in a line of their own.
CURL = re.compile(
    r"\bcurl\b[^\n]{0,300}?\s(?:-u|--user|--proxy-user|-U)(?:\s{0,4}|=)[\"']?[^\s:\"'/]{1,80}:(?!//)"
    r"((?!\()[^\s\"']{1,200})"
)
MYSQL = re.compile(r"\bmysql(?:dump|admin|import)?\b[^\n]{0,300}?\s-p((?!\()[^\s\"']{1,200})")
LETTER = re.compile(
    r"(?:\b(?:docker|podman|helm|buildah|skopeo)\s+login|\b(?:redis-cli|(?:un)?zip|7z[ar]?|mongo\w{0,9}|mariadb|openssl))\b"
    r"[^\n]{0,300}?\s-(?:[pPa][ =]|p(?=\w{8})|pass(?:in|out)?[ =]pass:)"
    r"((?!\()(?=[^\s\"']*\d)(?=[^\s\"']*[A-Za-z])[^\s\"'/:]{6,200})"
)
OF_ACCOUNT = re.compile(
    r"(?<![\w-])--?(?:proxy-)?(?:user|auth)[ =][\"']?[^\s:\"'/]{1,80}:(?!//)"
    r"((?!\()(?=[^\s\"']*[A-Za-z])[^\s\"']{6,200})"
)
SSHPASS = re.compile(r"\bsshpass\s{1,4}-p\s{0,4}[\"']?((?!\()[^\s\"']{1,200})")
BASIC = re.compile(r"\bBasic +((?=[A-Za-z+/]*[\d=])[A-Za-z0-9+/]{12,200}={0,2})(?![\w=])")
# An address whose last part is the password to it: whoever has it may post to a channel.
RANDOM = r"(?=[\w-]{0,99}\d)(?=[\w-]{0,99}[a-z])(?=[\w-]{0,99}[A-Z])[\w-]{16,100}"
HOOK = re.compile(
    rf"://(?:[^\s/\"'<>]{{0,200}}hook[^\s/\"'<>]{{0,200}}/(?:[\w@.-]{{1,100}}/){{0,6}}?({RANDOM}|[0-9a-f]{{32}}(?![\w-]))"
    rf"|[^\s\"'<>]{{1,200}}?hooks?/(?:[\w@.-]{{1,100}}/){{0,4}}?({RANDOM}))"
)
# Other parts of an address that are drawn at random; digests and commits in addresses are hexadecimal, and stay.
PATH = re.compile(r"/(?:bot\d{6,12}:)?([\w~-]{16,300})(?=[/?#\s\"'<>)\]]|\Z)")
ADDRESS = re.compile(r"://[^\s/\"'<>]{1,255}(/[^\s\"'<>]{1,4000})")
AFTER_NAME = re.compile(r"(?:key|token|secret|auth|api|apikey|access|session)s?/\Z", re.IGNORECASE)
RUN = 14  # letters and digits of such a part without a sign between them
# host:port:database:user:password, a line of .pgpass
PGPASS = re.compile(
    r"^[ \t]{0,8}(?:[\w-]+(?:\.[\w-]+)*|\*|/[\w/.-]+):(?:\d{4,5}|\*):(?=[\w*.-]*[A-Za-z*])[\w*.-]{1,63}:[\w*.@-]{1,63}:"
    r"((?!\()(?:\\.|[^\s:\\]){3,200})[ \t]*$",
    re.MULTILINE,
)
BOT = re.compile(r"(?<!\d)\d{8,10}:(AA[\w-]{32,34})(?![\w-])")  # Telegram's
WORDS = (
    *(("hook", HOOK), (":AA", BOT), ("username", KAGGLE), ("Q~", ENTRA)),
    *(("ookie", COOKIE), ("OOKIE", COOKIE), ("wandb", LOGIN), ("curl", CURL), ("mysql", MYSQL)),
    *((" -p", LETTER), (" -P", LETTER), (" -a", LETTER), ("-user", OF_ACCOUNT), ("-auth", OF_ACCOUNT)),
    *(("Private-Lines", LINES), ("-us", MAILCHIMP), (".", DISCORD)),
    *(("sshpass", SSHPASS), ("Basic ", BASIC)),
)
# The secret half of an AWS key has 40 characters and nothing in front. Drawn at random its kind of character (upper,
# lower, digit, other) changes 25 times, give or take 3; in a path or a name in CamelCase that long some 14 times.
LONG = re.compile(r"[A-Za-z0-9/+]{40,}")
CHANGE = re.compile(r"[a-z]+|[A-Z]+|\d+|[/+]+")
LENGTH, CHANGES, DISTINCT = 40, 18, 20

# What issuers put in front of their tokens, so that no hash or word is taken for a token: what follows -> prefixes.
# The literal is searched first, which is fast.
ISSUED = {
    # models and data, code and packages
    r"[\w-]{16,}": "sk- glpat- gldt- glrt- glptt- glft- glimt- gloas- glsoat- glcbt- dckr_pat_ dckr_oat_ tskey-",
    r"[A-Za-z0-9]{16,}": "hf_ ghp_ gho_ ghu_ ghs_ ghr_",
    r"\w{16,}": "github_pat_ sk_live_ sk_test_ rk_live_ rk_test_",
    r"[A-Za-z0-9]{30,}": "gsk_ r8_ npm_",
    r"\w{30,}": "pcsk_ lsv2_",
    r"[\w-]{30,}": "nvapi- AIza",
    r"[A-Za-z0-9]{40,}": "xai-",
    r"[A-Z0-9]{30,}": "rpa_",
    r"(?=[A-Za-z]*\d)[A-Za-z0-9]{22}(?![\w-])": "ak- as-",
    r"[\w-]{60,}": "pypi-",
    r"[0-9a-f]{40,}": "rubygems_ dop_v1_ doo_v1_ dor_v1_",
    # trackers; the third is base64 of {"api_address":
    r"\w{20,}": "wandb_v1_",
    r"[0-9a-f]{40}(?![0-9a-f])": "local-",
    r"[\w+/=-]{20,}": "eyJhcGlfYWRkcmVzcyI6",
    # clouds and services
    r"[\w-]{22,}": "sq0atp- sq0csp- lin_api_ figd_ shippo_live_ shippo_test_ pscale_tkn_ pscale_pw_ nfp_ tvly-",
    r"[\w-]{36,}": "xkeysib- dp.pt. dp.st. PMAK- ntn_ pul- sgp_ tgp_v1_ phc_ phx_ jina_ ATATT3 ATCTT3 CCIPAT_ bkua_",
    r"[A-Za-z0-9]{43}(?![A-Za-z0-9])": "secret_",
    r"[A-Za-z0-9]{70,}": "EAA AKC",
    r"[0-9a-f]{40}(?![0-9a-f-])": "sbp_",
    r"[A-Z0-9]{27}(?![A-Z0-9])": "NRAK-",
    r"[0-9a-f]{32}(?![\w-])": "key-",
    r"[A-Z0-9]{16}(?![A-Za-z0-9])": "AKIA ASIA",
    r"[\w-]{20,}": "ya29. GOCSPX- hvs. hvb.",
    r"[\w-]{40,}": "1//0",
    r"[0-9a-f]{32}(?:-\d)?(?![0-9A-Za-z])": "dapi",
    r"[\w+/=-]{30,}": "glsa_ glc_ sntrys_",
    r"[A-Z0-9]{40,}": "AGE-SECRET-KEY-1",
    r"[\w-]{16,}\.[\w-]{30,}": "SG.",
    r"[\w+/=]{24,}": "whsec_",
    r"[\w-]{10,}": "xoxa- xoxb- xoxe- xoxp- xoxr- xoxs-",
    r"\d-[\w-]{20,}": "xapp-",
    r"[0-9a-fA-F]{32}": "shpat_ shpca_ shppa_ shpss_",
    # hashes of passwords (crypt(5), PHC strings), which can be guessed from, and JSON web tokens
    r"[./\w]{1,8}\$[./A-Za-z0-9]{22}(?![./\w])": "$1$ $apr1$",
    r"(?:rounds=\d+\$)?[./\w]{1,16}\$[./A-Za-z0-9]{43}(?![./\w])": "$5$",
    r"(?:rounds=\d+\$)?[./\w]{1,16}\$[./A-Za-z0-9]{86}(?![./\w])": "$6$",
    r"[./\w]+\$[./\w]+\$[./A-Za-z0-9]{43}(?![./\w])": "$y$",
    r"\d\d\$[./A-Za-z0-9]{53}(?![./\w])": "$2a$ $2b$ $2y$",
    r"(?:id?|d)\$v=\d+\$m=\d+,t=\d+,p=\d+\$[\w+/]{8,}\$[\w+/]{16,}": "$argon2",
    r"[\w-]{6,}\.[\w-]{6,}\.[\w-]{6,}": "eyJ",
}
PREFIXES = tuple(
    (prefix, re.compile(re.escape(prefix) + rest)) for rest, prefixes in ISSUED.items() for prefix in prefixes.split()
)


def spans(text: str) -> Iterator[Span]:
    """Yield what is a secret by its shape."""
    if "://" in text:
        yield from ((match.start(1), match.end(1), SECRET) for match in USER_AND_PASSWORD.finditer(text))
        yield from _path_tokens(text)
        for match in ACCOUNT.finditer(text):
            if match[1] not in NOBODY:
                yield match.start(1), match.end(1), SECRET
    if "PRIVATE KEY" in text:
        yield from _private_keys(text)
    if text.count(":") >= 4:
        yield from ((*match.span(1), SECRET) for match in PGPASS.finditer(text))
    if "=" in text or "%3" in text:
        yield from ((match.start(1), match.end(1), SECRET) for match in QUERY.finditer(text))
    for word, pattern in WORDS:
        if word in text:
            yield from ((*match.span(match.lastindex or 0), SECRET) for match in pattern.finditer(text))
    yield from _prefixed_tokens(text)
    if len(text) >= 40:
        yield from _cloud_keys(text)


def _prefixed_tokens(text: str) -> Iterator[Span]:
    """Yield tokens, only where a word begins: from inside a long one the time would grow with its square."""
    for prefix, pattern in PREFIXES:
        at = text.find(prefix)
        while at >= 0:
            match = pattern.match(text, at) if begins_word(text, at, "_-") else None
            if match:
                yield at, match.end(), SECRET
            at = text.find(prefix, match.end() if match else at + 1)


def _path_tokens(text: str) -> Iterator[Span]:
    """Yield the parts of addresses that are drawn at random, and any long one after a part such as `token`."""
    for address in ADDRESS.finditer(text):
        for match in PATH.finditer(text, address.start(1), address.end(1)):
            named = AFTER_NAME.search(text[max(address.start(), match.start(1) - 12) : match.start(1)])
            longest = max(re.split(r"[^A-Za-z0-9]", match[1]), key=len)
            drawn = len(longest) >= RUN and looks_drawn(longest) and longest not in (longest.lower(), longest.upper())
            if drawn or (named and any(map(str.isdigit, match[1]))):
                yield *match.span(1), SECRET


def _private_keys(text: str) -> Iterator[Span]:
    for match in PRIVATE.finditer(text):
        start = match.end()
        closing = END.search(text, start, start + LONGEST)
        end = closing.start() if closing else -1
        if end < 0 or PRIVATE.search(text, start, end):
            body = BODY.match(text, start)
            end = body.end() if body else start
        if text[start:end].strip() not in ("", SECRET):
            yield start, end, f" {SECRET} "


def _cloud_keys(text: str) -> Iterator[Span]:
    for match in LONG.finditer(text):
        value = match.group()
        alone = begins_word(text, match.start(), "._-=") and text[match.end() : match.end() + 1] not in ("=", "_")
        mixed = all(any(map(kind, value)) for kind in (str.islower, str.isupper, str.isdigit))
        random = len(set(value)) >= DISTINCT and len(CHANGE.findall(value)) > CHANGES
        if len(value) == LENGTH and alone and mixed and random:
            yield match.start(), match.end(), SECRET
