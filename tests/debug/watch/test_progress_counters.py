"""Counters of /proc: what moves is seen in a word, CPU time alone is nothing."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from ocrlab.debug.watch import progress_counters
from ocrlab.debug.watch.progress_counters import Counters, moved
from ocrlab.hardware.processes import process_tree

STILL = Counters(1000, 1000, 0, {(1, 2): 10}, 1.0, False)


@pytest.mark.parametrize(
    ("now", "seconds", "what"),
    [
        (STILL, 10, ""),
        (replace(STILL, cpu_seconds=99.0), 10, ""),
        (replace(STILL, written=1064), 10, "writing"),
        (replace(STILL, written=1008), 10, ""),
        (replace(STILL, disk=4096), 10, "a disk"),
        (replace(STILL, offsets={(1, 2): 11}), 10, "a file"),
        (replace(STILL, offsets={(1, 3): 11}), 10, ""),
        (replace(STILL, read=1000 + 16384 * 10), 10, "reading"),
        (replace(STILL, read=1000 + 16384 * 9), 10, ""),
        (replace(STILL, cpu_seconds=1.1, compiler=True), 10, "a compiler"),
        (replace(STILL, compiler=True), 10, ""),
    ],
)
def test_what_moved(now, seconds, what):
    assert moved({(1, 1): STILL}, {(1, 1): now}, seconds) == what


def test_a_new_process_is_no_progress_until_it_does_something():
    assert moved({(1, 1): STILL}, {(1, 1): STILL, (2, 1): replace(STILL, written=10**6)}, 10) == ""
    assert moved({(1, 1): STILL}, {(2, 1): replace(STILL, compiler=True)}, 10) == "a compiler"


def test_a_single_byte_into_a_file_is_progress(tmp_path):
    family = [process for process in process_tree.descendants(os.getpid()) if process.pid == os.getpid()]
    with open(tmp_path / "scan", "wb", buffering=0) as file:
        before = progress_counters.count(family)
        assert moved(before, progress_counters.count(family), 1) in ("", "reading"), "to count reads /proc"
        file.write(b"\0")
        assert moved(before, progress_counters.count(family), 1) in ("a file", "a disk")


def test_trackers_and_the_dead_are_left_aside():
    family = [process_tree.Process(os.getpid(), role="tracker"), process_tree.Process(os.getpid(), state="Z")]
    assert progress_counters.count(family) == {}
