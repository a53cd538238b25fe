"""The words of several kernels about what they killed and what trapped, and a log that is closed."""

import errno
import os
import time

import pytest

from ocrlab.hardware.processes import kernel_log
from ocrlab.records import Reading

OOM = (
    "[13053.533916] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/box,"
    "task_memcg=/box,task=pt_data_worker,pid=22551,uid=0"
)
KILLED = "[13053.533958] Memory cgroup out of memory: Killed process 22551 (pt_data_worker) total-vm:3372240kB, UID:0"
TRAP = (
    "[12967.373977] traps: pt_data_worker[21850] trap invalid opcode ip:7f82f1a0e17a sp:7fff536baab0 error:0 "
    "in imageops.so[117a,7f82f1a0e000+1000]"
)
SEGFAULT = (
    "[12718.101620] python[20055]: segfault at a8 ip 00007f19976ba754 sp 00007ffe84526d78 error 4 "
    "in libpython3.11.so.1.0[2ba754,7f19974f5000+23c000] likely on CPU 1 (core 1, socket 0)"
)
PROTECTION = "[3.2] traps: python[99] general protection fault ip:7f54 sp:7f33 error:0 in libc.so.6[7f00+1000]"
OLD_PROTECTION = "[3.2] traps: python3[99] general protection ip:7f54 sp:7f33 error:0 in libc-2.27.so[7f00+1000]"
DIVIDE = "[1.5] traps: python[20001] trap divide error ip:7fae86c6916a sp:7ffeb5e21630 error:0 in a.so[116a,7fae+1000]"
WHOLE = "[9.0] Out of memory: Killed process 5 (python3) total-vm:1kB, anon-rss:1kB"
OLD = "[9.0] Out of memory: Kill process 5 (python3) score 900 or sacrifice child"
XID = "[77.1] NVRM: Xid (PCI:0000:3b:00): 31, pid='1234', name=python, Ch 00000008, intr 10000000. MMU Fault"
XID_NO_NAME = "[77.1] NVRM: Xid (PCI:0000:01:00): 13, pid=77, Graphics SM Warp Exception on (GPC 0, TPC 0)"
XID_NO_PID = "[77.1] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
XID_UNKNOWN = "[77.1] NVRM: Xid (PCI:0000:01:00): 62, pid='<unknown>', name=<unknown>, 2027 0000"


@pytest.mark.parametrize(("line", "kind", "pid", "name", "detail", "library"), [
    (OOM, "oom", 22551, "pt_data_worker", "CONSTRAINT_MEMCG", ""),
    (KILLED, "oom", 22551, "pt_data_worker", "CONSTRAINT_MEMCG", ""),
    (WHOLE, "oom", 5, "python3", "", ""),
    (OLD, "oom", 5, "python3", "", ""),
    ("[9.0] Killed process 8 (my prog) total-vm:1kB", "oom", 8, "my prog", "", ""),
    ("[9.0][ T55] Killed process 8 (a) total-vm:1kB", "oom", 8, "a", "", ""),
    (TRAP, "trap", 21850, "pt_data_worker", "invalid opcode", "imageops.so"),
    (DIVIDE, "trap", 20001, "python", "divide error", "a.so"),
    (PROTECTION, "trap", 99, "python", "general protection fault", "libc.so.6"),
    (OLD_PROTECTION, "trap", 99, "python3", "general protection", "libc-2.27.so"),
    (SEGFAULT, "segfault", 20055, "python", "a8", "libpython3.11.so.1.0"),
    (XID, "xid", 1234, "python", "31", ""),
    (XID_NO_NAME, "xid", 77, "", "13", ""),
    (XID_NO_PID, "xid", None, "", "79", ""),
    (XID_UNKNOWN, "xid", None, "", "62", ""),
])  # fmt: skip
def test_each_wording(line: str, kind: str, pid: int | None, name: str, detail: str, library: str) -> None:
    [event] = kernel_log.events([line])
    assert (event.kind, event.pid, event.name, event.detail, event.library) == (kind, pid, name, detail, library)
    assert event.seconds == float(line[1:].partition("]")[0])


def test_how_sure_an_event_is_ours() -> None:
    [event] = kernel_log.events([TRAP])
    assert kernel_log.match(event, 21850, "anything") > 0.9
    assert 0.5 < kernel_log.match(event, 17, "pt_data_worker", 12968.0) < 0.9  # in a container
    assert kernel_log.match(event, 17, "pt_data_worker") < 0.5
    assert kernel_log.match(event, 17, "pt_data_worker", 13500.0) == 0.0
    assert kernel_log.match(event, 17, "python", 12968.0) == 0.0


def test_only_new_lines_about_kills_and_faults_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    log = ["[100.0] usb 1-1: new device", "[200.0] Out of memory: Killed process 5 (a)", f"{TRAP}"]
    monkeypatch.setattr(kernel_log, "_kmsg", lambda: Reading("kernel_log", log))
    assert kernel_log.lines().value == log[1:]
    assert kernel_log.lines(9000.0).value == [TRAP]
    assert kernel_log.lines(20000.0).value == []


def test_a_closed_log_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: object, flags: int) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(kernel_log, "_command", lambda command: Reading("kernel_log"))
    reading = kernel_log.lines()
    assert reading.value is None
    assert "kernel.dmesg_restrict" in str(reading.missing)


def test_a_second_source_that_hangs_is_abandoned(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(kernel_log, "KMSG", tmp_path / "none")
    monkeypatch.setattr(kernel_log, "COMMAND_SECONDS", 0.2)
    for name in ("dmesg", "journalctl"):
        (tmp_path / name).write_text("#!/bin/sh\nexec sleep 600\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    began = time.monotonic()
    assert kernel_log.lines().missing
    assert time.monotonic() - began < 60
