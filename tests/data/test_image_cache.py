"""The image cache: each page is decoded once, nothing is stored beyond the limit, and a worker starts empty."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ocrlab.config import schema as configs
from ocrlab.data.image_cache import Cache
from ocrlab.errors import DataError

SIDE = 20
GB = SIDE * SIDE * 3 / 1e9  # one image, in the unit of the limit


class Decoder:
    """Stands in for a decoder, and counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, path: Path) -> NDArray[np.uint8]:
        self.calls.append(path.name)
        return np.full((SIDE, SIDE, 3), int(path.stem), np.uint8)


def test_a_page_is_decoded_once_and_read_only() -> None:
    cache, decode = Cache(10 * GB), Decoder()
    for _ in range(2):
        for number in range(3):
            image = cache.get(Path(f"{number}.jpg"), decode)
            assert (image == number).all()
            with pytest.raises(ValueError, match="read-only"):
                image[0] = 0
    assert decode.calls == ["0.jpg", "1.jpg", "2.jpg"]


def test_what_does_not_fit_is_decoded_again_and_what_is_stored_stays() -> None:
    cache, decode = Cache(2.5 * GB), Decoder()
    for number in (0, 1, 2, 2, 0, 1):
        assert (cache.get(Path(f"{number}.jpg"), decode) == number).all()
    assert decode.calls == ["0.jpg", "1.jpg", "2.jpg", "2.jpg"]


def test_without_memory_nothing_is_stored_and_pages_are_read_only_all_the_same() -> None:
    cache, decode = Cache(0), Decoder()
    for _ in range(2):
        with pytest.raises(ValueError, match="read-only"):
            cache.get(Path("1.jpg"), decode)[0] = 0
    assert len(decode.calls) == 2


def test_pickle_leaves_the_images_behind() -> None:
    cache = Cache(1.5 * GB)
    cache.get(Path("0.jpg"), Decoder())
    copy, decode = pickle.loads(pickle.dumps(cache)), Decoder()
    assert len(pickle.dumps(cache)) < 1000
    for number in (1, 1, 0):
        copy.get(Path(f"{number}.jpg"), decode)
    assert decode.calls == ["1.jpg", "0.jpg"]


def test_errors_of_the_decoder_pass_through() -> None:
    def fail(path: Path) -> NDArray[np.uint8]:
        raise DataError(f"{path} is damaged")

    with pytest.raises(DataError, match="damaged"):
        Cache(GB).get(Path("1.jpg"), fail)


def test_the_disk_cache_of_older_configs_is_one_in_memory_and_a_sentence_says_so(tmp_path, caplog):
    file = tmp_path / "config.yaml"
    file.write_text("runtime:\n  cache: disk\n")
    for path, overrides in ((file, []), (None, ["runtime.cache=disk"])):
        assert configs.load(path, overrides).runtime.cache == "memory"
        [record] = caplog.records
        assert record.message.startswith("runtime.cache=disk no longer exists: images are cached in memory")
        caplog.clear()
