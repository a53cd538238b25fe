"""What all tests share: threads that suit the machine, seeds, the shared data, skips for what the machine lacks."""

import functools
import gc
import importlib.util
import os
import random
import re
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from ocrlab.hardware import host, openmp

for number, default in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:  # as in a background job or under nohup; programs would inherit it
        signal.signal(number, default)

ROOT = Path(__file__).parents[1]
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))  # processes that run tests at the same time
THREADS = max(1, host.physical_cores() // WORKERS)
LIBRARY = re.compile(r"lib(GL|glib|gthread)[\w.-]*: cannot open shared object file")
COMPILER = re.compile(r"InvalidCxxCompiler|No working C\+\+ compiler|Python\.h: No such file")

# Before torch, NumPy and numba are imported, and for every child that a test starts. One pool at a time is busy here:
# with two, OpenMP's waiting threads make each step many times slower.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    if WORKERS > 1 or _name not in os.environ:  # a worker inherits what its master has set for itself
        os.environ[_name] = str(THREADS)
openmp.sleep_soon(os.environ)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every child, and every worker, compiles ocrlab again
if WORKERS > 1:  # every worker imports these in the end; what they keep for ever costs each collection and search time
    for _name in ("lightning.pytorch", "torch._dynamo"):
        importlib.import_module(_name)
    gc.freeze()
_state = tempfile.TemporaryDirectory(prefix="ocrlab-tests-")  # the key of what these tests record
os.environ["XDG_STATE_HOME"] = _state.name


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the folder of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of real data and reference outputs; the test skips where there is none."""
    place = Path(os.environ.get("OCRLAB_SHARED", ROOT.parent / "shared"))
    if not (place / "data").is_dir():
        pytest.skip(f"no shared data at {place}; OCRLAB_SHARED=DIR names another place")
    return place


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a folder for run folders."""
    return tmp_path / "runs"


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Seed every generator that is in use, and give torch its threads and its compiler back afterwards.

    A replay switches compilation off for the rest of its process; here the process goes on.
    """
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
    yield
    torch = sys.modules.get("torch")
    threads = int(os.environ["OMP_NUM_THREADS"])
    if torch is not None and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    os.environ.pop("TORCH_COMPILE_DISABLE", None)
    if "torch._dynamo" in sys.modules:
        sys.modules["torch"].compiler.set_stance("default")
        sys.modules["torch._dynamo"].config.disable = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a device or a browser that is not there; give a cell the time that nbval itself ends it after.

    Of notebooks that run without these tests pytest does not read this file: the Makefile says their time.
    """
    for item in items:
        reasons = [lacks() for name, lacks in NEEDS.items() if item.get_closest_marker(name)]
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.timeout(660))
            reasons.append(_no_opencv())
        for reason in filter(None, reasons):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector,
):
    """Skip a file that cannot be imported because the machine lacks a system library."""
    report = yield
    reason = _lack(str(report.longrepr)) if report.outcome == "failed" else None
    if reason:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {reason}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that failed because the machine lacks a system library or a compiler."""
    report = yield
    reason = _lack(report.longreprtext) if report.outcome == "failed" else None
    if reason:
        report.outcome, report.longrepr = "skipped", (str(item.path), item.location[1] or 0, f"Skipped: {reason}")
    return report


def _lack(text: str) -> str | None:
    """Return why this machine cannot do what failed with `text`, or None where it can."""
    match = LIBRARY.search(text)
    if match:
        return f"OpenCV's {match[0]}; make setup says how to install it"
    headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    if COMPILER.search(text) and not (headers and shutil.which(os.environ.get("CXX", "g++"))):
        return "no C++ compiler or no Python.h; make setup says how to install them"
    return None


@functools.cache
def _no_opencv() -> str | None:
    try:
        importlib.import_module("cv2")
    except ImportError as error:
        return _lack(str(error))
    return None


@functools.cache
def _no_gpu() -> str | None:
    torch = importlib.import_module("torch")
    return None if torch.cuda.is_available() else "no CUDA device"


@functools.cache
def _no_browser() -> str | None:
    missing = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    if importlib.util.find_spec("selenium") is None:
        missing.append("selenium")
    return f"not installed: {', '.join(missing)}" if missing else None


NEEDS = {"gpu": _no_gpu, "browser": _no_browser}  # markers, and why this machine cannot run what bears them
