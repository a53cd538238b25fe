"""The child's side of a check: call one function of one probe file, and send what it answers as lines of JSON.

`python probe_child.py CHANNEL FILE FUNCTION ARGUMENTS ROOT` runs under any Python from 3.8 on and needs nothing of
ocrlab; CHANNEL is a pipe of its own, so that whatever a library prints cannot spoil an answer. ROOT is where ocrlab
lies, for the probes that need it, or empty. Nothing here may import what is probed.
"""

from __future__ import annotations

import sys

if sys.path and sys.path[0] == __file__.rpartition("/")[0]:
    del sys.path[0]  # Python puts the folder of this file there, whose modules have names that others have too

if sys.version_info < (3, 8):  # noqa: UP036 - it is another Python that runs this
    sys.exit("SyntaxError: probe_child.py needs Python 3.8")  # as an even older one says by itself

import contextlib
import ctypes
import faulthandler
import importlib.util
import json
import os
import resource
import signal
import traceback
from typing import Any

OPCODE_BYTES = 15  # the longest instruction of x86
PR_SET_PDEATHSIG = 1  # prctl(2)


class SigAction(ctypes.Structure):
    """`struct sigaction` of glibc and musl on 64-bit Linux."""

    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
referenced: list[Any] = []  # what C code points to must not be collected


def send(channel: int, answer: Any) -> None:
    """Write one answer as a line of JSON."""
    data = json.dumps(answer, default=str).encode() + b"\n"
    while data:
        data = data[os.write(channel, data) :]


def library_at(address: int) -> tuple[str, int]:
    """Return what is mapped at an address as (file, offset in the file)."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, offset, _, _, *name = line.split(None, 5)
            low, high = (int(part, 16) for part in span.split("-"))
            if low <= address < high:
                return (name[0].strip() if name else "(anonymous memory)"), address - low + int(offset, 16)
    return "(nothing mapped)", address


def name_illegal_instructions(channel: int) -> None:
    """On SIGILL send the library, the offset and the bytes of the instruction, then die of it as without us.

    siginfo_t holds the address of the instruction at byte 16 (sigaction(2)); neither the kernel's log nor a debugger
    is needed. The old handler, faulthandler's, is put back first: returning runs the instruction again.
    """
    libc = ctypes.CDLL(None)
    old = SigAction()

    def report(_number: int, info: int, _context: int) -> None:
        libc.sigaction(signal.SIGILL, ctypes.byref(old), None)
        address = ctypes.c_uint64.from_address(info + 16).value
        library, offset = library_at(address)
        code = ctypes.string_at(address, min(OPCODE_BYTES, 4096 - address % 4096))
        send(channel, {"illegal": {"library": library, "offset": offset, "code": code.hex()}})

    handler = HANDLER(report)
    referenced.append(handler)
    action = SigAction(handler=ctypes.cast(handler, ctypes.c_void_p), flags=4)  # SA_SIGINFO
    libc.sigaction(signal.SIGILL, ctypes.byref(action), ctypes.byref(old))


def prepare(channel: int) -> None:
    """Make the child report each way to die, and leave neither a core file nor a process behind."""
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # how the parent asks a stuck child where it is
    with contextlib.suppress(Exception):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with contextlib.suppress(Exception):
        name_illegal_instructions(channel)


def main() -> None:
    """Call the function and send what it returns, or each thing that it yields, and at last that it is done."""
    channel, file, function, arguments, root = int(sys.argv[1]), *sys.argv[2:6]
    prepare(channel)
    if root:
        sys.path.append(root)
    sys.argv[1:] = []
    try:
        spec = importlib.util.spec_from_file_location("ocrlab_probe", file)
        assert spec is not None and spec.loader is not None, "a file has a loader"
        module = importlib.util.module_from_spec(spec)
        sys.modules["ocrlab_probe"] = module  # what is pickled for a spawned worker is looked up by this name
        spec.loader.exec_module(module)
        with contextlib.suppress(OSError):
            if not root:  # as for a script in this folder: what shadows a package there is a finding, not our end
                sys.path.insert(0, os.getcwd())
        answer = getattr(module, function)(**json.loads(arguments))
        for item in [answer] if isinstance(answer, dict) else answer:
            send(channel, item)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raised = {
            "type": type(error).__name__,
            "message": str(error)[:2000],
            "where": f"{place.filename}:{place.lineno}",
        }
        send(channel, {"raised": raised})
    send(channel, {"done": True})


if __name__ == "__main__":
    main()
