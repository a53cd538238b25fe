"""Places in a stack that tell what a program waits for: whose frames they are, and which kind of hang they mean."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ocrlab import safe_read
from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.hardware.processes.stack_dumps import short
from ocrlab.hardware.processes.stack_types import Frame, Stack, Thread

LARGEST = 1 << 20  # bytes of a source
QUEUES = re.compile(r"(^|/)(multiprocessing/\w+|selectors|threading|queue)\.py$")
LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib/python\d|/python\d[\d.]*\.zip/|<frozen|<string>|^<__array"
    # They run the cell, the hooks of a module and the loader.
    r"|(?:^|/)ocrlab/(?:notebook/child_main|debug/(?:recorder|instruments)/[\w/]+)\.py$"
)
CELL = "<isolated cell>"  # what the user wrote
OTHERS = frozenset(
    "torch torchvision torchaudio lightning pytorch_lightning numpy scipy pandas PIL cv2 wandb mlflow tensorboard "
    "urllib3 requests httpx grpc transformers datasets accelerate triton ipykernel IPython tornado zmq tqdm "
    "joblib".split()
)  # fmt: skip
STANDARD = frozenset(sys.stdlib_module_names) - {"test", "this", "antigravity", "code", "token"}
IDLE_THREADS = re.compile(
    r"QueueFeederThread|_serve\b|TMonitor|tqdm|ExecutorManagerThread|Heartbeat|IOPub|Control|ThreadPoolExecutor|history"
)
THREAD_ENDS = re.compile(r"(^|/)threading\.py (\w+\.)*(join|_wait_for_tstate_lock)$")
SYNCHRONISES = re.compile(r"\.item\(|\.cpu\(|\.tolist\(|\.numpy\(|synchronize\(|\.to\(['\"]cpu|\.nonzero\(|isnan\(")


@dataclass(frozen=True)
class HangFinding:
    """A kind of hang: `why` in a sentence, in which process, and the frames that show it, innermost first."""

    id: str
    level: Level
    pid: int
    why: str
    frames: list[Frame] = field(default_factory=list)


def finding(
    stack: Stack, level: Level, why: str, frames: list[Frame] | None = None, *, cause: str = "hang.deadlock"
) -> HangFinding:
    """Return a finding about a process; its frames are the innermost of its main thread unless others are given."""
    if frames is None:
        frames = stack.threads[0].frames[:6] if stack.threads else []
    return HangFinding(cause, level, stack.process.pid, why, frames)


StackPattern = tuple[str, re.Pattern[str], re.Pattern[str]]  # a kind of hang, the file and the function that mean it


def _pattern(cause: str, file: str, function: str = r"") -> StackPattern:
    return cause, re.compile(file), re.compile(function)


NATIVE_INIT = r"^(cuInit|cuDeviceGet|cuDevicePrimaryCtxRetain|cuCtxCreate|nvmlInit|cudaGetDeviceCount|cudaFree$)"
NATIVE_SYNC = (
    r"^(cu(da)?(Stream|Device|Event|Ctx)Synchronize|cuMemcpyDtoH|cudaMemcpy|.*_local_scalar_dense_cuda|cuModuleUnload)"
)
COMPILING = (
    r"torch/_inductor/(compile_fx|graph|scheduler|codecache|async_compile|lowering|codegen|compile_worker|select_alg|"
    r"autotune_process|runtime/(triton_heur|compile_tasks))|torch/_dynamo/(convert_frame|symbolic_convert|output_graph|"
    r"variables)|triton/(compiler|backends)/|torch/utils/cpp_extension\.py"
)
TRACKERS = r"(^|/)(wandb|mlflow|tensorboard|tensorboardX|neptune|comet_ml|clearml|aim|swanlab)/"
PROMPTS = r"(^|/)(pdb|bdb|cmd|code|getpass|ipdb|IPython/terminal/\w+|click/termui)\.py|(^|/)prompt_toolkit/"
ASKS = r"interaction|cmdloop|interact|getpass|_raw_input|fallback|user_line|mainloop|prompt|run"
PATTERNS = (  # the first that fits the innermost fitting frame decides
    _pattern("hang.build_lock", r"torch/utils/(file_baton|_filelock)\.py"),
    _pattern("hang.gpu_kernel", r"torch/cuda/(__init__|streams)\.py", r"synchronize"),
    _pattern(
        "hang.cuda_init", r"torch/cuda/__init__\.py", r"_lazy_init|is_available|device_count|_nvml|get_device_|current_"
    ),
    _pattern("hang.cuda_init", r"(^|/)(pynvml|torch/utils/collect_env)(\.py|/)"),
    _pattern("hang.compile", COMPILING),
    _pattern("hang.stopped", PROMPTS, ASKS),
    _pattern("loader.hang_sample", r"torch/utils/data/_utils/fetch\.py"),
    _pattern("loader.wait", r"torch/utils/data/dataloader\.py", r"_try_get_data|_get_data|_next_data"),
    _pattern("loader.worker", r"torch/utils/data/_utils/worker\.py", r"_worker_loop"),
    _pattern(
        "idle", r"multiprocessing/(pool|managers)\.py|concurrent/futures/process\.py", r"^worker|_process_worker|serve"
    ),
    _pattern(
        "dist", r"torch/distributed/(?!run|launch|elastic)|torch/nn/parallel/distributed\.py|lightning_fabric/.*ddp"
    ),
    _pattern("hang.tracker", TRACKERS, r"^(?!<module>)"),
    _pattern("hang.import", r"<frozen importlib|importlib/(_bootstrap|__init__)", r""),
)
NATIVE_PATTERNS = (
    _pattern("hang.cuda_init", r"", NATIVE_INIT),
    _pattern("hang.gpu_kernel", r"", NATIVE_SYNC),
)


def match_pattern(frames: list[Frame]) -> tuple[str, int]:
    """Return the kind that the innermost telling frame means, and its index; `("", -1)` where none tells anything."""
    for index, frame in enumerate(frames):
        file = short(frame.file)
        for kind, in_file, in_function in PATTERNS if frame.line else NATIVE_PATTERNS:
            if in_file.search(file) and in_function.search(frame.function.rpartition(".")[2]):
                return kind, index
    return "", -1


def idle(frames: list[Frame]) -> bool:
    """Return whether a worker of a DataLoader or a pool waits for its next task, and for nothing else."""
    kind, index = match_pattern(frames)
    return kind in ("loader.worker", "idle") and all(QUEUES.search(frame.file) for frame in python(frames[:index]))


def is_library(frame: Frame) -> bool:
    """Return whether a frame is native, Python's own or of an installed package, rather than of the program."""
    file = frame.file
    if not frame.line or not file.strip() or LIBRARY.search(file) or (file.startswith("<") and file != CELL):
        return True
    top = file.partition("/")[0].removesuffix(".py")  # empty of an absolute path
    return top in OTHERS or top in STANDARD


