"""What a CUDA device allows a kernel, asked of its driver; no CUDA toolkit and no torch is needed."""

from __future__ import annotations

import json
import subprocess
import sys

from ocrlab.records import Reading

SECONDS = 20.0  # a first cuInit wakes the device; a driver that needs longer is stuck

# The numbers are those of CUdevice_attribute in cuda.h. It runs in a child: cuInit may hang or kill.
PROGRAM = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *args):
    code = getattr(cuda, name)(*args)
    if code:
        sys.exit(f"{name} failed with CUresult {code}")
call("cuInit", 0)
device = ctypes.c_int()
call("cuDeviceGet", ctypes.byref(device), int(sys.argv[1]))
def ask(number):
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
    return value.value
def maybe(number):
    value = ctypes.c_int()
    return value.value if not cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device) else None
found = {
    "capability": f"{ask(75)}.{ask(76)}", "threads_per_block": ask(1), "block": [ask(2), ask(3), ask(4)],
    "grid": [ask(5), ask(6), ask(7)], "shared_default": ask(8), "registers_per_block": ask(12), "sm_count": ask(16),
    "threads_per_sm": ask(39), "shared_per_sm": ask(81), "registers_per_sm": ask(82), "shared_per_block": ask(97),
    "blocks_per_sm": maybe(106), "shared_reserved": maybe(111),
}
print(json.dumps({key: value for key, value in found.items() if value is not None}))
"""


def device_limits(device: int = 0, seconds: float = SECONDS) -> Reading:
    """Return the limits of a device by the names of `diagnose.launch.Limits`, or why the driver does not tell them."""
    command = [sys.executable, "-c", PROGRAM, str(device)]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=True, stdin=subprocess.DEVNULL
        )
        limits = json.loads(process.stdout)
    except subprocess.TimeoutExpired:
        return Reading("device_limits", missing=f"the driver gave no answer within {seconds:g} s")
    except subprocess.CalledProcessError as error:
        errors = (error.stderr or "").strip().splitlines()
        return Reading("device_limits", missing=errors[-1] if errors else f"the question ended with {error.returncode}")
    except (OSError, ValueError) as error:
        return Reading("device_limits", missing=str(error))
    limits |= {name: tuple(limits[name]) for name in ("block", "grid")}
    return Reading("device_limits", limits)
