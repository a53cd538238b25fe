"""Nsight Compute's tables in both layouts, and what their numbers mean."""

from __future__ import annotations

import pytest

from ocrlab.debug.diagnosis.cuda_kernels import nsight
from ocrlab.errors import DataError

LOADS = nsight.RATIO.format("global_op_ld")
RAW = f'''==PROF== Connected to process 4711
==PROF== Profiling "copy" - 0: 0%....100% - 8 passes
"ID","Process ID","Process Name","Kernel Name","Block Size","Grid Size","{LOADS}","gpu__time_duration.sum"
"","","","","","","","nsecond"
"0","4711","python","copy(float *)","(256, 1, 1)","(64, 1, 1)","4","1,234"
"1","4711","python","transpose(float *)","(32, 32, 1)","(8, 8, 1)","32","9,876.5"
'''
SECTORS, REQUESTS = nsight.SECTORS.format("global_op_st"), nsight.REQUESTS.format("global_op_st")
USED = nsight.USED_BYTES.format("global_op_ld")
DETAILS = f'''"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","rows(float *)","Command line profiler metrics","{SECTORS}","sector","131.072"
"0","rows(float *)","Command line profiler metrics","{REQUESTS}","request","16,384"
"0","rows(float *)","Command line profiler metrics","{nsight.CONFLICTS.format("ld")}","","31744"
"0","rows(float *)","Command line profiler metrics","{nsight.INSTRUCTIONS.format("ld")}","inst","1024"
'''


def test_the_raw_page() -> None:
    copy, transpose = nsight.read(RAW)
    assert (copy.kernel, copy.metrics[LOADS]) == ("copy(float *)", 4.0)
    assert transpose.metrics["gpu__time_duration.sum"] == 9876.5
    assert "4.0 sectors per request, coalesced" in nsight.describe(copy)[0]
    assert "32.0 sectors per request, scattered" in nsight.describe(transpose)[0]


def test_the_details_page_and_totals() -> None:
    text = DETAILS.replace('"131.072"', '"131,072"')
    stores, banks = nsight.describe(nsight.read(text)[0])
    assert "global stores: 8.0 sectors per request, strided or misaligned" in stores
    assert "31.00 extra wavefronts" in banks
    assert "pad the rows" in banks


def test_wide_elements_are_not_called_strided() -> None:
    wide = nsight.Profile("k", {LOADS: 16.0, USED: 100.0})
    assert "coalesced: wide elements" in nsight.describe(wide)[0]
    scattered = nsight.Profile("k", {LOADS: 16.0, USED: 25.0})
    assert "strided" in nsight.describe(scattered)[0]


def test_what_is_missing_is_named() -> None:
    [sentence] = nsight.describe(nsight.Profile("k", {"gpu__time_duration.sum": 3.0}))
    assert LOADS in sentence
    assert "ncu --csv" in sentence


def test_another_table_is_refused() -> None:
    with pytest.raises(DataError, match="ncu --csv"):
        nsight.read("a,b\n1,2\n")


@pytest.mark.parametrize(
    ("text", "number"), [("1,234", 1234), ("1.234,5", 1234.5), ("0.5", 0.5), ("4,25", 4.25), ("n/a", None)]
)
def test_numbers_of_two_locales(text: str, number: float | None) -> None:
    assert nsight._number(text) == number
