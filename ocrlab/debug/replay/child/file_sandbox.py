"""Keep a replayed program from changing files of the user: its writes, renames and removals in Python go to a scratch
folder, and experiment trackers are off.

`ocrlab replay` copies this file to a folder on PYTHONPATH, where each Python of the program runs it before anything
else. It imports nothing of ocrlab, and a recorded training never uses it. A written file lies below `aside/` in the
folder of the replay and is read from there. A removed file stays, and can be removed again. These pass: writers in C,
C++ and Rust (cv2, h5py, safetensors, databases other than SQLite), other programs, calls with `dir_fd`, new files of
the temporary folder, caches, and changes in place to files of more than LARGE bytes.

Until its first batch a program may find files that were written after the run began, such as a checkpoint from which it
would resume. Those that it reads are listed, or hidden where BEGAN says so.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import sys
import tempfile

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "OCRLAB_ASIDE"  # the folder of the replay
BEGAN = "OCRLAB_ASIDE_BEGAN"  # when the run began, `hide` or `note`, and its flight folder; until the first batch
LATER = "later.txt"  # in the folder of the replay: later files that the program read before its first batch
CODE = (".py", ".pyc", ".so")
SYSTEM = ("/dev", "/proc", "/sys")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
OPEN, OS_OPEN, STAT, LSTAT, MKDIR, REMOVE = builtins.open, os.open, os.stat, os.lstat, os.mkdir, os.remove
REPLACE, SYMLINK, RMTREE = os.replace, os.symlink, shutil.rmtree
REMOVALS = ("remove", "unlink", "rmdir")
ON_COPIES = ("truncate", "chmod", "utime", "symlink", "link")  # applied to a copy, ignored for a file of the user
LARGE = 256 << 20  # bytes of a file of which no copy is made

folders = {"copies": "", "temporary": ""}
writable_dirs: list[str] = []
removed_paths: set[str] = set()  # the program removed them; they still exist
created_paths: set[str] = set()  # the program made them in the temporary folder


def tracker_variables(folder: str) -> dict[str, str]:
    """Return the documented environment variables that switch trackers off, or have them write into a folder."""
    return {
        "WANDB_MODE": "disabled",
        "COMET_START_ONLINE": "0",
        "COMET_MODE": "disabled",
        "COMET_OFFLINE_DIRECTORY": folder,
        "NEPTUNE_MODE": "debug",
        "SWANLAB_MODE": "disabled",
        "CLEARML_OFFLINE_MODE": "1",
        "CLEARML_CACHE_DIR": folder,
        "MLFLOW_TRACKING_URI": f"file://{folder}/mlruns",
        "MLFLOW_REGISTRY_URI": f"file://{folder}/mlruns",
    }


def forced_arguments(folder: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return by module and function the arguments that a program cannot set; they would override its environment."""
    store = f"file://{folder}/mlruns"
    clients = {"set_tracking_uri": {"uri": store}, "MlflowClient": {"tracking_uri": store, "registry_uri": store}}
    return {
        "wandb": {"init": {"mode": "disabled"}},
        "swanlab": {"init": {"mode": "disabled"}},
        "neptune": {"init_run": {"mode": "debug"}},
        "comet_ml": {"start": {"online": False}, "Experiment": {"disabled": True}},
        "mlflow": clients,
        "aim": {"Run": {"repo": folder, "run_hash": None}},
        "sqlite3": {},
        "tensorboard.compat": {},
    }


class TrackerFinder:
    """Changes a tracker when the program imports it (a finder of sys.meta_path)."""

    def __init__(self, forced: dict[str, dict[str, dict[str, Any]]]) -> None:
        self.forced = forced
        self.importing = ""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        """Return the spec of a tracker; other finders find any other module."""
        if name not in self.forced or name == self.importing:
            return None
        from importlib.util import find_spec

        self.importing = name
        try:
            spec: Any = find_spec(name)
        finally:
            self.importing = ""
        run = getattr(getattr(spec, "loader", None), "exec_module", None)
        if run is None:
            return None

        def exec_module(module: Any) -> None:
            run(module)
            self.change(module)

        spec.loader.exec_module = exec_module
        return spec

    def change(self, module: Any) -> None:
        """Change an imported module."""
        for name, arguments in self.forced[module.__name__].items():
            real = getattr(module, name, None)
            if isinstance(real, type):
                real.__init__ = force(real.__init__, arguments)  # type: ignore[misc]
            elif real is not None:
                setattr(module, name, force(real, arguments))
        if module.__name__ == "sqlite3":
            module.connect = module.dbapi2.connect = connect_to_copy(module.connect)
        elif module.__name__ == "tensorboard.compat":  # with TensorFlow it would write in C++
            sys.modules.setdefault("tensorboard.compat.notf", type(sys)("tensorboard.compat.notf"))


