"""Messages and measurements of an out-of-memory failure, and the kind and the remedy that follow."""

import pytest

from ocrlab.debug.memory import explain_oom, oom_inputs
from ocrlab.records import Incident

MIB = 1 << 20


def test_a_start_under_watch_is_no_leak() -> None:
    seconds = [0.1 * n for n in range(20)]
    memory = {
        "seconds": seconds, "tree": [n * 10 * MIB for n in range(20)], "shm": [0] * 20,
        "group": {"limit": 190 * MIB},
    }  # fmt: skip
    facts = {"oom_kills": 1, "memory": memory, "memory_peak_bytes": 188 * MIB}
    run = oom_inputs.collect(Incident("killed", signal="SIGKILL", texts={"log_tail.txt": "step 1\n"}, facts=facts))
    kind = explain_oom.classify_oom(run)
    assert kind.kind == "control group"
    marks = [check.judgement for check in explain_oom.checks(run, kind, explain_oom.find_remedy(run, kind))]
    assert marks == ["fail", "skip", "skip", "warn", "skip", "fail", "warn"]


def test_a_host_that_grows_for_minutes_is_a_leak() -> None:
    seconds = [2.0 * n for n in range(60)]
    memory = {"seconds": seconds, "tree": [(100 + 20 * n) * MIB for n in range(60)], "shm": [0] * 60, "group": None}
    facts = {"oom_kills": 1, "memory": memory}
    run = oom_inputs.collect(Incident("killed", signal="SIGKILL", texts={"log_tail.txt": "step 1\n"}, facts=facts))
    kind = explain_oom.classify_oom(run)
    assert (kind.kind, kind.cause) == ("leak", "host.oom_kill")
    assert "watch_leaks" in explain_oom.find_remedy(run, kind).do


def test_the_kernel_tells_the_limit_of_a_group_whose_program_lived_too_short_to_be_measured() -> None:
    lines = "[9.1] memory: usage 112640kB, limit 112640kB, failcnt 0\n[9.1] kmem: usage 304kB, limit 9007199254740988kB"
    run = oom_inputs.collect(
        Incident("killed", signal="SIGKILL", texts={"kernel_log.txt": lines}, facts={"memory": {}})
    )
    assert run.limit == 110 * MIB
    measured = Incident("killed", texts={"kernel_log.txt": lines}, facts={"memory": {"group": {"limit": 90 * MIB}}})
    assert oom_inputs.collect(measured).limit == 90 * MIB
    assert oom_inputs.collect(Incident("killed", texts={"kernel_log.txt": "[9.1] kmem: usage 3kB"})).limit is None


@pytest.mark.parametrize(("batch", "steps", "share", "line"), [
    (8, 1, 0.5, ("batch_size=4", "trainer.accumulate_grad_batches=2")),
    (6, 2, 0.7, ("batch_size=4", "trainer.accumulate_grad_batches=3")),
    (1, 4, 0.5, ("crop=352",)),
])  # fmt: skip
def test_a_smaller_batch_of_the_same_effective_size(batch, steps, share, line):
    config = {"batch_size": batch, "trainer.accumulate_grad_batches": steps, "crop": 512}
    assert explain_oom.smaller_batch(config, share) == line
