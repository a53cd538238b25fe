from __future__ import annotations

import pytest

from ocrlab.debug.instruments.memory import memory_text
from ocrlab.debug.instruments.memory.timeline import Row


def test_a_table_of_modules_in_columns() -> None:
    rows = [Row("encoder", parameters=3 * 2**20, forward=2**30), Row("(outside the model)", activations=5)]
    head, encoder, outside = memory_text.table(rows).splitlines()
    assert (
        head.split() == "module parameters buffers gradients optimizer activations workspace forward backward".split()
    )
    assert encoder.startswith("encoder ")
    assert "3.0 MiB" in encoder
    assert "1.00 GiB" in encoder
    assert len(head) == len(encoder) == len(outside)
    assert encoder.index("1.00 GiB") + len("1.00 GiB") == head.index("forward") + len("forward")


def test_words_of_the_allocators_figures() -> None:
    stats = {
        "allocated_bytes.all.current": 3 * 2**30,
        "allocated_bytes.all.peak": 5 * 2**30,
        "reserved_bytes.all.current": 8 * 2**30,
        "reserved_bytes.all.peak": 8 * 2**30,
        "inactive_split_bytes.all.current": 2 * 2**30,
        "num_ooms": 1,
        "num_alloc_retries": 3,
    }
    summary = memory_text.summary(stats, {"largest_free": 2**20, "total": 24 * 2**30, "free": 2**30, "outside": 2**29})
    for part in ("Tensors hold 3.00 GiB", "5.00 GiB of it are cached", "2.00 GiB of it lie in holes", "fragmentation"):
        assert part in summary
    assert "largest free piece is 1.0 MiB" in summary
    assert "Out of memory 1 time" in summary
    assert "3 times it had to give" in summary
    assert memory_text.summary({}).startswith("Tensors hold 0 B")


@pytest.mark.parametrize(
    ("stats", "parts"),
    [
        (  # pytorch/pytorch#35901, after an error for which half of the card was said to be free
            {
                "allocated_bytes.all.current": 1062 * 2**20,
                "allocated_bytes.all.peak": 4877 * 2**20,
                "reserved_bytes.all.current": 12420 * 2**20,
                "reserved_bytes.all.peak": 12420 * 2**20,
                "num_ooms": 1,
                "num_alloc_retries": 1,
            },
            ("hold 1.04 GiB; at most it was 4.76 GiB", "11.09 GiB of it are cached", "Out of memory 1 time", "Once it"),
        ),
        (  # NVIDIA/MinkowskiEngine#359, after the cache was given back
            {
                "reserved_bytes.all.current": 50331648,
                "reserved_bytes.all.peak": 15890120704,
                "num_ooms": 1,
                "num_alloc_retries": 31,
            },
            ("taken 48.0 MiB from the driver (at most 14.80 GiB)", "31 times it had to give"),
        ),
    ],
)
def test_words_of_figures_that_were_recorded(stats: dict[str, int], parts: tuple[str, ...]) -> None:
    summary = memory_text.summary(stats)
    assert [part for part in parts if part not in summary] == []


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (2**20, "1.0 MiB"), (-(2**30), "-1.00 GiB")])
def test_sizes_in_words(count: int, text: str) -> None:
    assert memory_text.size(count) == text


def test_rows_are_shown_as_their_table() -> None:
    rows = memory_text.Rows([Row("encoder", parameters=3 * 2**20)])
    assert repr(rows) == memory_text.table(rows) and rows == [rows[0]] and repr(memory_text.Rows()) == "[]"
