"""What a program writes, removes or renames while it is replayed goes aside: nothing of the user's is lost.

A replay runs somebody's program again, which may begin with `shutil.rmtree("runs/mine")` or `open("log.csv", "w")`.
`ocrlab replay` copies this file to a folder on PYTHONPATH, where each Python of the program runs it before anything
else. It needs nothing of ocrlab. Files that are written lie under `aside/` in the folder of the replay, and are read
from there; what is removed stays, and may be removed again. New files of the temporary folder, caches, what a C library
or another program writes by itself, and files of more than LARGE bytes that are changed in place, are not looked at.

Until its first batch a program may find what was written since the run began: a checkpoint, from which it would go on
where the run began anew. What it reads of that is noted, or, where BEGAN says so, is not there yet.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import tempfile

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "OCRLAB_ASIDE"  # the folder of the replay
BEGAN = "OCRLAB_ASIDE_BEGAN"  # when the run began, `hide` or `note`, and its flight folder; until the first batch
LATER = "later.txt"  # in the folder of the replay: what was written since, and read before the first batch
CODE = (".py", ".pyc", ".so")
SYSTEM = ("/dev", "/proc", "/sys")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
OPEN, OS_OPEN, STAT, LSTAT, MKDIR, REMOVE = builtins.open, os.open, os.stat, os.lstat, os.mkdir, os.remove
RMDIR, REPLACE, RMTREE = os.rmdir, os.replace, shutil.rmtree
SCANDIR, LISTDIR, ACCESS = os.scandir, os.listdir, os.access
LARGE = 256 << 20  # bytes of a file of which no copy is made
IGNORED = ("truncate", "chmod", "utime", "chown", "symlink", "link", "setxattr", "removexattr", "mkfifo")

free: list[str] = []  # folders in which everything may be done
gone: set[str] = set()  # what the program has removed, and is still there
made: set[str] = set()  # what it has made in the temporary folder
place = {"aside": "", "temporary": ""}


def named(path: Any, folder: Any = None) -> str:
    """Return an absolute path, '' for what is none: an open file, a path below an open folder that is not known."""
    if isinstance(path, int) or path is None:
        return ""
    text = os.fsdecode(path)
    if folder is not None and not os.path.isabs(text):
        text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
    return os.path.abspath(text)


def below(path: str, folders: Any) -> bool:
    """Tell whether a path is one of some folders, or in one of them."""
    return any(path == one or path.startswith(one.rstrip("/") + "/") for one in folders)


def is_users(path: str) -> bool:
    """Tell whether a path may not be changed; new files of the temporary folder are the program's own."""
    if not path or below(path, free):
        return False
    if below(path, (place["temporary"],)):
        return path not in made and there(path) and not below(path, made)
    return True


def there(path: str) -> bool:
    """Tell whether there is something at a path."""
    try:
        LSTAT(path)
    except (OSError, ValueError):
        return False
    return True


def is_later(path: str) -> bool:
    """Tell whether a file of the user's was written after the run began, as long as that is asked."""
    began, _, rest = os.environ.get(BEGAN, "").partition(" ")
    if not began or not path or path.endswith(CODE):
        return False
    if below(path, (*free, rest.partition(" ")[2])) or there(other(path)):
        return False
    try:
        found = STAT(path)
    except (OSError, ValueError):
        return False
    return found.st_mtime > float(began) and found.st_mode & 0o170000 == 0o100000


def is_hidden(path: Any, folder: Any = None) -> bool:
    """Tell whether a file is not there yet."""
    if " hide " not in os.environ.get(BEGAN, ""):
        return False
    try:
        return is_later(named(path, folder))
    except (OSError, TypeError, ValueError):
        return False


