"""From an incident to a verdict: order of errors, wrappers, advice, facts, and how sure."""

import json
from pathlib import Path
from typing import Any

import pytest

from ocrlab.debug.diagnosis import catalogue, evidence
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.hardware.processes import exit_codes
from ocrlab.records import Incident, Verdict

ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
SEGV = "RuntimeError: DataLoader worker (pid 8301) is killed by signal: Segmentation fault."


def judge(log: str, context: str = "", **more: Any) -> Verdict:
    return classify(Incident(texts={"log_tail.txt": log}, context=context, **more))


def first(verdict: Verdict) -> str | None:
    return verdict.causes[0].id if verdict.causes else None


def ruled_out(verdict: Verdict) -> set[str]:
    return {out.id for out in verdict.ruled_out}


MISLEADING = catalogue.tomllib.loads(Path(__file__).with_name("misleading_logs.toml").read_text(encoding="utf-8"))[
    "log"
]


@pytest.mark.parametrize("row", MISLEADING, ids=[row["about"] for row in MISLEADING])
def test_a_misleading_log_is_not_taken_at_its_word(row: dict[str, Any]) -> None:
    causes = judge(row["text"], row.get("context", "")).causes
    if "first" in row:
        assert (causes[0].id if causes else "none") == row["first"]
    best = causes[0].confidence if causes else 0.0
    assert row.get("at_least", 0.0) <= best <= row.get("at_most", 1.0)
    assert set(row.get("among", ())) <= {cause.id for cause in causes[:3]}
    assert not [cause.id for cause in causes if cause.id.startswith(row.get("absent", "-")) and cause.confidence > 0.5]


@pytest.mark.parametrize(
    "text",
    [
        "", "\n\n", "I am having a problem: training hangs after an hour on my two cards",
        "My machine has 16 GB.\nThe RAM is full and exhausted after an epoch.\n",
        "driver outdated for cu130 build", "training gets stuck and runs out of memory",
    ],
)  # fmt: skip
def test_a_text_without_log_lines_names_no_cause_and_tells_how_to_get_a_log(text: str) -> None:
    verdict = judge(text)
    assert (verdict.status, verdict.causes, verdict.ruled_out) == ("log", [], [])
    assert verdict.missing[0].startswith("no log lines recognised")
    for command in ("tee train.log", "ocrlab watch -- python train.py", "ocrlab doctor"):
        assert any(command in line for line in verdict.missing)


def test_the_first_error_in_time_wins_and_followers_are_named() -> None:
    verdict = judge(f"{ILLEGAL}\nFileNotFoundError: [Errno 2] No such file or directory: 'runs/x/.FAILURE'")
    assert first(verdict) == "kernel.illegal_address"
    assert "io.missing" in ruled_out(verdict)
    other = judge(f"FileNotFoundError: [Errno 2] No such file or directory: 'data'\n{ILLEGAL}")
    assert first(other) == "io.missing"


def test_what_the_program_survived_is_not_why_it_died() -> None:
    steps = [f"step {number} loss 0.{number}" for number in range(9)]
    verdict = judge("\n".join(["PermissionError: [Errno 13] cache", *steps, "MemoryError"]))
    assert first(verdict) == "host.alloc_fail"
    assert "io.permission" in ruled_out(verdict)


def test_a_device_assert_explains_wherever_it_was_pasted() -> None:
    log = f"{ILLEGAL}\nLoss.cu:12: nll_loss: block: [0,0,0] Assertion `t >= 0 && t < n_classes` failed."
    assert first(judge(log)) == "data.index_range"


def test_an_asynchronous_error_is_never_sure_and_names_the_experiment() -> None:
    verdict = judge(f"  File 'train.py', line 8\n    loss.item()\n{ILLEGAL}")
    assert [cause.id for cause in verdict.causes[:3]] == ["kernel.illegal_address", "data.index_range", "hw.gpu"]
    assert verdict.causes[0].confidence <= 0.7
    assert "ocrlab watch --debug-cuda" in verdict.causes[0].experiment
    assert any("CUDA_LAUNCH_BLOCKING=1" in thing for thing in verdict.missing)


