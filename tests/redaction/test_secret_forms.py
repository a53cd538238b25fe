"""Secrets in many forms and languages, and ordinary lines in the same words, which stay as they are."""

from __future__ import annotations

import pytest

from ocrlab import redaction

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
        "{}: {}",
        "{} = '{}'",
        '{{"{}": "{}"}}',
        "<{0}>{1}</{0}>",
        '<set {}="{}"/>',
        "{}:\n    {}\n",
        "tool --{} {} data/",
        "f({}=SecretStr('{}'), n=1)",
    ],
)
def test_names_in_many_languages(name: str, form: str) -> None:
    text = form.format(name, KEY)
    cleaned, count = redaction.clean_and_count(text)
    assert (cleaned, count) == (text.replace(KEY, "(secret)"), 1)
    assert redaction.clean_and_count(cleaned) == (cleaned, 0)


@pytest.mark.parametrize(
    "text",
    [
        "Mot de passe : {}",
        "mot de passe : « {} »",
        "le mot de passe est {}",
        "clé d'API : {}",
        "la contraseña es {}",
        "token de acceso: aB3{}x5tGh8",
        "das Passwort lautet {}, bitte merken",
        "Privater Schlüssel: {}",
        "пароль пользователя ana — {}",
        "Секретный ключ: {}",
        "код доступа: {}",
        "パスワード：{}",
        "パスワードは「{}」です",
        "数据库密码是{}",
        "访问令牌：{}",
        "비밀번호: {}",
        "パスワード「{}」でログインしました",
        "シークレットキー={}",
        "connexion refusée (utilisateur ana, mot de passe {})",
        "phrase secrète: {}",
        "user=ana;psw={};db=x",
        "hasłem jest {}",
        "token di accesso => aB3{}x5tGh8",
        "mật khẩu: {}",
        "contrasen\u0303a: {}",
        "login failed: the password for ana is {}, rotate it",
        '{{"\\u043f\\u0430\\u0440\\u043e\\u043b\\u044c": "{}"}}',
        "| Benutzer | Passwort |\n|---|---|\n| ana | {} |",
        "user,password,port\nana,{},22\n",
        "   user        password\n0   ana  {}\n",
        "- name: API_KEY\n  value: {}",
        "{{'name': 'DB_PASSWORD', 'value': '{}'}}",
        '<add key="password" value="{}"/>',
        '<property name="password">{}</property>',
        "<key>password</key>\n<string>{}</string>",
        "&lt;password&gt;{}&lt;/password&gt;",
        "<ns:password xml:space='preserve'><![CDATA[{}]]></ns:password>",
        "passwords:\n  - {}\n",
        "api_keys = ['{}', 'x']",
        "auth=('ana', '{}')",
        "SecretStr('{}')",
        "password=pydantic.SecretStr('{}')",
        "ALTER ROLE ana WITH PASSWORD '{}';",
        "CREATE USER ana IDENTIFIED BY '{}';",
        "machine x\n  login ana\n  password {}\n",
        "db.example.net:5432:pages:ocr:{}",
        "*:*:*:ocr:{}",
        "Zugangsdaten: {}",
        "openssl enc -aes-256-cbc -pass pass:{} -in x",
        "docker login -u ana -p {} reg.example",
        "redis-cli -a {} ping",
        "unzip -P {} x.zip",
        "wget --user ana:{} http://example.org",
        "GET https://example.org/token/{}5t/pages.zip 403",
        "GET https://example.org/v1/{}5tGh8/pages.zip 403",
        "https://api.telegram.org/bot5812345678:AA{}x5tGh8Yy3zRq2wE1p/send",
        "-----BEGIN RSA PRIVATE KEY-----\n[12:00] {}\n-----END RSA PRIVATE KEY-----",
        "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\n{}\n---- END SSH2 ENCRYPTED PRIVATE KEY ----",
        "Private-Lines: 1\n{}\n",
    ],
)
def test_forms(text: str) -> None:
    cleaned, count = redaction.clean_and_count(text.format(KEY))
    assert KEY not in cleaned and count >= 1
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


@pytest.mark.parametrize(
    "text",
    """
    <passwordPolicy>strict</passwordPolicy>
    password is not set; continuing without a login
    Passwort fehlt, bitte anmelden
    Passwort: falsch
    Schlüssel 'anker' fehlt in der Konfiguration
    Das Schlüsselwort 'breite' ist unbekannt
    schluesselanzahl: 12
    Token pro Seite: 812
    palabra clave: tamaño
    clave no encontrada: 'ancho'
    La contraseña es obligatoria
    claves: ['ancho', 'alto', 'canales']
    ключ: ширина
    токенов в секунду: 18230
    Неверный пароль или имя пользователя
    キーワード: 幅
    パスワードが違います
    パスワードは必須です
    トークン数: 812
    parole: 4, clés: 3, pw=0.5
    12:30:45:001:INFO: batch 3 done
    localhost:8080:main:ok
    main.c:1234:5:error:E501
    https://github.com/pytorch/pytorch/blob/5fba5d83f0703ff8077ab65448a998e9ad6598fd/c10/x.cpp#L117
    https://example.org/models/DeepLabV3-ResNet101-COCO/resolve/main/config.json
    docker run -p 8080:80 image
    credentials_file = /etc/x/credentials.json
    secret_name = wandb-api-key
    api_key: ApiKeyFragment | None
    token    count    loss
    """.strip().splitlines(),
)
def test_ordinary_lines_stay(text: str) -> None:
    assert redaction.clean_and_count(text.strip()) == (text.strip(), 0)


def test_the_note_names_the_number_and_asks_for_a_review() -> None:
    assert redaction.note(1).startswith("1 place replaced") and redaction.note(0).startswith("0 places")
    assert redaction.note(3).endswith("review before sharing.")
