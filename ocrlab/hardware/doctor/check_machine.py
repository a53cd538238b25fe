"""Steps 3, 8 and 9: the processor, WSL2, and the limits on memory, files, threads and disks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

from ocrlab.hardware.doctor.check_packages import torch_facts
from ocrlab.hardware.doctor.check_spec import PROBES, Answer, Facts, Options, Probe, fail, judge, ok, size, skip, warn
from ocrlab.records import Check

# What torch calls its kernels (aten/src/ATen/native/DispatchStub) -> the flag of /proc/cpuinfo that they need.
DISPATCHES = {"AVX2": "avx2", "AVX512": "avx512f", "AVX512_VNNI": "avx512_vnni", "AVX10": "avx512f", "AMX": "amx_tile"}
CAPS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "NPY_DISABLE_CPU_FEATURES",
        "MKL_ENABLE_INSTRUCTIONS", "OPENCV_CPU_DISABLE", "OPENBLAS_CORETYPE")  # fmt: skip
NUMPY_FEATURES = ("AVX2", "AVX512_", "X86_V", "NEON", "SVE", "ASIMD")  # those worth a word, as they begin

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

    def disk(name: str, folder: str) -> Probe:
        return Probe(9, name, probe, "disk", lambda a, f: judge_disk(name, a), 15, {"folder": folder}, own=True)

    return [
        Probe(3, "processor", probe, "processor", judge_processor, 10, own=True, after=("import torch",)),
        Probe(8, "WSL2", PROBES / "wsl.py", "facts", judge_wsl, 15, own=True),
        Probe(9, "memory", probe, "memory", judge_host_memory, 10, own=True),
        Probe(9, "shared memory", probe, "shared_memory", judge_shm, 10, own=True, crash="host.shm"),
        Probe(9, "open files", probe, "descriptors", judge_files, 10, own=True),
        Probe(9, "threads", probe, "threads", judge_threads, 10, own=True, hang="host.thread_limit"),
        disk("disk for runs", str(options.runs)),
        disk("disk for temporary files", tempfile.gettempdir()),
    ]


def judge_processor(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the findings on instruction sets, on what is dispatched, and on what switches it off."""
    flags = set(answer["flags"])
    yield judge_instructions(answer, flags)
    yield judge_dispatch(torch_facts(facts).get("dispatched"), flags, answer)
    features = facts.get("import torch", {}).get("numpy")
    if features:
        newest = [name for name in features["has"] if name.startswith(NUMPY_FEATURES)]
        observed = f"NumPy finds {', '.join(newest) or 'nothing beyond its baseline'}"
        lacks = sorted(set(features["baseline"]) - set(features["has"]))
        yield judge("NumPy's kernels", observed, f"its baseline {', '.join(lacks)}",
            "pip install --no-binary numpy numpy", "build.cpu_isa", fails=bool(lacks))  # fmt: skip
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
    observed = f"{name}: {', '.join(have) or 'none of sse4_2, avx, avx2'}"
    observed += "; a virtual machine hides it" if slow and "hypervisor" in flags else ""
    need = "sse4_2: NumPy and torch die of SIGILL" if old else "avx2: torch is several times slower"
    do = "in a virtual machine pass the host's processor through (qemu -cpu host)"
    return judge(label, observed, need, do, "build.cpu_isa", fails=old, warns=slow)


def judge_dispatch(capability: str | None, flags: set[str], answer: dict[str, Any]) -> Check:
    """Judge what torch dispatches at run time against what the processor has."""
    if not capability:
        return skip("dispatched kernels", "torch did not say, see step 2")
    flag = DISPATCHES.get(capability)
    observed = f"torch uses its {capability} kernels (chosen at run time, whatever it was compiled for)"
    lacks = bool(flag and flags) and flag not in flags and answer["machine"] == "x86_64"
    observed += f", but this processor lacks {flag}" if lacks else ""
    need, do = f"a processor with {flag}", "unset ATEN_CPU_CAPABILITY"
    return judge("dispatched kernels", observed, need, do, "build.cpu_isa", fails=lacks)


