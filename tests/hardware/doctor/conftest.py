"""What the tests of the doctor share: probes that misbehave, asks for them, and a libcuda that is none."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ocrlab.hardware.doctor.check_spec import Options, Probe, ok

PLANTED = """
import ctypes, mmap, os, signal, subprocess, sys, time

def answer(**given):
    return {"told": given}

def stages(**given):
    yield {"at": "the first stage"}
    yield {"at": "the second stage"}
    os.kill(os.getpid(), signal.SIGSEGV)

def hang(**given):
    time.sleep(1e6)

def spin(**given):
    while True:
        pass

def hang_with_family(**given):
    code = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(1e6)"
    subprocess.Popen([sys.executable, "-c", code])
    subprocess.Popen(["sleep", "1000000"])
    time.sleep(1e6)

def orphan_holds_the_pipes(**given):
    subprocess.Popen(["sleep", "1000000"])
    return {"told": "all"}

def illegal(**given):
    code = bytes.fromhex("b900000020ffc975fc")  # mov ecx, 2^29; dec ecx; jnz to the dec: some tenths of a second
    code += bytes.fromhex("62f1fd48ffff")  # EVEX with an opcode that nobody has
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()

def illegal_in_a_thread(**given):
    import threading
    threading.Thread(target=illegal).start()
    time.sleep(0.05)  # until it is in native code, which needs no GIL
    ctypes.PyDLL(None).sleep(1000)  # a PyDLL keeps the GIL

def segv(**given):
    ctypes.string_at(0)

def killed(**given):
    os.kill(os.getpid(), signal.SIGKILL)

def flood(**given):
    block = b"x" * (1 << 20)
    for _ in range(1024):
        os.write(1, block)
    return {"told": "after the flood"}

def flood_the_channel(**given):
    for number in range(10**9):
        yield {"more": "x" * 1000}

def silent(**given):
    os._exit(0)

def says_why(**given):
    print("the last thing that it said", file=sys.stderr, flush=True)
    os._exit(3)

def garbage(**given):
    for name in os.listdir("/proc/self/fd"):
        try:
            if "pipe" in os.readlink(f"/proc/self/fd/{name}"):
                os.write(int(name), b"\\x00\\xff{not json\\n")
        except OSError:
            pass
    return {"told": "more"}

def another_form(**given):
    return {"entirely": ["something", "else"]}

def raises(**given):
    raise ValueError("of its own accord")

def dies_at_exit(**given):
    import atexit
    atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
    return {"told": "all"}

def stays_at_exit(**given):
    import atexit
    atexit.register(time.sleep, 1e6)
    return {"told": "all"}

def environment(**given):
    return {"told": {name: os.environ.get(name) for name in given["names"]}, "path": sys.path, "limits": resource()}

def resource():
    import resource
    return resource.getrlimit(resource.RLIMIT_CORE)
"""


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a probe file whose functions misbehave in every way."""
    path = tmp_path_factory.mktemp("planted") / "planted.py"
    path.write_text(PLANTED, encoding="utf-8")
    return path


@pytest.fixture
def ask(planted: Path) -> Callable[..., Probe]:
    """Return a function that makes an ask of one of the planted probes; its judge is content with {"told"}."""

    def make(function: str, name: str = "", step: int = 1, **more: Any) -> Probe:
        name = name or function
        options = {"deadline": 20.0, "judge": lambda answer, facts: [ok(name, str(answer["told"]))], **more}
        return Probe(step, name, planted, function, **options)

    return make


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """Return the options of a ladder for this Python."""
    return Options(sys.executable, tmp_path)


FAKE = Path(__file__).with_name("fake_libcuda.c")


@pytest.fixture(scope="session")
def fake_driver(compile_library: Callable[[str, str], Path]) -> Path:
    """Return a folder with a libcuda.so.1 that answers what the environment says; skips without a C compiler."""
    return compile_library("libcuda.so.1", FAKE.read_text(encoding="utf-8"))
