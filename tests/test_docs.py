"""Every command in docs/ and in the README is run, long ones with few steps, and every link and cause exists.

A command that no test can run (a benchmark, several machines, an example of `--help`) is checked word by word.
"""

import contextlib
import functools
import importlib
import io
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from ocrlab.cli import COMMANDS, WHICH, main
from ocrlab.debug.diagnosis import catalogue

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
README = ROOT / "README.md"
TINY = "crop=64 batch_size=2 width=16 trainer.max_steps=2 trainer.val_every=2 trainer.val_pages=1"
TINY += " trainer.precision=fp32 trainer.accelerator=cpu runtime.workers=0 runtime.threads=1"
TINY += " runtime.channels_last=true evaluate.long_side=320"
# The smoke form of a command: what it begins with, what is appended to it, how it may end besides 0.
SMOKE = (
    ("ocrlab train +hardware", f"{TINY} batch_size=2", ()),
    ("ocrlab train --resume", "", ()),
    ("ocrlab train --nproc", TINY, ()),
    ("ocrlab train", TINY, ()),
    ("ocrlab run notebooks/03_train", "-p max_steps 2 -p val_every 2 -p crop 64 -p batch_size 2", (1,)),  # not good yet
    ("ocrlab run notebooks/07_compare", "", (1,)),
    ("ocrlab run", "", ()),
    ("ocrlab memory fit", f"{TINY} --minutes 2", ()),
    ("ocrlab memory estimate", "trainer.accelerator=cpu", ()),
    ("ocrlab memory watch", "--count 1", ()),
    ("ocrlab memory why runs/", "", (1,)),  # that run had memory enough
    ("ocrlab evaluate --oracle", "", ()),
    ("ocrlab samples check", "", (1,)),
    ("ocrlab doctor", "", (1,)),
    ("ocrlab watch --silence", "", (124,)),
    ("ocrlab watch", "", (1,)),
    ("ocrlab kernel", "--capability 8.6", ()),
    ("ocrlab replay", "--timeout 200", (1,)),
    ("ocrlab bisect runs/", "--minutes 1", (1,)),
    ("ocrlab bisect", "", (1,)),
)
LONG = re.compile(
    r"ocrlab (train|run |memory (fit|estimate)|evaluate|predict|export|replay|bisect|doctor|samples|report)"
)
PLACES = (  # what stands in the README for something of the user's
    (r"\bDIR\b", "receipts"),
    (r"memory why train\.log", "memory why oom.log"),
    (r"\bRUN\b", "runs/mine"),
    (r"python train.py --workers", "python train_small.py --workers"),
)
PROGRAM = re.compile(r"(?:ocrlab|make|torchrun|papermill|py-spy) \S|python benchmarks/")
SETTING = re.compile(
    r"\+?(?:(?:trainer|runtime|optim|augment|targets|post|evaluate)\.\w+|hardware|weights|tracking|exif)="
)
SUBCOMMANDS = {name: getattr(importlib.import_module(f"ocrlab.cli.{name}"), "WORDS", {}) for name in COMMANDS}
HELP = [[name, *word] for name, words in SUBCOMMANDS.items() for word in [[], *([word] for word in words)]]
CRASHING = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
pages = [(torch.rand(3, 8, 8), torch.tensor(i % 3)) for i in range(16)]
pages[9] = (pages[9][0], torch.tensor(7))
loader = torch.utils.data.DataLoader(pages, batch_size=4)
for image, label in loader:
    loss = nn.functional.cross_entropy(model(image), label)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PROGRAMS = {
    "train.py": """
print("step 0", flush=True)
print("ERROR: Unexpected segmentation fault encountered in worker.", flush=True)
raise SystemExit(1)
""",
    "slow.py": """
import threading
lock = threading.Lock()
with lock:
    print("step 1", flush=True)
    with lock:
        print("step 2", flush=True)
""",
    "train_small.py": """
import sys
words = sys.argv[1:]
if words[words.index("--workers") + 1] != "0":
    raise RuntimeError("a worker died")
""",
    "step.py": CRASHING,
    "train_list.py": "import sys\nfor line in open(sys.argv[1]):\n    [0][int(line.split()[1])]\n",
    "train.txt": "images/0000.jpg 0\nimages/0001.jpg 11\nimages/0002.jpg 0\n",
    "train_config.py": "import json, sys\n1 / json.load(open(sys.argv[1]))['steps']\n",
    "bad.json": '{"steps": 0, "lr": 1}',
    "good.json": '{"steps": 10, "lr": 0.1}',
}
STACKS = """Process 4711: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    first (slow.py:9)
    <module> (slow.py:14)
"""
CRASH = "import ocrlab\n" + CRASHING.replace("in loader", "in rec.batches(loader)").replace(
    "for image", 'rec = ocrlab.record("runs/mine", model, optimizer)\nfor image'
)
STOPPED = """
import sys
from pathlib import Path
from ocrlab.config import schema as config
from ocrlab.training.loop import fit
def stop(event):
    if event["kind"] == "validate":
        raise RuntimeError("the power failed")
try:
    fit(config.load(None, sys.argv[1:]), progress=stop)
finally:
    next(Path("runs").glob("*-stopped")).rename("runs/stopped")
"""