def force(real: Any, arguments: dict[str, Any]) -> Any:
    """Return a function that calls `real` with those of the `arguments` that it takes."""

    def call(*args: Any, **named: Any) -> Any:
        from inspect import signature

        bound = signature(real).bind(*args, **named)
        names = bound.signature.parameters
        bound.arguments.update({name: value for name, value in arguments.items() if name in names})
        return real(*bound.args, **bound.kwargs)

    return call


def connect_to_copy(real: Any) -> Any:
    """Return a replacement of sqlite3.connect that opens a copy of a database of the user."""

    def connect(database: Any, *args: Any, **named: Any) -> Any:
        text = "" if isinstance(database, int) else os.fsdecode(database)
        scheme = "file:" if text.startswith("file:") and named.get("uri") else ""
        path, mark, query = text[len(scheme) :].partition("?") if scheme else (text, "", "")
        if path and not path.startswith(":memory:") and "mode=memory" not in query:
            for journal in (path + "-wal", path + "-journal"):
                if exists(journal):
                    write_path(journal, keep_content=True)
            database = scheme + write_path(path, keep_content=True) + mark + query
        return real(database, *args, **named)

    return connect


def absolute(path: Any) -> str:
    """Return an absolute path, '' for an open file."""
    return "" if path is None or isinstance(path, int) else os.path.abspath(os.fsdecode(path))


def is_below(path: str, tops: Any) -> bool:
    """Return whether a path is one of some folders, or in one of them."""
    return any(path == top or path.startswith(top.rstrip("/") + "/") for top in tops)


def exists(path: str) -> bool:
    """Return whether there is something at a path, be it a broken link."""
    try:
        LSTAT(path)
    except (OSError, ValueError):
        return False
    return True


def is_protected(path: str) -> bool:
    """Return whether a path must not be changed; new files of the temporary folder belong to the program."""
    if not path or is_below(path, writable_dirs):
        return False
    return not is_below(path, (folders["temporary"],)) or (exists(path) and not is_below(path, created_paths))


def copy_of(path: Any) -> str:
    """Return where the program wrote a path, '' where it did not."""
    try:
        full = absolute(path)
    except (TypeError, ValueError):
        return ""
    return folders["copies"] + full if full and exists(folders["copies"] + full) else ""


def is_later(path: Any) -> bool:
    """Return whether a file of the user was written after the run began; False after the first batch."""
    began, _, rest = os.environ.get(BEGAN, "").partition(" ")
    try:
        full = absolute(path) if began else ""
        if not full or full.endswith(CODE) or is_below(full, (*writable_dirs, rest.partition(" ")[2])) or copy_of(full):
            return False
        status = STAT(full)
    except (OSError, TypeError, ValueError):
        return False
    return status.st_mtime > float(began) and status.st_mode & 0o170000 == 0o100000


def is_hidden(path: Any) -> bool:
    """Return whether a later file does not exist for the program."""
    return " hide " in os.environ.get(BEGAN, "") and is_later(path)


def read_path(path: Any, *, note: bool = True) -> Any:
    """Return the path to read in place of another one; raises FileNotFoundError for a hidden file."""
    if isinstance(path, int):
        return path
    if copy := copy_of(path):
        return copy
    if is_hidden(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if note and is_later(path):
        with OPEN(os.path.join(os.path.dirname(folders["copies"]), LATER), "a") as file:
            file.write(absolute(path) + "\n")
    return path


def end_hiding() -> None:
    """Show all files from now on: the program gets its first batch."""
    os.environ.pop(BEGAN, None)


def write_path(path: Any, *, keep_content: bool, new: bool = False) -> Any:
    """Return the path to write in place of another one: a copy of a file of the user, without its content unless
    `keep_content`; raises FileExistsError for a `new` file that exists.
    """
    full = absolute(path)
    if not is_protected(full):
        note_created(full)
        return path
    copy = folders["copies"] + full
    original_exists = exists(full) and not is_below(full, removed_paths) and not is_hidden(full)
    if new and (original_exists or exists(copy)):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), full)
    copies = keep_content and original_exists and not exists(copy)
    if os.path.isdir(full) or (copies and STAT(full).st_size > LARGE):
        return full
    os.makedirs(os.path.dirname(copy), 0o700, exist_ok=True)
    if copies:
        with OPEN(full, "rb") as content, OPEN(copy, "wb") as file:
            shutil.copyfileobj(content, file)
    return copy


def note_created(path: str) -> None:
    """Note a path that the program is about to make in the temporary folder."""
    if path and is_below(path, (folders["temporary"],)) and not exists(path):
        created_paths.add(path)


def open_file(file: Any, mode: Any = "r", *args: Any, **named: Any) -> Any:
    """Replace open."""
    if isinstance(mode, str) and not isinstance(file, int):
        if any(sign in mode for sign in "wax+"):
            file = write_path(file, keep_content="a" in mode or "r" in mode, new="x" in mode)
        else:
            file = read_path(file)
    return OPEN(file, mode, *args, **named)


