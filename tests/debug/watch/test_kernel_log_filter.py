"""Lines of the kernel log: ours are kept, those about others are not."""

from pathlib import Path

import pytest

from ocrlab.debug.watch import incident_evidence
from ocrlab.hardware.processes import kernel_log
from ocrlab.records import Reading

LOG = [
    "[100.1] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "[100.1] memory: usage 112640kB, limit 112640kB, failcnt 0",
    "[100.2] oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/job,task=python,pid=71,uid=0",
    "[100.3] Memory cgroup out of memory: Killed process 71 (python) total-vm:94380kB, anon-rss:78112kB",
    "[100.4] NVRM: GPU at PCI:0000:01:00: GPU-1",
]


@pytest.fixture(autouse=True)
def log(monkeypatch):
    monkeypatch.setattr(kernel_log, "lines", lambda since: Reading("kernel_log", LOG))


@pytest.mark.parametrize(("pids", "text"), [({70, 71}, ""), ({70}, "worker (pid(s) 71) exited"), ({70}, "pid: 71")])
def test_a_kill_of_our_process_is_reported(pids, text):
    assert incident_evidence.own_kernel_lines(0, 100, pids, {"python"}, text).splitlines() == LOG


def test_a_kill_of_another_is_left_out(monkeypatch):
    monkeypatch.setattr(incident_evidence, "_number_is_real", lambda: True)
    assert incident_evidence.own_kernel_lines(0, 100, {50}, {"python"}, "").splitlines() == LOG[4:]
    assert incident_evidence.own_kernel_lines(0, 100, {72}, {"python"}, "").splitlines() == LOG[4:], "older than ours"
    assert incident_evidence.own_kernel_lines(0, 100, {70}, {"sleep"}, "").splitlines() == LOG[4:]


def test_a_worker_that_was_forked_beside_ours_and_died_unseen(monkeypatch):
    monkeypatch.setattr(incident_evidence, "_number_is_real", lambda: True)
    assert incident_evidence.own_kernel_lines(0, 300, {70, 72}, {"python"}, "").splitlines() == LOG


@pytest.mark.parametrize(("name", "ended", "count"), [("python", 101.0, 5), ("python", 300.0, 1), ("sleep", 101.0, 1)])
def test_in_a_container_name_and_time_decide(name, ended, count, monkeypatch):
    monkeypatch.setattr(incident_evidence, "_number_is_real", lambda: False)
    assert len(incident_evidence.own_kernel_lines(0, ended, {7}, {name}, "").splitlines()) == count


def test_a_kill_in_a_group_of_the_programs_own_is_ours(monkeypatch):
    monkeypatch.setattr(incident_evidence, "_number_is_real", lambda: True)
    assert (
        incident_evidence.own_kernel_lines(0, 300, {70}, set(), "", [Path("/sys/fs/cgroup/memory/job")]).splitlines()
        == LOG
    )
    assert (
        incident_evidence.own_kernel_lines(0, 300, {70}, set(), "", [Path("/sys/fs/cgroup/memory/other")]).splitlines()
        == LOG[4:]
    )


@pytest.mark.parametrize(("pid", "ended", "text", "ours"), [
    (50, 100.5, "CalledProcessError: Command died with <Signals.SIGKILL: 9>.", 5),
    (50, 100.5, "worker -9", 5),
    (50, 100.5, "CalledProcessError: Command returned non-zero exit status 1.", 1),
    (50, 100.5, "lr 1e-9, step 137, x=2-9", 1),
    (50, 109.0, "CalledProcessError: Command died with <Signals.SIGKILL: 9>.", 1),
    (80, 100.5, "CalledProcessError: Command died with <Signals.SIGKILL: 9>.", 1),
])  # fmt: skip
def test_what_the_program_started_and_saw_killed(pid, ended, text, ours, monkeypatch):
    monkeypatch.setattr(incident_evidence, "_number_is_real", lambda: True)
    assert len(incident_evidence.own_kernel_lines(0, ended, {pid}, {"python"}, text).splitlines()) == ours


def test_an_unreadable_log_differs_from_an_empty_log(monkeypatch):
    monkeypatch.setattr(kernel_log, "lines", lambda since: Reading("kernel_log", missing="not allowed"))
    assert incident_evidence.own_kernel_lines(0, 1, {7}, {"python"}, "") is None
    monkeypatch.setattr(kernel_log, "lines", lambda since: Reading("kernel_log", []))
    assert incident_evidence.own_kernel_lines(0, 1, {7}, {"python"}, "") == ""


def test_the_first_lines_of_an_exception_belong_to_the_process_that_its_last_line_names(monkeypatch):
    exception = [
        "[84.843956] NVRM: Xid (PCI:0000:00:06): 13, Graphics SM Warp Exception on (GPC 1, TPC 4): Misaligned Address",
        "[84.845468] NVRM: Xid (PCI:0000:00:06): 13, Graphics Exception: ESR 0x519730=0x500000f 0x519734=0x0",
        "[84.847022] NVRM: Xid (PCI:0000:00:06): 13, pid=71, name=python, Graphics Exception: channel 0x0000006e",
    ]
    lost = "[90.0] NVRM: Xid (PCI:0000:00:06): 79, GPU has fallen off the bus."
    monkeypatch.setattr(kernel_log, "lines", lambda since: Reading("kernel_log", [*exception, lost]))
    monkeypatch.setattr(incident_evidence, "_number_is_real", lambda: True)
    assert incident_evidence.own_kernel_lines(0, 100, {71}, {"python"}, "").splitlines() == [*exception, lost]
    assert incident_evidence.own_kernel_lines(0, 100, {70}, {"python"}, "").splitlines() == [lost]