def shown(page: Path) -> list[str]:
    """Return the commands of a page, without comments: the lines of its `sh` blocks, and the commands in its text.

    In the README they are the lines that begin with ocrlab. Text also names commands in general, as `ocrlab run FILE`.
    """
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(rf"^```{'' if page == README else 'sh'}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    if page == README:
        lines = [line for line in lines if line.startswith("ocrlab ")]
    prose = (
        re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL) if page.stem != "measured" else ""
    )  # minutes
    inline = re.findall(r"`(ocrlab (?:doctor|runs|[a-z]+ [^`]+))`", prose)
    general = re.compile(r"\.\.\.|--$|" + (r"\bNAME\b" if page == README else r"\b(?!PATH|PID)[A-Z]{3,}\b"))
    lines += [command for command in inline if not general.search(command) and command not in lines]
    return list(dict.fromkeys(re.split(r"\s{2,}#? ?|\s{3,}", line)[0].strip() for line in lines))


def mentioned(text: str) -> list[str]:
    """Return every command in a text: blocks and tables of a page, examples of `--help`; without its launcher."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    blocks = [block for kind, block in fence.findall(text) if kind in ("", "sh", "bash")]
    blocks.append(text.partition("\nexamples:\n")[2].partition("\n\n")[0])
    lines = [re.split(r"\s{2,}|\s#", line.strip())[0] for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`([^`\n]+)`", fence.sub("", text))
    lines += [f"ocrlab train {code}" if SETTING.match(code) else code for code in inline]
    parts = [part for line in lines for part in re.split(r" -- | -m (?=ocrlab )| [|>;] |; | (?=ocrlab )", line)]
    return list(dict.fromkeys(part for part in parts if PROGRAM.match(part)))


@functools.cache
def manual(*words: str) -> str:
    """Return the text that names every option of a command: the help of its program, or a recipe and its script."""
    program, *others = words
    if program == "ocrlab":
        stdout = io.StringIO()
        depth = 2 if len(others) > 1 and others[1] in SUBCOMMANDS[others[0]] else 1
        with contextlib.redirect_stdout(stdout):
            assert main([*others[:depth], "--help"]) == 0
        return stdout.getvalue()
    if program == "make":
        recipe = re.search(rf"^{others[0]}:.*?(?=^\S|\Z)", (ROOT / "Makefile").read_text(), re.M | re.S)
        assert recipe, f"the Makefile has no target {others[0]}"
        script = re.search(r"python3 (\S+\.py)", recipe[0])
        return recipe[0] + (manual("python", script[1]) if script else "")
    if program == "python":  # a benchmark: it and the modules beside it that it imports
        text = (ROOT / others[0]).read_text(encoding="utf-8")
        beside = [ROOT / "benchmarks" / f"{name}.py" for name in re.findall(r"^(?:from|import) (\w+)", text, re.M)]
        return "".join([text, *(file.read_text(encoding="utf-8") for file in beside if file.exists())])
    done = shell(f"{' '.join(words[:2] if program == 'py-spy' else words[:1])} --help", ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def settings() -> set[str]:
    """Return the names of all settings, of the split of `evaluate`, and of two shorter forms."""
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout):
        assert main(["train", "--keys"]) == 0
    return {line.split()[0] for line in stdout.getvalue().splitlines() if line} | {"split", "hardware", "tracking"}


def ends(page: Path, command: str) -> set[int]:
    """Return the exit statuses that a page promises for a command, 0 where it says nothing."""
    match = re.search(rf"^{re.escape(command)} .*# ends with (\d+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {int(match[1])} if match else {0}


def commands() -> Iterator[object]:
    """Yield each page with each of its commands: long ones, and those that begin as an earlier one, are slow."""
    earlier: set[str] = set()
    for page in (*PAGES, README):
        for command in shown(page):
            beginning = " ".join(command.split()[:3])
            marks = [pytest.mark.slow] if LONG.search(command) or beginning in earlier else []
            yield pytest.param(page, command, marks=marks, id=f"{page.stem}: {command}")
            earlier.add(beginning)


@pytest.fixture(scope="module")
def places() -> dict[str, Path]:
    """A folder for each page, in which its commands run one after the other as a reader would type them."""
    return {}


@pytest.fixture
def place(request: pytest.FixtureRequest, places: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = request.node.callspec.params["page"].stem
    if name not in places:
        places[name] = prepare(tmp_path_factory.mktemp(name))
    return places[name]


def prepare(folder: Path) -> Path:
    """Fill a folder with what a reader has: programs, a log, a run that failed, pages, the notebooks."""
    (folder / "notebooks").symlink_to(ROOT / "notebooks")
    (folder / "runs").mkdir()
    shutil.copytree(ROOT / "data_samples", folder / "receipts")
    (folder / "data_samples").symlink_to("receipts")
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "train.log").write_text("RuntimeError: Found no NVIDIA driver on your system.\n", encoding="utf-8")
    (folder / "oom.log").write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 11.76 "
        "GiB of which 310.25 MiB is free. Including non-PyTorch memory, this process has 11.44 GiB memory in use. Of "
        "the allocated memory 7.02 GiB is allocated by PyTorch, and 4.09 GiB is reserved by PyTorch but unallocated.\n"
    )
    (folder / "stacks.txt").write_text(STACKS, encoding="utf-8")
    compiled = "ptxas info : Compiling entry function '_Z4fuse' for 'sm_86'\nptxas info : Used 32 registers\n"
    (folder / "build.log").write_text(compiled, encoding="utf-8")
    (folder / "crash.py").write_text(CRASH, encoding="utf-8")
    (folder / "stop.py").write_text(STOPPED, encoding="utf-8")
    first, *others = sorted((folder / "receipts" / "val" / "images").iterdir())
    shutil.copy(first, folder / "page.jpg")
    (folder / "scans").mkdir()
    shutil.copy(others[0], folder / "scans")
    shutil.copytree(folder / "receipts" / "val" / "gts", folder / "theirs")  # somebody's detector that is never wrong
    cells = [new_code_cell("1 + 1", execution_count=1, outputs=[new_output("execute_result", {"text/plain": "2"})])]
    nbformat.write(new_notebook(cells=cells), folder / "executed.ipynb")
    return folder


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = str(ROOT)
    words = ["bash", "-c", command]
    return subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL
    )


def smoke(command: str) -> tuple[str, set[int]]:
    """Return the short form of a command and the exit statuses that it may have besides those of the page."""
    for start, added, statuses in SMOKE:
        if command.startswith(start):
            return f"{command} {added}".strip(), set(statuses)
    return command, set()


def test_the_figures_of_the_docs_are_those_of_the_benchmarks() -> None:
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "scoreboard.py", "--check"], check=False)
    assert done.returncode == 0, "python benchmarks/scoreboard.py renders docs/measured.md again"


def test_the_table_of_help_is_that_of_the_docs() -> None:
    """The same symptoms lead to the same commands in `ocrlab --help` and in docs/README.md."""
    table = (ROOT / "docs" / "README.md").read_text(encoding="utf-8").partition("## Pages")[0]
    firsts = re.findall(r"^\| \[.*?\| `ocrlab[ .]([a-z_]+)", table, re.MULTILINE)
    assert firsts == [first.split()[0].partition("(")[0] for _, first, *_ in WHICH]


@pytest.mark.parametrize("page, command", [*commands()])
def test_a_command_does_what_it_says(page: Path, command: str, place: Path) -> None:
    for pattern, own in PLACES if page == README else ():
        command = re.sub(pattern, own, command)
    if "runs/mine" in command and not (place / "runs" / "mine").exists():
        assert shell("python crash.py", place).returncode == 1
    if "runs/stopped" in command and not (place / "runs" / "stopped").exists():
        assert shell(f"python stop.py {TINY} trainer.max_steps=4 name=stopped", place).returncode == 1
    if "PID" in command:
        command = command.replace("PID", str(os.getpid()))
    run, allowed = smoke(command)
    done = shell(run, place)
    assert done.returncode in ends(page, command) | allowed, f"{run}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    assert "Traceback" not in done.stderr or re.search(r"(train|step)\.py", run)


@pytest.mark.parametrize("page", [*PAGES, README, *HELP], ids=lambda page: getattr(page, "stem", page))
def test_a_command_has_the_options_and_settings_that_are_written(page: Path | list[str]) -> None:
    for command in mentioned(manual("ocrlab", *page) if isinstance(page, list) else page.read_text(encoding="utf-8")):
        words = re.sub(r"ARGS=|['\"]", "", command).split()
        if words[0] == "ocrlab" and words[1] not in COMMANDS:
            assert re.fullmatch(r"[A-Z]+", words[1]), f"{command}: no such command"
            continue
        for file, names in re.findall(r"(notebooks/\S+\.ipynb)((?: \S+)*? -p .*)", command):
            parameters = re.findall(r"\b(\w+): \w+ =", (ROOT / file).read_text(encoding="utf-8"))
            parameters += [setting.rpartition(".")[2] for setting in settings()]
            assert set(re.findall(r"-p (\w+)", names)) <= set(parameters), command
        text = manual(*(itertools.takewhile(re.compile(r"[a-z][\w./-]+$").match, words)))
        for option in (word.partition("=")[0] for word in words[1:] if word[:1] == "-" and word[1:]):
            assert re.search(rf"(?<![\w-]){option}\b", text), f"{command}: no option {option}"
        if words[:2] in (["ocrlab", "train"], ["ocrlab", "evaluate"], ["ocrlab", "predict"], ["ocrlab", "memory"]):
            keys = {match[1] for word in words if (match := re.match(r"\+?([a-z_.]+)=", word))}
            assert keys <= settings(), f"{command}: no setting {keys - settings()}"


def headings(page: Path) -> set[str]:
    """Return the anchors of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, README], ids=lambda page: page.stem)
