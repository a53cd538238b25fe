"""What the stages share: rows on disk as they are measured, and children with a deadline."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
FREE = 1500  # MiB that are in use on a card that nobody uses


@dataclass
class Row:
    """One figure: what was measured, in words with units, its limit, and whether it was met (None: not judged)."""

    stage: str
    what: str
    measured: str
    must: str = ""
    met: bool | None = None

    def record(self) -> dict[str, Any]:
        """Return the row ready for JSON."""
        return asdict(self)


@dataclass
class Done:
    """A child that has ended: its exit status (None: ended at its deadline), output and seconds."""

    status: int | None
    out: str
    err: str
    seconds: float

    def json(self) -> dict[str, Any]:
        """Return its output as JSON, {} where it is none."""
        try:
            answer = json.loads(self.out)
        except ValueError:
            return {}
        return answer if isinstance(answer, dict) else {}


class Stage:
    """One stage in its own process: where its rows go, and how long it has."""

    def __init__(
        self, name: str, out: Path, dry_run: bool, seconds: float, data: Path | None, *, brief: bool = False
    ) -> None:
        self.name, self.dry_run, self.data = name, dry_run, data
        self.brief = brief  # where other variants go the same way, one is enough
        self.folder = out / "rows" / name  # for run folders and logs
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rows_file = out / "rows" / f"{name}.jsonl"
        self.ends = time.monotonic() + seconds - 2.0
        self.device = "cpu" if dry_run else "cuda"

    def row(
        self, what: str, measured: str, must: str = "", met: bool | None = None, *, dry_run_too: bool = False
    ) -> None:
        """Write one row to the disk. A dry run judges only what does not depend on a card."""
        judged = met if dry_run_too or not self.dry_run else None
        row = Row(self.name, what, measured, must, judged)
        with self.rows_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row.record()) + "\n")
        print(f"{what}: {measured}", flush=True)

    @property
    def seconds_left(self) -> float:
        """Seconds until the stage is ended."""
        return max(0.5, self.ends - time.monotonic())

    def child(self, words: Sequence[str | Path], seconds: float = 1e9, **variables: str) -> Done:
        """Run a Python child until it ends, or until `seconds` or the stage are over: then its whole group is ended."""
        return self.program([sys.executable, *map(str, words)], seconds, **variables)

    def program(self, command: Sequence[str], seconds: float = 1e9, **variables: str) -> Done:
        """Run any program so."""
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment(**variables),
            cwd=self.folder,
            start_new_session=True,
        )
        status: int | None = None
        try:
            out, err = process.communicate(timeout=min(seconds, self.seconds_left))
            status = process.returncode
        except subprocess.TimeoutExpired:
            end_tree(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=5)
            out = err = ""
        print(f"$ {' '.join(command)}\n{out[-4000:]}\n{err[-4000:]}", flush=True)
        return Done(status, out, err, time.monotonic() - began)


def sample_pages(stage: Stage) -> list[str]:
    """Return the words that name the sample pages and the formats; in a dry run three pages, and nothing to measure."""
    samples = ROOT / "data_samples"
    if not stage.dry_run:
        return [f"data={samples}", "trainer.precision=bf16", "runtime.channels_last=true"]
    few = stage.folder / "pages"
    for split, count in (("train", 2), ("val", 1)):
        for kind in ("images", "gts"):
            (few / split / kind).mkdir(parents=True, exist_ok=True)
            for file in sorted((samples / split / kind).iterdir())[:count]:
                shutil.copy(file, few / split / kind)
    return [f"data={few}", "trainer.precision=fp32", "runtime.channels_last=false"]


def build_kernels(stage: Stage, *words: str) -> str:
    """Compile kernels.cu by nvcc; returns the library, an empty text where that failed. ptxas.txt is its report."""
    compiler = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if stage.dry_run or compiler is None:
        stage.row("nvcc", "not used in a dry run" if stage.dry_run else "not here: what needs its kernels cannot run")
        return ""
    library = stage.folder / "kernels.so"
    command = [compiler, "-shared", "-Xcompiler", "-fPIC", "-cudart", "shared", "-arch=native", *words]
    command += ["-o", str(library), str(Path(__file__).with_name("kernels.cu"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    (stage.folder / "ptxas.txt").write_text(done.stderr + done.stdout, encoding="utf-8")
    if done.returncode != 0:
        stage.row("nvcc", f"failed: {done.stderr.strip()[-300:]}", "", False)
        return ""
    return str(library)


@contextlib.contextmanager
def whole_card(stage: Stage) -> Iterator[None]:
    """Wait until no other stage uses the card, and keep it for this one; in a dry run there is nothing to wait for."""
    ask = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    with (stage.rows_file.parent / "card.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        while not stage.dry_run and stage.seconds_left > 30:
            used = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=False).stdout.split()
            if not used or int(used[0]) < FREE:
                break
            time.sleep(0.5)
        yield


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a child: this tree comes first on the path, and trackers are off."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "WANDB_MODE": "disabled", **variables}


def end_tree(process: subprocess.Popen[Any]) -> None:
    """End a child and whatever it has started, in sessions of their own too, so that nothing stays on the card."""
    started: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        started = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in started:
        with contextlib.suppress(psutil.Error):
            child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
