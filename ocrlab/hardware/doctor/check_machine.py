"""Steps 3, 8 and 9: the processor, WSL2, and the limits on memory, files, threads and disks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

from ocrlab.hardware.doctor.check_packages import torch_facts
from ocrlab.hardware.doctor.check_spec import (
    PROBES,
    Answer,
    Facts,
    Options,
    Probe,
    fail,
    judge,
    ok,
    size,
    skip,
    version,
    warn,
)
from ocrlab.records import Check

# What torch calls its kernels (aten/src/ATen/native/DispatchStub) -> the flag of /proc/cpuinfo that they need.
DISPATCHES = {"AVX2": "avx2", "AVX512": "avx512f", "AVX512_VNNI": "avx512_vnni", "AVX10": "avx512f", "AMX": "amx_tile"}
CAPS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "NPY_DISABLE_CPU_FEATURES",
        "MKL_ENABLE_INSTRUCTIONS", "OPENCV_CPU_DISABLE", "OPENBLAS_CORETYPE")  # fmt: skip

MIB, GIB = 1 << 20, 1 << 30
WSL_MEMORY_GOOD = 8 << 30  # bytes; WSL2 gets half of the machine unless .wslconfig says otherwise
OLDEST_WSL_KERNEL = (5, 10, 43)  # the kernel from which NVIDIA's guide supports CUDA under WSL2 (5.10.43.3)
SHM_LEAST, SHM_GOOD = 32 * MIB, 256 * MIB  # one batch of 8 crops of 640 px is 39 MB; Docker's default is 64 MiB
FILES_LEAST, FILES_GOOD = 256, 1024  # torch holds one descriptor for each tensor that a worker hands over
MEMORY_LEAST, MEMORY_GOOD = 1 * GIB, 2 * GIB  # torch alone takes 0.4, a small training with two workers 1.5
DISK_LEAST, DISK_GOOD = 512 * MIB, 5 * GIB  # a checkpoint of a ResNet-50 detector is 0.3 GiB, of which three are kept
PIDS_GOOD = 512  # two workers with the thread pools of OpenMP, OpenCV and the tracker need some 200
SLOW_DISK = 20 * MIB  # bytes a second; a checkpoint of 100 MiB then takes 5 s


def machine_probes(options: Options) -> list[Probe]:
    """Return the probes of steps 3, 8 and 9, which answer in a tenth of a second where all is well.

    Files of Windows's disk come over 9p, which can take seconds. A disk has 15 s for 16 MiB: what is slower holds up
    every checkpoint.
    """
    probe = PROBES / "resource_limits.py"

    folders = {"disk for runs": str(options.runs), "disk for temporary files": tempfile.gettempdir()}
    return [
        Probe(3, "processor", probe, "processor", judge_processor, 10, own=True, after=("import torch",)),
        Probe(8, "WSL2", probe, "wsl", judge_wsl, 15, own=True),
        Probe(9, "memory", probe, "memory", judge_host_memory, 10, own=True),
        Probe(9, "shared memory", probe, "shared_memory", judge_shm, 10, own=True, crash="host.shm"),
        Probe(9, "open files", probe, "descriptors", judge_files, 10, own=True),
        Probe(9, "threads", probe, "threads", judge_threads, 10, own=True, hang="host.thread_limit"),
        *(
            Probe(9, name, probe, "disk", partial(judge_disk, name), 15, {"folder": folder}, own=True)
            for name, folder in folders.items()
        ),
    ]


def judge_processor(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the findings on instruction sets, on what is dispatched, and on what switches it off."""
    flags = set(answer["flags"])
    yield judge_instructions(answer, flags)
    capability = torch_facts(facts).get("dispatched") or ""
    flag = DISPATCHES.get(capability)
    lacks = bool(flag and flags) and flag not in flags and answer["machine"] == "x86_64"
    if capability:
        yield judge(
            "dispatched kernels",
            f"torch uses its {capability} kernels (chosen at run time, whatever it was compiled for)"
            + (f", but this processor lacks {flag}" if lacks else ""),
            need=f"a processor with {flag}",
            do="unset ATEN_CPU_CAPABILITY",
            cause="build.cpu_isa",
            fails=lacks,
        )
    else:
        yield skip("dispatched kernels", "torch did not say, see step 2")
    caps = {name: answer["variables"][name] for name in CAPS if answer["variables"].get(name)}
    if caps:
        observed = ", ".join(f"{name}={value}" for name, value in caps.items())
        yield warn("instruction sets switched off", observed, "unset, unless on purpose", f"unset {' '.join(caps)}")


