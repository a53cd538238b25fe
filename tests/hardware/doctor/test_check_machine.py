"""What the doctor judges of machine, packages and training, from what the probes measured."""

from typing import Any

import pytest

from ocrlab.hardware.doctor import check_machine, check_training
from ocrlab.records import Check

MIB, GIB = 1 << 20, 1 << 30


def judge_cpu(flags: str, **variables: str) -> dict[str, Check]:
    answer = {"name": "CPU", "machine": "x86_64", "flags": flags.split(), "variables": variables}
    facts: Any = {"import torch": {"torch": {"dispatched": "AVX2"}}}
    return {check.name: check for check in check_machine.judge_processor(answer, facts)}


@pytest.mark.parametrize(
    ("flags", "judgement"), [("sse4_2 avx avx2", "ok"), ("sse4_2 avx", "warn"), ("sse2", "fail"), ("", "skip")]
)
def test_instruction_sets(flags: str, judgement: str) -> None:
    check = judge_cpu(flags)["instruction sets"]
    assert check.judgement == judgement
    assert check.cause == ("build.cpu_isa" if judgement in ("warn", "fail") else None)


def test_what_switches_instruction_sets_off() -> None:
    check = judge_cpu("avx2", ATEN_CPU_CAPABILITY="default", CPU_OTHER="x")["instruction sets switched off"]
    assert (check.judgement, check.do) == ("warn", "unset ATEN_CPU_CAPABILITY")


def judge_wsl2(**more: Any) -> dict[str, Check]:
    answer = {
        "wsl": 2, "release": "5.15.153.1-microsoft-standard-WSL2", "dxg": True, "foreign": [], "swap": 4 * GIB,
        "libcuda": ["/usr/lib/wsl/lib/libcuda.so.1"], "memory": 16 * GIB, "windows_folder": False, **more,
    }  # fmt: skip
    return {check.name: check for check in check_machine.judge_wsl(answer, {})}


def test_elsewhere_and_a_healthy_wsl2() -> None:
    assert judge_wsl2(wsl=0)["WSL2"].judgement == "skip"
    checks = judge_wsl2()
    assert {check.judgement for check in checks.values()} == {"ok"}


@pytest.mark.parametrize(("more", "name", "judgement", "cause"), [
    ({"wsl": 1}, "WSL2", "fail", None),
    ({"dxg": False}, "WSL2", "warn", "driver.none"),
    ({"release": "4.19.104-microsoft-standard"}, "WSL2", "warn", "wsl.limits"),
    ({"foreign": ["/usr/lib/x86_64-linux-gnu/libcuda.so.1"]}, "WSL2 libcuda", "fail", "driver.state"),
    ({"libcuda": []}, "WSL2 libcuda", "fail", "driver.none"),
    ({"memory": 4 * GIB}, "WSL2 memory", "warn", "wsl.limits"),
    ({"windows_folder": True}, "WSL2 disk", "warn", None),
])  # fmt: skip
def test_what_is_wrong(more: dict[str, Any], name: str, judgement: str, cause: str | None) -> None:
    check = judge_wsl2(**more)[name]
    assert (check.judgement, check.cause) == (judgement, cause)
    assert check.do


MEMORY = {
    "limit": 16 * GIB, "total": 16 * GIB, "available": 12 * GIB, "used_of_group": None, "inactive": 0,
    "address_space": None, "overcommit": "0",
}  # fmt: skip


def the(checks: Any) -> Check:
    [check] = checks
    return check


