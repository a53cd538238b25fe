"""Step 9: shared memory, open files, threads, memory, and a real write to the disks that a run needs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Facts, Options, Probe, fail, ok, size, warn
from ocrlab.records import Check

MIB, GIB = 1 << 20, 1 << 30
SHM_LEAST, SHM_GOOD = 32 * MIB, 256 * MIB  # one batch of 8 crops of 640 px is 39 MB; Docker's default is 64 MiB
FILES_LEAST, FILES_GOOD = 256, 1024  # torch holds one descriptor for each tensor that a worker hands over
MEMORY_LEAST, MEMORY_GOOD = 1 * GIB, 2 * GIB  # torch alone takes 0.4, a small training with two workers 1.5
DISK_LEAST, DISK_GOOD = 512 * MIB, 5 * GIB  # a checkpoint of a ResNet-50 detector is 0.3 GiB, of which three are kept
PIDS_GOOD = 512  # two workers with the thread pools of OpenMP, OpenCV and the tracker need some 200
SLOW = 20 * MIB  # bytes a second; a checkpoint of 100 MiB then takes 5 s


def asks(options: Options) -> list[Probe]:
    """Return the asks of step 9, which answer in a tenth of a second where all is well.

    A disk has 15 s for 16 MiB: what is slower holds up every checkpoint.
    """
    probe = PROBES / "resource_limits.py"

    def disk(name: str, folder: str) -> Probe:
        return Probe(9, name, probe, "disk", lambda a, f: judge_disk(name, a), 15, {"folder": folder}, own=True)

    return [
        Probe(9, "memory", probe, "memory", judge_memory, 10, own=True),
        Probe(9, "shared memory", probe, "shared_memory", judge_shm, 10, own=True, crash="host.shm"),
        Probe(9, "open files", probe, "descriptors", judge_files, 10, own=True),
        Probe(9, "threads", probe, "threads", judge_threads, 10, own=True, hang="host.thread_limit"),
        disk("disk for runs", str(options.runs)),
        disk("disk for temporary files", tempfile.gettempdir()),
    ]


def judge_memory(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the finding on memory, as the machine and the control group allow it."""
    [answer] = answers
    free = [answer["available"]] if answer["available"] is not None else []
    if (
        answer["limit"]
        and answer["used_of_group"] is not None
        and answer["limit"] < (answer["total"] or answer["limit"] + 1)
    ):
        free.append(answer["limit"] - answer["used_of_group"] + answer["inactive"])
    available = min(free, default=0)
    observed = f"{size(available)} available of {size(answer['limit'] or 0)}"
    if answer["limit"] and answer["total"] and answer["limit"] < answer["total"]:
        observed += f", the control group's limit (the machine has {size(answer['total'])})"
    need, do = f"{size(MEMORY_GOOD)} or more", "end other programs; docker run --memory=8g; fewer loader workers"
    if answer["address_space"] is not None:
        limited = f"{observed}; address space limited to {size(answer['address_space'])}"
        yield warn("memory", limited, "no ulimit -v: CUDA reserves more than it uses", "ulimit -v unlimited",
                   "host.alloc_fail")  # fmt: skip
    elif available < MEMORY_LEAST:
        yield fail("memory", observed, need, do, "host.oom_kill")
    elif available < MEMORY_GOOD:
        yield warn("memory", observed, need, do, "host.oom_kill")
    elif answer["overcommit"] == "2":
        refused = f"{observed}; vm.overcommit_memory is 2: fork and big allocations are refused early"
        yield warn("memory", refused, "0 or 1", "sudo sysctl vm.overcommit_memory=0", "host.alloc_fail")
    else:
        yield ok("memory", observed)


