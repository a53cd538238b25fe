"""Which CUDA libraries are mapped, and whether they belong together."""

from __future__ import annotations

from pathlib import Path

from ocrlab.hardware.doctor import check_libraries

WHEEL = "/site/nvidia/cudnn/lib/libcudnn.so.9"


def test_a_single_folder_for_each_library_is_ok() -> None:
    parts = {WHEEL, "/site/nvidia/cudnn/lib/libcudnn_graph.so.9", "/site/nvidia/cublas/lib/libcublas.so.12"}
    check = check_libraries.families(parts)
    assert check.judgement == "ok"
    assert "cudnn 9" in check.observed
    assert check_libraries.families(set()).judgement == "ok"


def test_two_folders_are_mixed() -> None:
    check = check_libraries.families({WHEEL, "/usr/lib/libcudnn_ops.so.9.1.0"})
    assert (check.judgement, check.cause) == ("fail", "build.cuda_libraries")
    assert "/usr/lib" in check.observed and "LD_LIBRARY_PATH" in check.do


def test_two_major_versions_in_the_same_folder_are_mixed() -> None:
    assert check_libraries.families({"/usr/lib/libcublas.so.11", "/usr/lib/libcublasLt.so.12"}).judgement == "fail"


def test_openmp() -> None:
    assert check_libraries.openmp({"/site/torch/lib/libgomp-24e2ab19.so.1"}).judgement == "ok"
    assert check_libraries.openmp({"/a/libgomp.so.1", "/b/libiomp5.so"}).judgement == "warn"


def test_what_comes_before_the_wheel() -> None:
    check = check_libraries.search_path({"offers": ["/usr/local/cuda/lib64/libcudnn.so.8"], "preload": []})
    assert (check.judgement, check.do) == ("warn", "unset LD_LIBRARY_PATH")
    assert check_libraries.search_path({"offers": [], "preload": ["/x/libjemalloc.so"]}).judgement == "warn"
    assert check_libraries.search_path({"offers": ["/x/libcuda.so.1"], "preload": []}).judgement == "ok"


def test_a_library_and_its_links_are_reported_once(tmp_path: Path) -> None:
    (tmp_path / "libcudnn.so.9").touch()
    (tmp_path / "libcudnn.so").symlink_to("libcudnn.so.9")
    offers = [str(tmp_path / name) for name in ("libcudnn.so", "libcudnn.so.9", "libcudnn.so.9")]
    observed = check_libraries.search_path({"offers": offers, "preload": []}).observed
    assert observed == f"LD_LIBRARY_PATH offers {tmp_path}/libcudnn.so"


def test_without_torch_nothing_is_judged_but_the_search_path() -> None:
    checks = list(check_libraries.judge([{"offers": [], "preload": []}], {}))
    assert [check.judgement for check in checks] == ["skip", "ok"]
