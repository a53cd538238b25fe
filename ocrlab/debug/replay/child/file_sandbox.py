"""What a replayed program writes, renames or removes in Python goes to the scratch folder of its replay, and trackers
are off: a program that begins with `shutil.rmtree("runs/mine")` or `mlflow.set_tracking_uri(...)` changes nothing.

`ocrlab replay` copies this file to a folder on PYTHONPATH, where each Python of the program runs it before anything
else. It needs nothing of ocrlab, and is never used in a recorded training. Files that are written lie below `aside/` in
the folder of the replay and are read from there; what is removed stays, and may be removed again. Not held back are
writers in C, C++ and Rust (cv2, h5py, safetensors, a database that is not SQLite), other programs, new files of the
temporary folder, caches, and files of more than LARGE bytes that are changed in place.

Until its first batch a program may meet files that were written after the run began: a checkpoint, from which it would
go on where the run began anew. The ones that it reads are listed, or, where BEGAN says so, they are not there yet.
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
LATER = "later.txt"  # in the folder of the replay: files that were written later, and read before the first batch
CODE = (".py", ".pyc", ".so")
SYSTEM = ("/dev", "/proc", "/sys")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
OPEN, OS_OPEN, STAT, LSTAT, MKDIR, REMOVE = builtins.open, os.open, os.stat, os.lstat, os.mkdir, os.remove
RMDIR, REPLACE, SYMLINK, RMTREE = os.rmdir, os.replace, os.symlink, shutil.rmtree
ON_COPIES = ("truncate", "chmod", "utime", "symlink", "link")  # done to what was written, else not at all
LARGE = 256 << 20  # bytes of a file of which no copy is made

free: list[str] = []  # folders in which everything may be done
removed: set[str] = set()  # what the program has removed, and is still there
own: set[str] = set()  # what it has made in the temporary folder
place = {"aside": "", "temporary": ""}


def tracker_variables(folder: str) -> dict[str, str]:
    """Return the environment in which trackers are off, as they document it, or write into a folder."""
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
    """Return by module and function which arguments a program cannot set: what it says itself would win over its
    environment.
    """
    store = f"file://{folder}/mlruns"
    return {
        "wandb": {"init": {"mode": "disabled"}},
        "swanlab": {"init": {"mode": "disabled"}},
        "neptune": {"init_run": {"mode": "debug"}},
        "comet_ml": {"start": {"online": False}, "Experiment": {"disabled": True}},
        "mlflow": {
            "set_tracking_uri": {"uri": store},
            "MlflowClient": {"tracking_uri": store, "registry_uri": store},
        },
        "aim": {"Run": {"repo": folder, "run_hash": None}},
        "sqlite3": {},
        "tensorboard.compat": {},
    }


class Finder:
    """Changes a tracker when the program imports it (a finder of sys.meta_path)."""

    def __init__(self, forced: dict[str, dict[str, dict[str, Any]]]) -> None:
        self.forced = forced
        self.under_way = ""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        """Return the spec of a tracker, that of any other module is found by other finders."""
        if name not in self.forced or name == self.under_way:
            return None
        from importlib.util import find_spec

        self.under_way = name
        try:
            spec: Any = find_spec(name)
        finally:
            self.under_way = ""
        run = getattr(getattr(spec, "loader", None), "exec_module", None)
        if run is None:
            return None

        def exec_module(module: Any) -> None:
            run(module)
            self.change(module)

        spec.loader.exec_module = exec_module
        return spec

    def change(self, module: Any) -> None:
        """Change a module that has been imported."""
        for name, arguments in self.forced[module.__name__].items():
            real = getattr(module, name, None)
            if isinstance(real, type):
                real.__init__ = forcing(real.__init__, arguments)  # type: ignore[misc]
            elif real is not None:
                setattr(module, name, forcing(real, arguments))
        if module.__name__ == "sqlite3":
            module.connect = module.dbapi2.connect = connecting(module.connect)
        elif module.__name__ == "tensorboard.compat":  # with TensorFlow it would write in C++
            sys.modules.setdefault("tensorboard.compat.notf", type(sys)("tensorboard.compat.notf"))


def forcing(real: Any, arguments: dict[str, Any]) -> Any:
    """Return a function that is always called with some arguments, of those that it has."""

    def call(*args: Any, **named: Any) -> Any:
        from inspect import signature

        given = signature(real).bind(*args, **named)
        known = given.signature.parameters
        given.arguments.update({name: value for name, value in arguments.items() if name in known})
        return real(*given.args, **given.kwargs)

    return call


def connecting(real: Any) -> Any:
    """Return what takes the place of sqlite3.connect: a database of the user's is a copy."""

    def connect(database: Any, *args: Any, **named: Any) -> Any:
        text = "" if isinstance(database, int) else os.fsdecode(database)
        start = "file:" if text.startswith("file:") and named.get("uri") else ""
        path, mark, query = text[len(start) :].partition("?") if start else (text, "", "")
        if path and not path.startswith(":memory:") and "mode=memory" not in query:
            for more in ("-wal", "-journal"):
                if there(path + more):
                    to_write(absolute(path + more), keeps=True, new=False)
            database = start + target(path, keeps=True) + mark + query
        return real(database, *args, **named)

    return connect


