"""The value of a secret variable is found in every spelling."""

import base64
import html
import json
from urllib.parse import quote, quote_plus

import pytest

from ocrlab import redaction

VALUE = "pa/ss+wo\"rd'<9>&x\\yö"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TRACKER_TOKEN", VALUE)


@pytest.mark.parametrize(
    "spelt",
    [
        VALUE, quote(VALUE), quote(VALUE, safe=""), quote(VALUE, safe="").lower(), quote_plus(VALUE),
        json.dumps(VALUE), json.dumps(VALUE, ensure_ascii=False), json.dumps(VALUE).replace("/", "\\/"),
        repr(VALUE), html.escape(VALUE), html.escape(VALUE).replace("&#x27;", "&#39;"),
        VALUE[:7] + "\x1b[0m" + VALUE[7:], VALUE.upper(), html.escape(json.dumps(VALUE)),
        html.escape(html.escape(VALUE)), json.dumps(json.dumps(VALUE)), json.dumps(repr(VALUE)),
        quote(quote(VALUE, safe=""), safe=""),
        json.dumps(VALUE).replace("&", "\\u0026").replace("<", "\\u003c").replace("+", "\\u002B"),
    ],
)  # fmt: skip
def test_spellings(spelt: str) -> None:
    cleaned, count = redaction.clean_and_count(f"got {spelt}!")
    assert count == 1 and "(MY_TRACKER_TOKEN)" in cleaned and "wo" not in cleaned.lower()
    assert redaction.clean_and_count(cleaned) == (cleaned, 0)


@pytest.mark.parametrize("before", ["", "a", "me:", "user:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_at_any_place(before: str, encode: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TRACKER_TOKEN", "0123456789abcdef-xyz??>>")
    encoded = base64.b64encode(f"{before}0123456789abcdef-xyz??>>@host".encode()).decode()
    assert "(MY_TRACKER_TOKEN)" in redaction.clean(f"Basic-like {encoded} end")


def test_a_line_break_inside_is_looked_through_and_lines_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TRACKER_TOKEN", "0123456789abcdef")
    cleaned = redaction.clean("│ got 0123456 │\n│ 789abcdef │\nend")
    assert cleaned == "│ got (MY_TRACKER_TOKEN)\n │\nend"
    assert redaction.clean("'│ got 0123456 │\\n│ 789abcdef │'") == "'│ got (MY_TRACKER_TOKEN) │'"


@pytest.mark.parametrize("name, value, text", [
    ("HTTP_PROXY", "http://me:hunter22@proxy:8080", "the proxy refused hunter22 there"),
    ("DATABASE_URL", "postgres://me:p%40ssw0rd9@db/x", "wrong password p@ssw0rd9 given"),
    ("AZURE_STORAGE_CONNECTION_STRING", "AccountName=a;AccountKey=q9==", "got AccountName=a;AccountKey=q9== here"),
    ("AZURE_DEVOPS_EXT_PAT", "abcdefgh12345678ijkl", "got abcdefgh12345678ijkl"),  # ids go into the environment
], ids=["proxy", "database", "azure", "devops"])  # fmt: skip
def test_what_else_is_secret_in_the_environment(name, value, text, monkeypatch):
    monkeypatch.setenv(name, value)
    cleaned = redaction.clean(text)
    assert f"({name})" in cleaned or "(secret)" in cleaned


@pytest.mark.parametrize(
    "name, value",
    [
        ("AUTH_BACKEND", "filesystem"), ("MAX_TOKEN_LIMIT_KEY", "32768000"),
        ("SIGNING_KEY_FILE", "/etc/passwd"), ("PWD", "/tmp/abcdefgh"),
    ],
)  # fmt: skip
def test_values_that_are_no_secret_stay(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert redaction.clean(f"the {value} of it") == f"the {value} of it"
