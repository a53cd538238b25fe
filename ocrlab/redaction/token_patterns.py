"""Secrets that show by their shape: random tokens, private keys, credentials in addresses and in commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ocrlab.redaction.text_spans import SECRET, Span
from ocrlab.redaction.value_shapes import (
    NAME,
    NOT_ALNUM,
    NOTHING,
    is_mixed,
    looks_chosen,
    looks_drawn,
    looks_random,
    looks_strong,
    lower_share,
)

PRIVATE = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----|---- BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY ----")
END = re.compile(r"-----END|---- END ")
BODY = re.compile(r"[A-Za-z0-9+/=\s\\]*")  # of a key whose end is not there
LONGEST = 16_000  # characters of a key with its headers
NOBODY = ("git", "hg", "anonymous", SECRET)
UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
ANY = r"((?!\()[^\s\"']{1,200})"
CHOSEN = r"(?P<chosen>(?!\()[^\s\"']{6,200})"  # looked at more closely
STRONG = r"(?P<strong>(?!\()[^\s\"']{6,200})"
GAP = r"[\s\"',=]{1,4}"  # between an option and its value, in a command line or a list
READERS = "(?:sudo|docker|podman|helm|kinit|gpg|passwd|cryptsetup)"
DIGEST = rf"([0-9a-f]{{40}}|{UUID})(?![\w-])"
LOGIN = rf"\b(?:login|auth|authtoken)[\"'(]{{0,2}}(?: --?[\w=:./-]{{1,60}}){{0,4}}[ \"'(]{{1,2}}{DIGEST}"
YOUR_CODE = (
    r"(?i:\b(?:your|ihr|dein|votre|ton|tu|su|tuo|suo|seu|ваш|твой) (?:[\w-]{1,20} ){0,2}(?:code|código|codice|код)"
    r"(?:(?: [^\W\d]{1,20}){0,3}? (?:is|ist|lautet|est|es|è|é|—|-)|:))[: ]{1,2}(\d{4,8})(?!\d| lines)"
)

# What is searched first, and where the secret is: the last group, or all of it.
SHAPES = (
    # addresses
    ("://", r"://(?![^/\s'\"@:]{0,99}:\d{1,5}[/\s])([^/\s'\"@:<>]{0,99}:[^\s'\"<>]{0,299})@"),
    ("://", r"://((?!(?:git|hg|anonymous|\(secret\))@)[^/\s'\"@:<>?#]{1,299})@"),
    ("@", r"(?<![\w/:.@-])(?!mailto)[\w.-]{1,40}:(?P<chosen>(?!\()[^\s\"'@/:]{6,100})@(?=[\w.-]{3})"),
    ("thin:", r"\bthin:[\w.-]{1,60}/([^\s@/\"']{1,99})@"),
    ("sqlplus", r"\bsqlplus(?: -\w{1,9}){0,9} [\w.-]{1,60}/([^\s@/\"']{1,99})@"),
    (
        "=",
        r"(?i:(?:[?&;]|%26|%3F)(?:amp;)?(?:sig|signature|sharedaccesssignature|key|code|x-(?:amz|goog)-(?:signature"
        r"|credential|security-token))(?:=|%3D))(?!\()([^&\s\"'<>\\;]{6,})",
    ),
    # headers
    ("ookie", r"(?i:\bcookie\\{0,3}[\"']?\s{0,2}:\s{0,2}\\{0,3}[\"']?)((?!\()[\w.-]{1,60}=[^\r\n\"'<>\\]{6,})"),
    ("uthorization", r"uthorization\W{1,6}(?:SharedKey|Digest|OAuth|AWS4\S{1,30}|Hawk) ((?!\()[^\r\n]{6,})"),
    ("Basic ", r"\bBasic +((?=[A-Za-z+/]*[\d=])[A-Za-z0-9+/]{12,200}={0,2})(?![\w=])"),
    ("uth", rf"uth\w{{0,20}}[\"']?\s?[:=]\s?[\"']?[\w.@-]{{1,60}}:{CHOSEN}"),
    # messages with a one-time code
    *((word, YOUR_CODE) for word in ("ode", "ódigo", "odice", "код")),
    # files of settings, and keys of known issuers
    ("sername", r"\"username\\?\":\s?\\?\"[^\"]{1,80}\",\s?\\?\"key\\?\":\s?\\?\"([0-9a-f]{32})\\?\""),
    ("Private-", r"Private-Lines: \d{1,3}\r?\n((?:[A-Za-z0-9+/=]{1,80}(?:\r?\n|$)){1,200})"),  # PuTTY
    ("Private-MAC", r"Private-MAC: ([0-9a-f]{40,64})"),
    ("A", r"(?<![A-Za-z0-9])((?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16})(?![A-Za-z0-9])"),  # AWS
    ("_", r"\b(?:hf|api_org)_[A-Za-z]{34}\b"),
    ("pat", r"\b(pat[A-Za-z0-9]{14,16}\.[0-9a-f]{64,})"),  # Airtable
    ("Q~", r"(?<![\w.~-])([\w.~-]{3}\dQ~[\w.~-]{31,34})(?![\w~-])"),
    ("-us", r"(?<![\w-])([0-9a-f]{32}-us\d{1,2})(?![\w-])"),
    (".", r"(?<![\w.-])([MNO][A-Za-z\d]{23,27}\.[\w-]{6}\.[\w-]{27,38})(?![\w-])"),  # Discord
    (":AA", r"(?<!\d)\d{8,10}:(AA[\w-]{32,34})(?![\w-])"),  # Telegram
    (
        ":",  # .pgpass: host, port, database, user, password
        r"(?m:^)[ \t]{0,8}(?:[\w-]+(?:\.[\w-]+)*|\*|/[\w/.-]+):(?:\d{4,5}|\*):(?=[\w*.-]*[A-Za-z*])[\w*.-]{1,63}:"
        r"[\w*.@-]{1,63}:((?!\()(?:\\.|[^\s:\\]){3,200})[ \t]*(?m:$)",
    ),
    # commands: wandb login KEY, curl -u NAME:PASSWORD, mysql -pPASSWORD
    ("wandb", r"\bwandb: [^\n]{0,60}\bAPI key\b[^\n]{0,60}?([0-9a-f]{40})(?![0-9a-f])"),
    ("login", LOGIN),
    ("auth", LOGIN),
    ("curl", rf"\bcurl\b[^\n]{{0,300}}?\s(?:-u|--user|--proxy-user|-U){GAP}[^\s:\"'/]{{1,80}}:(?!//){ANY}"),
    (":", rf"(?<![\w-])(?:-[uaU]|--?(?:proxy-)?(?:user|auth)){GAP}[^\s:\"'/]{{1,80}}:(?!//){CHOSEN}"),
    ("mysql", rf"\bmysql(?:dump|admin|import)?\b[^\n]{{0,300}}?\s-p[\"']?{ANY}"),
    ("sshpass", rf"\bsshpass\s{{1,4}}-p\s{{0,4}}[\"']?{ANY}"),
    (
        " -",
        r"\b(?:docker|podman|helm|buildah|skopeo|az|mongo\w{0,9}|mariadb|sqlcmd|(?:un)?zip|7z[ar]?|(?:un)?rar|openssl)"
        rf"\b[^\n]{{0,300}}?\s-(?:[pPkK][ =]|p(?=\S{{6}})|pass(?:in|out)?[ =]pass:)[\"']?{CHOSEN}",
    ),
    (" -", rf"\b(?:redis-cli|ldap\w{{1,12}})\b[^\n]{{0,300}}?\s-[aw]{GAP}{ANY}"),
    ("lftp", rf"\blftp\b[^\n]{{0,80}}?\s-u\s?[^\s,]{{1,80}},{ANY}"),
    ("AC", r"\bAC[0-9a-f]{32}[\"'],\s?[\"']([0-9a-f]{32})\b"),  # Twilio
    (" -", rf"(?<!\S)-(?:[pPw]|pw){GAP}{STRONG}"),
    ("pass", rf"(?<!\S)--?(?:storepass|keypass|pass){GAP}{CHOSEN}"),
    ("AUTH", rf"\bAUTH {CHOSEN}"),
    ("AUTH", r"\bAUTH (?:PLAIN|LOGIN|XOAUTH2) ((?!\()[A-Za-z0-9+/]{8,}={0,2})"),
    ("password", r"\blogin\s{1,40}\S{1,80}\s{1,40}password[ \t]{1,4}((?!\()\S+)"),  # .netrc
    ("SecureString", r"\bConvertTo-SecureString (?:-\w+ )?[\"']((?!\()[^\"'\n]{1,200})[\"']"),
    ("htpasswd", rf"\bhtpasswd\b[^\n]{{0,60}}\s-\w*b\w*(?: \S{{1,80}}){{2}} {ANY}"),
    ("| ", rf"\b[\w.-]{{1,40}}:{CHOSEN}[\"']?\s{{0,9}}\|\s{{0,9}}(?:sudo )?chpasswd"),
    ("chpasswd", rf"\bchpasswd\b[^\n]{{0,20}}<<<\s{{0,9}}[\"']?\w{{1,40}}:{ANY}"),
    ("echo", rf"\becho\s{{1,4}}(?:-n )?[\"']?{CHOSEN}[\"']?\s{{0,9}}\|\s{{0,9}}{READERS}\b"),
    ("smbclient", rf"\bsmbclient\b[^\n]{{0,200}}?\s-U\s?[\"']?[^\s%]{{1,80}}%{ANY}"),
    ("/p:", rf"\s/p:{ANY}"),
    ("net use", rf"\bnet use (?:\w: )?\\\\\S{{1,120}} {CHOSEN}"),
    ("http-basic", rf"\bhttp-basic\.\S{{1,60}} \S{{1,60}} {ANY}"),
    # calls and statements
    (" / ", rf"(?i:\blog(?:ged)? ?(?:in )?(?:as|with|als|con|come|como|jako) )[\w.@-]{{1,60}} / {CHOSEN}"),
    ("login(", rf"\.login\(\s*[\"'][^\"'\n]{{1,80}}[\"']\s*,\s*[\"']{CHOSEN}"),
    ("(", rf"\b(?:jwt\.(?:en|de)code|hmac\.new)\([^\"'\n]{{0,80}}[\"']{CHOSEN}"),
)
COMPILED = tuple((literal, re.compile(pattern)) for literal, pattern in SHAPES)

# Parts of addresses. What has `hook` in it lets whoever has it post to a channel; after `token/` follows one.
ADDRESS = re.compile(r"://[^\s/\"'<>]{1,255}(/[^\s\"'<>?#]{1,4000})")
HOOK = re.compile(r"hook|hc-ping\.com", re.IGNORECASE)
SEGMENT = re.compile(r"[\w~-]{14,300}")
AFTER_NAME = re.compile(
    r"/(?:(?:key|token|secret|auth|api|apikey|access|session|invite|reset)s?|t|[\w-]+-(?:token|key|password))/\Z", re.I
)
SHORT = 16  # characters of a random part of an address
COMMIT = re.compile(r"[0-9a-f]{40}$")

# Long runs without a blank. Encoded data (pictures, digests, public keys) look the same: they begin in a known way,
# come after a word for it, go on for longer than any token, or are wrapped over lines.
RUN = re.compile(r"(?<![A-Za-z0-9+/=_-])(?:(?<=\\)[nrtbf]|(?<=%)[0-9A-F]{2}|-p)?([A-Za-z0-9+/=_-]{20,})")
DATA = re.compile(  # the last one is a certificate
    r"sha\d{1,3}[-=]|iVBOR|/9j/|R0lGOD|UklGR|AAAA|UEsDB|JVBERi|H4sI|PHN2Zy|d09G|_{1,2}Z|LS0tLS1CRUdJTiBDRVJUSUZJQ0FUR",
    re.IGNORECASE,
)
BEFORE_DATA = re.compile(
    r"base64,|sha\d{1,3}[:=]\"?$|[A-Za-z0-9+/]{20}(?:\r?\n[ \t\"\',]*|\\{1,3}n?)$|image/\w+\"?:\s?\"$|PublicKey\s?=\s?$"
    r"|(?:drive|docs|research)\.google\.\S{0,80}$",
    re.IGNORECASE,
)
IN_ADDRESS = re.compile(r"://[^\s\"'<>]{0,200}$")
LONGEST_RUN = 300
TOKEN = re.compile(r"([A-Za-z0-9_-]{20,})(?:={1,2}(?![A-Za-z0-9]))?")
BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])([A-Za-z0-9+/]{40,100})={0,2}")
CHANGE = re.compile(r"[a-z]+|[A-Z]+|\d+|[/+]+")

# Tokens with the prefix of their issuer, which may have no capitals, or no digits.
WORD = re.compile(r"(?<![A-Za-z0-9_-])(?:(?<=\\)[nrtbf]|(?<=%)[0-9A-F]{2})?([A-Za-z0-9][\w.~-]{15,})", re.ASCII)
ISSUERS = tuple(
    """
    hf_ api_org_ sk- rk_ sk_ ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- gldt- glrt- glptt- glft- glimt- gloas-
    glsoat- glcbt- glffct- glagent- GR1348941 dckr_ tskey- gsk_ r8_ npm_ pcsk_ lsv2_ nvapi- AIza xai- rpa_ pypi-
    rubygems_ dop_v1_ doo_v1_ dor_v1_ wandb_v1_ local- sq0 sqco_ lin_api_ lin_oauth_ figd_ figp_ shippo_ pscale_
    nfp_ tvly- xkeysib- xsmtpsib- dp.pt. dp.st. PMAK- ntn_ pul- sgp_ slk_ tgp_v1_ phc_ phx_ jina_ ATATT3 ATCTT3
    ATBB CCIPAT_ bkua_ secret_ EAA AKC cmVmd sbp_ NRAK- NRAA- NRII- key- ABSK LTAI AKID ya29. GOCSPX- hvs. hvb.
    hvr. dapi glsa_ glc_ sntrys_ sntryu_ AGE-SECRET-KEY-1 SG. whsec_ xox xapp- shpat_ shpca_ shppa_ shpss_ ops_
    A3- p8e- CLOJARS_ v1.0- duffel_ dt0c01. EZAK EZTK FLWSECK fo1_ fm1 fm2_ fio-u- HRKU- ico- s-s4t2 pplx- pnu_
    rdme_ tk-us- sm_aat_ sm_pat_ sm_sat_ sha256~ SK cfk_ cfut_ CFPAT- BBFF- bb_ flb_live_ rzp_ ramp_sec_ rootly_
    shltm_ tfp_ salad_cloud_ API- ak_live_ live_ sk_test_ bedrock-api-key- e2b_ ak- as-
    """.split()
)
NAME_PART = re.compile(r"(?:[A-Z]?[a-z]*|[A-Z]+)\d*")  # Epoch3, x86, SGD
JWT = re.compile(r"eyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]{6,}")
PASSWORD_HASH = re.compile(  # crypt(5), PHC strings: can be guessed from
    r"\$(?:(?:1|apr1|5|6|y|2[aby])\$(?:rounds=\d+\$)?[./\w]{1,22}\$?[./A-Za-z0-9$]{22,120}"
    r"|argon2(?:id?|d)\$v=\d+\$m=\d+,t=\d+,p=\d+\$[\w+/]{8,}\$[\w+/]{16,})(?![./\w])",
    re.ASCII,
)


def spans(text: str) -> Iterator[Span]:
    """Yield what is a secret by its shape."""
    for literal, pattern in COMPILED:
        if literal in text:
            yield from _shape_spans(text, pattern)
    if "://" in text:
        yield from _address_tokens(text)
    if "PRIVATE KEY" in text:
        yield from _private_keys(text)
    if "$" in text:
        yield from ((*match.span(), SECRET) for match in PASSWORD_HASH.finditer(text))
    yield from _issued_tokens(text)
    yield from _random_runs(text)


def _shape_spans(text: str, pattern: re.Pattern[str]) -> Iterator[Span]:
    for match in pattern.finditer(text):
        groups = match.groupdict()
        group = next((name for name in ("chosen", "strong") if groups.get(name)), match.lastindex or 0)
        if text.startswith(SECRET, match.start(group)):
            continue
        value = match[group].rstrip("\"',;)]|")
        looks = {"chosen": looks_chosen, "strong": looks_strong}.get(str(group), bool)
        if looks(value) and not NOTHING.match(value):
            yield match.start(group), match.start(group) + len(value), SECRET


def _address_tokens(text: str) -> Iterator[Span]:
    """Yield the parts of an address that are drawn at random after `token/`, and in a webhook; a commit stays."""
    for address in ADDRESS.finditer(text):
        hook = HOOK.search(address.group())
        for match in SEGMENT.finditer(text, *address.span(1)):
            named = AFTER_NAME.search(text[max(address.start(), match.start() - 30) : match.start()])
            letters = re.sub("[_~-]", "", match.group())
            random = looks_drawn(letters, 0.25) and any(map(str.isdigit, letters)) and not COMMIT.match(letters)
            if looks_random(match.group(), SHORT) or ((hook or named) and random):
                yield *match.span(), SECRET


def _issued_tokens(text: str) -> Iterator[Span]:
    for match in WORD.finditer(text):
        token = match[1].rstrip(".-~_")
        prefixes = [len(prefix) for prefix in ISSUERS if token.startswith(prefix)]
        if JWT.match(token) or (prefixes and _is_random_after_prefix(token[max(prefixes) :])):
            yield match.start(1), match.start(1) + len(token), SECRET


def _is_random_after_prefix(rest: str) -> bool:
    """Return whether a long part of a token is random, or all of it where `-` and `_` are digits of it (base64url)."""
    long = max(NOT_ALNUM.split(rest), key=len)
    letters_only = long in (long.lower(), long.upper()) and not any(map(str.isdigit, long))
    is_random = len(long) >= 12 and looks_drawn(long, 0.25) and not letters_only
    parts = re.split("[_-]", rest)
    joined = "".join(parts)
    is_name = lower_share(joined) > NAME or all(map(NAME_PART.fullmatch, parts))
    return len(rest) >= 16 and (is_random or (is_mixed(joined) and looks_drawn(joined) and not is_name))


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


def _random_runs(text: str) -> Iterator[Span]:
    """Yield random tokens that nothing names: base64 of a whole key, or 20 capitals, small letters and digits."""
    for run in RUN.finditer(text):
        start, end = run.span(1)
        is_data = DATA.match(text, start, end) or BEFORE_DATA.search(text, max(0, start - 80), start)
        if is_data or end - start > LONGEST_RUN:
            continue
        whole = BASE64.search(text, start, end)
        if (
            whole
            and whole.end() == end
            and _is_base64_key(whole[1])
            and not IN_ADDRESS.search(text, max(0, start - 200), start)
        ):
            yield *whole.span(), SECRET
        else:
            tokens = TOKEN.finditer(text, start, end)
            yield from ((*token.span(), SECRET) for token in tokens if looks_random(token[1]))


def _is_base64_key(value: str) -> bool:
    return is_mixed(value) and len(set(value)) >= 20 and len(CHANGE.findall(value)) >= 0.5 * len(value)