def test_a_device_assert_just_above_explains_a_library_status() -> None:
    verdict = judge(
        "indexSelectLargeIndex: block: [8,0,0], thread: [63,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    )
    assert first(verdict) == "data.index_range"
    assert verdict.causes[0].confidence >= 0.9
    assert "kernel.math_library" in ruled_out(verdict)


def test_what_a_person_says_is_never_sure() -> None:
    verdict = judge("CUDA out of memory", context="memory usage keeps increasing at every step")
    assert first(verdict) == "gpumem.leak"
    assert verdict.causes[0].confidence <= 0.7
    assert verdict.causes[0].evidence[0].file == "context"


def test_abort_gives_way_to_what_it_says() -> None:
    log = "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: misaligned address"
    verdict = judge(log, status="killed", signal="SIGABRT")
    assert first(verdict) == "kernel.misaligned"
    assert {"native.abort", "kernel.cascade"} <= ruled_out(verdict)


def test_sigkill_with_proof_and_without() -> None:
    proved = judge("", status="killed", signal="SIGKILL", facts={"oom_kills": 1})
    assert first(proved) == "host.oom_kill"
    assert proved.causes[0].confidence >= 0.9
    bare = judge("step 4", status="killed", signal="SIGKILL")
    assert {cause.id for cause in bare.causes[:2]} == {"host.oom_kill", "ext.signal"}
    assert bare.causes[0].confidence <= 0.5
    assert any("cgroup" in thing for thing in bare.missing)
    counted = judge(SEGV.replace("Segmentation fault", "Killed"), facts={"oom_kills": 0})
    assert first(counted) == "loader.worker_killed"
    assert "host.oom_kill" in ruled_out(counted)


def test_the_kind_of_a_hang_comes_from_what_the_watcher_saw() -> None:
    hang = {
        "id": "hang.import", "confidence": 0.9, "pid": 5, "why": "imports fakewandb",
        "evidence": [{"line": 3, "text": "x"}],
    }  # fmt: skip
    verdict = judge(
        "warning: CUDA out of memory", status="hung", signal="SIGKILL", facts={"hang": hang, "ended_by": "limit"}
    )
    assert (first(verdict), verdict.causes[0].confidence) == ("hang.import", 0.92)
    hang |= {"others": [{"id": "hang.deadlock", "confidence": 0.62, "why": "busy"}, {"id": "x"}, 3]}
    frame = "    all_reduce (torch/distributed/a.py:2)\n"
    stacks = {"stacks.txt": f'Process 7: python a.py\n\nThread 7 (idle): "MainThread"\n{frame}'}
    both = classify(Incident("hung", texts=stacks, facts={"hang": hang})).causes
    assert [cause.id for cause in both if cause.evidence] == ["hang.import", "hang.deadlock"], "judged once"


def test_a_ctrl_c_traceback_tells_what_was_waited_for() -> None:
    log = '  File "torch/utils/data/dataloader.py", line 168, in __next__\n'
    log += '  File "multiprocessing/queues.py", line 378, in get\nKeyboardInterrupt'
    assert first(judge(log)) == "loader.hang_sample"


def test_a_stack_dump_on_a_single_line_keeps_its_line_number() -> None:
    dump = (
        'Process 7: python train.py\nThread 7 (active): "MainThread"\n    spin (loop.py:4)\n    <module> (train.py:9)\n'
    )
    plain = judge(dump)
    packed = judge("starting\n" + json.dumps({"level": "info", "message": dump}))
    assert first(packed) == first(plain)
    assert {line.line for line in packed.causes[0].evidence if line.file == "log_tail.txt"} <= {2, None}


@pytest.mark.parametrize(("line", "signals"), [
    ("Process finished with exit code -1", []),
    ("exitcode  : -1 (pid: 8)", ["SIGHUP"]),
    ("process 0 terminated with exit code -1", ["SIGHUP"]),
    ("it ends with exit codes 3 or -11", ["SIGSEGV"]),
])  # fmt: skip
def test_a_signal_below_zero(line: str, signals: list[str]) -> None:
    assert [name for name, _ in exit_codes.find_signals(line)] == signals


def test_a_huge_text_is_windowed_and_keeps_its_line_numbers() -> None:
    lines = [f"step {number} {'x' * 40} word{number % 977}" for number in range(40_000)]
    lines[30_000] = ILLEGAL
    verdict = judge("\n".join(lines))
    assert len("\n".join(lines)) > evidence.LONG
    assert verdict.causes[0].evidence[0].line == 30_001


def test_torchs_guess_at_shared_memory_gives_way_to_what_was_measured() -> None:
    log = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."
    assert first(judge(log)) == "host.shm"
    assert first(judge(log, facts={"shm_free_bytes": 2**40})) == "loader.worker_crash"
    full = "RuntimeError: unable to write to file </torch_7_1>: No space left on device (28)"
    assert first(judge(full, facts={"shm_free_bytes": 2**40})) == "host.shm", "the end has freed it"


def test_a_worker_that_left_takes_its_socket_with_it() -> None:
    log = """  File "lib/python3.11/site-packages/torch/multiprocessing/reductions.py", line 543, in rebuild_storage_fd
    fd = df.detach()
  File "/usr/lib/python3.11/multiprocessing/resource_sharer.py", line 57, in detach
    with _resource_sharer.get_connection(self._id) as conn:
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 646, in SocketClient
    s.connect(address)
FileNotFoundError: [Errno 2] No such file or directory"""
    assert first(judge(log)) == "loader.worker_exit"
    assert first(judge("FileNotFoundError: [Errno 2] No such file or directory: 'a.txt'")) == "io.missing"


def test_somebody_elses_oom_kill_is_not_ours() -> None:
    kernel = """[1.0] java invoked oom-killer: gfp_mask=0xcc0
[1.0] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=java,pid=77,uid=0
[1.0] Memory cgroup out of memory: Killed process 77 (java)
[1.1] oom_reaper: reaped process 77 (java)"""
    texts = {"log_tail.txt": "step 1", "kernel_log.txt": kernel}
    verdict = classify(Incident("killed", None, "SIGKILL", texts, facts={"pids": [99]}))
    assert verdict.causes[0].confidence <= 0.5
    read_and_empty = judge("step 1", status="killed", signal="SIGKILL", facts={"kernel_log_read": True})
    assert first(read_and_empty) == "ext.signal"
    assert "host.oom_kill" in ruled_out(read_and_empty)
    assert not any("kernel log" in thing for thing in read_and_empty.missing)
    unread = judge("step 1", status="killed", signal="SIGKILL", facts={"pids": [99]})
    assert any("kernel log" in thing for thing in unread.missing)