def missing(path: Any, folder: Any = None) -> None:
    """Raise FileNotFoundError for what is not there yet."""
    if is_hidden(path, folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def reads(path: Any, folder: Any = None) -> None:
    """Note that a file is read which was written after the run began; raises FileNotFoundError where it is hidden."""
    if BEGAN not in os.environ:
        return
    missing(path, folder)
    try:
        if not isinstance(path, int) and is_later(found := named(path, folder)):
            with OPEN(os.path.join(os.path.dirname(place["aside"]), LATER), "a") as file:
                file.write(found + "\n")
    except (OSError, TypeError, ValueError):
        return


def fed() -> None:
    """Say that the program gets its first batch: what it reads from now on is as it lies there."""
    os.environ.pop(BEGAN, None)


class Listing:
    """Takes the place of what os.scandir returns, without what is not there yet."""

    def __init__(self, path: Any = ".") -> None:
        self.inner: Any = SCANDIR(path)
        self.close = self.inner.close

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        while is_hidden((entry := next(self.inner)).path):
            continue
        return entry

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def listdir(path: Any = ".") -> list[Any]:
    """Take the place of os.listdir."""
    names = LISTDIR(path)
    if isinstance(path, int):
        return names
    here = path or (b"." if names and isinstance(names[0], bytes) else ".")
    return [name for name in names if not is_hidden(os.path.join(here, name))]


def access(path: Any, *args: Any, **named_args: Any) -> bool:
    """Take the place of os.access."""
    return not is_hidden(path, named_args.get("dir_fd")) and ACCESS(path, *args, **named_args)


def other(path: str) -> str:
    """Return where what is written to a path goes."""
    return place["aside"] + path


def written(path: Any, folder: Any = None) -> str:
    """Return where a path was written to, '' where it was not."""
    try:
        found = named(path, folder)
    except (OSError, TypeError, ValueError):
        return ""
    return other(found) if found and not below(found, free) and there(other(found)) else ""


def to_write(path: str, *, keeps: bool, new: bool) -> str:
    """Return the file aside in place of one that is to be written; of one that `keeps` its content a copy."""
    at = other(path)
    seen = there(at) or (there(path) and not below(path, gone) and not is_hidden(path))
    if new and seen:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    if os.path.isdir(path) or (keeps and seen and not there(at) and STAT(path).st_size > LARGE):
        return path  # of a folder Python says what it is
    folders(os.path.dirname(at))
    if keeps and seen and not there(at):
        with OPEN(path, "rb") as source, OPEN(at, "wb") as copy:
            shutil.copyfileobj(source, copy)
    return at


def folders(path: str) -> None:
    """Make a folder aside, and those that it is in."""
    if not there(path):
        folders(os.path.dirname(path))
        try:
            MKDIR(path, 0o700)
        except FileExistsError:
            return


def opened(file: Any, mode: Any = "r", *args: Any, **named_args: Any) -> Any:
    """Take the place of open."""
    if isinstance(mode, str) and not isinstance(file, int):
        writes = any(sign in mode for sign in "wax+")
        path = named(file) if writes else ""
        if writes and is_users(path):
            file = to_write(path, keeps="a" in mode or "r" in mode, new="x" in mode)
        elif writes:
            own(path)
        elif at := written(file):
            file = at
        else:
            reads(file)
    return OPEN(file, mode, *args, **named_args)


def os_opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
    """Take the place of os.open."""
    unnamed = getattr(os, "O_TMPFILE", 0)
    if flags & WRITES and not (unnamed and flags & unnamed == unnamed):
        target = named(path, dir_fd)
        if is_users(target):
            keeps, new = not flags & os.O_TRUNC, bool(flags & os.O_EXCL)
            if flags & os.O_CREAT or there(target):
                return OS_OPEN(to_write(target, keeps=keeps, new=new), flags | os.O_CREAT, mode)
        own(target)
    elif at := written(path, dir_fd):
        return OS_OPEN(at, flags, mode)
    else:
        reads(path, dir_fd)
    return OS_OPEN(path, flags, mode, dir_fd=dir_fd)


def own(path: str) -> None:
    """Note what the program makes in the temporary folder."""
    if path and below(path, (place["temporary"],)) and not there(path):
        made.add(path)


def stat(path: Any, *, dir_fd: Any = None, follow_symlinks: bool = True) -> Any:
    """Take the place of os.stat."""
    at = "" if isinstance(path, int) else written(path, dir_fd)
    missing(path, dir_fd)
    return STAT(at or path, dir_fd=None if at else dir_fd, follow_symlinks=follow_symlinks)


def lstat(path: Any, *, dir_fd: Any = None) -> Any:
    """Take the place of os.lstat."""
    at = written(path, dir_fd)
    missing(path, dir_fd)
    return LSTAT(at or path, dir_fd=None if at else dir_fd)


def mkdir(path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> None:
    """Take the place of os.mkdir: an empty folder more does no harm, and one that was removed is still there."""
    target = named(path, dir_fd)
    if below(target, gone) and os.path.isdir(target):
        gone.discard(target)
        return
    own(target)
    MKDIR(path, mode, dir_fd=dir_fd)


def removing(usual: Any) -> Any:
    """Return what takes the place of os.remove, os.unlink or os.rmdir."""

    def remove(path: Any, *, dir_fd: Any = None) -> None:
        target = named(path, dir_fd)
        if not is_users(target):
            made.discard(target)
            return usual(path, dir_fd=dir_fd)  # type: ignore[no-any-return]
        at = other(target)
        if not there(at) and not there(target):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), target)
        if there(at):
            (RMTREE if os.path.isdir(at) else REMOVE)(at)
        if there(target):
            gone.add(target)
        return None

    return remove


