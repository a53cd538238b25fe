"""A cause in several forms: each is mended by its own fix, and an entry's general one stays where none fits."""

from __future__ import annotations

import time

import pytest

from ocrlab.diagnose import catalogue
from ocrlab.diagnose.classify import classify
from ocrlab.records import Cause, Incident

FORMS = (
    ("A module that was compiled using NumPy 1.x cannot be run in NumPy 2.2.1", "build.abi", "'numpy<2'"),
    ("RuntimeError: module compiled against API version 0x10 but this is 0xf", "build.abi", "--upgrade numpy"),
    ("TypeError: Descriptors cannot be created directly.", "build.abi", "protobuf<="),
    ("VersionError: Detected incompatible Protobuf Gencode/Runtime versions", "build.abi", "--upgrade protobuf"),
    ("ImportError: libGL.so.1: cannot open shared object file: No such file", "build.system_libs", "libgl1"),
    ("python: /lib64/libc.so.6: version `GLIBC_2.34' not found", "build.system_libs", "newer distribution"),
    ("RuntimeError: Failed to find C compiler. Please specify via CC", "build.system_libs", "build-essential"),
    ("RuntimeError: HIP error: invalid device function", "build.arch", "ROCm"),
    ("ValueError: Attempting to unscale FP16 gradients.", "user.dtype", "GradScaler"),
    ("ValueError: Expected more than 1 value per channel when training", "user.shape", "drop_last"),
    ("RuntimeError: Expected to mark a variable ready only once.", "dist.unused_params", "use_reentrant=False"),
    ("OMP: Error #15: Initializing libiomp5, but found libomp already initialized.", "native.abort", "KMP_DUPLICATE"),
    ("SafetensorError: Error while deserializing header: HeaderTooLarge", "ckpt.corrupt", "git lfs pull"),
    ("RuntimeError: MPS backend out of memory (MPS allocated: 9 GB)", "gpumem.capacity", "torch.mps"),
    ("Exception: Current loss scale already at minimum - cannot decrease", "num.nonfinite", "bf16"),
    (
        "ZeRORuntimeException: The checkpoint being loaded used a DP world size of 4 but the current world size is 2.",
        "ckpt.mismatch",
        "universal",
    ),
    (
        "OSError: libcublas.so.11: cannot open shared object file: No such file",
        "build.cuda_libraries",
        "--runtime nvidia",
    ),
    ("ImportError: cannot import name 'x' from 'triton.compiler'", "build.abi", "brings its own"),
    (
        "FATAL: [Errno 2] No such file or directory: 'outputs/exp1/crash/state_4.json'",
        "io.missing",
        "hide the first error",
    ),
    ("EOFError: EOF when reading a line", "hang.stopped", "yes | COMMAND"),
    ("ValueError: some characters cannot be found in 'vocab'.", "data.annotation", "alphabet"),
    ("KeyError: \"Label 'Q' was not included in the training dataset\"", "data.annotation", "list of classes"),
    ("KeyError: 'pytorch-lightning_version'", "ckpt.mismatch", "bare weights"),
    ("AssertionError: datasets should not be an empty iterable", "io.missing", "subfolders"),
    ("OSError: [Errno 116] Stale file handle", "io.missing", "mount it again"),
    ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.6", "driver.too_old", "image"),
)


def first(*lines: str) -> Cause:
    return classify(Incident(texts={"log_tail.txt": "\n".join(lines)})).causes[0]


@pytest.mark.parametrize(("message", "cause", "part"), FORMS, ids=[part for _, _, part in FORMS])
def test_a_form_has_its_own_fix(message: str, cause: str, part: str) -> None:
    found = first(message)
    assert (found.id, part in found.fix) == (cause, True)


def test_without_a_form_the_fix_is_the_entrys() -> None:
    found = first("ImportError: ext.so: undefined symbol: _ZN3c104warnERKNS_7WarningE")
    assert found.fix == catalogue.load().entries["build.abi"].fix


def test_a_weaker_line_does_not_choose_the_form() -> None:
    found = first("NVIDIA GeForce RTX 4090", "torch 1.4.0+cu101", "RuntimeError: NCCL Error 1: unhandled cuda error")
    assert (found.id, found.fix) == ("build.arch", catalogue.load().entries["build.arch"].fix)


def test_explaining_tells_every_form() -> None:
    for entry in catalogue.load().entries.values():
        text = catalogue.explain(entry.id)
        assert all(form.fix in text for form in entry.forms)


def test_frames_of_eight_ranks_that_mix_are_read_in_a_moment() -> None:
    """Each line of shown source could once be taken in several ways, and eight ranks show the same forty lines."""
    shown = ["/p/utils/data/loader.py in fetch(self, index)", *(f"    {n}     x = page[{n}]" for n in range(40))]
    log = "\n".join(f"[rank{rank}]: {line}" for line in [*shown, "Too many open files error"] for rank in range(8))
    before = time.process_time()
    causes = classify(Incident(texts={"log_tail.txt": log})).causes
    assert time.process_time() - before < 3
    assert causes[0].id == "host.fd_limit"


@pytest.mark.parametrize("path", ["data/bedroom/img.png", "data/train.txt", "dumbbells/7.jpg"])
def test_a_file_of_the_data_is_not_taken_for_one_that_a_handler_writes(path: str) -> None:
    log = f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    best = classify(Incident("failed", 1, texts={"log_tail.txt": log})).causes[0]
    assert best.id == "io.missing"
    assert "first error" not in best.fix
