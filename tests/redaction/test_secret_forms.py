"""Secrets in many forms and languages, and ordinary lines in the same words, which stay as they are.

`secret_forms.txt` and `harmless_lines.txt` hold one of them a line.
"""

import base64
import random
import re
import string
from pathlib import Path

import pytest

from ocrlab import redaction

LETTERS = string.ascii_letters + string.digits
CHOSEN = """
    hunter2x Sommer2024! tr0ub4dor&3 pa55W0rd Geheim#77 Mondschein9 Blaubeer_kuchen7 S3cur3-Pass correct9horse R2d2c3po
""".split()
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "e": "\x1b", "0": "\0", "\\": "\\"}
# Values that look like most that are drawn; in `test_values_drawn_at_random` some look like a word or a number.
TYPICAL = {
    "K": "Wq7zRb2xK9pLm4", "P": "Sommer2024!x", "S": "Qq7hB2xYz0T1a3c5D6e9",
    "T": "aB3dK9xQ2mZ7pL4vR8tW1yN6cF5hJ0sG", "L": "k3z9x1ab7q2m5w8e4r6t0y1u", "C": "Q7ZX4M2K5T3W6R2B",
    "N": "482915", "H": "31c1010c0f0f1c5a3a2a0b5c9d3f6e7a8b9c0d1e",
    "h": "0a1b2c3d4e5f60718293a4b5c6d7e8f9", "U": "7f3c2a1b-9d7e-4c55-8a11-0b5d2e6f7a91",
    "B": "Zc5Wj3k1uY8fT0qLxv9oQmN2bD7sR4eHgA6iPpKzXyw=",
    "D": "Zc5Wj3k1uY8fT0qLxv9+QmN2bD7sR4eHgA6iPpKzXywT1x8Rk2/b3Vn5Gq7Lm9Cw4Jd6Hs0Ea2Fy8Ui1Po3Bt==",
}  # fmt: skip


def lines(file: str) -> list[str]:
    text = (Path(__file__).parent / file).read_text(encoding="utf-8")
    written = [line for line in text.splitlines() if line and not line.startswith("# ")]
    return [re.sub(r"\\([ntre0\\])", lambda escape: ESCAPES[escape[1]], line) for line in written]


def with_values(form: str, values: dict[str, str]) -> tuple[str, set[str]]:
    """Return a form with a value for each of its marks, and those values."""
    return re.sub("§([A-Za-z])", lambda mark: values[mark[1]], form), {
        values[mark] for mark in re.findall("§([A-Za-z])", form)
    }


def random_values(source: random.Random) -> dict[str, str]:
    def word(length: int, letters: str = LETTERS) -> str:
        return "".join(source.choices(letters, k=length))

    small, capitals, digits = (
        string.ascii_lowercase + string.digits, string.ascii_uppercase + "234567", "0123456789abcdef",
    )  # fmt: skip
    lengths = {"K": (14, LETTERS), "S": (20, LETTERS), "T": (32, LETTERS), "L": (24, small), "C": (16, capitals)}
    lengths |= {"N": (6, "123456789"), "H": (40, digits), "h": (32, digits)}
    values = {mark: word(*how) for mark, how in lengths.items()} | {"P": source.choice(CHOSEN)}
    values |= {mark: base64.b64encode(source.randbytes(length)).decode() for mark, length in (("B", 32), ("D", 64))}
    return values | {"U": "-".join(word(length, digits) for length in (8, 4, 4, 4, 12))}


FORMS, HARMLESS = lines("secret_forms.txt"), lines("harmless_lines.txt")


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    text, secrets = with_values(form, TYPICAL)
    cleaned, count = redaction.clean_and_count(text)
    assert not any(secret in cleaned for secret in secrets) and count >= 1
    assert redaction.clean_and_count(cleaned) == (cleaned, 0)


def test_values_drawn_at_random() -> None:
    source, remain = random.Random(20261127), []
    for form in FORMS * 3:
        text, secrets = with_values(form, random_values(source))
        cleaned = redaction.clean(text)
        remain += [form for secret in secrets if secret in cleaned]
    assert len(remain) <= 0.02 * 3 * len(FORMS), sorted(remain)


@pytest.mark.parametrize("line", HARMLESS)
def test_harmless_lines_stay(line: str) -> None:
    assert redaction.clean_and_count(line) == (line, 0)


KEY = "Wq7zRb2xK9pLm4"
PASSWORDS = """
passwort kennwort zugangscode geheimnis datenbank_passwort DB_PASSWORT contraseña contrasena CONTRASENIA secreto
mdp senha SENHA_DO_BANCO segredo wachtwoord lösenord losenord passord adgangskode salasana hasło haslo heslo şifre
sifre parola parolă jelszó пароль ПАРОЛЬ_БД секрет PGPASSWORD requirepass wpa_passphrase
""".split()
KEYS = """
zugangsschlüssel geheimer_schluessel clave_secreta clave_api llave_privada chiave_segreta chave_secreta
toegangssleutel секретный_ключ API-ключ jeton токен
""".split()


@pytest.mark.parametrize("name", [*PASSWORDS, *KEYS])
@pytest.mark.parametrize(
    "form",
    [
        "{}: {}", "{} = '{}'", '{{"{}": "{}"}}', "<{0}>{1}</{0}>", '<set {}="{}"/>', "{}:\n    {}\n",
        "tool --{} {} data/", "f({}=SecretStr('{}'), n=1)",
    ],
)  # fmt: skip
def test_names_in_many_languages(name: str, form: str) -> None:
    text = form.format(name, KEY)
    cleaned, count = redaction.clean_and_count(text)
    assert (cleaned, count) == (text.replace(KEY, "(secret)"), 1)
    assert redaction.clean_and_count(cleaned) == (cleaned, 0)


def test_passwords_with_signs_spaces_and_of_another_alphabet() -> None:
    assert redaction.clean("Pwd=a&b%c;Encrypt=yes") == "Pwd=(secret);Encrypt=yes"
    assert redaction.clean("пароль = Кошка5070Дом") == "пароль = (secret)"
    assert redaction.clean("password: 'it\\'s hunter2'") == "password: '(secret)'"
    assert redaction.clean("GET /x?password=abc1&n=1") == "GET /x?password=(secret)&n=1"
    assert redaction.clean("credentials: ana / hunter2x") == "credentials: (secret) / (secret)"
    assert redaction.clean("dane logowania: ana hunter2x") == "dane logowania: (secret) (secret)"
    assert redaction.clean("PIN: 193681, GPIO pin: 17") == "PIN: (secret), GPIO pin: 17"
    assert redaction.clean("PIN code of the store: 193681") == "PIN code of the store: (secret)"


def test_the_note_names_the_number_and_asks_for_a_review() -> None:
    assert redaction.note(1).startswith("1 value replaced") and redaction.note(0).startswith("0 values")
    assert redaction.note(3).endswith("Review before sharing.")
