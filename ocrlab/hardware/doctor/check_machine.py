"""Steps 3, 8 and 9: the processor, WSL2, and the limits on memory, files, threads and disks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

from ocrlab.hardware.doctor.check_packages import torch_facts
from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Facts, Options, Probe, fail, ok, size, skip, warn
from ocrlab.records import Check

# What torch calls its kernels (aten/src/ATen/native/DispatchStub) -> the flag of /proc/cpuinfo that they need.
DISPATCHES = {"AVX2": "avx2", "AVX512": "avx512f", "AVX512_VNNI": "avx512_vnni", "AVX10": "avx512f", "AMX": "amx_tile"}
CAPS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "NPY_DISABLE_CPU_FEATURES",
        "MKL_ENABLE_INSTRUCTIONS", "OPENCV_CPU_DISABLE", "OPENBLAS_CORETYPE")  # fmt: skip


def processor_probes(options: Options) -> list[Probe]:
    """Return the ask of the processor, which reads two files."""
    return [
        Probe(
            3,
            "processor",
            PROBES / "resource_limits.py",
            "processor",
            judge_processor,
            10,
            own=True,
            after=("import torch",),
        )
    ]


def judge_processor(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on instruction sets, on what is dispatched, and on what switches it off."""
    [answer] = answers
    flags = set(answer["flags"])
    yield judge_instructions(answer, flags)
    yield judge_dispatch(torch_facts(facts).get("dispatched"), flags, answer)
    yield from judge_numpy(facts)
    caps = {name: answer["variables"][name] for name in CAPS if answer["variables"].get(name)}
    if caps:
        observed = ", ".join(f"{name}={value}" for name, value in caps.items())
        yield warn("instruction sets switched off", observed, "unset, unless on purpose", f"unset {' '.join(caps)}")


def judge_numpy(facts: Facts) -> Iterator[Check]:
    """Yield what NumPy dispatches, from the same process as torch."""
    for features in (answer["numpy"] for answer in facts.get("import torch", ()) if answer.get("numpy")):
        newest = [
            name for name in features["has"] if name.startswith(("AVX2", "AVX512_", "X86_V", "NEON", "SVE", "ASIMD"))
        ]
        observed = f"NumPy finds {', '.join(newest) or 'nothing beyond its baseline'}"
        lacks = sorted(set(features["baseline"]) - set(features["has"]))
        if lacks:
            need = f"its baseline {', '.join(lacks)}"
            yield fail("NumPy's kernels", observed, need, "pip install --no-binary numpy numpy", "build.cpu_isa")
        else:
            yield ok("NumPy's kernels", observed)


def judge_instructions(answer: dict[str, Any], flags: set[str]) -> Check:
    """Judge whether the processor has what today's wheels take for granted."""
    name = answer["name"] or answer["machine"]
    if answer["machine"] not in ("x86_64", "AMD64"):
        return ok("instruction sets", f"{name}, {answer['machine']}: its wheels ask for nothing special")
    have = [flag for flag in ("sse4_2", "avx", "avx2", "fma", "avx512f", "amx_tile") if flag in flags]
    observed = f"{name}: {', '.join(have) or 'none of sse4_2, avx, avx2'}"
    hidden = "; a virtual machine hides it" if "hypervisor" in flags else ""
    do = "in a virtual machine pass the host's processor through (qemu -cpu host)"
    if not flags:
        return skip("instruction sets", "/proc/cpuinfo lists no flags")
    if "sse4_2" not in flags:
        return fail("instruction sets", observed + hidden, "sse4_2: NumPy and torch die of SIGILL", do, "build.cpu_isa")
    if "avx2" not in flags:
        return warn("instruction sets", observed + hidden, "avx2: torch is several times slower", do, "build.cpu_isa")
    return ok("instruction sets", observed)


def judge_dispatch(capability: str | None, flags: set[str], answer: dict[str, Any]) -> Check:
    """Judge what torch dispatches at run time against what the processor has."""
    if not capability:
        return skip("dispatched kernels", "torch did not say, see step 2")
    flag = DISPATCHES.get(capability)
    observed = f"torch uses its {capability} kernels (chosen at run time: this says nothing of how it was compiled)"
    if flag and flags and flag not in flags and answer["machine"] == "x86_64":
        need, do = f"a processor with {flag}", "unset ATEN_CPU_CAPABILITY"
        return fail("dispatched kernels", f"{observed}, but this processor lacks {flag}", need, do, "build.cpu_isa")
    return ok("dispatched kernels", observed)


WSL_MEMORY_GOOD = 8 << 30  # bytes; WSL2 gets half of the machine unless .wslconfig says otherwise
OLDEST_WSL_KERNEL = (5, 10, 43)  # the kernel from which NVIDIA's guide supports CUDA under WSL2 (5.10.43.3)


def wsl_probes(options: Options) -> list[Probe]:
    """Return the ask of step 8; files of Windows's disk come over 9p, which can take seconds."""
    return [Probe(8, "WSL2", PROBES / "wsl.py", "facts", judge_wsl, 15, own=True)]


