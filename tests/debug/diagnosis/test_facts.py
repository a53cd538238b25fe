"""What was measured from outside, as hits."""

from typing import Any

import pytest

from ocrlab.debug.diagnosis import evidence
from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.debug.diagnosis.evidence import Hit
from ocrlab.records import Incident


def hits(signal: str | None = None, code: int | None = None, kernel: str = "", **measured: Any) -> list[Hit]:
    return evidence.fact_hits(Incident("killed", code, signal, {"kernel_log.txt": kernel}, "", measured))


@pytest.mark.parametrize(
    "signal, cause",
    [("SIGILL", "build.cpu_isa"), ("SIGSEGV", "native.segv"), ("SIGHUP", "ext.signal"), ("SIGXFSZ", "io.disk_full")],
)
def test_a_signal_speaks_for_a_cause(signal: str, cause: str) -> None:
    assert hits(signal)[0].cause == cause


@pytest.mark.parametrize("signal, cause", [("SIGSEGV", "loader.worker_crash"), ("SIGKILL", "loader.worker_killed")])
def test_the_end_of_a_worker(signal: str, cause: str) -> None:
    ended = {"pid": 7, "role": "worker", "exit_code": None, "signal": signal}
    assert [hit.cause for hit in hits(exits=[ended])] == [cause]
    assert hits(exits=[{**ended, "role": "helper"}]) == []
    assert hits(exits=[ended], ended_by="limit") == []


@pytest.mark.parametrize("line, cause", [
    ("Out of memory: Killed process 9 (python) total-vm:1kB", "host.oom_kill"),
    ("traps: python[9] trap invalid opcode ip:1 sp:2 error:0 in libx.so[3+4]", "build.cpu_isa"),
    ("python[9]: segfault at 0 ip 00 sp 00 error 4 in libx.so[3+4]", "native.segv"),
    ("NVRM: Xid (PCI:0000:3b:00): 31, pid=9, name=python, MMU Fault", "hw.xid_app"),
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid='9', GPU has fallen off the bus.", "hw.gpu"),
])  # fmt: skip
def test_kernel_lines_count_where_they_name_us(line: str, cause: str) -> None:
    [hit] = hits(kernel=f"other\n{line}", pids=[8, 9])
    assert (hit.cause, hit.evidence.line) == (cause, 2)
    assert hits(kernel=line, pids=[8]) == []


EXCEPTION = (  # of process 1035, from an H200; only its last line names a process
    "[84.843956] NVRM: Xid (PCI:0000:00:06): 13, Graphics SM Warp Exception on (GPC 1, TPC 4): Misaligned Address",
    "[84.845468] NVRM: Xid (PCI:0000:00:06): 13, Graphics Exception: ESR 0x519730=0x500000f 0x519734=0x0",
    "[84.847022] NVRM: Xid (PCI:0000:00:06): 13, pid=1035, name=python3, Graphics Exception: channel 0x0000006e",
)


def test_an_xid_says_what_the_kernel_did_and_not_only_that_it_failed() -> None:
    message = "torch.AcceleratorError: CUDA error: {}"
    for error, xid, cause in (
        ("misaligned address", "\n".join(EXCEPTION), "kernel.misaligned"),
        ("unspecified launch failure", "[83.4] NVRM: Xid (PCI:0000:00:06): 43, pid=1035, name=python3, channel 0x46",
         "kernel.launch_failure"),
        ("an illegal memory access was encountered", "[87.1] NVRM: Xid (PCI:0000:00:06): 31, pid=1035, name=python3,"
         " channel 0x5a, intr 0. MMU Fault: ENGINE GRAPHICS GPC1 faulted @ 0x8013_5bea7000.", "kernel.illegal_address"),
    ):  # fmt: skip
        texts = {"log_tail.txt": message.format(error), "kernel_log.txt": xid}
        verdict = classify(Incident("failed", 1, texts=texts, facts={"pids": [1035]}))
        assert verdict.causes[0].id == cause, error
        others = classify(Incident("failed", 1, texts=texts, facts={"pids": [7]}))
        assert all(line.file != "kernel_log.txt" for cause in others.causes for line in cause.evidence), error


def test_a_kill_in_the_group_counts_only_if_our_process_was_killed() -> None:
    assert not hits(code=1, oom_kills=3)
    assert hits("SIGKILL", oom_kills=1)[0].level is Level.DECISIVE
    ended = {"pid": 7, "role": "worker", "exit_code": None, "signal": "SIGKILL"}
    assert hits(code=1, oom_kills=1, exits=[ended])[0].cause == "host.oom_kill"


def test_in_a_container_the_kernel_log_knows_us_by_other_numbers() -> None:
    line = "Out of memory: Killed process 90007 (python) total-vm:1kB"
    assert [hit.cause for hit in hits(kernel=line, pids=[7], oom_pids=[90007])] == ["host.oom_kill"]


def test_the_main_process_dies_of_sigbus_with_plenty_of_shared_memory() -> None:
    assert [hit.cause for hit in hits("SIGBUS", shm_free_bytes=2**40)] == ["data.corrupt", "native.segv"]
    ended = {"pid": 7, "role": "worker", "exit_code": None, "signal": "SIGBUS"}
    assert [hit.cause for hit in hits(exits=[ended], shm_free_bytes=2**40)] == ["loader.worker_crash"]
    assert [hit.cause for hit in hits(exits=[ended], shm_free_bytes=2**20)] == ["host.shm"]


STOOD = {"id": "hang.deadlock", "confidence": 0.6, "pid": 7, "why": "the main thread stands in f (a.py:3)"}


def test_what_still_moved_at_its_time_limit_did_not_hang() -> None:
    facts = {"ended_by": "limit", "silent_seconds": 0.4, "run_seconds": 30.0, "hang": STOOD}
    verdict = classify(Incident(status="hung", texts={"log_tail.txt": "CUDA out of memory\nstep 9"}, facts=facts))
    assert [cause.id for cause in verdict.causes] == ["hang.deadlock"]
    assert verdict.causes[0].confidence <= 0.3
    assert "time limit" in verdict.missing[0]
    facts["silent_seconds"] = 20.0
    assert classify(Incident(status="hung", facts=facts)).causes[0].confidence == Level.LIKELY.value


@pytest.mark.parametrize(("facts", "gone"), [({"gpu": False}, "hw.gpu"), ({"workers": 0}, "loader.")])
def test_what_is_not_there_is_no_look_alike(facts: dict[str, object], gone: str) -> None:
    log = {"hw.gpu": "Segmentation fault", "loader.": "Killed"}[gone]
    before, after = (
        [cause.id for cause in classify(Incident("failed", 1, texts={"log_tail.txt": log}, facts=machine)).causes]
        for machine in ({}, facts)
    )
    assert any(name.startswith(gone) for name in before)
    assert not any(name.startswith(gone) for name in after)
    assert after[0] == before[0]


def test_what_the_log_says_counts_without_a_gpu_too() -> None:
    log = "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert (
        classify(Incident(texts={"log_tail.txt": log}, facts={"gpu": False})).causes[0].id == "kernel.illegal_address"
    )
