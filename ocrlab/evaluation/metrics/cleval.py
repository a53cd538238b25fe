"""## cleval
CLEval: detection (and, with texts, recognition) judged character by character (Baek et al. 2020, CLEval).

N ground-truth polygons, M detections, K characters of all the ground truth together, L pairs.

Characters are pseudo: the transcription gives how many a ground truth has, and their centres lie at equal steps along
its middle line. A detection takes the characters whose centres are inside it. Rules, as in the published evaluator:
- A pair is a hit if at least 0.3 of the detection lies in the ground truth and it takes a character of it. Matches are
  hits without rival on either side (one to one), two and more hits of one ground truth (split), and two and more
  ground truths of which a detection takes characters and that together cover 0.3 of it (merged).
- Recall is characters taken over characters there; precision is distinct over all characters taken, where a detection
  without a match adds characters that its shape stands for. Every cut of a ground truth, and every merge, costs one
  character (granularity penalty).
- A detection of which 0.3 lies in ignored ground truth does not count; counted ground truth is cut out of that first.
- The corners of quads are cut to whole pixels, but not before the characters are placed.

Where the evaluator differs: a polygon that is not valid (self-crossing, no area) is left out if it is ground truth and
a miss if it is a detection; without texts the shapes say how many characters there are; and polygons of other than 4
points, which the published code cannot judge, have half their points above the middle line.

## cleval_characters
Where the characters of a text box are taken to be, how many there are, and which lie inside a detection.

N polygons, M detections, K characters of all polygons together, L pairs. The pseudo character centres of CLEval
(Baek et al. 2020): equal steps along the middle line of a box. Coordinates are pixels.

## cleval_reading_order
Which characters of a text were read in the right order: the end-to-end half of CLEval (Baek et al. 2020).
"""

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