def absolute(path: Any, folder: Any = None) -> str:
    """Return an absolute path, '' for what is none: an open file, a path below an open folder that is not known."""
    if isinstance(path, int) or path is None:
        return ""
    text = os.fsdecode(path)
    if folder is not None and not os.path.isabs(text):
        text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
    return os.path.abspath(text)


def below(path: str, folders: Any) -> bool:
    """Tell whether a path is one of some folders, or in one of them."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def there(path: str) -> bool:
    """Tell whether there is something at a path."""
    try:
        LSTAT(path)
    except (OSError, ValueError):
        return False
    return True


def is_users(path: str) -> bool:
    """Tell whether a path may not be changed; new files of the temporary folder are the program's own."""
    if not path or below(path, free):
        return False
    if below(path, (place["temporary"],)):
        return path not in own and there(path) and not below(path, own)
    return True


def copy_of(path: str) -> str:
    """Return where what is written to a path goes."""
    return place["aside"] + path


def written(path: Any, folder: Any = None) -> str:
    """Return where a path was written to, '' where it was not."""
    try:
        full = absolute(path, folder)
    except (OSError, TypeError, ValueError):
        return ""
    return copy_of(full) if full and not below(full, free) and there(copy_of(full)) else ""


def is_later(path: Any, folder: Any = None) -> bool:
    """Tell whether a file of the user's was written after the run began, as long as that is asked."""
    began, _, rest = os.environ.get(BEGAN, "").partition(" ")
    try:
        full = absolute(path, folder) if began else ""
        if not full or full.endswith(CODE) or below(full, (*free, rest.partition(" ")[2])) or there(copy_of(full)):
            return False
        found = STAT(full)
    except (OSError, TypeError, ValueError):
        return False
    return found.st_mtime > float(began) and found.st_mode & 0o170000 == 0o100000


def source(path: Any, folder: Any = None, *, note: bool = True) -> Any:
    """Return what is read in place of a path; raises FileNotFoundError for a file that is not there yet."""
    if isinstance(path, int):
        return path
    if at := written(path, folder):
        return at
    if BEGAN in os.environ and is_later(path, folder):
        if " hide " in os.environ[BEGAN]:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if note:
            with OPEN(os.path.join(os.path.dirname(place["aside"]), LATER), "a") as file:
                file.write(absolute(path, folder) + "\n")
    return path


def fed() -> None:
    """Say that the program gets its first batch: what it reads from now on is as it lies there."""
    os.environ.pop(BEGAN, None)


def target(path: Any, folder: Any = None, *, keeps: bool, new: bool = False) -> Any:
    """Return what is written in place of a path: a copy aside, of one that `keeps` its content with that."""
    full = absolute(path, folder)
    if is_users(full):
        return to_write(full, keeps=keeps, new=new)
    make_own(full)
    return path


def to_write(path: str, *, keeps: bool, new: bool) -> str:
    """Return the file aside in place of one of the user's; of a folder Python says what it is."""
    at = copy_of(path)
    seen = there(at) or (there(path) and not below(path, removed) and not _is_hidden(path))
    if new and seen:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    copies = keeps and seen and not there(at)
    if os.path.isdir(path) or (copies and STAT(path).st_size > LARGE):
        return path
    make_folders(os.path.dirname(at))
    if copies:
        with OPEN(path, "rb") as content, OPEN(at, "wb") as copy:
            shutil.copyfileobj(content, copy)
    return at


def _is_hidden(path: str) -> bool:
    return " hide " in os.environ.get(BEGAN, "") and is_later(path)


def make_folders(path: str) -> None:
    """Make a folder aside, and those that it is in."""
    if not there(path):
        make_folders(os.path.dirname(path))
        try:
            MKDIR(path, 0o700)
        except FileExistsError:
            return


def make_own(path: str) -> None:
    """Note what the program makes in the temporary folder."""
    if path and below(path, (place["temporary"],)) and not there(path):
        own.add(path)


def open_file(file: Any, mode: Any = "r", *args: Any, **named: Any) -> Any:
    """Take the place of open."""
    if isinstance(mode, str) and not isinstance(file, int):
        writes = any(sign in mode for sign in "wax+")
        keeps, new = "a" in mode or "r" in mode, "x" in mode
        file = target(file, keeps=keeps, new=new) if writes else source(file)
    return OPEN(file, mode, *args, **named)


