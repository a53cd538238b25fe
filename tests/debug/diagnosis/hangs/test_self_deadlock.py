"""A lock that a thread waits for though it has taken it itself is read off the source of its frames."""

from __future__ import annotations

from pathlib import Path

import pytest

from ocrlab.debug.diagnosis.hangs import locks
from ocrlab.hardware.processes.stack_types import Frame

SOURCES = {
    "in one line": (
        "def load(i):\n    L.acquire(); L.acquire()\n",
        [("load", 2)],
        "it has taken L already, a few lines above or in the same line",
    ),
    "after another one": ("def load(i):\n    L.acquire()\n    L.acquire()\n", [("load", 3)], "taken L already"),
    "around a call": (
        "class D:\n    def load(self, i):\n        with self.lock:\n            return self.read(i)\n"
        "    def read(self, i):\n        with self.lock:\n            return i\n",
        [("read", 6), ("load", 4)],
        "taken self.lock already, in load",
    ),
    "acquired, then a call": (
        "def load(i):\n    L.acquire()\n    read(i)\n    L.release()\ndef read(i):\n    with L:\n        pass\n",
        [("read", 6), ("load", 3)],
        "taken L already, in load",
    ),
    "nested": ("def load(i):\n    with L:\n        with L:\n            pass\n", [("load", 3)], "taken L already"),
    "never let go": ("def load(i):\n    L.acquire()\n    return i\n", [("load", 2)], "nothing in"),
    # and what is none of these
    "let go before": (
        "def load(i):\n    L.acquire()\n    L.release()\n    L.acquire()\n    L.release()\n",
        [("load", 4)],
        "",
    ),
    "one after another": ("def load(i):\n    with L:\n        pass\n    with L:\n        pass\n", [("load", 4)], ""),
    "another lock": ("def load(i):\n    with A:\n        with B:\n            pass\n", [("load", 3)], ""),
    "a call after it": (
        "def load(i):\n    with L:\n        pass\n    read(i)\ndef read(i):\n    with L:\n        pass\n",
        [("read", 6), ("load", 4)],
        "",
    ),
    "by somebody else too": (
        "def load(i):\n    L.acquire()\n    return i\nL.acquire()\nstart(load)\n",
        [("load", 2)],
        "",
    ),
    "for a while": ("def load(i):\n    L.acquire()\n    L.acquire(timeout=5)\n    L.release()\n", [("load", 3)], ""),
    "a function in it": (
        "def load(i):\n    def later():\n        L.acquire()\n    L.acquire()\n    L.release()\n",
        [("load", 4)],
        "",
    ),
    "once, and let go": ("def load(i):\n    with L:\n        pass\n", [("load", 2)], ""),
    "something else": ("def load(i):\n    time.sleep(9)\n", [("load", 2)], ""),
    "no Python": ("def load(i:\n", [("load", 1)], ""),
}


@pytest.mark.parametrize("case", SOURCES)
def test_it_is_read_off_the_source(tmp_path: Path, case: str) -> None:
    source, places, words = SOURCES[case]
    (path := tmp_path / "data.py").write_text(source)
    frames = [Frame("acquire", "lock.c", 0), *(Frame(function, str(path), line) for function, line in places)]
    reason = locks.explain_self_deadlock(frames)
    assert (words in reason) if words else reason == ""


def test_frames_of_the_parent_that_a_forked_copy_still_has_do_not_count(tmp_path: Path) -> None:
    (path := tmp_path / "data.py").write_text(
        "def work():\n    with lock:\n        pass\nlock.acquire()\nchild.start()\n"
    )
    copy = [Frame("Popen._launch", "/usr/lib/python3.11/multiprocessing/popen_fork.py", 71)]
    frames = [Frame("work", str(path), 2), *copy, Frame("<module>", str(path), 5)]
    assert locks.explain_self_deadlock(frames) == ""
    assert locks.explain_self_deadlock([frames[0], frames[2]]) != ""


def test_without_a_source_there_is_no_reason(tmp_path: Path) -> None:
    assert locks.explain_self_deadlock([]) == ""
    assert locks.explain_self_deadlock([Frame("load", str(tmp_path / "gone.py"), 3)]) == ""
    assert locks.explain_self_deadlock([Frame("load", str(tmp_path), 3)]) == ""
