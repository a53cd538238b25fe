"""Data workers that die, hang, or cannot be started; on every way to start a process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from ocrlab.fault_lab.fault import ALL, Fault
from ocrlab.fault_lab.native_code import SOURCE
from ocrlab.fault_lab.setup import folder, library


class Pages:
    """Sixteen small pages; `load_page` is what happens when the one numbered `at` is loaded."""

    at = 9

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        import torch

        if index == self.at:
            self.load_page(index)
        return torch.full((3, 64, 64), float(index))

    def load_page(self, index: int) -> None:
        """Do what makes this data set what it is."""


def train(dataset: Any, workers: int = 2, **options: Any) -> None:
    """Train for an epoch, and say so at each step."""
    from torch.utils.data import DataLoader

    for step, batch in enumerate(DataLoader(dataset, batch_size=2, num_workers=workers, **options)):
        print(f"step {step} loss {1 / (step + 1):.3f} ({len(batch)} pages)", flush=True)


class Decoded(Pages):
    """Pages that a library in C decodes by the function `by`; the path of the library crosses to the worker."""

    def __init__(self, by: str) -> None:
        self.by, self.library = by, str(library(SOURCE, "imageops.c", "-O0", "-D_FORTIFY_SOURCE=0"))

    def load_page(self, index: int) -> None:
        sizes = {"decode": (None, index), "dot": (None, index), "scale": (640, 0), "crop": (-3,), "release": ()}
        getattr(ctypes.CDLL(self.library), self.by)(*sizes[self.by])


def train_decoded() -> None:
    train(Decoded("decode"))


def train_scaled() -> None:
    train(Decoded("scale"))


def train_cropped() -> None:
    train(Decoded("crop"))


def train_released() -> None:
    train(Decoded("release"))


def train_dotted() -> None:
    train(Decoded("dot"))


class Left(Pages):
    """The worker is told to leave: by an exit that tells nobody, or by one that Python sees."""

    def __init__(self, quietly: bool) -> None:
        self.quietly = quietly

    def load_page(self, index: int) -> None:
        if self.quietly:
            os._exit(3)
        sys.exit("page 9: no text layer")


def train_left() -> None:
    train(Left(quietly=True))


def train_exited() -> None:
    train(Left(quietly=False))


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


def train_shared() -> None:
    train_signalled(signal.SIGKILL)


def train_ended() -> None:
    train_signalled(signal.SIGTERM)


def train_paused() -> None:
    train_signalled(signal.SIGSTOP)


class Labelled(Pages):
    """Pages with labels; one has none."""

    def load_page(self, index: int) -> None:
        {"0001": "TOTAL"}[f"{index:04d}"]


def train_labelled() -> None:
    train(Labelled())


class Refused(Pages):
    """Pages whose reader has an exception class of its own, made where it is used."""

    def load_page(self, index: int) -> None:
        class PageError(Exception):
            """A page cannot be used."""

        raise PageError(f"page {index}")


def train_refused() -> None:
    train(Refused())


class Lazy(Pages):
    """Pages that come with a function that decodes them later."""

    def __getitem__(self, index: int) -> Any:
        return {"page": index, "decode": lambda: index * 2}


def train_lazy() -> None:
    train(Lazy(), collate_fn=list)


class Logged(Pages):
    """Pages that write to a log which they hold open."""

    def __init__(self) -> None:
        self.log = (folder() / "pages.log").open("w")


def train_logged() -> None:
    train(Logged())


class Augmented(Pages):
    """Pages with a transform that is a lambda."""

    def __init__(self) -> None:
        self.transform = lambda page: page / 255


def train_augmented() -> None:
    train(Augmented())


class Remote(Pages):
    """A page that is read from the other side of a pipe, where nobody writes."""

    def __init__(self) -> None:
        self.place = folder() / "page.fifo"
        os.mkfifo(self.place)

    def load_page(self, index: int) -> None:
        self.place.read_bytes()


def train_remote() -> None:
    train(Remote())


class Augmenting(Pages):
    """A crop that is drawn again until it holds text; one page has none."""

    def load_page(self, index: int) -> None:
        text = 0
        while not text:
            text = sum(value > 1000 for value in range(1000))


def train_augmenting() -> None:
    train(Augmenting())


def train_patiently() -> None:
    train(Remote(), timeout=3)


class Convolved(Pages):
    """Pages that are filtered with all cores, also in the worker."""

    def __getitem__(self, index: int) -> Any:
        import torch

        torch.set_num_threads(2)
        page = torch.rand(3000, 300)
        return (page @ page.T).mean()


def train_convolved() -> None:
    dataset = Convolved()
    print("mean", float(dataset[0]), flush=True)
    train(dataset)


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


def train_cached() -> None:
    train(Cached())


CRASH, EXIT, KILLED = ("loader.worker_crash",), ("loader.worker_exit",), ("loader.worker_killed",)
SAMPLE, PICKLE, FORK = ("loader.hang_sample",), ("loader.hang_unpicklable",), ("loader.fork_deadlock",)
C, COPIES = ("compiler",), ("spawn", "forkserver")
FAULTS = (
    Fault("worker_segv", "a null pointer in a worker", "failed", (*CRASH, "native.segv"), train_decoded, C, ALL),
    Fault("worker_divide", "a division by zero in a worker", "failed", CRASH, train_scaled, C, ALL),
    Fault("worker_abort", "an assertion in a worker", "failed", (*CRASH, "native.abort"), train_cropped, C, ALL),
    Fault("worker_free", "a double free in a worker", "failed", (*CRASH, "native.abort"), train_released, C, ALL),
    Fault("worker_opcode", "an unknown opcode in a worker", "failed", ("build.cpu_isa", *CRASH), train_dotted, C, ALL),
    Fault("worker_left", "_exit in a worker", "failed", EXIT, train_left, (), ALL),
    Fault("worker_exited", "sys.exit in a worker", "failed", EXIT, train_exited, (), ALL),
    Fault("worker_killed", "SIGKILL to a worker", "failed", KILLED, train_shared, (), ALL),
    Fault("worker_ended", "SIGTERM to a worker", "failed", (*KILLED, "ext.signal"), train_ended, (), ALL),
    Fault("worker_paused", "SIGSTOP to a worker", "hung", ("hang.stopped",), train_paused, (), ALL),
    Fault("worker_exception", "a missing label", "failed", ("data.sample", "data.annotation"), train_labelled, (), ALL),
    Fault("worker_refused", "an exception that cannot be sent", "hung", PICKLE, train_refused, (), ALL),
    Fault("worker_lazy", "a sample that cannot be sent", "hung", PICKLE, train_lazy, (), ALL),
    Fault("dataset_log", "a data set with an open file", "failed", ("loader.pickling",), train_logged, (), COPIES),
    Fault("dataset_lambda", "a data set with a lambda", "failed", ("loader.pickling",), train_augmented, (), COPIES),
    Fault("worker_reads", "a page that never comes", "hung", SAMPLE, train_remote, (), ALL),
    Fault("worker_loops", "a crop that is drawn for ever", "hung", SAMPLE, train_augmenting, (), ALL),
    Fault("worker_late", "a page past the loader's timeout", "failed", SAMPLE, train_patiently, (), ALL),
    Fault("fork_openmp", "OpenMP before and after fork", "hung", FORK, train_convolved, (), ("fork",)),
    Fault("fork_lock", "a lock that a fork copied", "hung", (*FORK, "hang.deadlock"), train_cached, (), ("fork",)),
)