def own(frames: list[Frame]) -> Frame | None:
    """Return the innermost frame of the program itself; not those that a forked copy still has of its parent."""
    return next((frame for frame in since_copied(frames) if not is_library(frame)), None)


def since_copied(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames of a process without those that a forked copy still has of its parent."""
    return [*itertools.takewhile(lambda frame: not _starts_a_copy(frame), frames)]


def place(frame: Frame | None) -> str:
    """Return a frame in words: `D.__getitem__ (data.py:30)`."""
    if frame is None:
        return "native code"
    return f"{frame.function} ({short(frame.file)}:{frame.line})" if frame.line else f"{frame.function} ({frame.file})"


def best(frames: list[Frame]) -> Frame | None:
    """Return the frame that says most: the program's own innermost, else Python's, else the innermost of all."""
    return own(frames) or next(iter(python(frames) or frames), None)


def where(frames: list[Frame]) -> str:
    """Return the frame that says most in words."""
    return place(best(frames))


def python(frames: list[Frame]) -> list[Frame]:
    """Return the frames of Python code."""
    return [frame for frame in frames if frame.line]


def far_end(thread: Thread) -> str:
    """Return the address that a thread waits for to answer; empty where there is none."""
    return thread.call.partition(", connected to ")[2]


def joins(frames: list[Frame]) -> bool:
    """Return whether Python frames wait for the end of a thread."""
    return any(THREAD_ENDS.search(f"{short(frame.file)} {frame.function}") for frame in frames[:2])


def synchronises(frame: Frame | None) -> bool:
    """Return whether the source line of a frame waits for a GPU; only where the file can be read on this machine."""
    if frame is None or not frame.line:
        return False
    with contextlib.suppress(OSError, ValueError):
        lines = safe_read.read_text(Path(frame.file), LARGEST).splitlines()
        return bool(SYNCHRONISES.search("".join(lines[frame.line - 1 : frame.line])))
    return False


def forked(stack: Stack) -> bool:
    """Return whether a process is a copy made by fork: it still has the frames of the parent that forked it."""
    return any(_starts_a_copy(frame) for thread in stack.threads[:1] for frame in thread.frames)


def _starts_a_copy(frame: Frame) -> bool:
    return frame.file.endswith("multiprocessing/popen_fork.py") and frame.function.endswith("_launch")


def moved(thread: Thread, before: Stack | None) -> bool | None:
    """Return whether a thread stands elsewhere than in an earlier sample; None where there is no earlier one."""
    old = _earlier(thread, before)
    return None if old is None else _shape(old) != _shape(thread)


def _earlier(thread: Thread, before: Stack | None) -> Thread | None:
    return next((other for other in before.threads if other.id == thread.id), None) if before else None


def _shape(thread: Thread) -> list[tuple[str, str, int]]:
    return [(frame.function, frame.file, frame.line) for frame in python(thread.frames)]


def still(thread: Thread, before: Stack | None) -> bool:
    """Return whether a thread that computes in Python had the same values at an earlier sample, all of them plain ones.

    A loop that works changes something: its variable, its sum. What an object holds inside cannot be seen.
    """
    old = _earlier(thread, before)
    if old is None or not thread.frames or not old.frames:
        return False
    frame, then = thread.frames[0], old.frames[0]
    if (frame.function, frame.file) != (then.function, then.file):
        return False
    values = frame.state
    plain = not any("<" in value or "..." in value for value in values.values())
    return bool(values) and plain and [f.state for f in python(thread.frames)] == [f.state for f in python(old.frames)]


def busy(stack: Stack) -> list[Thread]:
    """Return the threads that are not idle by design, as feeder and monitor threads are."""
    return [thread for thread in stack.threads if thread.frames and not IDLE_THREADS.search(thread.name)]


def process_name(stack: Stack) -> str:
    """Return what a process is called: by its number among the workers of its loader, where that is known."""
    loop = _worker_loop(stack)
    if loop and "worker_id" in loop.locals:
        return f"worker {loop.locals['worker_id']} (pid {stack.process.pid})"
    return f"worker {stack.process.pid}" if is_worker(stack) else f"process {stack.process.pid}"


def is_worker(stack: Stack) -> bool:
    """Return whether a process is a worker of a DataLoader."""
    loop = _worker_loop(stack)
    return loop is not None and loop.file.endswith("torch/utils/data/_utils/worker.py")


def _worker_loop(stack: Stack) -> Frame | None:
    frames = (frame for thread in stack.threads[:1] for frame in thread.frames)
    return next((frame for frame in frames if frame.function.endswith("_worker_loop")), None)
