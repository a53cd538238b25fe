"""Ten kinds of secrets are planted, by seed; none is in anything that is shared, and what is private keeps them.

Planted are: a tracker key in the environment, in a parameter, in an address, in an exception; home, user, host, private
addresses; a token in a git remote; cloud keys of three providers. Looked for are the bytes of each: as they are,
percent and base64 encoded, as JSON and HTML write them, with colour codes between them, and in the names of files.
"""

import base64
import html
import json
import os
import random
import re
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from ocrlab.training.tracking import client

ROOT = Path(__file__).parents[2]
LETTERS = string.ascii_letters + string.digits
CODES = re.compile(rb"\x1b\[[0-9;]*m|\\u001b\[[0-9;]*m")
PRIVATE = ("config.yaml", ".RUNNING", ".SUCCESS", ".FAILURE", "flight", "checkpoints")
SPEAK = """
import base64, json, os, sys, time
from urllib.parse import quote
plants = json.loads(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "plants.json")).read())
key = os.environ["WANDB_API_KEY"]
print("wandb: login with", key, quote(key), base64.b64encode(b"api:" + key.encode()).decode(), repr({"k": key}))
print("argv:", sys.argv)
print("pulling", plants["address"][1], "as", os.environ["USER"], "in", os.path.expanduser("~"))
print("file%3A%2F%2F" + quote(os.path.expanduser("~"), safe=""), json.dumps({"home": os.path.expanduser("~")}))
print("\\x1b[32m" + os.environ["USER"] + "\\x1b[0m@\\x1b[1m" + os.environ["HOSTNAME"] + "\\x1b[0m")
print("connect to %s:29500, [%s]:29500, link/ether %s" % tuple(plants["private address"]))
print("origin\\thttps://x-access-token:%s@example.org/a/b.git (fetch)" % plants["git remote"][0])
print("[default]\\naws_access_key_id = %s\\naws_secret_access_key = %s" % tuple(plants["cloud key"][:2]))
pem = "-----BEGIN PRIVATE KEY-----\\n%s\\n-----END" % plants["cloud key"][2]
print(json.dumps({"type": "service_account", "private_key": pem}))
print("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=%s;EndpointSuffix=x" % plants["cloud key"][3])
print("https://a.blob.example.org/c?sv=2022-11-02&sig=%s&se=1" % quote(plants["cloud key"][3], safe=""), flush=True)
"""
FAIL = 'raise RuntimeError("invalid API key: %s, sent to %s" % (plants["exception"][0], plants["address"][1]))\n'


def random_key(source: random.Random, length: int, letters: str = LETTERS) -> str:
    """Return letters with a digit and both cases among them, as every generated key has."""
    while True:
        text = "".join(source.choices(letters, k=length))
        if any(c.isdigit() for c in text) and any(c.isalpha() for c in text):
            return text


class Planted:
    """A home with a user of its own on a host of its own, and everything about them that must not be shared."""

    def __init__(self, seed: int, tmp_path: Path) -> None:
        source = random.Random(seed)
        user, host = (
            f"zq{random_key(source, 7, string.ascii_lowercase + '5')}",
            f"lab-{random_key(source, 6, 'bcdfgh579')}",
        )
        self.home = tmp_path / "homes" / user
        self.home.mkdir(parents=True)
        password = random_key(source, 14)
        ten, fd = [source.randrange(2, 250) for _ in range(3)], [f"{source.randrange(4096, 65536):x}" for _ in range(3)]
        card = ":".join(["02", *(f"{source.randrange(16, 256):02x}" for _ in range(5))])
        self.kinds: dict[str, list[str]] = {
            "environment": [random_key(source, 40, "0123456789abcdef")],
            "parameter": [random_key(source, 20)],
            "address": [password, f"https://bot:{password}@models.example.org/x"],
            "exception": [random_key(source, 32)],
            "home": [str(self.home)],
            "user": [user],
            "host": [host],
            "private address": [f"10.{ten[0]}.{ten[1]}.{ten[2]}", f"fd{fd[0][:2]}:{':'.join(fd)}::7", card],
            "git remote": [f"ghp_{random_key(source, 36)}"],
            "cloud key": [
                f"AKIA{random_key(source, 16, string.ascii_uppercase + string.digits)}",
                random_key(source, 40, LETTERS + "/+"),
                random_key(source, 64, LETTERS + "/+"),
                random_key(source, 86, LETTERS + "/+") + "==",
            ],
        }
        environment = {name: os.environ[name] for name in ("MPLCONFIGDIR",) if name in os.environ}
        environment.setdefault("MPLCONFIGDIR", str(Path("~/.config/matplotlib").expanduser()))
        ours = {"HOME": str(self.home), "USER": user, "LOGNAME": user, "HOSTNAME": host}
        self.env = {**os.environ, **environment, **ours, "WANDB_API_KEY": self.kinds["environment"][0]}
        self.env |= {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path / "ipython"), "JUPYTER_PREFER_ENV_PATH": "1"}
        (self.home / "plants.json").write_text(json.dumps(self.kinds))

    def ocrlab(self, *words: str, code: int | None = None, timeout: float = 200) -> str:
        """Run a command as that user, in the home, and return what it prints on stdout; stderr is looked at, too."""
        command = [sys.executable, "-m", "ocrlab", *words]
        done = subprocess.run(command, cwd=self.home, env=self.env, capture_output=True, text=True, timeout=timeout)
        assert code is None or done.returncode == code, done.stderr[-2000:]
        return done.stdout

    def leaks(self, shared: Iterator[tuple[str, bytes]]) -> list[str]:
        """Return what of the plants is in what is shared, with the kind and the place."""
        kinds = []
        for name, data in shared:
            plain = CODES.sub(b"", data)
            kinds += [f"{kind} in {name}" for kind, values in self.kinds.items() if any(_in(v, plain) for v in values)]
            kinds += [f"{kind} names {name}" for kind, values in self.kinds.items() if any(v in name for v in values)]
        return kinds