def rmtree(path: Any, *args: Any, **named_args: Any) -> Any:
    """Take the place of shutil.rmtree."""
    target = named(path)
    if not is_users(target):
        return RMTREE(path, *args, **named_args)
    if there(other(target)):
        RMTREE(other(target), ignore_errors=True)
    if not there(target):
        return RMTREE(path, *args, **named_args)  # which says so, if it is to
    gone.add(target)
    return None


def replace(src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None) -> None:
    """Take the place of os.rename and os.replace."""
    source, target = named(src, src_dir_fd), named(dst, dst_dir_fd)
    at = written(src, src_dir_fd)
    if not at and not is_users(source) and not is_users(target):
        own(target)
        return REPLACE(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
    if not at and not there(source):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
    if is_users(target):
        folders(os.path.dirname(other(target)))
        target = other(target)
    if not at and is_users(source):  # it stays where it is, and is seen there too
        if there(target):
            REMOVE(target)
        SYMLINK(source, target)
        gone.add(source)
        return None
    try:
        REPLACE(at or source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(at or source, target)
        REMOVE(at or source)
    return None


SYMLINK = os.symlink


def ignoring(usual: Any) -> Any:
    """Return a function of os that does nothing to what may not be changed."""

    def done(*args: Any, **named_args: Any) -> Any:
        for at, path in enumerate(args[:2]):
            is_path = isinstance(path, str | bytes | os.PathLike)
            if is_path and not written(path) and is_users(named(path, named_args.get("dir_fd"))):
                return None
            if is_path and (moved := written(path)):
                args = (*args[:at], moved, *args[at + 1 :])
        return usual(*args, **named_args)

    return done


class Function:
    """What takes the place of a built-in function: no method of a class that keeps it, as one in Python would be."""

    def __init__(self, call: Any, usual: Any) -> None:
        self.call, self.__name__, self.__doc__ = call, usual.__name__, usual.__doc__
        for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            if usual in known:
                known.add(self)

    def __call__(self, *args: Any, **named_args: Any) -> Any:
        return self.call(*args, **named_args)


def begin(folder: str | None = None) -> None:
    """Put everything aside from now on, in a process that is replayed; once."""
    folder = folder or os.environ.get(VARIABLE, "")
    if not folder or type(builtins.open).__name__ == Function.__name__ or os.name != "posix":
        return
    place.update(aside=os.path.join(folder, "aside"), temporary=os.path.abspath(tempfile.gettempdir()))
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    free[:] = [os.path.abspath(folder), *SYSTEM, os.path.abspath(cache)]
    builtins.open = io.open = Function(opened, OPEN)  # type: ignore[assignment]
    found = {"open": os_opened, "stat": stat, "lstat": lstat, "mkdir": mkdir, "rename": replace, "replace": replace}
    found |= {"remove": removing(REMOVE), "unlink": removing(REMOVE), "rmdir": removing(RMDIR)}
    found |= {name: ignoring(getattr(os, name)) for name in IGNORED if hasattr(os, name)}
    for name, call in found.items():
        setattr(os, name, Function(call, getattr(os, name)))
    if " hide " in os.environ.get(BEGAN, ""):
        os.scandir, os.listdir, os.access = Listing, listdir, access  # type: ignore[misc, assignment]
    shutil.rmtree = Function(rmtree, RMTREE)  # type: ignore[assignment]


begin()
