"""Step 8: WSL2, where the driver is Windows's and memory is capped twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Facts, Options, Probe, fail, ok, size, skip, warn
from ocrlab.records import Check

MEMORY_GOOD = 8 << 30  # bytes; WSL2 gets half of the machine unless .wslconfig says otherwise
OLDEST = (5, 10, 43)  # the kernel from which NVIDIA's guide supports CUDA under WSL2 (5.10.43.3)


def asks(options: Options) -> list[Probe]:
    """Return the ask of step 8; files of Windows's disk come over 9p, which can take seconds."""
    return [Probe(8, "WSL2", PROBES / "wsl.py", "facts", judge, 15, own=True)]


def judge(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on WSL2; elsewhere only that this is not it."""
    [answer] = answers
    if not answer["wsl"]:
        yield skip("WSL2", "this is not WSL")
        return
    if answer["wsl"] == 1:
        yield fail("WSL2", "this is WSL 1, which has no GPU", "WSL 2", "in Windows: wsl --set-version DISTRO 2")
        return
    yield kernel(answer)
    yield libcuda(answer)
    yield memory(answer)
    yield pinned(answer)
    if answer["windows_folder"]:
        need, do = "data and runs on the Linux disk", "cp -r the folder to your Linux home"
        yield warn("WSL2 disk", "this folder is on Windows's disk, which is many times slower", need, do)


def kernel(answer: dict[str, Any]) -> Check:
    """Judge the kernel and the device through which Windows lends its GPU."""
    numbers = tuple(int(part) for part in answer["release"].split("-")[0].split(".")[:3] if part.isdigit())
    observed = f"kernel {answer['release']}, " + ("/dev/dxg is there" if answer["dxg"] else "no /dev/dxg")
    if not answer["dxg"]:
        return warn("WSL2", observed, "/dev/dxg for a GPU", "in Windows: wsl --update && wsl --shutdown", "driver.none")
    if numbers < OLDEST:
        need = f"kernel {'.'.join(map(str, OLDEST))} or newer"
        return warn("WSL2", observed, need, "in Windows: wsl --update && wsl --shutdown", "wsl.limits")
    return ok("WSL2", observed)


def libcuda(answer: dict[str, Any]) -> Check:
    """Judge where libcuda comes from: Windows's driver, and no Linux driver beside it."""
    if answer["foreign"]:
        observed = f"a Linux driver is installed as well: {', '.join(answer['foreign'][:2])}"
        return fail("WSL2 libcuda", observed, "only /usr/lib/wsl/lib", "sudo apt-get remove --purge '^libnvidia-.*'",
                    "driver.state")  # fmt: skip
    if answer["dxg"] and not answer["libcuda"]:
        need, do = "/usr/lib/wsl/lib/libcuda.so.1", "update the NVIDIA driver in Windows, then wsl --shutdown"
        return fail("WSL2 libcuda", "Windows's driver brings no libcuda", need, do, "driver.none")
    return ok("WSL2 libcuda", ", ".join(answer["libcuda"]) or "none, and no GPU")


def memory(answer: dict[str, Any]) -> Check:
    """Judge the memory that Windows gives away."""
    cap = answer["config"].get("memory")
    observed = f"{size(answer['memory'])} and {size(answer['swap'])} of swap, " + (
        f".wslconfig says memory={cap}" if cap else "half of Windows's memory unless .wslconfig says otherwise"
    )
    if answer["memory"] < MEMORY_GOOD:
        do = "in %UserProfile%\\.wslconfig: [wsl2] memory=24GB, then wsl --shutdown"
        return warn("WSL2 memory", observed, f"{size(MEMORY_GOOD)} or more", do, "wsl.limits")
    return ok("WSL2 memory", observed)


def pinned(answer: dict[str, Any]) -> Check:
    """Say what pinned memory is limited to: it cannot be asked for, only tried, and trying can stop Windows."""
    observed = f"pinned host memory is limited by Windows, to about {size(answer['memory'] / 2)} here"
    return ok(
        "WSL2 pinned memory", observed, do="on 'CUDA error: out of memory' of a pin_memory thread: pin_memory=False"
    )
