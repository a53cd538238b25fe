"""On a terminal: size, colours, keys, Ctrl-C, Ctrl-Z, `breakpoint()`, and the way back."""

import fcntl
import os
import signal
import struct
import sys
import termios
import time

PYTHON = [sys.executable, "-u", "-c"]


def test_the_program_sees_a_terminal_of_the_same_size(screen):
    code = (
        "import os, sys; print([os.isatty(n) for n in (0, 1, 2)], os.get_terminal_size(), os.open('/dev/tty', 2) > 2)"
    )
    shown = screen("--", *PYTHON, code)
    shown.ended(0)
    assert b"[True, True, True] os.terminal_size(columns=111, lines=33) True\r\n" in shown.shown


def test_a_new_size_reaches_the_program(screen):
    code = "import os, signal, sys, time\ndef tell(*_):\n    print(os.get_terminal_size().columns)\n    sys.exit()\n"
    shown = screen("--", *PYTHON, code + "signal.signal(signal.SIGWINCH, tell)\nprint('ready')\ntime.sleep(60)")
    shown.wait_for(b"ready")
    fcntl.ioctl(shown.master, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 77, 0, 0))
    assert b"77" in shown.wait_for(b"77\r\n")
    shown.ended(0)


def test_ctrl_c_interrupts_the_program_only(screen, tmp_path):
    shown = screen("--run-dir", "out", "--", *PYTHON, "import time; print('ready'); time.sleep(60)")
    shown.wait_for(b"ready")
    shown.type(b"\x03")
    shown.ended(130)
    assert b"KeyboardInterrupt" in shown.shown
    assert (tmp_path / "out" / "incident" / "verdict.json").is_file()


def test_ctrl_c_that_the_program_handles_does_not_end_it(screen):
    code = "try:\n print('ready'); input()\nexcept KeyboardInterrupt:\n print('caught'); print(input())"
    shown = screen("--", *PYTHON, code)
    shown.wait_for(b"ready")
    shown.type(b"\x03")
    shown.wait_for(b"caught")
    shown.type(b"still here\n")
    shown.ended(0)
    assert shown.shown.count(b"still here") == 2, "the echo and the answer"


def test_ctrl_c_at_a_prompt_never_ends_the_program(screen):
    code = "while True:\n try:\n  print('ready'); print('got', input()); break\n except KeyboardInterrupt:\n  pass"
    shown = screen("--", *PYTHON, code)
    for number in range(3):
        shown.wait_for(b"ready", times=number + 1)
        time.sleep(0.5)
        shown.type(b"\x03")
    shown.wait_for(b"ready", times=4)  # what is typed before the interrupt has come is thrown away by the terminal
    shown.type(b"yes\n")
    shown.ended(0)
    assert b"got yes" in shown.shown


def test_a_breakpoint_can_be_answered(screen):
    shown = screen("--silence", "1", "--", *PYTHON, "x = 42; breakpoint()\nprint('after', x)")
    shown.wait_for(b"(Pdb) ")
    time.sleep(2.5)
    shown.type(b"x = 43\n")
    shown.type(b"c\n")
    assert b"after 43" in shown.wait_for(b"after")
    shown.ended(0)
    assert b"ocrlab watch" not in shown.shown, "who waits for its user does not hang"


def test_the_terminal_is_restored(screen):
    code = "import os, sys; print('\\x1b[?25l\\x1b[?1049hready'); sys.stdin.readline(); os.kill(os.getpid(), 9)"
    shown = screen("--", *PYTHON, code)
    before = shown.look()
    shown.wait_for(b"ready")
    assert shown.look() != before, "every key goes through while it runs"
    shown.type(b"\n")
    shown.ended(137)
    assert shown.look() == before
    assert b"\x1b[?25h" in shown.shown and b"\x1b[?1049l" in shown.shown


def test_a_killed_watcher_leaves_no_child_and_a_sane_terminal(screen, left):
    shown = screen("--", *PYTHON, "import time; print('ready'); time.sleep(60)")
    before = shown.look()
    shown.wait_for(b"ready")
    os.kill(shown.pid, signal.SIGKILL)
    os.waitpid(shown.pid, 0)
    shown.pid = 0
    end = time.monotonic() + 10
    while left() and time.monotonic() < end:
        time.sleep(0.05)
    assert left() == []
    assert shown.look() == before


def test_ctrl_z_without_a_shell_above_goes_on(screen):
    shown = screen("--", *PYTHON, "import time; print('ready'); time.sleep(1); print('later')")
    shown.wait_for(b"ready")
    shown.type(b"\x1a")
    shown.wait_for(b"later")
    shown.ended(0)


def test_only_stdout_on_a_terminal(screen):
    shown = screen("--", "sh", "-c", "test -t 1 && test -t 2 && echo both")
    shown.ended(0)
    assert b"both\r\n" in shown.shown
