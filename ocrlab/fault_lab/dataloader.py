"""Data workers that die, hang, or cannot be started; on every way to start a process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ocrlab.fault_lab.fault import ALL, Fault
from ocrlab.fault_lab.native_code import SOURCE
from ocrlab.fault_lab.setup import folder, library, torch


class Pages:
    """Sixteen small pages; `load_page` is what happens when the one numbered `at` is loaded."""

    at = 9

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            self.load_page(index)
        return torch.full((3, 64, 64), float(index))

    def load_page(self, index: int) -> None:
        """Do what makes this data set what it is."""


def train(make_dataset: Callable[[], Any], workers: int = 2, **options: Any) -> None:
    """Train for an epoch, and say so at each step."""
    from torch.utils.data import DataLoader

    dataset = make_dataset()
    for step, batch in enumerate(DataLoader(dataset, batch_size=2, num_workers=workers, **options)):
        print(f"step {step} loss {1 / (step + 1):.3f} ({len(batch)} pages)", flush=True)


class Decoded(Pages):
    """Pages that a library in C decodes by the function `by`; the path of the library crosses to the worker."""

    def __init__(self, by: str) -> None:
        self.by, self.library = by, str(library(SOURCE, "imageops.c", "-O0", "-D_FORTIFY_SOURCE=0"))

    def load_page(self, index: int) -> None:
        sizes = {"decode": (None, index), "dot": (None, index), "crop": (-3,)}
        getattr(ctypes.CDLL(self.library), self.by)(*sizes[self.by])


class Left(Pages):
    """The worker exits, without a trace (`os._exit`) or with one that Python sees."""

    def __init__(self, quietly: bool) -> None:
        self.quietly = quietly

    def load_page(self, index: int) -> None:
        if self.quietly:
            os._exit(3)
        sys.exit("page 9: no text layer")


class Slow(Pages):
    """Pages of a quarter of a second, so that somebody has time to send a signal."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.25)
        return super().__getitem__(index)


def train_signalled(number: int) -> None:
    """Train while an operator sends a signal to one worker: torch's worker takes one of its parent for an order."""
    from torch.utils.data import DataLoader

    batches = iter(DataLoader(Slow(), batch_size=2, num_workers=2))  # type: ignore[arg-type]
    print("step 0", len(next(batches)), flush=True)
    worker = batches._workers[1].pid  # type: ignore[attr-defined]
    subprocess.run([sys.executable, "-S", "-c", f"import os; os.kill({worker}, {int(number)})"], check=True)
    for step, batch in enumerate(batches, 1):
        print("step", step, len(batch), flush=True)


class Labelled(Pages):
    """Pages with labels; one has none."""

    def load_page(self, index: int) -> None:
        {"0001": "TOTAL"}[f"{index:04d}"]


class Refused(Pages):
    """Pages whose reader has an exception class of its own, made where it is used."""

    def load_page(self, index: int) -> None:
        class PageError(Exception):
            """A page cannot be used."""

        raise PageError(f"page {index}")


class Lazy(Pages):
    """Pages that come with a function that decodes them later."""

    def __getitem__(self, index: int) -> Any:
        return {"page": index, "decode": lambda: index * 2}


class Augmented(Pages):
    """Pages with a transform that is a lambda."""

    def __init__(self) -> None:
        self.transform = lambda page: page / 255


class Remote(Pages):
    """A page that is read from the other side of a pipe, where nobody writes."""

    def __init__(self) -> None:
        self.place = folder() / "page.fifo"
        os.mkfifo(self.place)

    def load_page(self, index: int) -> None:
        self.place.read_bytes()


class Augmenting(Pages):
    """A crop that is drawn again until it holds text; one page has none."""

    def load_page(self, index: int) -> None:
        text = 0
        while not text:
            text = sum(value > 1000 for value in range(1000))


