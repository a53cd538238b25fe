"""The image cache: the right pixels always, whatever happens to its files; the limit holds; workers may share it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import struct
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from ocrlab.data import image_cache as module
from ocrlab.data.image_cache import SUFFIX, TEMPORARY, Cache
from ocrlab.data.image_io import read_image
from ocrlab.errors import ConfigError, DataError

Mode = Literal["none", "memory", "disk"]
MODES: list[Mode] = ["none", "memory", "disk"]
loads: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    loads.clear()


def decode(path: Path, *, side: int = 20, add: int = 0) -> NDArray[np.uint8]:
    """Stand in for a decoder: pixels follow from the bytes of the file."""
    loads.append(path.name)
    seed = int.from_bytes(path.read_bytes()[:4].ljust(4), "little")
    return np.random.default_rng([seed, add]).integers(0, 255, (side, side, 3), np.uint8)


def fail(path: Path) -> NDArray[np.uint8]:
    raise DataError(f"{path} is damaged")


def picture(folder: Path, name: str = "a.jpg", content: bytes | None = None) -> Path:
    path = folder / name
    path.write_bytes(name.encode() if content is None else content)
    return path


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"), key=lambda file: file.stat().st_mtime_ns)


@pytest.mark.parametrize("mode", MODES)
def test_same_pixels_in_every_mode_and_read_only(tmp_path: Path, mode: Mode) -> None:
    path = picture(tmp_path)
    cache = Cache(mode, tmp_path / "cache")
    first, second = cache.get(path, decode), cache.get(str(path), decode)
    assert len(loads) == (2 if mode == "none" else 1)
    for image in (first, second):
        assert image.dtype == np.uint8 and image.flags.c_contiguous
        np.testing.assert_array_equal(image, decode(path))
        with pytest.raises(ValueError, match="read-only"):
            image[0] = 0
    assert (tmp_path / "cache").exists() == (mode == "disk")


@pytest.mark.parametrize("mode", ["memory", "disk"])
def test_a_changed_file_is_noticed_even_with_old_size_and_time(tmp_path: Path, mode: Mode) -> None:
    path = picture(tmp_path, content=b"before")
    cache = Cache(mode, tmp_path / "cache")
    before, times = cache.get(path, decode), path.stat()
    path.write_bytes(b"behind")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = cache.get(path, decode)
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(after, decode(path))


@pytest.mark.parametrize("mode", ["memory", "disk"])
def test_options_are_part_of_the_key_and_the_path_is_not(tmp_path: Path, mode: Mode) -> None:
    cache = Cache(mode, tmp_path / "cache")
    path, copy = picture(tmp_path, "a.jpg", b"same"), picture(tmp_path, "b.jpg", b"same")
    plain, other = cache.get(path, decode), cache.get(path, partial(decode, add=1))
    assert not np.array_equal(plain, other)
    np.testing.assert_array_equal(cache.get(copy, partial(decode, add=1)), other)
    assert loads == ["a.jpg", "a.jpg"]


def test_a_loader_without_a_lasting_name_is_refused_on_disk(tmp_path: Path) -> None:
    path = picture(tmp_path)
    assert Cache("memory").get(path, lambda file: decode(file)).shape == (20, 20, 3)
    with pytest.raises(TypeError, match="lambda.*functools.partial"):
        Cache("disk", tmp_path / "cache").get(path, lambda file: decode(file))


@pytest.mark.parametrize("damage", ["empty", "half", "bit", "grown", "zeros", "foreign"])
def test_a_damaged_entry_is_rebuilt(tmp_path: Path, damage: str) -> None:
    path, folder = picture(tmp_path), tmp_path / "cache"
    right = Cache("disk", folder).get(path, decode)
    (file,) = entries(folder)
    data = file.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    foreign = b"\x93NUMPY\x01\x00" + b"nonsense" * 30
    file.write_bytes(
        {
            "empty": b"",
            "half": data[: len(data) // 2],
            "bit": bytes(flipped),
            "grown": data + b"more",
            "zeros": bytes(len(data)),
            "foreign": foreign + struct.pack("<I", zlib.crc32(foreign)),
        }[damage]
    )
    np.testing.assert_array_equal(Cache("disk", folder).get(path, decode), right)
    assert len(loads) == 2
    assert file.read_bytes() == data
    np.testing.assert_array_equal(Cache("disk", folder).get(path, decode), right)
    assert len(loads) == 2


def test_disk_removes_what_was_used_longest_ago_by_an_earlier_run(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    paths = [picture(tmp_path, f"{number}.jpg") for number in range(5)]
    for path in paths[:3]:
        Cache("disk", folder).get(path, decode)
    size = entries(folder)[0].stat().st_size
    Cache("disk", folder).get(paths[0], decode)  # 1 is now the oldest
    cache = Cache("disk", folder, limit_gb=3.5 * size / 1e9)
    cache.get(paths[3], decode)
    loads.clear()
    for path in (paths[0], paths[2], paths[3]):
        cache.get(path, decode)
    assert not loads
    cache.get(paths[1], decode)
    assert loads == ["1.jpg"]


def test_disk_never_grows_over_its_limit_nor_drops_what_this_run_uses(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    paths = [picture(tmp_path, f"{number}.jpg") for number in range(9)]
    Cache("disk", folder).get(paths[0], decode)
    limit = 4.5 * entries(folder)[0].stat().st_size
    cache = Cache("disk", folder, limit_gb=limit / 1e9)
    for _ in range(3):
        for path in paths[1:]:
            cache.get(path, decode)
            assert sum(file.stat().st_size for file in entries(folder)) <= limit
    names = [path.name for path in paths[1:] if loads.count(path.name) == 1]
    assert names == ["1.jpg", "2.jpg", "3.jpg", "4.jpg"]


def test_only_its_own_files_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    mine, old, new = folder / "thesis.tmp", folder / f"x{TEMPORARY}", folder / f"y{TEMPORARY}"
    for file in (mine, old, new):
        file.write_bytes(b"1")
    long_ago = time.time() - 2 * module.ABANDONED
    for file in (mine, old):
        os.utime(file, (long_ago, long_ago))
    Cache("disk", folder, limit_gb=1e-6).get(picture(tmp_path), decode)
    assert (mine.exists(), old.exists(), new.exists()) == (True, False, True)


def test_a_folder_that_cannot_be_written_is_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write", full)
    path, cache = picture(tmp_path), Cache("disk", tmp_path / "cache")
    with pytest.warns(RuntimeWarning, match="not written any more.*No space left"):
        image = cache.get(path, decode)
    np.testing.assert_array_equal(image, cache.get(path, decode))  # and no second warning
    with pytest.raises(DataError, match="a.jpg/cache cannot be made.*Not a directory"):
        Cache("disk", path / "cache")
    with pytest.raises(ConfigError, match="none, memory or disk"):
        Cache("ram")  # type: ignore[arg-type]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.warns(RuntimeWarning, match="Input/output error"):
        Cache("disk", tmp_path / "cache").get(picture(tmp_path), decode)
    assert not list((tmp_path / "cache").iterdir())


def test_a_file_that_changes_while_it_is_read_is_not_stored(tmp_path: Path) -> None:
    path, cache = picture(tmp_path, content=b"before"), Cache("disk", tmp_path / "cache")
    cache.get(path, _replacing)
    assert not entries(tmp_path / "cache")


def _replacing(path: Path) -> NDArray[np.uint8]:
    path.write_bytes(b"after!")
    return decode(path)


def test_pickle_leaves_the_images_behind(tmp_path: Path) -> None:
    paths = [picture(tmp_path, f"{number}.jpg") for number in range(2)]
    cache = Cache("memory", limit_gb=1.5 * 1200 / 1e9)
    cache.get(paths[0], decode)
    assert len(pickle.dumps(cache)) < 1000
    copy = pickle.loads(pickle.dumps(cache))
    loads.clear()
    for path in (paths[1], paths[1], paths[0]):
        copy.get(path, decode)
    assert loads == ["1.jpg", "0.jpg"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_workers_share_a_folder(tmp_path: Path, start: str) -> None:
    right = [decode(picture(tmp_path, f"{number}.txt")) for number in range(12)]
    paths = [tmp_path / f"{number}.png" for number in range(12)]
    for path, image in zip(paths, right, strict=True):
        Image.fromarray(image).save(path)
    cache = Cache("disk", tmp_path / "cache")
    with multiprocessing.get_context(start).Pool(2) as pool:
        images = pool.starmap(cache.get, [(path, read_image) for path in paths * 4], chunksize=1)
    for number, image in enumerate(images):
        np.testing.assert_array_equal(image, right[number % 12])
    assert len(list((tmp_path / "cache").iterdir())) == len(entries(tmp_path / "cache")) == 12


@pytest.mark.parametrize("mode", ["none", "memory"])
def test_a_user_without_a_home_needs_none_but_for_a_disk(mode, monkeypatch):
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    assert Cache(mode).mode == mode
