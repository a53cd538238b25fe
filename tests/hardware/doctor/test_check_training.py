"""Mapped libraries, the smoke test, a DataLoader and the tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ocrlab.hardware.doctor import check_training

CUDNN = "/site/nvidia/cudnn/lib/libcudnn.so.9"


def test_a_single_folder_for_each_library_is_ok() -> None:
    parts = {CUDNN, "/site/nvidia/cudnn/lib/libcudnn_graph.so.9", "/site/nvidia/cublas/lib/libcublas.so.12"}
    check = check_training.judge_families(parts)
    assert check.judgement == "ok"
    assert "cudnn 9" in check.observed
    assert check_training.judge_families(set()).judgement == "ok"


def test_two_folders_are_mixed() -> None:
    check = check_training.judge_families({CUDNN, "/usr/lib/libcudnn_ops.so.9.1.0"})
    assert (check.judgement, check.cause) == ("fail", "build.cuda_libraries")
    assert "/usr/lib" in check.observed and "LD_LIBRARY_PATH" in check.do


def test_two_major_versions_in_the_same_folder_are_mixed() -> None:
    assert check_training.judge_families({"/usr/lib/libcublas.so.11", "/usr/lib/libcublasLt.so.12"}).judgement == "fail"
    sparse = {"/site/nvidia/cu13/lib/libcusparse.so.12", "/site/nvidia/cusparselt/lib/libcusparseLt.so.0"}
    assert check_training.judge_families(sparse).judgement == "ok", "two libraries, each in its own wheel"


def test_openmp() -> None:
    assert check_training.judge_openmp({"/site/torch/lib/libgomp-24e2ab19.so.1"}).judgement == "ok"
    assert check_training.judge_openmp({"/a/libgomp.so.1", "/b/libiomp5.so"}).judgement == "warn"


def test_what_comes_before_the_wheel() -> None:
    check = check_training.judge_search_path({"offers": ["/usr/local/cuda/lib64/libcudnn.so.8"], "preload": []})
    assert (check.judgement, check.do) == ("warn", "unset LD_LIBRARY_PATH")
    assert check_training.judge_search_path({"offers": [], "preload": ["/x/libjemalloc.so"]}).judgement == "warn"
    assert check_training.judge_search_path({"offers": ["/x/libcuda.so.1"], "preload": []}).judgement == "ok"


def test_a_library_and_its_links_are_reported_once(tmp_path: Path) -> None:
    (tmp_path / "libcudnn.so.9").touch()
    (tmp_path / "libcudnn.so").symlink_to("libcudnn.so.9")
    offers = [str(tmp_path / name) for name in ("libcudnn.so", "libcudnn.so.9", "libcudnn.so.9")]
    observed = check_training.judge_search_path({"offers": offers, "preload": []}).observed
    assert observed == f"LD_LIBRARY_PATH offers {tmp_path}/libcudnn.so"


def test_without_torch_nothing_is_judged_but_the_search_path() -> None:
    checks = list(check_training.judge_libraries({"offers": [], "preload": []}, {}))
    assert [check.judgement for check in checks] == ["skip", "ok"]


def rungs(error: str | None) -> dict[str, object]:
    first = {"rung": "allocate", "ok": True, "error": None, "seconds": 0.1}
    second = {"rung": "add", "ok": error is None, "error": error, "seconds": 0.1}
    return {"at": "add", "rungs": [first, second]}


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "build.arch"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 16 MiB", "gpumem.foreign"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "build.cuda_libraries"),
        ("RuntimeError: CUDA error: an illegal instruction was encountered", "kernel.illegal_instruction"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "kernel.illegal_address"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "hw.gpu"),
        ("backward differs from the CPU's float64 by 3, the limit is 0.001", "hw.gpu"),
        ("RuntimeError: something that nobody has seen", None),
    ],
)
def test_a_rung_that_fails(error: str, cause: str | None) -> None:
    [check] = check_training.judge_rungs("smoke test: GPU", rungs(error))
    assert (check.judgement, check.cause) == ("fail", cause)
    assert "fails at add" in check.observed
    assert ("cannot avoid" in check.observed) == ("CUDA error" in error)


def test_all_rungs_and_none() -> None:
    [check] = check_training.judge_rungs("smoke test: CPU", rungs(None))
    assert check.judgement == "ok"
    assert "2 of 2" in check.observed
    [check] = check_training.judge_rungs("smoke test: CPU", {})
    assert check.judgement == "fail"


def test_a_wrong_result_of_the_processor_is_not_blamed_on_a_gpu() -> None:
    [check] = check_training.judge_rungs(
        "smoke test: CPU", rungs("forward differs from the CPU's float64 by 3, the limit is 0.001")
    )
    assert (check.judgement, check.cause) == ("fail", None)


def test_a_driver_that_hangs_silences_the_processor_too() -> None:
    torch = {"import torch": {"imported": True}}
    assert "would not return" in (check_training.skip_cpu(torch) or "")
    assert check_training.skip_cpu({**torch, "driver": {}}) is None
    assert check_training.skip_cpu({"driver": {}}) == "torch cannot be imported, see step 2"


@pytest.mark.parametrize(("more", "judgement"), [({}, "ok"), ({"same": False}, "fail"), ({"seconds": 99.0}, "warn")])
def test_round_trips(more: dict[str, Any], judgement: str) -> None:
    answer = {"method": "fork", "batches": 4, "seconds": 0.2, "same": True, **more}
    [check] = check_training.judge_loader(answer, {})
    assert (check.name, check.judgement) == ("DataLoader by fork", judgement)


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, False),
        ({"WANDB_MODE": "offline", "WANDB_API_KEY": "x"}, False),
        ({"WANDB_MODE": "disabled"}, False),
        ({"WANDB_DISABLED": "true", "WANDB_API_KEY": "x"}, False),
        ({"WANDB_MODE": "online"}, True),
        ({"WANDB_API_KEY": "x"}, True),
    ],
)
def test_when_tracking_is_on(environment: dict[str, str], on: bool, tmp_path: Path) -> None:
    assert (check_training.tracking_off_reason(environment, tmp_path / ".netrc") is None) == on


def test_a_login_in_netrc_counts(tmp_path: Path) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine api.wandb.ai\n  login user\n  password x\n")
    assert check_training.tracking_off_reason({}, netrc) is None
    assert check_training.tracking_off_reason({"WANDB_MODE": "offline"}, netrc)


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, ("api.wandb.ai", 443)),
        ({"WANDB_BASE_URL": "http://tracker.local:8080"}, ("tracker.local", 8080)),
        ({"https_proxy": "http://user:secret@proxy.local:3129"}, ("proxy.local", 3129)),
        ({"HTTPS_PROXY": "proxy.local"}, ("proxy.local", 3128)),
    ],
)
def test_where_it_connects_to(environment: dict[str, str], place: tuple[str, int]) -> None:
    host, port, words = check_training.tracker_address(environment)
    assert (host, port) == place
    assert "secret" not in words


def test_the_way_to_the_tracker() -> None:
    def judged(**answer: object) -> str:
        [check] = check_training.judge_tracker("h", 443, "the server", answer)
        assert check.cause == (None if check.judgement == "ok" else "tracker.network")
        return check.judgement

    assert judged(seconds=0.1) == "ok"
    assert judged(seconds=3.0) == "warn"
    assert judged(error="TimeoutError: timed out", seconds=5.0) == "fail"
