"""Hangs that are named: of real programs that really hang, and of captured and made-up stacks."""

from collections.abc import Callable

import pytest

from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.debug.diagnosis.hangs import hang_cause
from ocrlab.debug.diagnosis.hangs.stack_patterns import HangFinding
from ocrlab.debug.diagnosis.log_records import parse_stacks
from ocrlab.hardware.processes import process_tree
from ocrlab.hardware.processes.stack_types import Frame, Stack, Thread

Hangs = Callable[..., list[HangFinding]]


def test_an_import_that_never_returns(hangs: Hangs, tmp_path) -> None:
    (tmp_path / "slowpackage").mkdir()
    (tmp_path / "slowpackage" / "__init__.py").write_text("from slowpackage import inner\n")
    (tmp_path / "slowpackage" / "inner.py").write_text("import time\ndef fetch():\n    time.sleep(600)\nfetch()\n")
    best = hangs("import slowpackage\n", "hang.import")[0]
    assert best.id == "hang.import"
    assert "slowpackage.inner" in best.why
    assert "fetch" in best.why


def test_an_import_that_is_at_work_may_only_be_slow() -> None:
    text = (
        'Process 5: python train.py\n# main, state R, 1 threads, from py-spy\n\nThread 5 (active+gil): "MainThread"\n'
    )
    text += "    create_module (<frozen importlib._bootstrap_external>:1233)\n    <module> (train.py:1)\n"
    [busy] = hang_cause.find_hangs(parse_stacks(text), {})
    assert (busy.id, busy.level) == ("hang.import", Level.POSSIBLE)
    [asleep] = hang_cause.find_hangs(parse_stacks(text.replace("active+gil", "idle").replace("state R", "state S")), {})
    assert asleep.level is Level.DECISIVE
    call = "recvfrom 3 socket:[1], connected to 1.2.3.4:80"
    far = text.replace("active+gil", "idle").replace("    create", f"    # waits in {call}\n    create")
    [waits] = hang_cause.find_hangs(parse_stacks(far), {})
    assert "where 1.2.3.4:80 does not answer" in waits.why


def test_a_tracker_that_waits_for_its_server(hangs: Hangs, tmp_path) -> None:
    (tmp_path / "wandb").mkdir()
    text = "import socket\ndef init():\n    a, b = socket.socketpair()\n    a.recv(1)\n"
    (tmp_path / "wandb" / "__init__.py").write_text(text)
    assert [finding.id for finding in hangs("import wandb\nwandb.init()\n", "hang.tracker")] == ["hang.tracker"]


LOCKS = """
import threading, time
a, b = threading.Lock(), threading.Lock()
def take(first, second):
    with first:
        time.sleep(0.2)
        with second:
            pass
threading.Thread(target=take, args=(b, a)).start()
take(a, b)
"""


@pytest.mark.parametrize(("code", "word"), [
    (LOCKS, "so does Thread-1"),
    (
        "import threading\ndef f():\n    while True: pass\nt = threading.Thread(target=f)\nt.start()\nt.join()\n",
        "busy",
    ),
    ("import multiprocessing\nmultiprocessing.Queue().get()\n", "no process is left that could send one"),
    (
        "import subprocess\nsubprocess.Popen(['python3', '-c', 'print(10**6 * \"x\")'], stdout=-1).wait()",
        "full pipe",
    ),
    ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])\n", "busy "),
    ("import ctypes\nctypes.PyDLL(None).sleep(600)\n", "program.py:2"),
])  # fmt: skip
def test_deadlocks_and_endless_loops(hangs: Hangs, code: str, word: str) -> None:
    best = hangs(code, "hang.deadlock", word)[0]
    assert best.id == "hang.deadlock"
    assert word in best.why