def judge_shm(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the finding on /dev/shm, through which loader workers hand over their batches."""
    [answer] = answers
    label, do = "shared memory", "docker run --shm-size=8g (or --ipc=host); sudo mount -o remount,size=8g /dev/shm"
    if "error" in answer:
        yield fail(label, f"/dev/shm: {answer['error']}", "it can be written", do, "host.shm")
        return
    observed = f"/dev/shm has {size(answer['free'])} free of {size(answer['total'])}"
    need = f"{size(SHM_GOOD)} or more for loader workers"
    if answer["left"]:
        observed += f"; {len(answer['left'])} files torch_* of dead processes"
        do = f"rm {' '.join('/dev/shm/' + name for name in answer['left'][:3])}"
    if answer["free"] < SHM_LEAST:
        yield fail(label, observed, need, do, "host.shm")
    elif answer["free"] < SHM_GOOD:
        yield warn(label, observed, need, do, "host.shm")
    else:
        yield ok(label, observed, do=do if answer["left"] else "")


def judge_files(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the finding on the limit of open files."""
    [answer] = answers
    raised = "the hard limit too" if answer["soft"] >= answer["hard"] else f"could be raised to {answer['hard']}"
    observed = f"{answer['soft']} at most ({raised})"
    need, do = f"{FILES_GOOD} or more", f"ulimit -n {min(answer['hard'], 65536)}"
    if answer["hard"] < FILES_GOOD:
        do = "raise the hard limit: docker run --ulimit nofile=65536:65536; in systemd LimitNOFILE=65536; else "
        do += "`* hard nofile 65536` in /etc/security/limits.conf, and log in again"
    if answer["soft"] < FILES_LEAST:
        yield fail("open files", observed, need, do, "host.fd_limit")
    elif answer["soft"] < FILES_GOOD:
        yield warn("open files", observed, need, do, "host.fd_limit")
    else:
        yield ok("open files", observed)


def judge_threads(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the finding on threads: they were really started."""
    [answer] = answers
    label, do = "threads", "ulimit -u unlimited; docker run --pids-limit=-1; OMP_NUM_THREADS=1"
    limits = [f"RLIMIT_NPROC {answer['processes']}"] if answer["processes"] is not None else []
    left = None
    if answer["group"] is not None:
        limits.append(f"the control group allows {answer['group']}, {answer['used_of_group']} are in use")
        left = answer["group"] - (answer["used_of_group"] or 0)
    observed = f"{answer['started']} of {answer['wanted']} started" + (f"; {'; '.join(limits)}" if limits else "")
    if answer["started"] < answer["wanted"]:
        yield fail(label, f"{observed}: {answer['error']}", f"{answer['wanted']}", do, "host.thread_limit")
    elif left is not None and left < PIDS_GOOD:
        yield warn(label, observed, f"{PIDS_GOOD} or more", do, "host.thread_limit")
    else:
        yield ok(label, observed)


def judge_disk(label: str, answers: Answers) -> Iterator[Check]:
    """Yield the finding on a folder that was written to."""
    answer: dict[str, Any] = answers[0]
    need, where = f"{size(DISK_GOOD)} free, and a write that is synced", answer["folder"]
    do = f"df -h '{where}' ; free space there, or choose another folder"
    if "error" in answer:
        denied = any(f"errno {number})" in answer["error"] for number in (1, 13, 30))
        missing = "errno 2)" in answer["error"]
        cause = "io.permission" if denied else "io.missing" if missing else "io.disk_full"
        yield fail(label, f"{where}: {answer['error']}", need, do, cause)
        return
    speed = answer["written"] / max(answer["seconds"], 1e-6)
    observed = f"{where}: {size(answer['free'])} free, {size(answer['written'])} written and synced at {size(speed)}/s"
    if answer["free"] < DISK_LEAST or (answer["files"] is not None and answer["files"] < 100):
        yield fail(label, observed, need, do, "io.disk_full")
    elif answer["free"] < DISK_GOOD:
        yield warn(label, observed, need, do, "io.disk_full")
    elif speed < SLOW:
        yield warn(label, observed, f"{size(SLOW)}/s: checkpoints are synced", "choose a folder on a local disk")
    else:
        yield ok(label, observed)
