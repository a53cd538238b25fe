"""JupyterLab as `make lab` starts it: the environment's own kernel, and every notebook from top to bottom."""

import json
import re
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from ocrlab.reports.notebooks import results

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.name for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom(browser, lab, notebooks, run_all, name, tmp_path):
    url = lab(notebooks)
    began = time.monotonic()
    word = run_all(browser, url, name, 500)
    print(f"{name}: {word} after {time.monotonic() - began:.0f} s")
    assert results.load(notebooks / name).outcome == word
    cells = json.loads((notebooks / name).read_text(encoding="utf-8"))["cells"]
    errors = [out["evalue"] for cell in cells for out in cell.get("outputs", []) if out["output_type"] == "error"]
    assert errors == []
    assert word in ("PASS", "WARN")
    outside = [url for url in browser.requests() if not re.match(r"(http|ws)://127\.0\.0\.1[:/]", url)]
    assert outside == []


def kernel_of(url: str, folder: Path) -> str:
    """Return the Python that JupyterLab starts as python3: a kernel is asked for its command line."""
    data = json.dumps({"name": "python3"}).encode()
    call = urllib.request.Request(f"{url}/api/kernels", data, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(call, timeout=60) as answer:
        kernel_id = json.loads(answer.read())["id"]
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if any(f"kernel-{kernel_id}.json" in word for word in words):
                return words[0]
        time.sleep(0.1)
    raise AssertionError("no kernel was started")


@pytest.mark.slow
@pytest.mark.parametrize("prefer", ["1", "0"])
def test_the_environments_own_kernel_starts_also_next_to_the_users_own(program, jupyter, notebooks, tmp_path, prefer):
    """Without JUPYTER_PREFER_ENV_PATH, which the Makefile sets, it would be the user's."""
    theirs = Path(jupyter["JUPYTER_DATA_DIR"], "kernels", "python3")
    theirs.mkdir(parents=True)
    other = tmp_path / "other-python"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    argv = [str(other), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "theirs", "language": "python", "env": {"OCRLAB_THEIRS": "1"}}
    (theirs / "kernel.json").write_text(json.dumps(spec))
    words = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port", "{port}"]
    words += ["--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True", str(notebooks)]
    url = program(words, "/api", env=jupyter | {"JUPYTER_PREFER_ENV_PATH": prefer}).removesuffix("/api")
    with urllib.request.urlopen(f"{url}/api/kernelspecs/python3", timeout=60) as answer:
        kernel_spec = json.loads(answer.read())["spec"]
    assert (kernel_spec["display_name"] == "theirs") == (prefer == "0")
    if prefer == "1":
        assert Path(kernel_of(url, tmp_path)).resolve() == Path(sys.executable).resolve()
