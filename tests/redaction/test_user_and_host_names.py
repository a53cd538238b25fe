"""Homes, users and hosts are replaced as whole words or parts of a path, and never inside ordinary text."""

from __future__ import annotations

import socket

import pytest

from ocrlab import redaction
from ocrlab.redaction import common_names, user_and_host_names

HOME = "/ho" + "me/"
MAC = "/Us" + "ers/"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*user_and_host_names.USERS, *user_and_host_names.HOSTS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(user_and_host_names, "_account", lambda _number: ("xkcdsmith", f"{HOME}xkcdsmith"))
    monkeypatch.setenv("HOME", f"{HOME}xkcdsmith")
    monkeypatch.setattr(socket, "gethostname", lambda: "lab-of-xyz")
    monkeypatch.setattr(user_and_host_names.platform, "node", lambda: "lab-of-xyz.corp.example")


@pytest.mark.parametrize(
    "text, expected",
    [
        (f"{HOME}xkcdsmith/runs/a.py", "~/runs/a.py"),
        (f"'{HOME}xkcdsmith'", "'~'"),
        (f"{HOME}xkcdsmith.bak/x", f"{HOME}(user)/x"),
        (f"x\\n{HOME}xkcdsmith/a", "x\\n~/a"),
        ("file%3A%2F%2F%2Fhome%2Fxkcdsmith%2Fa", "file%3A%2F%2F~%2Fa"),
        ("\\/home\\/xkcdsmith\\/a", "~\\/a"),
        ("run by xkcdsmith.", "run by (user)."),
        ("/tmp/torchinductor_xkcdsmith/ab", "/tmp/torchinductor_(user)/ab"),
        ("github.com:xkcdsmith/repo", "github.com:(user)/repo"),
        ("xkcdsmiths xxkcdsmith xkcdsmith2", "xkcdsmiths xxkcdsmith xkcdsmith2"),
        ("on lab-of-xyz: x", "on (host): x"),
        ("lab-of-xyz.corp.example LAB-OF-XYZ", "(host) (host)"),
        ("events.out.tfevents.17.lab-of-xyz.12", "events.out.tfevents.17.(host).12"),
        ("lab-of-xyz-2 my-lab-of-xyz", "lab-of-xyz-2 my-lab-of-xyz"),
        (f"{HOME}anna/x {MAC}Bob/y", f"{HOME}(user)/x {MAC}(user)/y"),
        ("C:\\Users\\Jo Ann\\x", "C:\\Users\\(user)\\x"),
        ("C:\\\\Users\\\\joann\\\\x", "C:\\\\Users\\\\(user)\\\\x"),
        ("c:/Users/joann/x", "c:/Users/(user)/x"),
        (f"/mnt/c{MAC}joann/x", f"/mnt/c{MAC}(user)/x"),
        ("%2Fhome%2Fanna%2Fx", "%2Fhome%2F(user)%2Fx"),
        (f"file://{HOME}anna/x", f"file://{HOME}(user)/x"),
        (f"\x1b[32m{HOME}xkcdsmith/a\x1b[0m", "\x1b[32m~/a\x1b[0m"),
        ("\x1b[1mxkc\x1b[0mdsmith here", "\x1b[1m(user)\x1b[0m here"),
        (f"\\u001b[32m{HOME}anna/a", f"\\u001b[32m{HOME}(user)/a"),
    ],
)
def test_names_are_replaced(text: str, expected: str) -> None:
    assert redaction.clean(text) == expected
    assert redaction.counted(expected) == (expected, 0)


@pytest.mark.parametrize(
    "text",
    [
        *(f"{HOME}{name}/x" for name in ("runner", "ubuntu", "user", "conda", "jovyan")),
        *("https://example.org/home/about.html", "data/home/kitchen.jpg", f"{MAC}Shared/x", "/homes", "home and Users"),
        *("C:\\Users\\Public\\x", "the home/page", "/ro" + "ot/x is root's", "localhost:8888 host=localhost"),
    ],
)
def test_what_names_nobody_stays(text: str) -> None:
    assert redaction.clean(text) == text


@pytest.mark.parametrize(
    "name", ["root", "data", "user", "ubuntu", "test", "ocr", "runs", "localhost", "train", "image"]
)
def test_a_user_or_host_that_is_a_common_word_is_never_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{name} the {name} of /{name}/x, user={name} {name}@elsewhere {name}: 1, {name.upper()}"
    for variable in ("USER", "HOSTNAME"):
        monkeypatch.setenv(variable, name)
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    assert redaction.clean(text) == text


@pytest.mark.parametrize("name", ["max", "mark", "adam", "rich", "page", "al"])
def test_a_user_whose_name_is_a_word_is_replaced_where_a_user_is_meant(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", name)
    stays = f"torch.{name}(x), {name} 0.5, {name}_steps=3, import {name}"
    assert redaction.clean(stays) == stays
    if name not in common_names.NOBODY:
        meant = f"user={name} {HOME}{name}/x {name}@elsewhere /scratch/{name}/a torchinductor_{name}/b 'user': '{name}'"
        assert name not in redaction.clean(meant)


def test_words_that_every_log_holds_are_no_names() -> None:
    """Nothing of the two lists is looked for, so that no log loses its words; and no name is in both."""
    assert (
        not common_names.NOBODY & {"max", "adam", "will"}
        and {"max", "adam", "will", "print"} <= common_names.ALSO_WORDS
    )
    assert {"root", "data", "user", "ubuntu", "test", "ocr", "runs", "localhost"} <= common_names.NOBODY


def test_a_host_whose_name_is_a_word_is_replaced_where_a_host_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "tensor")
    monkeypatch.setattr("platform.node", lambda: "tensor")
    monkeypatch.delenv("HOSTNAME", raising=False)
    for text in ("tensor(3.5)", "grad of tensor [2]", "a/tensor/b.py", "tensor_parallel"):
        assert redaction.clean(text) == text
    for text in ("hostname: {}", "host={}", "root@{}:~$", "events.out.tfevents.17.{}.12", "http://{}:8888"):
        assert redaction.clean(text.format("tensor")) == text.format("(host)")