def judge_instructions(answer: dict[str, Any], flags: set[str]) -> Check:
    """Judge whether the processor has what today's wheels take for granted."""
    label, name = "instruction sets", answer["name"] or answer["machine"]
    if answer["machine"] not in ("x86_64", "AMD64"):
        return ok(label, f"{name}, {answer['machine']}: its wheels ask for nothing special")
    if not flags:
        return skip(label, "/proc/cpuinfo lists no flags")
    have = [flag for flag in ("sse4_2", "avx", "avx2", "fma", "avx512f", "amx_tile") if flag in flags]
    old, slow = "sse4_2" not in flags, "avx2" not in flags
    return judge(
        label,
        f"{name}: {', '.join(have) or 'none of sse4_2, avx, avx2'}"
        + ("; a virtual machine hides it" if slow and "hypervisor" in flags else ""),
        need="sse4_2: NumPy and torch die of SIGILL" if old else "avx2: torch is several times slower",
        do="in a virtual machine pass the host's processor through (qemu -cpu host)",
        cause="build.cpu_isa",
        fails=old,
        warns=slow,
    )


def judge_wsl(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the findings on WSL2; elsewhere only that this is not it."""
    if answer["wsl"] == 0:
        yield skip("WSL2", "this is not WSL")
        return
    if answer["wsl"] == 1:
        yield fail("WSL2", "this is WSL 1, which has no GPU", "WSL 2", "in Windows: wsl --set-version DISTRO 2")
        return
    newer = f"kernel {'.'.join(map(str, OLDEST_WSL_KERNEL))} or newer"
    yield judge(
        "WSL2",
        f"kernel {answer['release']}, " + ("/dev/dxg is there" if answer["dxg"] else "no /dev/dxg"),
        need=newer if answer["dxg"] else "/dev/dxg for a GPU",
        do="in Windows: wsl --update && wsl --shutdown",
        cause="wsl.limits" if answer["dxg"] else "driver.none",
        warns=not answer["dxg"] or version(answer["release"]) < OLDEST_WSL_KERNEL,
    )
    if answer["foreign"]:  # a Linux driver beside that of Windows
        yield fail(
            "WSL2 libcuda",
            f"a Linux driver is installed as well: {', '.join(answer['foreign'][:2])}",
            need="only /usr/lib/wsl/lib",
            do="sudo apt-get remove --purge '^libnvidia-.*'",
            cause="driver.state",
        )
    else:
        yield judge(
            "WSL2 libcuda",
            ", ".join(answer["libcuda"]) or "Windows's driver brings no libcuda",
            need="/usr/lib/wsl/lib/libcuda.so.1",
            do="update the NVIDIA driver in Windows, then wsl --shutdown",
            cause="driver.none",
            fails=answer["dxg"] and not answer["libcuda"],
        )
    sizes = f"{size(answer['memory'])} and {size(answer['swap'])} of swap"
    yield judge(
        "WSL2 memory",
        f"{sizes}; .wslconfig sets it, by default half of Windows's memory",
        need=f"{size(WSL_MEMORY_GOOD)} or more",
        do="in %UserProfile%\\.wslconfig: [wsl2] memory=24GB, then wsl --shutdown",
        cause="wsl.limits",
        warns=answer["memory"] < WSL_MEMORY_GOOD,
    )
    if answer["windows_folder"]:
        need, do = "data and runs on the Linux disk", "cp -r the folder to your Linux home"
        yield warn("WSL2 disk", "this folder is on Windows's disk, which is many times slower", need, do)


def judge_host_memory(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the finding on memory, as the machine and the control group allow it."""
    limit, total = answer["limit"] or 0, answer["total"]
    free = [answer["available"]] if answer["available"] is not None else []
    if limit and answer["used_of_group"] is not None and limit < (total or limit + 1):
        free.append(limit - answer["used_of_group"] + answer["inactive"])
    available = min(free, default=0)
    observed = f"{size(available)} available of {size(limit)}"
    if limit and total and limit < total:
        observed += f", the control group's limit (the machine has {size(total)})"
    if answer["address_space"] is not None:
        yield warn(
            "memory",
            f"{observed}; address space limited to {size(answer['address_space'])}",
            need="no ulimit -v: CUDA reserves more than it uses",
            do="ulimit -v unlimited",
            cause="host.alloc_fail",
        )
    elif available >= MEMORY_GOOD and answer["overcommit"] == "2":
        observed += "; vm.overcommit_memory is 2: fork and big allocations are refused early"
        yield warn("memory", observed, "0 or 1", "sudo sysctl vm.overcommit_memory=0", "host.alloc_fail")
    else:
        yield judge(
            "memory",
            observed,
            need=f"{size(MEMORY_GOOD)} or more",
            do="end other programs; docker run --memory=8g; fewer loader workers",
            cause="host.oom_kill",
            fails=available < MEMORY_LEAST,
            warns=available < MEMORY_GOOD,
        )


def judge_shm(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the finding on /dev/shm, through which loader workers hand over their batches."""
    do = "docker run --shm-size=8g (or --ipc=host); sudo mount -o remount,size=8g /dev/shm"
    if "error" in answer:
        yield fail("shared memory", f"/dev/shm: {answer['error']}", "it can be written", do, "host.shm")
        return
    free, left = answer["free"], answer["left"]
    observed = f"/dev/shm has {size(free)} free of {size(answer['total'])}"
    if left:
        observed += f"; {len(left)} files torch_* of dead processes"
        do = f"rm {' '.join('/dev/shm/' + name for name in left[:3])}"
    need = f"{size(SHM_GOOD)} or more for loader workers"
    yield judge("shared memory", observed, need, do, "host.shm", fails=free < SHM_LEAST, warns=free < SHM_GOOD)


def judge_files(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the finding on the limit of open files."""
    soft, hard = answer["soft"], answer["hard"]
    do = f"ulimit -n {min(hard, 65536)}"
    if hard < FILES_GOOD:
        do = "raise the hard limit: docker run --ulimit nofile=65536:65536; in systemd LimitNOFILE=65536; else "
        do += "`* hard nofile 65536` in /etc/security/limits.conf, and log in again"
    yield judge(
        "open files",
        f"{soft} at most ({'the hard limit too' if soft >= hard else f'could be raised to {hard}'})",
        need=f"{FILES_GOOD} or more",
        do=do,
        cause="host.fd_limit",
        fails=soft < FILES_LEAST,
        warns=soft < FILES_GOOD,
    )


def judge_threads(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the finding on threads: they were really started."""
    started, wanted, group, used = answer["started"], answer["wanted"], answer["group"], answer["used_of_group"]
    few = started < wanted
    parts = [
        f"{started} of {wanted} started",
        *([f"RLIMIT_NPROC {answer['processes']}"] if answer["processes"] is not None else []),
        *([f"the control group allows {group}, {used} are in use"] if group is not None else []),
    ]
    yield judge(
        "threads",
        "; ".join(parts) + (f": {answer['error']}" if few else ""),
        need=f"{wanted if few else PIDS_GOOD} or more",
        do="ulimit -u unlimited; docker run --pids-limit=-1; OMP_NUM_THREADS=1",
        cause="host.thread_limit",
        fails=few,
        warns=group is not None and group - (used or 0) < PIDS_GOOD,
    )


def judge_disk(label: str, answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the finding on a folder that was written to."""
    where, need = answer["folder"], f"{size(DISK_GOOD)} free, and a write that is synced"
    do = f"df -h '{where}' ; free space there, or choose another folder"
    if "error" in answer:
        causes = {1: "io.permission", 2: "io.missing", 13: "io.permission", 30: "io.permission"}  # by errno
        cause = next((cause for number, cause in causes.items() if f"errno {number})" in answer["error"]), None)
        yield fail(label, f"{where}: {answer['error']}", need, do, cause or "io.disk_full")
        return
    free, speed = answer["free"], answer["written"] / max(answer["seconds"], 1e-6)
    observed = f"{where}: {size(free)} free, {size(answer['written'])} written and synced at {size(speed)}/s"
    full = free < DISK_LEAST or (answer["files"] is not None and answer["files"] < 100)
    if not full and free >= DISK_GOOD and speed < SLOW_DISK:
        yield warn(label, observed, f"{size(SLOW_DISK)}/s: checkpoints are synced", "choose a folder on a local disk")
    else:
        yield judge(label, observed, need, do, "io.disk_full", fails=full, warns=free < DISK_GOOD)
