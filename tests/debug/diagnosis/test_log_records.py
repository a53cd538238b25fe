"""A log as typed records: exceptions with their chain, cells, and stacks of py-spy, faulthandler, gdb and Ctrl-C."""

import random

import pytest

from ocrlab.debug.diagnosis.log_records import CAUSED, DURING, Line, LogRecords, parse_stacks, read_records
from ocrlab.hardware.processes import stack_dumps
from ocrlab.hardware.processes.process_tree import Process
from ocrlab.hardware.processes.stack_types import Frame, Stack, Thread


def records(text: str) -> LogRecords:
    return read_records([Line(number, line) for number, line in enumerate(text.split("\n"), 1)])


@pytest.mark.parametrize(("link", "relation"), [(CAUSED, "cause"), (DURING, "context"), ("epoch 2 loss 0.3", "")])
def test_exceptions_have_type_message_frames_and_the_way_they_follow(link: str, relation: str) -> None:
    first, second = records(
        'Traceback (most recent call last):\n  File "/p/a.py", line 3, in read\n    x = rows[name](1)\n'
        f"        ~~~~^^^^^^\nKeyError: 'text'\n\n{link}\n\nTraceback (most recent call last):\n"
        '  File "/p/b.py", line 7, in <module>\n    read()\nacme.errors.PageError: no page: 3\n'
    ).exceptions
    assert (first.type, first.message, first.first, first.last, first.relation) == ("KeyError", "'text'", 1, 5, "")
    [frame] = first.frames
    assert (frame.file, frame.line, frame.function, frame.number) == ("/p/a.py", 3, "read", 2)
    assert (frame.source.strip(), frame.code, frame.source_number) == ("x = rows[name](1)", "rows[name]", 3)
    assert (second.type, second.message, second.relation) == ("PageError", "no page: 3", relation)


def test_cells_of_a_notebook_are_frames_and_their_source_is_quoted() -> None:
    log = records(
        "KeyError                                  Traceback (most recent call last)\nCell In[3], line 2\n"
        "      1 rows = load()\n----> 2 show(rows)\n\nFile /p/view.py:12, in show(rows)\n"
        "     11 def show(rows):\n---> 12     print(rows['text'])\n\nKeyError: 'text'\n"
    )
    [exception] = log.exceptions
    expected = [("cell 3", 2, "<module>", "show(rows)"), ("/p/view.py", 12, "show", "print(rows['text'])")]
    assert [(frame.file, frame.line, frame.function, frame.code) for frame in exception.frames] == expected
    assert (exception.message, sorted(log.quoted)) == ("'text'", [2, 3, 6, 7])


def test_the_stack_of_a_crash_ends_where_the_next_dump_begins() -> None:
    dump = 'Fatal Python error: Aborted\n\nCurrent thread 0x0a (most recent call first):\n  File "a.py", line 3 in f\n'
    log = records(f'{dump}\nProcess 5: python\n\nThread 5 (idle): "MainThread"\n    g (b.py:1)\n')
    [thread] = log.threads
    assert (thread.fatal, thread.first, thread.last) == (True, 3, 4)
    assert [stack.how for stack in log.stacks] == ["crash", "py-spy"]


def test_our_own_text_comes_back_whole() -> None:
    frames = [
        Frame("futex_wait", "libc.so.6", 0),
        Frame("D.__getitem__", "/data/set (1)/d.py", 30, {"index": "13"}),
        Frame("<module>", "<string>", 1),
    ]
    main = Thread(41, "MainThread", active=True, gil=True, frames=frames, call="read 0 /dev/pts/1")
    idle = Thread(42, 'a "name"', frames=[])
    process = Process(41, state="S", role="worker", command="python train.py --a (b)", threads=2)
    stack = Stack(process, [main, idle], "py-spy", "futex_wait_queue", "")
    dead = Stack(Process(43, state="Z", role="main", command="[true]", threads=1), [], "proc", "", "it has ended")
    read = parse_stacks(stack_dumps.text([stack, dead]))
    shown = read[0].threads[0].frames
    assert [frame.text for frame in shown][1:] == ["D.__getitem__ (/data/set (1)/d.py:30)", "<module> (<string>:1)"]
    shown[:] = [Frame(frame.function, frame.file, frame.line, frame.locals) for frame in shown]
    assert read == [stack, dead]


CTRL_C = """\
step 3
^CTraceback (most recent call last):
  File "train.py", line 9, in <module>
    main()
  File "train.py", line 5, in main
    for batch in loader:
                 ^^^^^^
  File "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1293, in _try_get_data
    data = self._data_queue.get(timeout=timeout)
KeyboardInterrupt
"""


def test_a_ctrl_c_shows_where_it_hung() -> None:
    [stack] = parse_stacks(CTRL_C.replace("^C", ""))
    assert [frame.function for frame in stack.threads[0].frames] == ["_try_get_data", "main", "<module>"]
    assert stack.how == "traceback"


GDB = """\
Thread 2 (Thread 0x7f1 (LWP 12) "python"):
#0  0x00007ffff in futex_wait () from /lib/x86_64-linux-gnu/libc.so.6
Thread 1 (Thread 0x7f0 (LWP 11) "python"):
#0  0x00007ffff7e in cuStreamSynchronize () from /usr/lib/libcuda.so.1
#1  at::native::item (self=...) at /pytorch/aten/Scalar.cpp:21
"""


def test_gdbs_backtrace() -> None:
    [stack] = parse_stacks(GDB)
    assert [thread.id for thread in stack.threads] == [12, 11]
    assert [frame.function for frame in stack.threads[1].frames] == ["cuStreamSynchronize", "at::native::item"]
    assert stack.threads[1].frames[0].file == "/usr/lib/libcuda.so.1"


@pytest.mark.parametrize(
    "text", ["", "\n", "loss 0.3\n", "Process 5: python\n", "Thread pools (8) are used\n", "#1 first"]
)
def test_text_without_stacks(text: str) -> None:
    assert parse_stacks(text) == []


def test_torn_and_shuffled_text_never_raises(shared) -> None:
    paths = sorted((shared / "diagnosis" / "captured").glob("*.log"))
    lines = [line for path in paths for line in path.read_text(errors="replace").splitlines()]
    for _ in range(30):
        chosen = random.sample(lines, 400)
        for stack in parse_stacks("\n".join(line[: random.randrange(1, 120)] for line in chosen)):
            assert stack.threads
