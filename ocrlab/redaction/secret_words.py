"""Words that name a secret, in the languages in which people write settings, logs and notes.

Four kinds: what follows a word for a *password* is a secret whatever it looks like, as people choose it; what follows
one for a *code* is a number; what follows one for a *token* has digits; a *key* mostly is that of a mapping, unless a
word like *secret* or *access* is beside it.
Accents may be missing or be separate characters (`contrasena`, `schluessel`); `_` stands for any joint or none.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

SERVICES = (
    "(?:admin|become|db|database|ftp|imap|ldap|login|mail|mongo|mysql|pg|postgres|proxy|redis|root|smtp|ssh|user|vpn)"
)
USES = "(?:access|security|verification|recovery|backup|one_time|confirmation|login|2?fa|mfa|sms|pairing|unlock)"
# Words long enough to be recognised at the end of a longer one: PGPASSWORD, datenbankpasswort.
PASSWORD_ENDINGS = """
    passwords? passwd passphrases? passcode passwort passworts passwörter kennwort kennwörter zugangsdaten
    anmeldedaten mots?_de_passe mot_passe contraseñas? contrasenia contrasenya contrasinal palavra_passe
    wachtwoord wachtwoorden inloggegevens lösenord passord adgangskode kodeord salasana jelszó losungswort
    пароль пароля паролю паролем пароли паролі лозинка mật_khẩu kata_sandi κωδικός_πρόσβασης συνθηματικό
    סיסמה סיסמא كلمة_المرور كلمة_السر पासवर्ड
"""
PASSWORDS = """
    pwd pw psk requirepass masterauth identified_by
    psw secrets? pass_phrase pass_words? pass_wd
    seed_phrase mnemonic credentials? geheimnis geheimnisse schlüsselsatz mdp identifiants
    clave_de_acceso palabra_de_paso secreto credenciales
    parola_d.ordine segreto credenziali senhas? segredo credenciais geheim hasło hasła hasłem hasłu sekret
    poświadczenia heslo şifre
    SERVICE_pass şifresi parola parolă parol парола секрет секретом кодовое_слово кодовая_фраза
    phrase_secrète phrase_de_passe frase_secreta frase_segreta frase_di_accesso frase_de_acesso
    dane_logowania données_de_connexion datos_de_acceso dati_di_accesso dados_de_acesso данные_для_входа учётные_данные
    учетные_данные
"""
UNSPACED = (  # languages in which nothing parts words
    "密码|密碼|口令|凭证|凭据|パスワード|パスフレーズ|シークレット(?:キー)?|パスコード|合言葉|認証情報|비밀번호|패스워드|암호|비번|รหัสผ่าน"
)
CODES = """
    pin pin_codes? pin_number otp totp USE_codes? one_time_passcode geheimzahl codice_segreto code_secret zugangscode
    toegangscode einmalcode bestätigungscode sicherheitscode zugriffscode prüfcode verifizierungscode
    código_de_acceso código_de_acesso código_de_seguridad código_de_segurança código_de_verificación
    código_de_verificação código_de_confirmación código_de_confirmação code_d.accès code_de_vérification
    code_de_sécurité code_de_confirmation codice_di_accesso codice_di_sicurezza codice_di_verifica codice_di_conferma
    kod_dostępu kod_weryfikacyjny doğrulama_kodu пин_код проверочный_код код_доступа код_подтверждения код_безопасности
"""
UNSPACED_CODES = "验证码|驗證碼|校验码|授权码|动态码|激活码|暗証番号|認証コード|認証番号|確認コード|인증번호|인증 ?코드"
TOKEN_ENDINGS = "token"
TOKENS = """
    auth bearer apikeys? jwt csrf xsrf jetons? gettone ficha_de_acceso github_pat gitlab_pat azure_pat
    session_?id sess_?id jsession_?id phpsess_?id connect.sid żeton токен токена токеном токену
"""
UNSPACED_TOKENS = "密钥|密鑰|秘钥|私钥|私鑰|金鑰|令牌|秘密鍵|トークン|APIキー|アクセスキー|토큰|API[ _]?키|비밀 ?키"
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
    words = words.replace("SERVICE", SERVICES).replace("USE", USES)
    return ["".join(map(_letter, word)).replace("_", r"[ _.’'\-]?") for word in words.split()]


def _any_of(endings: str, words: str, unspaced: str = "(?!)") -> str:
    """Return a pattern for one of the words, as the end of a longer one or as a part of a name."""
    ending, alone = "|".join(_patterns(endings)), "|".join(_patterns(words))
    return rf"(?:(?:(?:{ending})|(?<!{LETTER})(?:{alone}))(?!{LETTER})|{unspaced})"


PASSWORD = _any_of(PASSWORD_ENDINGS, PASSWORDS, UNSPACED)
CODE = _any_of("(?!)", CODES, UNSPACED_CODES)
TOKEN = _any_of(TOKEN_ENDINGS, TOKENS, UNSPACED_TOKENS)
KEY = _any_of(KEY_ENDINGS, KEYS)
WORDS = _patterns(" ".join([PASSWORD_ENDINGS, PASSWORDS, CODES, TOKEN_ENDINGS, TOKENS, KEY_ENDINGS, KEYS]))
WORDS += [word for words in (UNSPACED, UNSPACED_CODES, UNSPACED_TOKENS) for word in words.split("|")]
WORDS += ["pass(?![a-z])", "key", "connection", "private"]


def _literal(word: str) -> str:
    """Return the longest literal of a pattern: where it is missing, so is the word, and that is faster to find out."""
    replaced = 1
    while replaced:
        word, replaced = re.subn(r"\(\?[:!][^()]*\)\??|\[[^]]*\]\??|.\?", " ", word)
    return max(re.findall(r"[^\W_]+", word) or [""], key=len).lower()


LITERALS = tuple((_literal(word), word) for word in WORDS)


def find(text: str, lower: str) -> Iterator[re.Match[str]]:
    """Yield the words in a text, where each begins and ends; `lower` is the text in lower case."""
    present = tuple(word for literal, word in LITERALS if literal in lower)
    if present:
        same = len(lower) == len(text)  # it is not where a lower case letter has several characters
        yield from _compiled(present, 0 if same else re.IGNORECASE).finditer(lower if same else text)


@lru_cache(maxsize=64)
def _compiled(words: tuple[str, ...], flags: int) -> re.Pattern[str]:
    return re.compile("|".join(word.lower() for word in words), flags)
