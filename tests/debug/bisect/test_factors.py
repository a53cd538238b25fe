from __future__ import annotations

import pytest

from ocrlab.debug.bisect import factors
from ocrlab.debug.bisect.factors import Factor
from ocrlab.errors import ConfigError
from ocrlab.records import Cause, Verdict


def test_words_become_factors_also_with_colons_and_empty_sides() -> None:
    parsed = factors.parse_factors(["workers=8:0", "PYTORCH_CUDA_ALLOC_CONF=:expandable_segments:True", "amp=--amp:"])
    assert [(factor.name, factor.bad, factor.good) for factor in parsed] == [
        ("workers", "8", "0"),
        ("PYTORCH_CUDA_ALLOC_CONF", "", "expandable_segments:True"),
        ("amp", "--amp", ""),
    ]


def test_values_that_hold_colons_are_cut_at_two_and_never_by_guess() -> None:
    parsed = factors.parse_factors(["device=cuda:0::cpu", "url=http://a::http://b", "conf=max_split_size_mb:64:"])
    assert [(factor.bad, factor.good) for factor in parsed] == [
        ("cuda:0", "cpu"),
        ("http://a", "http://b"),
        ("max_split_size_mb:64", ""),
    ]
    with pytest.raises(ConfigError, match="device=cuda::0:cpu or device=cuda:0::cpu"):
        factors.parse_factors(["device=cuda:0:cpu"])


@pytest.mark.parametrize("words", [["workers"], ["workers=8"], ["=8:0"], ["a=1:1"], ["a=1:0", "a=2:0"], ["a b=1:0"]])
def test_words_that_are_no_factors_are_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="--factor"):
        factors.parse_factors(words)


def verdict(*causes: tuple[str, float]) -> Verdict:
    return Verdict(causes=[Cause(name, sure) for name, sure in causes])


def test_a_verdict_orders_the_factors_and_nothing_is_ever_ruled_out() -> None:
    names = [Factor(name, "1", "0") for name in ("decoder", "workers", "start method", "data")]
    parsed = factors.suspicion_weights(names, verdict(("loader.fork_deadlock", 0.95)))
    assert parsed[2] > parsed[1] > parsed[0] == 1.0
    assert factors.suspicion_weights(names, None) == [1.0] * 4
    assert min(factors.suspicion_weights(names, verdict(("gpumem.capacity", 0.9)))) == 1.0


def test_an_unsure_cause_says_less_and_names_of_other_programs_are_recognised() -> None:
    names = [Factor("num_workers", "4", "0"), Factor("precision", "bf16", "fp32")]
    sure = factors.suspicion_weights(names, verdict(("loader.worker_crash", 0.95)))
    unsure = factors.suspicion_weights(names, verdict(("loader.worker_crash", 0.3)))
    assert sure[0] > unsure[0] > unsure[1] == 1.0


def test_every_suspect_is_a_factor_that_there_is() -> None:
    from ocrlab.config import schema as configs
    from ocrlab.debug.bisect import training_trials

    risky = {"runtime.workers": 4, "trainer.accelerator": "cuda", "runtime.compile": True, "optim.grad_clip": 0}
    full = configs.load(None, risky)
    flippable = {factor.name for factor in training_trials.config_factors(full)}
    assert {name for names in factors.SUSPECTS.values() for name in names} <= flippable


def test_every_suspicion_is_of_causes_that_there_are() -> None:
    from ocrlab.debug.diagnosis import catalogue

    for start in factors.SUSPECTS:
        assert any(name.startswith(start) for name in catalogue.load().entries), start


def test_names_of_other_programs_are_recognized() -> None:
    names = [
        "--num-workers",
        "OMP_NUM_THREADS",
        "use_amp",
        "imgsz",
        "train.per_device_train_batch_size",
        "base_lr",
        "x",
    ]
    plain = [factors._plain(name) for name in names]
    assert plain == ["workers", "threads", "precision", "crop", "batch size", "learning rate", "x"]