def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
    """Take the place of os.open."""
    unnamed = getattr(os, "O_TMPFILE", 0)
    if not flags & WRITES or (unnamed and flags & unnamed == unnamed):
        at = source(path, dir_fd)
    elif flags & os.O_CREAT or there(absolute(path, dir_fd)) or written(path, dir_fd):
        at = target(path, dir_fd, keeps=not flags & os.O_TRUNC, new=bool(flags & os.O_EXCL))
    else:
        at = path
    return OS_OPEN(at, flags | (os.O_CREAT if at is not path and flags & WRITES else 0), mode, dir_fd=_fd(at, dir_fd))


def _fd(path: Any, dir_fd: Any) -> Any:
    """Return what a path is relative to: nothing where it is one aside."""
    return None if isinstance(path, str) and below(path, (place["aside"],)) else dir_fd


def stat(path: Any, *, dir_fd: Any = None, follow_symlinks: bool = True) -> Any:
    """Take the place of os.stat."""
    at = source(path, dir_fd, note=False)
    return STAT(at, dir_fd=_fd(at, dir_fd), follow_symlinks=follow_symlinks)


def lstat(path: Any, *, dir_fd: Any = None) -> Any:
    """Take the place of os.lstat."""
    at = source(path, dir_fd, note=False)
    return LSTAT(at, dir_fd=_fd(at, dir_fd))


def mkdir(path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> None:
    """Take the place of os.mkdir: an empty folder more does no harm, and one that was removed is still there."""
    full = absolute(path, dir_fd)
    if below(full, removed) and os.path.isdir(full):
        removed.discard(full)
        return
    make_own(full)
    MKDIR(path, mode, dir_fd=dir_fd)


def removing(usual: Any) -> Any:
    """Return what takes the place of os.remove, os.unlink, os.rmdir or shutil.rmtree."""

    def remove(path: Any, *args: Any, **named: Any) -> None:
        full = absolute(path, named.get("dir_fd"))
        at = copy_of(full)
        if not is_users(full) or not (there(at) or there(full)):
            usual(path, *args, **named)  # which says so, if there is nothing
            return own.discard(full)
        if there(at):
            (RMTREE if os.path.isdir(at) else REMOVE)(at)
        if there(full):
            removed.add(full)
        return None

    return remove


def replace(src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None) -> None:
    """Take the place of os.rename and os.replace."""
    start, end = absolute(src, src_dir_fd), absolute(dst, dst_dir_fd)
    at = written(src, src_dir_fd)
    if not at and not is_users(start) and not is_users(end):
        make_own(end)
        return REPLACE(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
    if not at and not there(start):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), start)
    if is_users(end):
        end = copy_of(end)
        make_folders(os.path.dirname(end))
    if not at and is_users(start):  # it stays where it is, and is seen there too
        if there(end):
            REMOVE(end)
        SYMLINK(start, end)
        removed.add(start)
        return None
    try:
        REPLACE(at or start, end)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(at or start, end)
        REMOVE(at or start)
    return None


def on_copies(usual: Any) -> Any:
    """Return a function of os that does nothing to what may not be changed."""

    def call(*args: Any, **named: Any) -> Any:
        for number, path in enumerate(args[:2]):
            is_path = isinstance(path, str | bytes | os.PathLike)
            if is_path and (at := written(path)):
                args = (*args[:number], at, *args[number + 1 :])
            elif is_path and is_users(absolute(path, named.get("dir_fd"))):
                return None
        return usual(*args, **named)

    return call


class Function:
    """What takes the place of a built-in function: no method of a class that keeps it, as one in Python would be."""

    def __init__(self, call: Any, usual: Any) -> None:
        self.call, self.__name__, self.__doc__ = call, usual.__name__, usual.__doc__
        for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            if usual in known:
                known.add(self)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.call(*args, **named)


def is_active() -> bool:
    """Tell whether what this process writes goes aside."""
    return type(builtins.open).__name__ == Function.__name__


def begin(folder: str | None = None) -> None:
    """Put everything aside from now on, in a process that is replayed; once."""
    folder = folder or os.environ.get(VARIABLE, "")
    if not folder or is_active() or os.name != "posix":
        return
    place.update(aside=os.path.join(folder, "aside"), temporary=os.path.abspath(tempfile.gettempdir()))
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    free[:] = [os.path.abspath(folder), *SYSTEM, os.path.abspath(cache)]
    builtins.open = io.open = Function(open_file, OPEN)  # type: ignore[assignment]
    calls = {"open": os_open, "stat": stat, "lstat": lstat, "mkdir": mkdir, "rename": replace, "replace": replace}
    calls |= {name: removing(getattr(os, name)) for name in ("remove", "unlink", "rmdir")}
    calls |= {name: on_copies(getattr(os, name)) for name in ON_COPIES if hasattr(os, name)}
    for name, call in calls.items():
        setattr(os, name, Function(call, getattr(os, name)))
    shutil.rmtree = Function(removing(RMTREE), RMTREE)  # type: ignore[assignment]
    finder = Finder(forced_arguments(os.path.abspath(folder)))
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    for name in finder.forced.keys() & sys.modules.keys():
        finder.change(sys.modules[name])


begin()