def judge_wsl(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the findings on WSL2; elsewhere only that this is not it."""
    if answer["wsl"] == 0:
        yield skip("WSL2", "this is not WSL")
        return
    if answer["wsl"] == 1:
        yield fail("WSL2", "this is WSL 1, which has no GPU", "WSL 2", "in Windows: wsl --set-version DISTRO 2")
        return
    numbers = tuple(int(part) for part in answer["release"].split("-")[0].split(".")[:3] if part.isdigit())
    observed = f"kernel {answer['release']}, " + ("/dev/dxg is there" if answer["dxg"] else "no /dev/dxg")
    newer = f"kernel {'.'.join(map(str, OLDEST_WSL_KERNEL))} or newer"
    need, cause = (newer, "wsl.limits") if answer["dxg"] else ("/dev/dxg for a GPU", "driver.none")
    do = "in Windows: wsl --update && wsl --shutdown"
    yield judge("WSL2", observed, need, do, cause, warns=not answer["dxg"] or numbers < OLDEST_WSL_KERNEL)

    label = "WSL2 libcuda"  # of Windows's driver, with no Linux driver beside it
    if answer["foreign"]:
        observed = f"a Linux driver is installed as well: {', '.join(answer['foreign'][:2])}"
        do = "sudo apt-get remove --purge '^libnvidia-.*'"
        yield fail(label, observed, "only /usr/lib/wsl/lib", do, "driver.state")
    elif answer["dxg"] and not answer["libcuda"]:
        need, do = "/usr/lib/wsl/lib/libcuda.so.1", "update the NVIDIA driver in Windows, then wsl --shutdown"
        yield fail(label, "Windows's driver brings no libcuda", need, do, "driver.none")
    else:
        yield ok(label, ", ".join(answer["libcuda"]) or "none, and no GPU")

    cap, memory = answer["config"].get("memory"), answer["memory"]
    observed = f"{size(memory)} and {size(answer['swap'])} of swap, "
    observed += f".wslconfig says memory={cap}" if cap else "half of Windows's memory unless .wslconfig says otherwise"
    do = "in %UserProfile%\\.wslconfig: [wsl2] memory=24GB, then wsl --shutdown"
    need = f"{size(WSL_MEMORY_GOOD)} or more"
    yield judge("WSL2 memory", observed, need, do, "wsl.limits", warns=memory < WSL_MEMORY_GOOD)
    # The limit on pinned memory cannot be asked for, only tried, and trying can stop Windows.
    observed = f"pinned host memory is limited by Windows, to about {size(memory / 2)} here"
    do = "on 'CUDA error: out of memory' of a pin_memory thread: pin_memory=False"
    yield ok("WSL2 pinned memory", observed, do=do)
    if answer["windows_folder"]:
        need, do = "data and runs on the Linux disk", "cp -r the folder to your Linux home"
        yield warn("WSL2 disk", "this folder is on Windows's disk, which is many times slower", need, do)


def judge_host_memory(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the finding on memory, as the machine and the control group allow it."""
    label, limit, total = "memory", answer["limit"] or 0, answer["total"]
    free = [answer["available"]] if answer["available"] is not None else []
    if limit and answer["used_of_group"] is not None and limit < (total or limit + 1):
        free.append(limit - answer["used_of_group"] + answer["inactive"])
    available = min(free, default=0)
    observed = f"{size(available)} available of {size(limit)}"
    if limit and total and limit < total:
        observed += f", the control group's limit (the machine has {size(total)})"
    if answer["address_space"] is not None:
        observed += f"; address space limited to {size(answer['address_space'])}"
        need, do = "no ulimit -v: CUDA reserves more than it uses", "ulimit -v unlimited"
        yield warn(label, observed, need, do, "host.alloc_fail")
    elif available >= MEMORY_GOOD and answer["overcommit"] == "2":
        observed += "; vm.overcommit_memory is 2: fork and big allocations are refused early"
        yield warn(label, observed, "0 or 1", "sudo sysctl vm.overcommit_memory=0", "host.alloc_fail")
    else:
        do = "end other programs; docker run --memory=8g; fewer loader workers"
        yield judge(label, observed, f"{size(MEMORY_GOOD)} or more", do, "host.oom_kill",
            fails=available < MEMORY_LEAST, warns=available < MEMORY_GOOD)  # fmt: skip


def judge_shm(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the finding on /dev/shm, through which loader workers hand over their batches."""
    label, do = "shared memory", "docker run --shm-size=8g (or --ipc=host); sudo mount -o remount,size=8g /dev/shm"
    if "error" in answer:
        yield fail(label, f"/dev/shm: {answer['error']}", "it can be written", do, "host.shm")
        return
    free, left = answer["free"], answer["left"]
    observed = f"/dev/shm has {size(free)} free of {size(answer['total'])}"
    if left:
        observed += f"; {len(left)} files torch_* of dead processes"
        do = f"rm {' '.join('/dev/shm/' + name for name in left[:3])}"
    if free >= SHM_GOOD:
        yield ok(label, observed, do=do if left else "")
    else:
        need = f"{size(SHM_GOOD)} or more for loader workers"
        yield judge(label, observed, need, do, "host.shm", fails=free < SHM_LEAST, warns=True)


def judge_files(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the finding on the limit of open files."""
    soft, hard = answer["soft"], answer["hard"]
    observed = f"{soft} at most ({'the hard limit too' if soft >= hard else f'could be raised to {hard}'})"
    do = f"ulimit -n {min(hard, 65536)}"
    if hard < FILES_GOOD:
        do = "raise the hard limit: docker run --ulimit nofile=65536:65536; in systemd LimitNOFILE=65536; else "
        do += "`* hard nofile 65536` in /etc/security/limits.conf, and log in again"
    yield judge("open files", observed, f"{FILES_GOOD} or more", do, "host.fd_limit",
        fails=soft < FILES_LEAST, warns=soft < FILES_GOOD)  # fmt: skip


def judge_threads(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the finding on threads: they were really started."""
    started, wanted, group, used = answer["started"], answer["wanted"], answer["group"], answer["used_of_group"]
    parts = [f"{started} of {wanted} started"]
    parts += [f"RLIMIT_NPROC {answer['processes']}"] if answer["processes"] is not None else []
    parts += [f"the control group allows {group}, {used} are in use"] if group is not None else []
    few = started < wanted
    observed = "; ".join(parts) + (f": {answer['error']}" if few else "")
    do = "ulimit -u unlimited; docker run --pids-limit=-1; OMP_NUM_THREADS=1"
    yield judge("threads", observed, f"{wanted if few else PIDS_GOOD} or more", do, "host.thread_limit",
        fails=few, warns=group is not None and group - (used or 0) < PIDS_GOOD)  # fmt: skip


def judge_disk(label: str, answer: Answer) -> Iterator[Check]:
    """Yield the finding on a folder that was written to."""
    where = answer["folder"]
    need = f"{size(DISK_GOOD)} free, and a write that is synced"
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