def test_links_and_causes_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, place in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not place or place in headings(file), f"{page.name} links to {target}#{place}"
    for cause in re.findall(r"--explain ([\w.]+)", text):
        assert cause in catalogue.load().entries, cause
    for name in re.findall(r"[` ]((?:ocrlab|tests|benchmarks|notebooks)/[\w/]+\.(?:py|toml|ipynb|txt))", text):
        assert (ROOT / name).is_file() or name in ("ocrlab/model/sum.py", "tests/model/test_sum.py"), name
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= set(targets)


@pytest.mark.parametrize("page", [*PAGES, README], ids=lambda page: page.stem)
def test_python_on_a_page_is_python(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        compile(block, page.name, "exec")


@pytest.mark.slow
def test_the_site_has_every_page_and_public_name_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", ".ci/mkdocs.yml"]
    done = subprocess.run([*command, "--site-dir", tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert {page.stem for page in PAGES if page.stem != "README"} <= {page.stem for page in tmp_path.glob("*.html")}
    api = (tmp_path / "api.html").read_text(encoding="utf-8")
    for name in ("ocrlab", "ocrlab.debug", "ocrlab.data", "ocrlab.inference", "ocrlab.training", "ocrlab.reports"):
        for public in set(importlib.import_module(name).__all__) - {"__version__"}:
            assert f'id="{name}.{public}"' in api, f"{name}.{public}"
    for page in tmp_path.glob("*.html"):
        if page.stem != "example-report":
            assert not re.search(r'(src|<link[^>]*href)="https?://', page.read_text(encoding="utf-8")), page.name
    assert "ocrlab watch" in (tmp_path / "search" / "search_index.json").read_text(encoding="utf-8")
