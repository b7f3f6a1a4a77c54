"""Non-maximum suppression: pick the best box, weaken what overlaps it, and repeat.

Among equal scores the order of the candidates decides. Boxes that drop out leave gaps,
which are filled from the end of the list; that changes the order, so this is done
exactly as the reference does it.

Source: 1.3/types.hal (BOX_WITH_NMS_LIMIT); NN common/cpu_operations/
GenerateProposals.cpp.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from asyncnn.kernels.detection.boxes import intersection_over_union
from asyncnn.kernels.detection.numbers import Integers, Reals

Survives: TypeAlias = Callable[[Integers, Reals], NDArray[np.bool_]]
"""Tells which of the given candidates stay, by their overlap with the box just picked.

It may lower their scores.
"""

Pick: TypeAlias = Callable[[int, Integers], Integers]
"""Picks boxes of one class out of candidates."""


def hard(threshold: float) -> Survives:
    """Return the rule that drops every box with an overlap of ``threshold`` or more."""

    def survives(candidates: Integers, overlaps: Reals) -> NDArray[np.bool_]:
        return ~(overlaps >= threshold)

    return survives


def pick_boxes(
    scores: Reals, boxes: Reals, candidates: Integers, limit: int, survives: Survives
) -> Integers:
    """Return the candidates that are picked, in the order of picking.

    Candidates index ``scores: [n]`` and ``boxes: [n, 4]``. A negative ``limit`` is
    none.
    """
    order = candidates.copy()
    picked, end = 0, len(order)
    limit = end if limit < 0 else limit
    while picked < min(end, limit):
        best = picked + int(scores[order[picked:end]].argmax())
        order[[picked, best]] = order[[best, picked]]
        rest = order[picked + 1 : end]
        overlaps = intersection_over_union(boxes[rest], boxes[order[picked]])
        picked += 1
        end = picked + _close_gaps(rest, survives(rest, overlaps))
    return order[:picked]


def _close_gaps(items: Integers, kept: NDArray[np.bool_]) -> int:
    """Move what is kept to the front, the last into the first gap; return its count."""
    count = int(np.count_nonzero(kept))
    gaps = np.flatnonzero(~kept[:count])
    behind = count + np.flatnonzero(kept[count:])
    items[gaps] = items[behind[::-1]]
    return count


def pick_by_class(
    scores: Reals, threshold: float, limit: int, pick: Pick
) -> tuple[Integers, Integers]:
    """Return box and class indices of the ``limit`` best picks, best score first.

    Each class of ``scores: [n, classes]`` picks by itself among its boxes with a score
    above ``threshold``; class 0 is the background and picks none. A negative ``limit``
    is none.
    """
    picks = [
        pick(label, np.flatnonzero(scores[:, label] > threshold))
        for label in range(1, scores.shape[1])
    ]
    labels = np.repeat(np.arange(1, scores.shape[1]), list(map(len, picks)))
    rows = np.concatenate(picks)
    best = falling(scores[rows, labels])[: None if limit < 0 else limit]
    return rows[best], labels[best]


def falling(scores: Reals) -> Integers:
    """Return the order along the last axis from high to low; ties as they come."""
    return np.argsort(-scores, axis=-1, kind="stable")
