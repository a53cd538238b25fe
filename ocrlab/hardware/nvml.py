"""The health of the GPUs through NVML, the library below nvidia-smi; only ever called in a child.

Functions, structures and numbers are those of nvml.h; whatever a card or a driver does not support is left out.
"""

from __future__ import annotations

import ctypes
from ctypes import byref
from pathlib import Path
from typing import Any

from ocrlab.hardware.system_files import read_text

NAMES = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
UNCORRECTED, VOLATILE = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC
MOST = 64  # processes of one card
THROTTLES = {  # nvmlClocksEventReason*; idle, application clocks and sync boost are not faults
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
HIDDEN = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE: the memory of another container's process
NUMBERS: dict[
    str, tuple[Any, ...]
] = {  # of a card -> the function that writes it to its last argument, and the arguments before that
    "temperature": ("nvmlDeviceGetTemperature", 0),
    "slowdown": ("nvmlDeviceGetTemperatureThreshold", 1),
    "clock": ("nvmlDeviceGetClockInfo", 0),  # NVML_CLOCK_GRAPHICS
    "clock_most": ("nvmlDeviceGetMaxClockInfo", 0),
    "power": ("nvmlDeviceGetPowerUsage",),
    "power_limit": ("nvmlDeviceGetEnforcedPowerLimit",),
    "retired_pending": ("nvmlDeviceGetRetiredPagesPendingStatus",),
}


class Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def health() -> dict[str, Any]:
    """Return what NVML says of every card, or why it says nothing."""
    library, answer = open_library()
    if library is None:
        return answer
    answer["cards"] = cards(library)
    library.nvmlShutdown()
    return answer


def open_library() -> tuple[Any, dict[str, Any]]:
    """Return NVML, initialised, with the driver's version; or None with the reason."""
    library, problem = None, ""
    for name in NAMES:
        try:
            library = ctypes.CDLL(name)
            break
        except OSError as error:
            problem = str(error)
    if library is None:
        return None, {"loaded": False, "error": problem}
    code = library.nvmlInit_v2()
    if code:
        return None, {"loaded": True, "code": code, "error": _error(library, code)}
    version = ctypes.create_string_buffer(96)
    library.nvmlSystemGetDriverVersion(version, 96)
    return library, {"loaded": True, "code": 0, "driver": version.value.decode(errors="replace")}


def cards(library: Any) -> list[dict[str, Any]]:
    """Return what NVML says of each card now."""
    count = ctypes.c_uint(0)
    _call(library, "nvmlDeviceGetCount_v2", byref(count))
    return [_card(library, number) for number in range(count.value)]


def _card(library: Any, number: int) -> dict[str, Any]:
    """Return name, memory with its holders, temperature, clocks, throttling and ECC errors of one card."""
    handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    code = library.nvmlDeviceGetHandleByIndex_v2(number, byref(handle))
    if code:
        return {"error": _error(library, code)}
    library.nvmlDeviceGetName(handle, name, 96)
    card: dict[str, Any] = {"name": name.value.decode(errors="replace"), "processes": [], "throttled": []}
    buffer, count = (Process * MOST)(), ctypes.c_uint(MOST)
    for version in ("v3", "v2"):
        if _call(library, f"nvmlDeviceGetComputeRunningProcesses_{version}", handle, byref(count), buffer):
            card["processes"] = [
                # A process that is gone, or in another container, has no name.
                {
                    "pid": p.pid,
                    "bytes": None if p.used == HIDDEN else p.used,
                    "name": read_text(Path(f"/proc/{p.pid}/comm")) or None,
                }
                for p in buffer[: count.value]
            ]
            break
    memory, rates = (ctypes.c_ulonglong * 3)(), (ctypes.c_uint * 2)()  # nvmlMemory_t, nvmlUtilization_t
    if _call(library, "nvmlDeviceGetMemoryInfo", handle, byref(memory)):
        card.update(zip(("total", "free", "used"), memory, strict=True))  # bytes
    if _call(library, "nvmlDeviceGetUtilizationRates", handle, byref(rates)):
        card.update(zip(("utilisation", "memory_utilisation"), rates, strict=True))  # percent of the last sample period
    for key, (function, *arguments) in NUMBERS.items():
        value = ctypes.c_uint(0)
        if _call(library, function, handle, *arguments, byref(value)):
            card[key] = value.value
    mask, errors = ctypes.c_ulonglong(0), ctypes.c_ulonglong(0)
    for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        if _call(library, function, handle, byref(mask)):
            card["throttled"] = [reason for bit, reason in THROTTLES.items() if mask.value & bit]
            break
    if _call(library, "nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, VOLATILE, byref(errors)):
        card["ecc"] = errors.value
    rows = [ctypes.c_uint(0) for _ in range(4)]  # corrected, uncorrected, pending, failed; of cards from Ampere on
    if _call(library, "nvmlDeviceGetRemappedRows", handle, *map(byref, rows)):
        card["remap"] = {"pending": rows[2].value, "failed": rows[3].value}
    return card


def _call(library: Any, function: str, *arguments: Any) -> bool:
    """Call a function that writes to its last arguments, and tell whether the library has it and it worked."""
    call = getattr(library, function, None)
    return call is not None and call(*arguments) == 0


def _error(library: Any, code: int) -> str:
    library.nvmlErrorString.restype = ctypes.c_char_p
    try:
        return f"NVML {code}: {library.nvmlErrorString(code).decode(errors='replace')}"
    except AttributeError:
        return f"NVML {code}"
