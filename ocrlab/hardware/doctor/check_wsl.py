"""Step 8: WSL2, where the driver is Windows's and memory is capped twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Ask, Facts, Options, fail, ok, size, skip, warn
from ocrlab.records import Check

MEMORY_GOOD = 8 << 30  # bytes; WSL2 gets half of the machine unless .wslconfig says otherwise
OLDEST = (5, 10, 43)  # the kernel from which NVIDIA's guide supports CUDA under WSL2 (5.10.43.3)


def asks(options: Options) -> list[Ask]:
    """Return the ask of step 8; files of Windows's disk come over 9p, which can take seconds."""
    return [Ask(8, "WSL2", PROBES / "wsl.py", "facts", judge, 15, own=True)]


def judge(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on WSL2; elsewhere only that this is not it."""
    [told] = answers
    if not told["wsl"]:
        yield skip("WSL2", "this is not WSL")
        return
    if told["wsl"] == 1:
        yield fail("WSL2", "this is WSL 1, which has no GPU", "WSL 2", "in Windows: wsl --set-version DISTRO 2")
        return
    yield kernel(told)
    yield libcuda(told)
    yield memory(told)
    yield pinned(told)
    if told["windows_folder"]:
        need, do = "data and runs on the Linux disk", "cp -r the folder to your Linux home"
        yield warn("WSL2 disk", "this folder is on Windows's disk, which is many times slower", need, do)


def kernel(told: dict[str, Any]) -> Check:
    """Judge the kernel and the device through which Windows lends its GPU."""
    numbers = tuple(int(part) for part in told["release"].split("-")[0].split(".")[:3] if part.isdigit())
    seen = f"kernel {told['release']}, " + ("/dev/dxg is there" if told["dxg"] else "no /dev/dxg")
    if not told["dxg"]:
        return warn("WSL2", seen, "/dev/dxg for a GPU", "in Windows: wsl --update && wsl --shutdown", "driver.none")
    if numbers < OLDEST:
        need = f"kernel {'.'.join(map(str, OLDEST))} or newer"
        return warn("WSL2", seen, need, "in Windows: wsl --update && wsl --shutdown", "wsl.limits")
    return ok("WSL2", seen)


def libcuda(told: dict[str, Any]) -> Check:
    """Judge where libcuda comes from: Windows's driver, and no Linux driver beside it."""
    if told["foreign"]:
        seen = f"a Linux driver is installed as well: {', '.join(told['foreign'][:2])}"
        return fail("WSL2 libcuda", seen, "only /usr/lib/wsl/lib", "sudo apt-get remove --purge '^libnvidia-.*'",
                    "driver.state")  # fmt: skip
    if told["dxg"] and not told["libcuda"]:
        need, do = "/usr/lib/wsl/lib/libcuda.so.1", "update the NVIDIA driver in Windows, then wsl --shutdown"
        return fail("WSL2 libcuda", "Windows's driver brings no libcuda", need, do, "driver.none")
    return ok("WSL2 libcuda", ", ".join(told["libcuda"]) or "none, and no GPU")


def memory(told: dict[str, Any]) -> Check:
    """Judge the memory that Windows gives away."""
    cap = told["config"].get("memory")
    seen = f"{size(told['memory'])} and {size(told['swap'])} of swap, " + (
        f".wslconfig says memory={cap}" if cap else "half of Windows's memory unless .wslconfig says otherwise"
    )
    if told["memory"] < MEMORY_GOOD:
        do = "in %UserProfile%\\.wslconfig: [wsl2] memory=24GB, then wsl --shutdown"
        return warn("WSL2 memory", seen, f"{size(MEMORY_GOOD)} or more", do, "wsl.limits")
    return ok("WSL2 memory", seen)


def pinned(told: dict[str, Any]) -> Check:
    """Say what pinned memory is limited to: it cannot be asked for, only tried, and trying can stop Windows."""
    seen = f"pinned host memory is limited by Windows, to about {size(told['memory'] / 2)} here"
    return ok("WSL2 pinned memory", seen, do="on 'CUDA error: out of memory' of a pin_memory thread: pin_memory=False")
