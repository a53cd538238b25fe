"""The numbers of out-of-memory messages, and a GPU generation against what a wheel was built for."""

import pytest

from ocrlab.debug.diagnosis import oom_message
from ocrlab.debug.diagnosis.cuda_compatibility import mismatch

GIB, MIB = 2**30, 2**20


def test_the_newest_format_with_others_and_private_pools() -> None:
    [oom] = oom_message.parse(
        "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 2 has a total capacity of 23.69 GiB of which 100.00 MiB "
        "is free. Process 4011 has 20.30 GiB memory in use. Process 5 has 1.00 GiB memory in use. Including "
        "non-PyTorch memory, this process has 2.20 GiB memory in use. 20.00 GiB allowed; Of the allocated memory 1.60 "
        "GiB is allocated by PyTorch, with 32.00 MiB allocated in private pools (e.g., CUDA Graphs), and 40.00 MiB is "
        "reserved by PyTorch but unallocated."
    )
    assert (oom.request, oom.device, oom.free) == (256 * MIB, 2, 100 * MIB)
    assert oom.others == {4011: int(20.3 * GIB), 5: GIB}
    assert (oom.private, oom.unallocated, oom.allowed) == (32 * MIB, 40 * MIB, 20 * GIB)
    assert oom_message.judge(oom)[0].cause == "gpumem.foreign"


def test_a_message_wrapped_over_lines_and_two_messages() -> None:
    text = (
        "CUDA out of memory. Tried to allocate\n 20.00 MiB (GPU 0; 7.79 GiB total capacity;\n 6.54 GiB already "
        "allocated; 18.06 MiB free; 6.63 GiB reserved in total by PyTorch)\n\n"
        "CUDA out of memory. Tried to allocate 1.00 GiB"
    )
    first, second = oom_message.parse(text)
    assert first.reserved == pytest.approx(6.63 * GIB, rel=0.01)
    assert second.request == GIB
    assert second.total is None


def test_a_negative_amount_is_wsl() -> None:
    [oom] = oom_message.parse(
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 6.00 GiB is "
        "free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. "
        "Of the allocated memory 1.00 GiB is allocated by PyTorch, and 10.00 MiB is reserved by PyTorch but "
        "unallocated."
    )
    assert oom_message.judge(oom)[0].cause == "wsl.limits"


def message(usage: str, request: str = "1.25 GiB", free: str = "1.18 GiB", total: str = "93.02 GiB") -> oom_message.Oom:
    head = f"CUDA out of memory. Tried to allocate {request}. GPU 1 has a total capacity of {total} of which {free} is "
    [oom] = oom_message.parse(f"{head}free. {usage} is reserved by PyTorch but unallocated.")
    return oom


def test_in_a_container_the_process_itself_is_listed_as_another_process() -> None:
    """NVML lists it by its number on the host, so that torch does not know itself there."""
    own = "Process 2752205 has 91.82 GiB memory in use. "
    oom = message(f"{own}Of the allocated memory 90.63 GiB is allocated by PyTorch, and 120.54 MiB")
    assert oom.others is None
    assert oom.process == int(91.82 * GIB)
    assert oom_message.judge(oom)[0].cause == "gpumem.capacity"
    other = "Process 5 has 60.00 GiB memory in use. Process 9 has 31.00 GiB memory in use. "
    oom = message(f"{other}Of the allocated memory 30.00 GiB is allocated by PyTorch, and 120.54 MiB")
    assert oom.others == {5: 60 * GIB}
    assert oom_message.judge(oom)[0].cause == "gpumem.foreign"


def test_the_larger_of_two_causes_that_would_each_free_enough() -> None:
    both = (
        "Process 7 has {other} memory in use. Including non-PyTorch memory, this process has {own} memory in use. Of "
    )
    parts = "the allocated memory {used} is allocated by PyTorch, and {idle}"
    torn = (both + parts).format(other="3.00 GiB", own="20.00 GiB", used="9.50 GiB", idle="10.00 GiB")
    assert oom_message.judge(message(torn, "2.00 GiB", "600.00 MiB", "23.69 GiB"))[0].cause == "gpumem.fragmentation"
    usage = (both + parts).format(other="12.00 GiB", own="11.00 GiB", used="7.50 GiB", idle="3.00 GiB")
    assert oom_message.judge(message(usage, "2.00 GiB", "600.00 MiB", "23.69 GiB"))[0].cause == "gpumem.foreign"


def test_a_limit_that_the_program_set_itself_and_the_asynchronous_allocator() -> None:
    [oom] = oom_message.parse(
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 3.50 GiB\nRequested               : 1.00 GiB\nDevice limit            : 23.69 GiB\n"
        "Free (according to CUDA): 19.00 GiB\nPyTorch limit (set by user-supplied memory fraction)\n"
        "                        : 4.00 GiB\n"
    )
    assert (oom.request, oom.allowed, oom.free) == (GIB, 4 * GIB, 19 * GIB)
    [first, *_] = oom_message.judge(oom)
    assert first.cause == "gpumem.capacity"
    assert "set itself" in first.why


@pytest.mark.parametrize("text, says", [
    ("GPU: NVIDIA GeForce RTX 3090\ntorch 1.5.0+cu101", "needs CUDA 11.0"),
    ("NVIDIA GeForce RTX 5090, torch==2.5.1+cu124", "needs CUDA 12.8"),
    ("RTX 5080 torch 2.4.1", "needs torch 2.7"),
    ("image nvidia/cuda:8.0-cudnn5-devel on an RTX 2080", "needs CUDA 10.0"),
    ("Tesla P100, PyTorch 2.9.0+cu130", "dropped"),
    ("RTX 3080 with tensorflow-gpu==1.15", "needs CUDA 11.0"),
])  # fmt: skip
def test_a_card_that_the_wheel_cannot_serve(text: str, says: str) -> None:
    conflict = mismatch(text)
    assert conflict is not None
    assert says in conflict[0]


@pytest.mark.parametrize(
    "text",
    [
        "RTX 3090, torch 2.1.0+cu118", "Tesla V100, torch 1.4.0+cu101",
        "RTX 4090 | CUDA Version: 12.4 | torch 2.3.0", "torch 2.1", "RTX 5090", "",
    ],
)  # fmt: skip
def test_what_fits_or_is_not_named_is_left_alone(text: str) -> None:
    assert mismatch(text) is None


def test_a_bare_number_is_a_card_only_next_to_the_word() -> None:
    assert mismatch("a new graphics card, a 3080 instead of a 1050; torch 1.2.0, cuda 10.0") is not None
    assert mismatch("3080 pages; torch 1.2.0, cuda 10.0") is None


def test_more_than_an_exabyte_is_absurd_and_host_memory_is_not_ours() -> None:
    [oom] = oom_message.parse("CUDA out of memory. Tried to allocate more than 1EB memory.")
    assert oom_message.judge(oom)[0].cause == "gpumem.absurd_size"
    assert oom_message.parse("DefaultCPUAllocator: can't allocate memory: you tried to allocate 123 bytes") == []
