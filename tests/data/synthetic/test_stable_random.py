"""Dice: streams that no version of Python or NumPy may change."""

from __future__ import annotations

from ocrlab.data.synthetic.stable_random import Dice


def test_the_stream_is_pinned() -> None:
    dice = Dice(0, 1)
    assert [dice.whole(0, 999) for _ in range(4)] == [559, 396, 715, 874]
    assert dice.digits("A#-##") == "A8-47"
    assert dice.noise(1, 3).tolist() == [[86, 96, 137]]


def test_keys_give_independent_streams() -> None:
    firsts = {Dice(seed, part).between(0, 1) for seed in range(20) for part in range(5)}
    assert len(firsts) == 100


def test_choices_stay_in_range_and_reach_both_ends() -> None:
    dice = Dice(7)
    assert {dice.whole(2, 4) for _ in range(200)} == {2, 3, 4}
    assert {dice.pick("ab") for _ in range(100)} == {"a", "b"}
    assert all(-1 <= dice.between(-1, 3) < 3 for _ in range(100))
    assert not any(dice.chance(0) for _ in range(50)) and all(dice.chance(1) for _ in range(50))
