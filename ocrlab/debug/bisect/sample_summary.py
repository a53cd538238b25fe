"""What is known of guilty samples, in words: which, how that was seen, and what to do until they are mended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ocrlab.debug.bisect.sample_search import Guilt

NAMED = 6  # samples that a sentence names
FEW = 2  # where they are examples


@dataclass(frozen=True)
class Told:
    """What makes it fail, how that is known, what to set until it is mended; no `cure` where no sample is to blame."""

    who: str
    how: str
    cure: str


def words(guilt: Guilt, names: Sequence[str], unit: str) -> Told:
    """Return what is known of samples that are called `unit`: page, file, line, record."""
    groups = [[names[index] for index in group] for group in guilt.groups]
    if guilt.ending == "whole":
        only = f"the only {unit} there is" if guilt.count == 1 else f"all {guilt.count} {unit}s together: no part fails"
        return Told(f"{only} ({_list(groups[0])})", "", "")
    if guilt.ending == "every":
        alone = ", ".join(group[0] for group in groups)
        return Told(f"no {unit} in particular", f"{alone} fail each alone", "")
    if guilt.ending == "number":
        these, others = (_list(group, most=FEW) for group in groups)
        many = f"{len(groups[0])} {unit}{'s' if len(groups[0]) > 1 else ''}"
        how = f"with {many} it fails, be it {these} or {others}: how many there are decides"
        return Told(f"no {unit} in particular", how, "")
    if not groups:
        return Told(f"one or more of the {guilt.count} {unit}s", "nothing was left to look closer", "")
    if guilt.ending == "spent" and len(groups[-1]) > 1:
        known = "".join(f"{_one(group, unit)}, and " for group in groups[:-1])
        which = f"one or more of {len(groups[-1])} {unit}s ({_list(groups[-1])})"
        return Told(f"{known}{which}", "nothing was left to look closer", "")
    who = ", and ".join(_one(group, unit) for group in groups)
    out = " and ".join(_cured(guilt, group, unit) for group in groups)
    return Told(who, _how(guilt, groups), f"leave out {out}")


def _one(group: Sequence[str], unit: str) -> str:
    if len(group) == 1:
        return f"the {unit} {group[0]}"
    return f"the {unit}s {_list(group, ' and ')} together"


def _how(guilt: Guilt, groups: Sequence[Sequence[str]]) -> str:
    several = len(groups) > 1
    it = "each" if several else "they" if len(groups[0]) > 1 else "it"
    fails = f"{it} {'fail' if it == 'they' else 'fails'} without all others" if not guilt.company else "it needs others"
    if guilt.company:
        fails = "it fails with any others beside it, and not alone"
    rest = {"many": "others fail too", "spent": "whether others fail too is not known"}
    told = f"{fails}; {rest.get(guilt.ending, 'all others pass')}"
    often = f"; it fails in about {100 * guilt.rate:.0f} of 100 runs" if guilt.rate else ""
    return told + (f" (each part was let pass after {guilt.tries} runs){often}" if guilt.tries > 1 else "")


def _cured(guilt: Guilt, group: Sequence[str], unit: str) -> str:
    return _list([f"{unit} {name.partition(' (`')[0]}" for name in group], " and " if guilt.company else " or ")


def _list(names: Sequence[str], joined: str = ", ", most: int = NAMED) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return joined.join(names[:most]) + more
