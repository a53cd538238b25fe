"""What `cuInit` returns when a driver does not start, in words; numbers and names are those of cuda.h (CUresult)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class State:
    """One answer of `cuInit`: its name, what it means, the cause of the catalogue, and the command that mends it."""

    name: str
    means: str
    cause: str
    do: str


RELOAD = "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm (no process may use the GPU); else reboot"
STATES = {
    2: State(
        "CUDA_ERROR_OUT_OF_MEMORY",
        "the driver has no memory for itself: the GPU's or the host's is all in use, or WSL2's driver is confused",
        "driver.state",
        "nvidia-smi names who holds the memory: end it. On WSL2: wsl --shutdown, then update the Windows driver",
    ),
    3: State(
        "CUDA_ERROR_NOT_INITIALIZED",
        "the driver could not initialise, mostly after suspend or without /dev/nvidia-uvm",
        "driver.state",
        RELOAD,
    ),
    34: State(
        "CUDA_ERROR_STUB_LIBRARY",
        "this libcuda.so.1 is the stub for linking, no driver",
        "driver.state",
        "take the folder with stubs/ out of LD_LIBRARY_PATH: unset LD_LIBRARY_PATH",
    ),
    36: State(
        "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
        "a call is not supported by the driver that is installed: libcuda is newer than the kernel module",
        "driver.state",
        "reboot after the driver update; in a container remove its own libcuda and cuda-compat: unset LD_LIBRARY_PATH",
    ),
    46: State(
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "the GPU is busy: exclusive compute mode with a process on it, or it hangs since a crash",
        "driver.device_busy",
        "nvidia-smi names the process: end it; sudo nvidia-smi -c 0; with no process there: reboot",
    ),
    100: State(
        "CUDA_ERROR_NO_DEVICE",
        "the driver works, but shows this process no GPU",
        "driver.no_visible_device",
        "unset CUDA_VISIBLE_DEVICES; in a container: docker run --gpus all",
    ),
    101: State(
        "CUDA_ERROR_INVALID_DEVICE",
        "a device number that does not exist, or a MIG slice that was not made",
        "driver.no_visible_device",
        "unset CUDA_VISIBLE_DEVICES; compare with nvidia-smi -L",
    ),
    214: State(
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "the GPU's memory has an error that ECC cannot correct",
        "hw.gpu",
        "nvidia-smi -q -d ECC,ROW_REMAPPER; reboot, which retires the page; when it returns the card is faulty",
    ),
    304: State(
        "CUDA_ERROR_OPERATING_SYSTEM",
        "a call to the operating system failed: device nodes, permissions, or the module nvidia_uvm",
        "driver.state",
        "ls -l /dev/nvidia*; sudo modprobe nvidia_uvm; sudo nvidia-modprobe -u -c=0",
    ),
    802: State(
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "the NVSwitch fabric is not up: its manager does not run, or has another version than the driver",
        "driver.state",
        "sudo systemctl restart nvidia-fabricmanager; systemctl status nvidia-fabricmanager",
    ),
    803: State(
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "kernel module and libcuda are of different versions, mostly after an update without a reboot",
        "driver.state",
        "sudo reboot; in a container: the host's driver changed, so start the container anew",
    ),
    804: State(
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "the cuda-compat libcuda was loaded, which only works on data-centre GPUs",
        "driver.state",
        "take the compat/ folder out of LD_LIBRARY_PATH: unset LD_LIBRARY_PATH; or update the driver",
    ),
    999: State(
        "CUDA_ERROR_UNKNOWN",
        "the driver does not know what is wrong: after suspend, without /dev/nvidia-uvm, or with a wedged GPU",
        "driver.state",
        RELOAD,
    ),
}

# The oldest Linux driver for each CUDA major version, from the table of minor-version compatibility in NVIDIA's CUDA
# compatibility guide: within a major version every wheel runs on it, whatever its minor version is.
OLDEST = {10: "440.33", 11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
WHEELS = {11: "cu118", 12: "cu126", 13: "cu130"}  # builds of torch that run on any driver of that major version


def state(code: int) -> State:
    """Return the state that a code of `cuInit` stands for."""
    return STATES.get(code) or State(f"CUresult {code}", "the driver did not start", "driver.state", "nvidia-smi")


def cuda(number: int) -> str:
    """Return what `cuDriverGetVersion` encodes as 1000 * major + 10 * minor: 12020 is CUDA 12.2."""
    return f"{number // 1000}.{number % 1000 // 10}"
