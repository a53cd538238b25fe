"""What is read out of torchrun's own summary."""

from __future__ import annotations

from ocrlab.run_folder import launcher

BLOCK = """[{number}]:
  time      : 2026-01-02_03:04:05
  host      : localhost
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
"""


def summary(*codes: int) -> str:
    blocks = [BLOCK.format(number=n, rank=n, code=code, pid=40 + n) for n, code in enumerate(codes)]
    head, rule = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n", "-" * 60 + "\n"
    return f"{head}{rule}train.py FAILED\n{rule}Failures:\n{''.join(blocks)}{rule}"


def test_each_rank_of_a_summary_is_read_with_its_line():
    log = summary(1, -9)
    first, second = launcher.torchrun_failures(log)
    assert first == {"rank": 0, "pid": 40, "exit_code": 1, "line": 10}
    assert (second["rank"], second["exit_code"], second["line"]) == (1, -9, 16)
    assert log.split("\n")[second["line"] - 1].strip() == "exitcode  : -9 (pid: 41)"
    marked = "".join(f"[default0]:{line}\n" for line in log.splitlines())
    assert launcher.torchrun_failures(marked) == [first, second], "of an agent below another one"
    assert launcher.torchrun_failures("rank 1 is ready\n") == []


def test_of_several_starts_the_last_counts():
    assert [failure["exit_code"] for failure in launcher.torchrun_failures(summary(1, -15) + summary(-15, -11))] == [
        -15,
        -11,
    ]
