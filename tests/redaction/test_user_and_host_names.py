"""Homes, users and hosts are replaced as whole words or parts of a path, and never inside ordinary text."""

import socket

import pytest

from ocrlab import redaction
from ocrlab.redaction import user_and_host_names

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


@pytest.mark.parametrize("text, expected", [
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
])  # fmt: skip
def test_names_are_replaced(text: str, expected: str) -> None:
    assert redaction.clean(text) == expected
    assert redaction.clean_and_count(expected) == (expected, 0)


@pytest.mark.parametrize("text", [
    *(f"{HOME}{name}/x" for name in ("runner", "ubuntu", "user", "conda", "jovyan")),
    *("https://example.org/home/about.html", "data/home/kitchen.jpg", f"{MAC}Shared/x", "/homes", "home and Users"),
    *("C:\\Users\\Public\\x", "the home/page", "/ro" + "ot/x is root's", "localhost:8888 host=localhost"),
])  # fmt: skip
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
def test_a_user_whose_name_is_a_word_is_replaced_where_a_user_is_meant(name, monkeypatch):
    monkeypatch.setenv("USER", name)
    stays = f"torch.{name}(x), {name} 0.5, {name}_steps=3, import {name}"
    assert redaction.clean(stays) == stays
    if name not in user_and_host_names.NOBODY:
        meant = f"user={name} {HOME}{name}/x {name}@elsewhere /scratch/{name}/a torchinductor_{name}/b 'user': '{name}'"
        assert name not in redaction.clean(meant)


def test_a_host_whose_name_is_a_word_is_replaced_where_a_host_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "tensor")
    monkeypatch.setattr("platform.node", lambda: "tensor")
    monkeypatch.delenv("HOSTNAME", raising=False)
    for text in ("tensor(3.5)", "grad of tensor [2]", "a/tensor/b.py", "tensor_parallel"):
        assert redaction.clean(text) == text
    for text in ("hostname: {}", "host={}", "root@{}:~$", "events.out.tfevents.17.{}.12", "http://{}:8888"):
        assert redaction.clean(text.format("tensor")) == text.format("(host)")


@pytest.mark.parametrize("text, expected", [
    ("Author: Kir <kir.bran@corp.example>", "Author: Kir <(user)@(host)>"),
    ("ssh-ed25519 AAAA kbran@ws-114.corp.example", "ssh-ed25519 AAAA (user)@(host)"),
    ("(base) kbran@lambda-quad:~/x$ python train.py", "(base) (user)@(host):~/x$ python train.py"),
    ("scp a kbran@storage7:/data/b", "scp a (user)@(host):/data/b"),
    ("fatal: ssh://kbran@build-07.corp.example/a.git", "fatal: ssh://(secret)@(host)/a.git"),
    ("'kbran@cs.example.ac.uk'", "'(user)@(host)'"),
    ("/tmp/torchinductor_kbran/ab/c.py", "/tmp/torchinductor_(user)/ab/c.py"),
    ("uid=1001(kbran) gid=1001(kbran)", "uid=1001((user)) gid=1001((user))"),
])  # fmt: skip
def test_who_and_where(text: str, expected: str) -> None:
    assert redaction.clean(text) == expected
    assert redaction.clean_and_count(expected) == (expected, 0)


@pytest.mark.parametrize("text", [
    *("git@github.com:org/repo.git", "noreply@example.com", "security@pytorch.org", "root@localhost:~#"),
    *("y = emb@table.to(device)", "out = x1@self.weight", "hmean@0.5", "user@1000.service", "memcpy@@GLIBC_2.14"),
    *("actions/checkout@v4", "icon@2x.png", "name@plt", "@torch.no_grad()", "pkg @ https://example.org/a.whl"),
    *("image@sha256:0123", "uid=0(root) gid=0(root)", "https://example.org/@kbran/x", "q1@k2.mT", "gcc@9.4.0"),
])  # fmt: skip
def test_operators_services_and_versions_stay(text: str) -> None:
    assert redaction.clean(text) == text


@pytest.mark.parametrize("line", [
    "{}:88121:88347 [0] NCCL WARN Cuda failure",
    "[rank3]: {}:796:796 [1] NCCL INFO Bootstrap",
    "  host      : {}",
    "slurmstepd: error: *** STEP 37361369.0 ON {} CANCELLED AT 2026-11-24",
    "srun: error: {}: task 3: Killed",
])  # fmt: skip
@pytest.mark.parametrize("name", ["gpu-rack7-n04", "gpu-rack7-n04.corp.example"])
def test_machines_that_a_log_tells_of_go_everywhere_in_it(line: str, name: str) -> None:
    text = f"{line.format(name)}\nconnect to [gpu-rack7-n04]:29500, not gpu-rack7-n04b"
    assert redaction.clean(text) == f"{line.format('(host)')}\nconnect to [(host)]:29500, not gpu-rack7-n04b"


def test_the_names_of_no_machine_stay() -> None:
    for line in ("localhost:12:13 [0] NCCL INFO x", "  host      : localhost", "n1.a:12:13 [0] NCCL INFO x"):
        assert "localhost" not in list(user_and_host_names.machines(line)) and "n1" not in list(
            user_and_host_names.machines(line)
        )