class Convolved(Pages):
    """Pages that are filtered with all cores, also in the worker."""

    def __getitem__(self, index: int) -> Any:
        torch.set_num_threads(2)
        page = torch.rand(3000, 300)
        return (page @ page.T).mean()


def train_convolved() -> None:
    dataset = Convolved()
    print("mean", float(dataset[0]), flush=True)
    train(lambda: dataset)


class Cache:
    """A cache that a thread refreshes under a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        threading.Thread(target=self.refresh, daemon=True).start()
        time.sleep(0.1)

    def refresh(self) -> None:
        while True:
            with self.lock:
                time.sleep(1.0)


class Cached(Pages):
    """Pages that look into a cache first."""

    def __init__(self) -> None:
        self.cache = Cache()

    def load_page(self, index: int) -> None:
        with self.cache.lock:
            pass


def epoch(
    name: str,
    does: str,
    ends: str,
    causes: tuple[str, ...],
    make_dataset: Callable[[], Any],
    start_methods: tuple[str, ...] = ALL,
    **options: Any,
) -> Fault:
    """Return the fault of an epoch over a data set, whose library in C needs a compiler."""
    needs = ("compiler",) if getattr(make_dataset, "func", None) is Decoded else ()
    return Fault(name, does, ends, causes, partial(train, make_dataset, **options), needs, start_methods)


def signalled(name: str, does: str, ends: str, causes: tuple[str, ...], number: int) -> Fault:
    """Return the fault of a training of which one worker gets a signal."""
    return Fault(name, does, ends, causes, partial(train_signalled, number), (), ALL)


CRASH, EXIT, KILLED = ("loader.worker_crash",), ("loader.worker_exit",), ("loader.worker_killed",)
SAMPLE, UNSENT, FORK = ("loader.hang_sample",), ("loader.hang_unpicklable",), ("loader.fork_deadlock",)
ABORT, LABEL, PICKLING = (*CRASH, "native.abort"), ("data.sample", "data.annotation"), ("loader.pickling",)
COPIES = ("spawn", "forkserver")
FAULTS = (
    epoch("worker_segv", "a null pointer in a worker", "failed", (*CRASH, "native.segv"), partial(Decoded, "decode")),
    epoch("worker_abort", "an assertion in a worker", "failed", ABORT, partial(Decoded, "crop")),
    epoch(
        "worker_opcode", "an unknown opcode in a worker", "failed", ("build.cpu_isa", *CRASH), partial(Decoded, "dot")
    ),
    epoch("worker_left", "_exit in a worker", "failed", EXIT, partial(Left, quietly=True)),
    epoch("worker_exited", "sys.exit in a worker", "failed", EXIT, partial(Left, quietly=False)),
    signalled("worker_killed", "SIGKILL to a worker", "failed", KILLED, signal.SIGKILL),
    signalled("worker_ended", "SIGTERM to a worker", "failed", (*KILLED, "ext.signal"), signal.SIGTERM),
    signalled("worker_paused", "SIGSTOP to a worker", "hung", ("hang.stopped",), signal.SIGSTOP),
    epoch("worker_exception", "a missing label", "failed", LABEL, Labelled),
    epoch("worker_refused", "an exception that cannot be sent", "hung", UNSENT, Refused),
    epoch("worker_lazy", "a sample that cannot be sent", "hung", UNSENT, Lazy, collate_fn=list),
    epoch("dataset_lambda", "a data set with a lambda", "failed", PICKLING, Augmented, COPIES),
    epoch("worker_reads", "a page that never comes", "hung", SAMPLE, Remote),
    epoch("worker_loops", "a crop that is drawn for ever", "hung", SAMPLE, Augmenting),
    epoch("worker_late", "a page past the loader's timeout", "failed", SAMPLE, Remote, timeout=3),
    Fault("fork_openmp", "OpenMP before and after fork", "hung", FORK, train_convolved, (), ("fork",)),
    epoch("fork_lock", "a lock that a fork copied", "hung", (*FORK, "hang.deadlock"), Cached, ("fork",)),
)