def _in(value: str, data: bytes) -> bool:
    spelt = {value, quote(value), quote(value, safe=""), json.dumps(value)[1:-1], html.escape(value), repr(value)[1:-1]}
    spelt |= {value.replace("/", "\\/"), quote(value, safe="").lower()}
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + value.encode())
        spelt.add(whole.decode().rstrip("=")[(before * 4 + 2) // 3 : -2])
    return any(spelling.encode() in data for spelling in spelt if len(spelling) >= 6)


def shared(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file of a folder that may be handed on, by its name inside."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not set(inside.parts) & set(PRIVATE):
            yield str(inside), path.read_bytes()


@pytest.fixture(params=[20261122])
def planted(request: pytest.FixtureRequest, tmp_path: Path) -> Planted:
    """Return a fresh home with ten kinds of secrets."""
    return Planted(request.param, tmp_path)


def private_keeps(run: Path, planted: Planted, *kinds: str) -> None:
    """Check that the private files are whole, and readable by their owner only."""
    data = b"".join(
        path.read_bytes()
        for path in run.rglob("*")
        if set(path.relative_to(run).parts) & set(PRIVATE) and path.is_file()
    )
    assert [kind for kind in kinds if not any(_in(value, data) for value in planted.kinds[kind])] == []
    for path in run.iterdir():
        if path.name in PRIVATE:
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_the_search_finds_what_is_planted(planted: Planted) -> None:
    """Else a search that finds nothing would prove nothing."""
    for kind, values in planted.kinds.items():
        for value in values:
            for data in (
                value,
                f"x\x1b[1m{value}",
                quote(value, safe=""),
                html.escape(value),
                json.dumps({"a": value}),
            ):
                assert planted.leaks(iter([("f", data.encode())])) != [], (kind, data)
            encoded = base64.b64encode(f"me:{value}".encode())
            assert any(kind in kind_of for kind_of in planted.leaks(iter([("f", encoded)]))), kind


def test_a_watched_program_that_prints_them_all_and_crashes(planted: Planted) -> None:
    (planted.home / "train.py").write_text(SPEAK + FAIL)
    words = ["--", sys.executable, str(planted.home / "train.py"), "--api-key", planted.kinds["parameter"][0]]
    output = planted.ocrlab("watch", "--json", "--run-dir", "run", *words, code=1)
    run = planted.home / "run"
    verdict = json.dumps(json.loads(output.splitlines()[-1])["verdict"])
    bug = json.loads(planted.ocrlab("report", "bug", "run", "--json", code=0))
    answers = [planted.ocrlab("diagnose", "run"), planted.ocrlab("diagnose", "run", "--json"), verdict]
    answers.append(json.dumps({name: value for name, value in bug.items() if name not in ("markdown", "html")}))
    everything = [*shared(run), *((f"answer {index}", text.encode()) for index, text in enumerate(answers))]
    assert {"incident/log_tail.txt", "incident/verdict.md"} <= {name for name, _ in everything}
    assert planted.leaks(iter(everything)) == []
    log = (run / "incident" / "log_tail.txt").read_text()
    assert log.count("(secret)") >= 8 and "(WANDB_API_KEY)" in log and "(user)" in log and log.count("(address)") == 3
    assert "https://(secret)@models.example.org/x" in log and "aws_secret_access_key = (secret)" in log
    assert bug["redacted"] >= 8 and "values replaced" in (run / "incident" / "verdict.md").read_text()
    private_keeps(run, planted, "parameter", "home", "user")


def notebook_of(planted: Planted) -> Path:
    cells = [
        new_code_cell(SPEAK.replace("os.path.dirname(os.path.abspath(__file__))", "os.path.expanduser('~')")),
        new_code_cell(
            "from IPython.display import HTML, display\ndisplay(HTML(f\"<a href='{plants['address'][1]}'>x</a>\"))"
        ),
        new_code_cell(FAIL),
    ]
    place = planted.home / "mine.ipynb"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=cells, metadata=kernel), place)
    return place


def test_a_notebook_that_prints_them_all_and_fails(planted: Planted) -> None:
    notebook_of(planted)
    planted.ocrlab("run", "mine.ipynb", "--out", "out", code=1)
    out = planted.home / "out"
    (notebook,) = out.glob("*.ipynb")
    planted.ocrlab("report", "bug", str(notebook), code=0)
    planted.ocrlab("report", "html", str(notebook), "--out", "out/again.html", code=0)
    names = {name for name, _ in shared(out)}
    assert len(names) == 6 and len({name for name in names if "-bug-" in name}) == 2, names
    assert planted.leaks(shared(out)) == []
    executed = nbformat.read(notebook, as_version=4)
    assert executed.metadata.ocrlab.redacted >= 12
    assert json.loads(notebook.with_suffix(".json").read_text())["redacted"] == executed.metadata.ocrlab.redacted


def test_what_a_tracker_is_sent(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "USER", "LOGNAME", "HOSTNAME", "WANDB_API_KEY"):
        monkeypatch.setenv(name, planted.env[name])
    bare = ("environment", "home", "user", "host", "private address", "git remote")
    config: dict[str, Any] = {kind: [f"got {value} there" for value in planted.kinds[kind]] for kind in bare}
    config |= {kind: f"api_key={planted.kinds[kind][0]}" for kind in planted.kinds if kind not in bare}
    config |= {"api_key": planted.kinds["parameter"][0], "data": str(planted.home / "data")}
    config["url"], config["keys"] = planted.kinds["address"][1], planted.kinds["cloud key"][:2]
    assert planted.leaks(iter([("payload", json.dumps(client.redacted(config)).encode())])) == []
    assert len(planted.leaks(iter([("payload", json.dumps(config).encode())]))) == 10


TRAIN = """
from ocrlab.config import schema as config
from ocrlab.training import lightning_module as module
step = module.Training.training_step
def failing(self, batch, index):
    if index == 2:
        exec(compile(FAIL, __file__, "exec"), globals())
    return step(self, batch, index)
module.Training.training_step = failing
from ocrlab.training.loop import fit
words = ["data=data", "runs=runs", "batch_size=1", "crop=64", "trainer.max_steps=4", "runtime.workers=0", "name=tiny"]
fit(config.load(None, words))
"""


@pytest.mark.slow
def test_a_training_that_crashes_in_a_step(planted: Planted) -> None:
    shutil.copytree(ROOT / "data_samples", planted.home / "data")
    (planted.home / "mine.py").write_text(f"{SPEAK}\nFAIL = {FAIL!r}\n{TRAIN}")
    words = ["--", sys.executable, str(planted.home / "mine.py"), "--api-key", planted.kinds["parameter"][0]]
    planted.ocrlab("watch", "--run-dir", "watched", *words, code=1)
    (run,) = (planted.home / "runs").iterdir()
    planted.ocrlab("replay", str(run))
    planted.ocrlab("report", "bug", str(run), code=0)
    names = {name for name, _ in shared(run)}
    assert {"environment.json", "metrics.csv"} <= names or "environment.json" in names, names
    assert planted.leaks(shared(run)) == [] and planted.leaks(shared(planted.home / "watched")) == []
    private_keeps(run, planted, "exception", "home", "user", "parameter")


@pytest.mark.slow
def test_a_hang_whose_stacks_show_the_command_line(planted: Planted) -> None:
    (planted.home / "train.py").write_text(SPEAK + "time.sleep(600)\n")
    words = ["--", sys.executable, str(planted.home / "train.py"), "--api-key", planted.kinds["parameter"][0]]
    planted.ocrlab("watch", "--run-dir", "run", "--silence", "3", "--on-hang", "kill", *words, code=124)
    planted.ocrlab("report", "bug", "run", code=0)
    assert "stacks.txt" in {Path(name).name for name, _ in shared(planted.home / "run")}
    assert planted.leaks(shared(planted.home / "run")) == []


@pytest.mark.slow
def test_what_the_doctor_says(planted: Planted) -> None:
    texts = [planted.ocrlab("doctor", "--json"), planted.ocrlab("doctor")]
    assert planted.leaks((f"answer {index}", text.encode()) for index, text in enumerate(texts)) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_notebook(planted: Planted, notebook: Path) -> None:
    out = planted.home / "out"
    planted.ocrlab("run", str(notebook), "--out", str(out), timeout=580)
    assert {".ipynb", ".html", ".json"} <= {Path(name).suffix for name, _ in shared(out)}
    assert planted.leaks(shared(out)) == []
    for run in (planted.home / "runs").glob("*/"):
        assert planted.leaks(shared(run)) == [], run
