"""Which characters of a text were read in the right order: the end-to-end half of CLEval (Baek et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence


def common(first: str, second: str) -> str:
    """Return the longest common subsequence; of several, the one that the published evaluator takes."""
    if first == second:
        return first
    length = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first):
        above, row = length[i], length[i + 1]
        for j, b in enumerate(second):
            row[j + 1] = above[j] + 1 if a == b else max(above[j + 1], row[j])
    letters = []
    i, j = len(first), len(second)
    while i and j:
        if first[i - 1] == second[j - 1]:
            letters.append(first[i - 1])
            i, j = i - 1, j - 1
        elif length[i - 1][j] > length[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return "".join(reversed(letters))


def reading_order(detections: Sequence[int], takes: Sequence[set[int]], characters: int) -> list[int]:
    """Return the detections of one ground truth in the order in which they take its characters.

    `takes[i]` are the characters that `detections[i]` takes. As in the published evaluator, each character lets one
    detection in, and of those that are never let in only the first is added.
    """
    waiting = list(zip(detections, takes, strict=True))
    order = []
    for character in range(characters):
        if len(waiting) == 1:
            break
        ahead = next((entry for entry in waiting if character in entry[1]), None)
        if ahead is not None:
            order.append(ahead[0])
            waiting.remove(ahead)
    return [*order, waiting[0][0]]


def cross_out(text: str, left: list[str], order: Sequence[int]) -> int:
    """Take what `text` has in common with the texts `left` of the detections in `order` out of these; return how much.

    A character that was read once is thereby not read for a second ground truth.
    """
    read = common(text, "".join(left[i] for i in order))
    for character in read:
        for i in order:
            if character in left[i]:
                left[i] = left[i].replace(character, "", 1)
                break
    return len(read)