@pytest.mark.parametrize(("more", "judgement", "cause"), [
    ({}, "ok", None),
    ({"available": GIB // 2}, "fail", "host.oom_kill"),
    ({"available": 3 * GIB // 2}, "warn", "host.oom_kill"),
    ({"limit": 4 * GIB, "used_of_group": 4 * GIB - MIB}, "fail", "host.oom_kill"),  # a container that is full
    ({"limit": 4 * GIB, "used_of_group": 4 * GIB - MIB, "inactive": 3 * GIB}, "ok", None),  # of file cache
    ({"address_space": 8 * GIB}, "warn", "host.alloc_fail"),
    ({"overcommit": "2"}, "warn", "host.alloc_fail"),
])  # fmt: skip
def test_memory(more: dict[str, Any], judgement: str, cause: str | None) -> None:
    check = the(check_machine.judge_host_memory({**MEMORY, **more}, {}))
    assert (check.judgement, check.cause) == (judgement, cause)


@pytest.mark.parametrize(("answer", "judgement"), [
    ({"total": 8 * GIB, "free": 8 * GIB, "left": []}, "ok"),
    ({"total": 64 * MIB, "free": 64 * MIB, "left": []}, "warn"),
    ({"total": 64 * MIB, "free": 8 * MIB, "left": ["torch_1_2_3"]}, "fail"),
    ({"error": "No space left on device (errno 28)"}, "fail"),
])  # fmt: skip
def test_shared_memory(answer: dict[str, Any], judgement: str) -> None:
    check = the(check_machine.judge_shm(answer, {}))
    assert (check.judgement, check.cause) == (judgement, None if judgement == "ok" else "host.shm")
    assert ("rm /dev/shm/torch_1_2_3" in check.do) == bool(answer.get("left"))


@pytest.mark.parametrize(("soft", "judgement"), [(65536, "ok"), (1024, "ok"), (512, "warn"), (128, "fail")])
def test_open_files(soft: int, judgement: str) -> None:
    check = the(check_machine.judge_files({"soft": soft, "hard": 4096}, {}))
    assert check.judgement == judgement
    assert check.cause == (None if judgement == "ok" else "host.fd_limit")


def test_threads() -> None:
    answer: dict[str, Any] = {
        "wanted": 64, "started": 64, "error": "", "processes": 9999, "group": None, "used_of_group": None,
    }  # fmt: skip
    assert the(check_machine.judge_threads(answer, {})).judgement == "ok"
    check = the(check_machine.judge_threads({**answer, "started": 3, "error": "can't start new thread"}, {}))
    assert (check.judgement, check.cause) == ("fail", "host.thread_limit")
    assert the(check_machine.judge_threads({**answer, "group": 100, "used_of_group": 70}, {})).judgement == "warn"


@pytest.mark.parametrize(("more", "judgement", "cause"), [
    ({}, "ok", None),
    ({"free": 100 * MIB}, "fail", "io.disk_full"),
    ({"files": 3}, "fail", "io.disk_full"),
    ({"free": 2 * GIB}, "warn", "io.disk_full"),
    ({"seconds": 60.0}, "warn", None),
    ({"error": "No space left on device (errno 28)"}, "fail", "io.disk_full"),
    ({"error": "Read-only file system (errno 30)"}, "fail", "io.permission"),
    ({"error": "Permission denied (errno 13)"}, "fail", "io.permission"),
])  # fmt: skip
def test_disk(more: dict[str, Any], judgement: str, cause: str | None) -> None:
    answer = {"folder": "/runs", "free": 50 * GIB, "files": None, "written": 16 * MIB, "seconds": 0.1}
    check = the(check_machine.judge_disk("disk for runs", {**answer, **more}, {}))
    assert (check.judgement, check.cause) == (judgement, cause)


CUDNN = "/site/nvidia/cudnn/lib/libcudnn.so.9"


def test_two_folders_are_mixed() -> None:
    check = check_training.judge_families({CUDNN, "/usr/lib/libcudnn_ops.so.9.1.0"})
    assert (check.judgement, check.cause) == ("fail", "build.cuda_libraries")
    assert "/usr/lib" in check.observed and "LD_LIBRARY_PATH" in check.do


def test_openmp() -> None:
    assert check_training.judge_openmp({"/site/torch/lib/libgomp-24e2ab19.so.1"}).judgement == "ok"
    assert check_training.judge_openmp({"/a/libgomp.so.1", "/b/libiomp5.so"}).judgement == "warn"


def test_what_comes_before_the_wheel() -> None:
    check = check_training.judge_search_path({"offers": ["/usr/local/cuda/lib64/libcudnn.so.8"], "preload": []})
    assert (check.judgement, check.do) == ("warn", "unset LD_LIBRARY_PATH")
    assert check_training.judge_search_path({"offers": [], "preload": ["/x/libjemalloc.so"]}).judgement == "warn"
    assert check_training.judge_search_path({"offers": ["/x/libcuda.so.1"], "preload": []}).judgement == "ok"


def rungs(error: str | None) -> dict[str, object]:
    first = {"rung": "allocate", "ok": True, "error": None, "seconds": 0.1}
    second = {"rung": "add", "ok": error is None, "error": error, "seconds": 0.1}
    return {"at": "add", "rungs": [first, second]}


@pytest.mark.parametrize(("error", "cause"), [
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "build.arch"),
    ("OutOfMemoryError: CUDA out of memory. Tried to allocate 16 MiB", "gpumem.foreign"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "build.cuda_libraries"),
    ("RuntimeError: CUDA error: an illegal instruction was encountered", "kernel.illegal_instruction"),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "kernel.illegal_address"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "hw.gpu"),
    ("backward differs from the CPU's float64 by 3, the limit is 0.001", "hw.gpu"),
    ("RuntimeError: something that nobody has seen", None),
])  # fmt: skip
def test_a_rung_that_fails(error: str, cause: str | None) -> None:
    [check] = check_training.judge_rungs("smoke test: GPU", rungs(error), {})
    assert (check.judgement, check.cause) == ("fail", cause)
    assert "fails at add" in check.observed
    assert ("cannot avoid" in check.observed) == ("CUDA error" in error)


def test_a_wrong_result_of_the_processor_is_not_blamed_on_a_gpu() -> None:
    [check] = check_training.judge_rungs(
        "smoke test: CPU", rungs("forward differs from the CPU's float64 by 3, the limit is 0.001"), {}
    )
    assert (check.judgement, check.cause) == ("fail", None)


def test_a_driver_that_hangs_silences_the_processor_too() -> None:
    torch = {"import torch": {"imported": True}}
    assert "would not return" in (check_training.skip_cpu(torch) or "")
    assert check_training.skip_cpu({**torch, "driver": {}}) is None
    assert check_training.skip_cpu({"driver": {}}) == "torch cannot be imported, see step 2"


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, False), ({"WANDB_MODE": "offline", "WANDB_API_KEY": "x"}, False),
        ({"WANDB_MODE": "disabled"}, False), ({"WANDB_DISABLED": "true", "WANDB_API_KEY": "x"}, False),
        ({"WANDB_MODE": "online"}, True), ({"WANDB_API_KEY": "x"}, True),
    ],
)  # fmt: skip
def test_when_tracking_is_on(environment: dict[str, str], on: bool, tmp_path) -> None:
    assert (check_training.tracking_off_reason(environment, tmp_path / ".netrc") is None) == on


@pytest.mark.parametrize(("environment", "place"), [
    ({}, ("api.wandb.ai", 443)),
    ({"WANDB_BASE_URL": "http://tracker.local:8080"}, ("tracker.local", 8080)),
    ({"https_proxy": "http://user:secret@proxy.local:3129"}, ("proxy.local", 3129)),
    ({"HTTPS_PROXY": "proxy.local"}, ("proxy.local", 3128)),
])  # fmt: skip
def test_where_it_connects_to(environment: dict[str, str], place: tuple[str, int]) -> None:
    host, port, words = check_training.tracker_address(environment)
    assert (host, port) == place
    assert "secret" not in words
