"""Words that name a secret, in the languages in which people write settings, logs and notes.

Three kinds: what follows a word for a *password* is a secret whatever it looks like, as people choose it; what follows
one for a *token* has digits; a *key* mostly is that of a mapping, unless a word like *secret* or *access* is beside it.
Accents may be missing or be separate characters (`contrasena`, `schluessel`); `_` stands for any joint or none.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

SERVICES = (
    "(?:admin|db|database|ftp|imap|ldap|login|mail|mongo|mysql|pg|postgres|proxy|redis|root|smtp|ssh|user|vnc|vpn)"
)
# Words long enough to be recognised at the end of a longer one: PGPASSWORD, datenbankpasswort.
PASSWORD_ENDINGS = """
    passwords? passwd passphrases? passcode passwort passworts passwörter kennwort kennwörter zugangscode zugangsdaten
    anmeldedaten mots?_de_passe code_secret contraseñas? contrasenia contrasenya contrasinal palavra_passe
    wachtwoord wachtwoorden toegangscode inloggegevens lösenord passord adgangskode kodeord salasana jelszó
    пароль пароля паролю паролем пароли паролі лозинка mật_khẩu kata_sandi κωδικός_πρόσβασης συνθηματικό
    סיסמה סיסמא كلمة_المرور كلمة_السر पासवर्ड
"""
PASSWORDS = """
    pwd pw psk requirepass masterauth identified_by
    psw secrets? credentials? geheimnis geheimnisse geheimzahl mdp identifiants
    clave_de_acceso secreto credenciales
    parola_d.ordine segreto credenziali senhas? segredo credenciais geheim hasło hasła hasłem hasłu sekret
    poświadczenia heslo şifre
    SERVICE_pass şifresi parola parolă parol парола секрет секретом
    phrase_secrète frase_secreta frase_segreta pin pin_codes? pin_number пин_код код_доступа access_code
    security_code verification_code recovery_codes? one_time_code otp code_d.accès código_de_acceso código_de_acesso
    dane_logowania données_de_connexion datos_de_acceso dati_di_accesso dados_de_acesso данные_для_входа
    código_de_seguridad codice_di_accesso codice_segreto kod_dostępu
"""
UNSPACED = (  # languages in which nothing parts words
    "密码|密碼|口令|凭证|凭据|验证码|パスワード|パスフレーズ|シークレット(?:キー)?|パスコード|暗証番号|合言葉|認証情報|비밀번호|패스워드|암호|รหัสผ่าน"
)
TOKENS = """
    token auth bearer apikeys? (?:access|auth|refresh|session|api|bot|zugriffs|zugangs|toegangs)token jetons? gettone
    żeton токен токена токеном
"""
UNSPACED_TOKENS = "密钥|密鑰|秘钥|私钥|私鑰|金鑰|令牌|秘密鍵|トークン|APIキー|アクセスキー|토큰|API_?키"
KEY_ENDINGS = "schlüssel schlüssels sleutel nyckel ключ ключа ключом"
KEYS = "clés? clef claves? llaves? chiavi chiave chaves? klucz klucze nøgle nøkkel avain klíč kulcs anahtar cheie"
OPENING = re.compile(  # words beside one for a key that say that it opens something
    r"(?<![^\W\d_])(?:api|access|secret\w*|private?|geheim\w*|privat\w*|zugriffs?\w*|zugangs?\w*|acc[eè]s|secr[eè]t\w*"
    r"|priv[ée]e|secret[ao]|privad[ao]|acceso|accesso|segret[ao]|privat[ao]|acesso|toegangs?\w*|tajny|prywatny|dost[ęe]pu"
    r"|секретн\w*|приватн\w*|закрыт\w*|доступа|шифрован\w*|licen[cs]\w*|lizenz\w*|лицензи\w*|ssh)(?![^\W\d_])|апи",
    re.IGNORECASE,
)
PLAIN = {"ł": "l", "ø": "oe?", "ı": "i", "đ": "d", "ß": "ss"}  # letters that Unicode takes for no accented ones
UMLAUTS = {"ä": "ae", "ö": "oe", "ü": "ue"}
LETTER = r"[^\W\d_]"


def _letter(letter: str) -> str:
    """Return a pattern for a letter with its accent, with it as a separate character, and without it."""
    parts = unicodedata.normalize("NFD", letter)
    if letter in PLAIN:
        return f"(?:{letter}|{PLAIN[letter]})"
    if len(parts) == 1 or not (ord(letter) <= 0x24F or 0x1E00 <= ord(letter) < 0x1F00):  # only Latin letters
        return letter
    others = [
        f"{parts[0]}{''.join(part + '?' for part in parts[1:])}",
        *([UMLAUTS[letter]] if letter in UMLAUTS else []),
    ]
    return f"(?:{'|'.join([letter, *reversed(others)])})"


def _patterns(words: str) -> list[str]:
    return [
        "".join(map(_letter, word.replace("SERVICE", SERVICES))).replace("_", r"[ _.’'\-]?") for word in words.split()
    ]


def _any_of(endings: str, words: str, unspaced: str = "(?!)") -> str:
    """Return a pattern for one of the words, as the end of a longer one or as a part of a name."""
    ending, alone = "|".join(_patterns(endings)), "|".join(_patterns(words))
    return rf"(?:(?:(?:{ending})|(?<!{LETTER})(?:{alone}))(?!{LETTER})|{unspaced})"


PASSWORD = _any_of(PASSWORD_ENDINGS, PASSWORDS, UNSPACED)
TOKEN = _any_of("(?!)", TOKENS, UNSPACED_TOKENS)
KEY = _any_of(KEY_ENDINGS, KEYS)
WORDS = [*_patterns(f"{PASSWORD_ENDINGS} {PASSWORDS} {TOKENS} {KEY_ENDINGS} {KEYS}")]
WORDS += [*UNSPACED.split("|"), *UNSPACED_TOKENS.split("|"), "pass(?![a-z])", "key", "connection", "private"]
# The longest literal of each: where it is missing, so is the word, and that is faster to find out.
LITERALS = tuple(
    (
        max(re.findall(r"[^\W_]+", re.sub(r"\(\?:[^()]*\)\??|\[[^]]*\][?]?|.\?", " ", word)) or [""], key=len).lower(),
        word,
    )
    for word in WORDS
)


def find(text: str, lower: str) -> Iterator[re.Match[str]]:
    """Yield the words in a text, where each begins and ends; `lower` is the text in lower case."""
    present = tuple(word for literal, word in LITERALS if literal in lower)
    if present:
        same = len(lower) == len(text)  # it is not where a lower case letter has several characters
        yield from _compiled(present, 0 if same else re.IGNORECASE).finditer(lower if same else text)


@lru_cache(maxsize=64)
def _compiled(words: tuple[str, ...], flags: int) -> re.Pattern[str]:
    return re.compile("|".join(word.lower() for word in words), flags)