def judge_wsl(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on WSL2; elsewhere only that this is not it."""
    [answer] = answers
    if not answer["wsl"]:
        yield skip("WSL2", "this is not WSL")
        return
    if answer["wsl"] == 1:
        yield fail("WSL2", "this is WSL 1, which has no GPU", "WSL 2", "in Windows: wsl --set-version DISTRO 2")
        return
    yield judge_wsl_kernel(answer)
    yield judge_wsl_libcuda(answer)
    yield judge_wsl_memory(answer)
    yield judge_wsl_pinned(answer)
    if answer["windows_folder"]:
        need, do = "data and runs on the Linux disk", "cp -r the folder to your Linux home"
        yield warn("WSL2 disk", "this folder is on Windows's disk, which is many times slower", need, do)


def judge_wsl_kernel(answer: dict[str, Any]) -> Check:
    """Judge the kernel and the device through which Windows lends its GPU."""
    numbers = tuple(int(part) for part in answer["release"].split("-")[0].split(".")[:3] if part.isdigit())
    observed = f"kernel {answer['release']}, " + ("/dev/dxg is there" if answer["dxg"] else "no /dev/dxg")
    if not answer["dxg"]:
        return warn("WSL2", observed, "/dev/dxg for a GPU", "in Windows: wsl --update && wsl --shutdown", "driver.none")
    if numbers < OLDEST_WSL_KERNEL:
        need = f"kernel {'.'.join(map(str, OLDEST_WSL_KERNEL))} or newer"
        return warn("WSL2", observed, need, "in Windows: wsl --update && wsl --shutdown", "wsl.limits")
    return ok("WSL2", observed)


def judge_wsl_libcuda(answer: dict[str, Any]) -> Check:
    """Judge where libcuda comes from: Windows's driver, and no Linux driver beside it."""
    if answer["foreign"]:
        observed = f"a Linux driver is installed as well: {', '.join(answer['foreign'][:2])}"
        return fail("WSL2 libcuda", observed, "only /usr/lib/wsl/lib", "sudo apt-get remove --purge '^libnvidia-.*'",
                    "driver.state")  # fmt: skip
    if answer["dxg"] and not answer["libcuda"]:
        need, do = "/usr/lib/wsl/lib/libcuda.so.1", "update the NVIDIA driver in Windows, then wsl --shutdown"
        return fail("WSL2 libcuda", "Windows's driver brings no libcuda", need, do, "driver.none")
    return ok("WSL2 libcuda", ", ".join(answer["libcuda"]) or "none, and no GPU")


def judge_wsl_memory(answer: dict[str, Any]) -> Check:
    """Judge the memory that Windows gives away."""
    cap = answer["config"].get("memory")
    observed = f"{size(answer['memory'])} and {size(answer['swap'])} of swap, " + (
        f".wslconfig says memory={cap}" if cap else "half of Windows's memory unless .wslconfig says otherwise"
    )
    if answer["memory"] < WSL_MEMORY_GOOD:
        do = "in %UserProfile%\\.wslconfig: [wsl2] memory=24GB, then wsl --shutdown"
        return warn("WSL2 memory", observed, f"{size(WSL_MEMORY_GOOD)} or more", do, "wsl.limits")
    return ok("WSL2 memory", observed)


def judge_wsl_pinned(answer: dict[str, Any]) -> Check:
    """Say what pinned memory is limited to: it cannot be asked for, only tried, and trying can stop Windows."""
    observed = f"pinned host memory is limited by Windows, to about {size(answer['memory'] / 2)} here"
    return ok(
        "WSL2 pinned memory", observed, do="on 'CUDA error: out of memory' of a pin_memory thread: pin_memory=False"
    )


MIB, GIB = 1 << 20, 1 << 30
SHM_LEAST, SHM_GOOD = 32 * MIB, 256 * MIB  # one batch of 8 crops of 640 px is 39 MB; Docker's default is 64 MiB
FILES_LEAST, FILES_GOOD = 256, 1024  # torch holds one descriptor for each tensor that a worker hands over
MEMORY_LEAST, MEMORY_GOOD = 1 * GIB, 2 * GIB  # torch alone takes 0.4, a small training with two workers 1.5
DISK_LEAST, DISK_GOOD = 512 * MIB, 5 * GIB  # a checkpoint of a ResNet-50 detector is 0.3 GiB, of which three are kept
PIDS_GOOD = 512  # two workers with the thread pools of OpenMP, OpenCV and the tracker need some 200
SLOW_DISK = 20 * MIB  # bytes a second; a checkpoint of 100 MiB then takes 5 s


def limit_probes(options: Options) -> list[Probe]:
    """Return the asks of step 9, which answer in a tenth of a second where all is well.

    A disk has 15 s for 16 MiB: what is slower holds up every checkpoint.
    """
    probe = PROBES / "resource_limits.py"

    def disk(name: str, folder: str) -> Probe:
        return Probe(9, name, probe, "disk", lambda a, f: judge_disk(name, a), 15, {"folder": folder}, own=True)

    return [
        Probe(9, "memory", probe, "memory", judge_host_memory, 10, own=True),
        Probe(9, "shared memory", probe, "shared_memory", judge_shm, 10, own=True, crash="host.shm"),
        Probe(9, "open files", probe, "descriptors", judge_files, 10, own=True),
        Probe(9, "threads", probe, "threads", judge_threads, 10, own=True, hang="host.thread_limit"),
        disk("disk for runs", str(options.runs)),
        disk("disk for temporary files", tempfile.gettempdir()),
    ]


def judge_host_memory(answers: Answers, facts: Facts) -> Iterator[Check]:
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
    elif speed < SLOW_DISK:
        yield warn(label, observed, f"{size(SLOW_DISK)}/s: checkpoints are synced", "choose a folder on a local disk")
    else:
        yield ok(label, observed)
