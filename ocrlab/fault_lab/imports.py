"""Imports that fail, kill the process, or never return; the packages are made on the spot."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import sysconfig
from pathlib import Path

from ocrlab.fault_lab.fault import Fault
from ocrlab.fault_lab.setup import folder, library

MODULE = r"""
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", 0, -1, 0};
%s
PyMODINIT_FUNC PyInit__C(void) { %s return PyModule_Create(&module); }
"""
WIDTH = '#if defined(__x86_64__)\n#define VECTORS() __asm__ volatile("ud2")\n#else\n'
WIDTH += '#define VECTORS() __asm__ volatile(".inst 0x00000000")\n#endif'


def package(name: str, text: str) -> Path:
    """Make a package in a folder of its own, put that first on the path, and return the package's folder."""
    place = folder() / name
    place.mkdir()
    (place / "__init__.py").write_text(text)
    sys.path.insert(0, str(place.parent))
    return place


def compiled(name: str, *options: str, before: str = "", at_import: str = "") -> None:
    """Make a package with a compiled module, and import it."""
    place = package(name, "from . import _C\n")
    header = f"-I{sysconfig.get_path('include')}"
    library(MODULE % (before, at_import), "_C.c", header, *options, where=place)
    importlib.import_module(name)


def load_licensed() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    text = "import socket\n\nwith socket.create_connection(('127.0.0.1', {})) as server:\n    server.recv(1)\n"
    package("fastdecode", text.format(server.getsockname()[1]))
    importlib.import_module("fastdecode")


def load_probing() -> None:
    package("cpuprobe", "ready = False\nwhile not ready:\n    ready = sum(range(1000)) < 0\n")
    importlib.import_module("cpuprobe")


def needs(soname: str) -> str:
    """Return the linker options for a library that is there at link time only."""
    stub = library("int present;", "stub.c", f"-Wl,-soname,{soname}")
    return str(stub)


def load_for_other_cuda() -> None:
    compiled("fastroi", "-Wl,--no-as-needed", needs("libcudart.so.10.2"))


def load_for_other_torch() -> None:
    symbol = "_ZN3c104impl3cow11materializeEPKNS_11StorageImplEb"
    compiled("fastnms", "-Wl,-z,now", before=f"extern int {symbol}(void);", at_import=f"if ({symbol}()) return 0;")


def load_with_old_runtime() -> None:
    place = folder()
    version = place / "versions"
    stub = "int cow_string(void) { return 0; }"
    options = (f"-Wl,--version-script={version}", "-Wl,-soname,libstdc++.so.6")
    version.write_text("GLIBCXX_3.4.32 { global: cow_string; };")
    new = library(stub, "runtime.c", *options, where=place)
    use = "if (cow_string()) return 0;"
    name = "fastlayout"
    target = package(name, "from . import _C\n")
    source = MODULE % ("extern int cow_string(void);", use)
    library(source, "_C.c", f"-I{sysconfig.get_path('include')}", str(new), f"-Wl,-rpath,{place}", where=target)
    version.write_text("GLIBCXX_3.4 { global: cow_string; };")
    os.rename(library(stub, "runtime.c", *options, where=place), place / "libstdc++.so.6")
    importlib.import_module(name)


def load_vectors() -> None:
    compiled("fastresize", before=WIDTH, at_import="VECTORS();")


def load_table() -> None:
    compiled("fasttable", at_import="volatile int *table = 0; table[4] = 1;")


def load_vision() -> None:
    text = (
        "import torch\n\n\n@torch.library.register_fake('torchvision::nms')\ndef meta_nms(dets, scores, threshold):\n"
    )
    package("torchvision", text + "    return dets.new_empty(0)\n")
    importlib.import_module("torchvision")


IMPORT, LIBRARIES, SYSTEM = ("hang.import",), ("build.cuda_libraries", "build.abi"), ("build.system_libs",)
C = ("compiler",)
FAULTS = (
    Fault("import_license", "asks a server that stays silent", "hung", IMPORT, load_licensed),
    Fault("import_probe", "measures the CPU for ever", "hung", IMPORT, load_probing),
    Fault("import_cuda_library", "was built for another CUDA", "failed", LIBRARIES, load_for_other_cuda, C),
    Fault("import_symbol", "was built for another torch", "failed", ("build.abi",), load_for_other_torch, C),
    Fault("import_runtime", "finds an old C++ runtime", "failed", SYSTEM, load_with_old_runtime, C),
    Fault("import_opcode", "uses an opcode of another CPU", "killed", ("build.cpu_isa",), load_vectors, C),
    Fault("import_segv", "writes to a null pointer", "killed", ("native.segv", "build.abi"), load_table, C),
    Fault("import_vision", "a torchvision of another torch", "failed", ("build.torchvision",), load_vision),
)