@pytest.mark.parametrize("code", ["input()\n", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"])
def test_stopped_or_waiting_for_somebody(hangs: Hangs, code: str) -> None:
    best = hangs(code, "hang.stopped")[0]
    assert best.id == "hang.stopped"
    assert best.level is Level.DECISIVE


def test_a_lock_that_fork_copied(hangs: Hangs) -> None:
    code = "import multiprocessing, threading\nlock = threading.Lock()\ndef work():\n    with lock: pass\n"
    code += "lock.acquire()\nchild = multiprocessing.get_context('fork').Process(target=work)\n"
    code += "child.start()\nchild.join()\n"
    best = hangs(code, "loader.fork_deadlock")[0]
    assert best.id == "loader.fork_deadlock"
    assert "work (" in best.why


def test_the_drivers_tool_that_does_not_come_back(hangs: Hangs, tmp_path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nsleep 600\n")
    tool.chmod(0o755)
    assert hangs(f"import subprocess\nsubprocess.run([{str(tool)!r}])\n", "hang.cuda_init")[0].id == "hang.cuda_init"


def test_a_program_that_moves_is_not_sure_to_hang(hangs: Hangs) -> None:
    code = "import time\n" + "".join(
        f"def f{n}():\n    t = time.time() + 0.01\n    while time.time() < t: pass\n" for n in "ab"
    )
    findings = hangs(code + "while True:\n    fa(); fb()\n", "hang.deadlock")
    assert all(hit.level in (Level.LIKELY, Level.POSSIBLE) for hit in findings)


LOADER = """
import sys, time, threading, queue, torch
lock = threading.Lock()
class D(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, number):
        if number == 13:
            {wrong}
        return torch.zeros(3)
def init(worker):
    torch.set_num_threads(2)
if __name__ == "__main__":
    torch.set_num_threads(2)
    {before}
    options = dict(num_workers=2, worker_init_fn=init, multiprocessing_context={method!r})
    for batch in torch.utils.data.DataLoader(D(), batch_size=4, **options):
        pass
"""
SLOW = pytest.mark.slow
MULTIPLY = "a = torch.randn(700, 700); (a @ a).sum()"
NOT_PICKLABLE = "raise type('E', (Exception,), {'__qualname__': 'f.<locals>.E'})('x')"


@pytest.mark.parametrize(("wrong", "before", "method", "cause", "word"), [
    ("time.sleep(600)", "pass", "fork", "loader.hang_sample", "sample 13 of the batch [12, 13, 14, 15]"),
    ("e = threading.Event(); e.wait()", "pass", "fork", "loader.hang_sample", "the same call has made `e`"),
    ("lock.acquire()", "lock.acquire()", "fork", "loader.fork_deadlock", "sample 13 of the batch [12, 13, 14, 15]"),
    pytest.param("while True: pass", "pass", "spawn", "loader.hang_sample", "worker 1 (pid", marks=SLOW),
    pytest.param("time.sleep(600)", "pass", "forkserver", "loader.hang_sample", "sample 13", marks=SLOW),
    pytest.param(NOT_PICKLABLE, "pass", "fork", "loader.hang_unpicklable", "could not be pickled", marks=SLOW),
    pytest.param(NOT_PICKLABLE, "pass", "spawn", "loader.hang_unpicklable", "could not be pickled", marks=SLOW),
    pytest.param(MULTIPLY, MULTIPLY, "fork", "loader.fork_deadlock", "native thread pool", marks=SLOW),
])  # fmt: skip
def test_a_loader_that_gives_no_batch(hangs, wrong, before, method, cause, word):
    code = LOADER.format(wrong=wrong, before=before, method=method)
    findings = hangs(code, cause, word)
    assert findings[0].id == cause, findings
    assert word in findings[0].why


@pytest.mark.slow
def test_ranks_that_are_not_where_the_others_are(hangs: Hangs) -> None:
    code = """
import os, time, torch, torch.distributed as dist, torch.multiprocessing as mp
def late():
    time.sleep(600)
def work(rank, store):
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    late() if rank else dist.barrier()
if __name__ == "__main__":
    mp.spawn(work, ("file://" + os.path.abspath("store"),), 2)
"""
    best = hangs(code, "dist.timeout_desync")[0]
    assert best.id == "dist.timeout_desync"
    assert "1 of 2 ranks wait in barrier" in best.why
    assert "late (" in best.why


@pytest.mark.parametrize(("name", "cause", "word"), [
    ("dl_hang", "loader.hang_sample", "D.__getitem__ (dl.py:30)"),
    ("dl_spin", "loader.hang_sample", "busy"),
    ("dl_badexc", "loader.hang_unpicklable", "could not be pickled"),
    ("dl_fds", "host.fd_limit", "file descriptors"),
    ("dl_rlimit", "host.thread_limit", "threads"),
    ("import_hang", "hang.import", "fakewandb/__init__.py:2"),
    ("lock_deadlock", "hang.deadlock", "lock"),
    ("py_spin", "hang.deadlock", "busy at "),
    ("native_spin", "hang.deadlock", "native code"),
    ("futex_native", "hang.deadlock", "lab.py:80"),
    ("fork_omp", "loader.fork_deadlock", "copy made by fork"),
    ("fork_omp_long", "loader.fork_deadlock", "copy made by fork"),
])  # fmt: skip
def test_captured_hangs(shared, name: str, cause: str, word: str) -> None:
    text = (shared / "diagnosis" / "captured" / f"{name}.log").read_text(errors="replace")
    best = hang_cause.hang_fact(parse_stacks(text), {"log": text}, text)
    assert best is not None
    assert (best["id"], word in best["why"]) == (cause, True)
    lines = text.splitlines()
    assert best["evidence"]
    assert all(lines[row["line"] - 1].strip() == row["text"] for row in best["evidence"])


TOP = "    train (train.py:7)\n    <module> (train.py:20)\n"


@pytest.mark.parametrize(("frames", "cause"), [
    ("cuInit (libcuda.so.1)\n    _lazy_init (torch/cuda/__init__.py:410)", "hang.cuda_init"),
    (
        "cuStreamSynchronize (libcuda.so.1)\n    at::native::_local_scalar_dense_cuda (libtorch_cuda.so)",
        "hang.gpu_kernel",
    ),
    (
        "FileBaton.wait (torch/utils/file_baton.py:50)\n    load (torch/utils/cpp_extension.py:1600)",
        "hang.build_lock",
    ),
    ("run (subprocess.py:548)\n    _run_ninja_build (torch/utils/cpp_extension.py:2500)", "hang.compile"),
    ("wait (threading.py:320)\n    Run.finish (wandb/sdk/wandb_run.py:1)", "hang.tracker"),
    ("readline (cmd.py:126)\n    Pdb.interaction (pdb.py:440)", "hang.stopped"),
    ("all_reduce (torch/distributed/distributed_c10d.py:2800)", "dist.timeout_desync"),
    (
        "TCPStore.__init__ (x.py:1)\n    init_process_group (torch/distributed/distributed_c10d.py:9)",
        "dist.network",
    ),
])  # fmt: skip
def test_places_that_have_a_name(frames: str, cause: str) -> None:
    text = f'Process 5: python train.py\n\nThread 5 (idle): "MainThread"\n    {frames}\n{TOP}'
    assert hang_cause.find_hangs(parse_stacks(text), {})[0].id == cause


def test_ranks_in_different_collectives() -> None:
    def rank(pid: int, name: str) -> str:
        frame = f"    {name} (torch/distributed/distributed_c10d.py:1)\n"
        return f'Process {pid}: python train.py\n\nThread {pid} (idle): "MainThread"\n{frame}{TOP}\n'

    text = rank(7, "all_reduce") + rank(8, "all_reduce") + rank(9, "broadcast")
    [best, *_] = hang_cause.find_hangs(parse_stacks(text), {})
    assert (best.id, best.pid) == ("dist.timeout_desync", 9)
    assert "2 of 3 ranks wait in all_reduce, but process 9 is in broadcast" in best.why
    [same, *_] = hang_cause.find_hangs(parse_stacks(rank(7, "barrier") + rank(8, "barrier")), {})
    assert same.id == "dist.network"
    assert same.level is Level.POSSIBLE


def test_ranks_of_mp_spawn_wait_in_backward_for_a_rank_elsewhere() -> None:
    started = [
        Frame("_wrap", "torch/multiprocessing/spawn.py", 89),
        Frame("spawn_main", "multiprocessing/spawn.py", 122),
    ]
    backward = [Frame("_engine_run_backward", "/x/torch/autograd/graph.py", 1113), Frame("run", "/x/train.py", 7)]

    def rank(pid: int, frames: list[Frame], call: str) -> Stack:
        process = process_tree.Process(
            pid, parent=5, state="S", command="python -c from multiprocessing.spawn", role="worker"
        )
        return Stack(process, [Thread(pid, "MainThread", frames=frames, call=call)], "py-spy", "futex")

    waits = rank(6, backward + started, "futex private")
    saves = rank(7, [Frame("save", "/x/train.py", 30), *started], "clock_nanosleep")
    [best, *_] = hang_cause.find_hangs([waits, saves], {})
    assert (best.id, best.pid) == ("dist.timeout_desync", 7)
    assert "1 of 2 ranks wait in all_reduce (DDP's, in backward), but process 7 is in save (/x/train.py:30)" in best.why
    alone = rank(6, backward, "futex private")
    assert "dist.timeout_desync" not in {finding.id for finding in hang_cause.find_hangs([alone], {})}, (
        "a lock that fork copied, perhaps"
    )


def test_a_trackers_idle_threads_are_not_blamed() -> None:
    text = f'Process 5: python train.py\n\nThread 5 (idle): "MainThread"\n    wait (threading.py:5)\n{TOP}'
    text += 'Thread 6 (idle): "NetStatThr"\n    wait (threading.py:3)\n    check (wandb/sdk/wandb_run.py:2)\n'
    assert [finding.id for finding in hang_cause.find_hangs(parse_stacks(text), {})] == ["hang.deadlock"]


def kernel_only(pid: int, name: str, wchan: str, call: str = "", state: str = "S") -> Stack:
    process = process_tree.Process(pid, parent=1, state=state, name=name, role="worker" if pid > 5 else "main")
    return Stack(
        process, [Thread(pid, name, frames=[Frame(wchan, "kernel", 0)], wchan=wchan, call=call)], "proc", wchan
    )


def test_without_any_python_frame_the_kernel_still_tells_something() -> None:
    [reads] = hang_cause.find_hangs([kernel_only(5, "python", "n_tty_read", "read 0 /dev/pts/3")], {})
    assert (reads.id, reads.level) == ("hang.stopped", Level.DECISIVE)
    [locked] = hang_cause.find_hangs([kernel_only(5, "python", "futex_wait_queue", "futex")], {})
    assert (locked.id, locked.level) == ("hang.deadlock", Level.POSSIBLE)


def test_storage_and_drivers_that_keep_a_process() -> None:
    storage = kernel_only(5, "python", "nfs_wait_bit_killable", state="D")
    [finding] = hang_cause.find_hangs([storage], {"stacks_before": [storage]})
    assert (finding.id, finding.level) == ("hang.stopped", Level.STRONG)
    assert "storage" in finding.why
    driver = kernel_only(5, "python", "nvidia_ioctl", state="D")
    assert hang_cause.find_hangs([driver], {})[0].id == "hang.cuda_init"
    [passing] = hang_cause.find_hangs([storage], {"stacks_before": [kernel_only(5, "python", "futex_wait_queue")]})
    assert passing.level is Level.POSSIBLE
