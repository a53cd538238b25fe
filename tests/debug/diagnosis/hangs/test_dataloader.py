"""What a DataLoader waits for: copied locks, slow samples and locks that are shared on purpose are told apart."""

from __future__ import annotations

import pytest

from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.debug.diagnosis.hangs import dataloader, hang_cause
from ocrlab.debug.diagnosis.log_records import parse_stacks
from ocrlab.hardware.processes.stack_types import Frame


def worker_stack(pid: int, top: str, *, active: bool = False) -> str:
    """Return a forked data worker's stack as py-spy prints it, with `top` innermost."""
    return f"""Process {pid}: python train.py
Python v3.11

Thread {pid} ({"active" if active else "idle"}): "MainThread"
    {top}
    fetch (torch/utils/data/_utils/fetch.py:54)
    _worker_loop (torch/utils/data/_utils/worker.py:375)
    _bootstrap (multiprocessing/process.py:314)
    _launch (multiprocessing/popen_fork.py:71)
    start (multiprocessing/process.py:121)
    _try_get_data (torch/utils/data/dataloader.py:1293)

"""


def test_all_workers_that_spin_in_native_code_are_copies_of_a_broken_pool() -> None:
    main = 'Process 1: python train.py\n\nThread 1 (idle): "MainThread"\n'
    main += "    select (selectors.py:415)\n    _try_get_data (torch/utils/data/dataloader.py:1293)\n\n"
    at = "__getitem__ (pages.py:7)"
    single = parse_stacks(main + worker_stack(2, at, active=True))
    assert hang_cause.find_hangs(single, {})[0].id == "loader.hang_sample", "it may be the sample"
    two = parse_stacks(main + worker_stack(2, at, active=True) + worker_stack(3, at, active=True))
    assert hang_cause.find_hangs(two, {})[0].id == "loader.fork_deadlock"


@pytest.mark.parametrize(
    "frames, cause",
    [
        ("acquire (filelock/_api.py:1)\n    __enter__ (torch/utils/_filelock.py:24)", "hang.build_lock"),
        ("wait (multiprocessing/synchronize.py:268)\n    work (train.py:3)", "hang.deadlock"),
    ],
)
def test_locks_that_are_shared_on_purpose(frames: str, cause: str) -> None:
    text = f'Process 5: python train.py\n\nThread 5 (idle): "MainThread"\n    {frames}\n'
    text += "    _launch (multiprocessing/popen_fork.py:71)\n    <module> (train.py:9)\n"
    assert [finding.id for finding in hang_cause.find_hangs(parse_stacks(text), {})][:1] == [cause]


@pytest.mark.parametrize(
    ("top", "call", "threads", "cause", "least"),
    [
        ("__getitem__ (pages.py:7)", "futex private", 1, "loader.fork_deadlock", Level.STRONG),
        ("__getitem__ (pages.py:7)", "futex private", 2, "loader.hang_sample", Level.LIKELY),
        ("__getitem__ (pages.py:7)", "futex shared", 1, "loader.hang_sample", Level.LIKELY),
        (
            "_wait_for_tstate_lock (threading.py:1139)\n    join (threading.py:1119)",
            "futex private",
            2,
            "",
            Level.POSSIBLE,
        ),
    ],
    ids=["nobody is left to let go", "another thread could", "another process could", "a thread that is joined"],
)
def test_a_lock_that_only_the_parent_could_let_go(top: str, call: str, threads: int, cause: str, least: Level) -> None:
    text = worker_stack(2, top).replace("Python v3.11", f"# main, state S, {threads} threads, from py-spy")
    text = text.replace(f"    {top}", f"    # waits in {call}\n    {top}")
    best = hang_cause.find_hangs(parse_stacks(text), {})[0]
    assert best.level.value >= least.value
    assert best.id == cause if cause else best.id != "loader.fork_deadlock"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("flock 3 a.lock, held by 77", "waits (flock 3 a.lock, held by 77) in __getitem__"),
        ("clock_nanosleep beside a.db, locked by 77", "sleeps between two tries (a.db, locked by 77) in __getitem__"),
    ],
)
def test_a_lock_is_named_with_its_holder(call: str, words: str) -> None:
    text = worker_stack(2, "__getitem__ (pages.py:7)")
    text = text.replace("    __getitem__", f"    # waits in {call}\n    __getitem__")
    best = hang_cause.find_hangs(parse_stacks(text), {})[0]
    assert best.id == "loader.hang_sample"
    assert words in best.why


def test_the_data_set_itself_is_no_sample_whatever_it_is_called() -> None:
    frames = [Frame("read", "data.py", 9), Frame("D.__getitem__", "data.py", 3, {"s": "<D object at 0x7f>", "i": "25"})]
    frames.append(Frame("fetch", "torch/utils/data/_utils/fetch.py", 54, {"possibly_batched_index": "[18, 25]"}))
    assert dataloader.sample(frames) == "sample 25 of the batch [18, 25]"