def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
    """Replace os.open."""
    if dir_fd is not None:
        return OS_OPEN(path, flags, mode, dir_fd=dir_fd)
    if not flags & WRITES:
        return OS_OPEN(read_path(path), flags, mode)
    if flags & os.O_CREAT or exists(absolute(path)) or copy_of(path):
        target = write_path(path, keep_content=not flags & os.O_TRUNC, new=bool(flags & os.O_EXCL))
        flags |= os.O_CREAT if is_below(os.fsdecode(target), (folders["copies"],)) else 0
        path = target
    return OS_OPEN(path, flags, mode)


def on_reads(real: Any) -> Any:
    """Return a replacement of os.stat or os.lstat."""

    def look(path: Any, *, dir_fd: Any = None, **named: Any) -> Any:
        return real(path if dir_fd is not None else read_path(path, note=False), dir_fd=dir_fd, **named)

    return look


def mkdir(path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> None:
    """Replace os.mkdir: an empty folder more does no harm, and a removed folder still exists."""
    full = absolute(path) if dir_fd is None else ""
    if is_below(full, removed_paths) and os.path.isdir(full):
        removed_paths.discard(full)
        return
    note_created(full)
    MKDIR(path, mode, dir_fd=dir_fd)


def remover(real: Any) -> Any:
    """Return a replacement of os.remove, os.unlink, os.rmdir or shutil.rmtree."""

    def remove(path: Any, *args: Any, **named: Any) -> None:
        full = absolute(path) if named.get("dir_fd") is None else ""
        copy = copy_of(full)
        if not is_protected(full) or not (copy or exists(full)):
            real(path, *args, **named)  # raises where there is nothing
            return created_paths.discard(full)
        if copy:
            (RMTREE if os.path.isdir(copy) else REMOVE)(copy)
        if exists(full):
            removed_paths.add(full)
        return None

    return remove


def replace(src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None) -> None:
    """Replace os.rename and os.replace."""
    start, end, copy = absolute(src), absolute(dst), copy_of(src)
    if src_dir_fd is not None or dst_dir_fd is not None or not (copy or is_protected(start) or is_protected(end)):
        note_created(end)
        return REPLACE(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
    if not copy and not exists(start):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), start)
    if is_protected(end):
        end = folders["copies"] + end
        os.makedirs(os.path.dirname(end), 0o700, exist_ok=True)
    if not copy and is_protected(start):  # it stays where it is, and also appears at its new name
        if exists(end):
            REMOVE(end)
        SYMLINK(start, end)
        removed_paths.add(start)
        return None
    try:
        REPLACE(copy or start, end)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(copy or start, end)
        REMOVE(copy or start)
    return None


def on_copies(real: Any) -> Any:
    """Return a replacement of a function of os that changes copies and ignores files of the user."""

    def call(*args: Any, **named: Any) -> Any:
        for number, path in enumerate(args[:2]):
            if isinstance(path, str | bytes | os.PathLike):
                if copy := copy_of(path):
                    args = (*args[:number], copy, *args[number + 1 :])
                elif is_protected(absolute(path)):
                    return None
        return real(*args, **named)

    return call


class Function:
    """Stands for a built-in function; as an attribute of a class it does not become a method."""

    def __init__(self, call: Any, real: Any) -> None:
        self.call, self.__name__, self.__doc__ = call, real.__name__, real.__doc__
        for supporting in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            if real in supporting:
                supporting.add(self)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.call(*args, **named)


def is_active() -> bool:
    """Return whether this process writes into the scratch folder."""
    return type(builtins.open).__name__ == Function.__name__


def begin(folder: str | None = None) -> None:
    """Redirect this process, which is replayed, from now on; once."""
    folder = folder or os.environ.get(VARIABLE, "")
    if not folder or is_active() or os.name != "posix":
        return
    folders.update(copies=os.path.join(folder, "aside"), temporary=os.path.abspath(tempfile.gettempdir()))
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    writable_dirs[:] = [os.path.abspath(folder), *SYSTEM, os.path.abspath(cache)]
    builtins.open = io.open = Function(open_file, OPEN)  # type: ignore[assignment]
    calls = {"open": os_open, "mkdir": mkdir, "rename": replace, "replace": replace}
    calls |= {"stat": on_reads(STAT), "lstat": on_reads(LSTAT)}
    calls |= {name: remover(getattr(os, name)) for name in REMOVALS}
    calls |= {name: on_copies(getattr(os, name)) for name in ON_COPIES}
    for name, call in calls.items():
        setattr(os, name, Function(call, getattr(os, name)))
    shutil.rmtree = Function(remover(RMTREE), RMTREE)  # type: ignore[assignment]
    finder = TrackerFinder(forced_arguments(os.path.abspath(folder)))
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    for name in finder.forced.keys() & sys.modules.keys():
        finder.change(sys.modules[name])


begin()
