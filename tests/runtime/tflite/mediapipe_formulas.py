"""What MediaPipe's custom operators compute: plain formulas, in float64."""

from collections.abc import Mapping
from typing import Any

import numpy as np

SAME, VALID = 1, 2

Pair = tuple[int, int]


def transposed_convolution(
    x: np.ndarray, weights: np.ndarray, bias: np.ndarray, strides: Pair, padding: int
) -> np.ndarray:
    """Add each pixel, times the weights, to where its window lies in the output."""
    x, weights = x.astype(float), weights.astype(float)
    batch, *sizes, _ = x.shape
    depth, *window, _ = weights.shape
    lengths, befores = [], []
    for axis in range(2):
        cut = window[axis] - (sizes[axis] - 1) % strides[axis] - 1
        cut = max(0, cut) if padding == SAME else 0
        whole = strides[axis] * (sizes[axis] - 1) + window[axis]
        lengths.append(whole - cut)
        befores.append(cut // 2)
    result = np.zeros((batch, *lengths, depth)) + bias.astype(float)
    for place in np.ndindex(*sizes, *window):
        line, column = (
            place[axis] * strides[axis] - befores[axis] + place[2 + axis]
            for axis in range(2)
        )
        if 0 <= line < lengths[0] and 0 <= column < lengths[1]:
            products = x[:, place[0], place[1]] @ weights[:, place[2], place[3]].T
            result[:, line, column] += products
    return result


def windows(length: int, size: int, stride: int, padding: int) -> Pair:
    """Return how many windows there are along an axis, and the padding before it."""
    if padding == VALID:
        return (length - size) // stride + 1, 0
    count = -(-length // stride)
    return count, max(0, (count - 1) * stride + size - length) // 2


def pooled(
    x: np.ndarray, size: Pair, strides: Pair, padding: int, low: float = -np.inf
) -> tuple[np.ndarray, np.ndarray]:
    """Return the maxima, none below ``low``, and their places in their windows."""
    batch, height, width, depth = x.shape
    lines, top = windows(height, size[0], strides[0], padding)
    columns, left = windows(width, size[1], strides[1], padding)
    maxima, places = np.zeros((2, batch, lines, columns, depth))
    for n, i, j, c in np.ndindex(*maxima.shape):
        best, where = -np.inf, 0
        for u, v in np.ndindex(*size):
            y, z = i * strides[0] - top + u, j * strides[1] - left + v
            if 0 <= y < height and 0 <= z < width and x[n, y, z, c] > best:
                best, where = float(x[n, y, z, c]), u * size[1] + v
        maxima[n, i, j, c], places[n, i, j, c] = max(best, low), where + 0.1
    return maxima, places


def unpooled(maxima: np.ndarray, places: np.ndarray, size: Pair) -> np.ndarray:
    """Return what has the maxima at the places of windows that do not overlap."""
    batch, lines, columns, depth = maxima.shape
    result = np.zeros((batch, lines * size[0], columns * size[1], depth))
    for n, i, j, c in np.ndindex(*maxima.shape):
        u, v = divmod(int(places[n, i, j, c]), size[1])
        result[n, i * size[0] + u, j * size[1] + v, c] = maxima[n, i, j, c]
    return result


def transformed_image(
    image: np.ndarray, matrix: np.ndarray, size: Pair, *, centred: bool
) -> np.ndarray:
    """Read each pixel between four others where the matrix leads; outside is zero."""
    m = matrix.reshape(4, 4).astype(float)
    _, height, width, depth = image.shape
    half = 0.5 if centred else 0.0
    result = np.zeros((1, *size, depth))
    for line, column in np.ndindex(*size):
        place = m[:2, :2] @ [column + half, line + half] + m[:2, 3] - half
        if (place < 0).any() or place[0] > width - 1 or place[1] > height - 1:
            continue
        left, top = np.floor(place).astype(int)
        for u, v in np.ndindex(2, 2):
            weight = (1 - abs(place[0] - left - u)) * (1 - abs(place[1] - top - v))
            if weight > 0 and top + v < height and left + u < width:
                result[0, line, column] += weight * image[0, top + v, left + u]
    return result


def transformed_landmarks(
    points: np.ndarray, matrix: np.ndarray, scale: float = 1.0
) -> np.ndarray:
    """Transform x and y of points, along the last axis, by a matrix; z stays."""
    m = matrix.reshape(4, 4).astype(float)
    result = points.astype(float)
    result[..., :2] = result[..., :2] @ m[:2, :2].T + m[:2, 3] * scale
    return result


def rotation(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def _box(points: np.ndarray, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and size of the box that is upright after a rotation."""
    turned = points @ rotation(angle).T
    low, high = turned.min(axis=0), turned.max(axis=0)
    return rotation(-angle) @ ((low + high) / 2), high - low


def _planar(landmarks: np.ndarray) -> np.ndarray:
    return landmarks.reshape(-1, 3)[:, :2].astype(float)


def crop_matrix(landmarks: np.ndarray, options: Mapping[str, Any]) -> np.ndarray:
    """Return the matrix of Landmarks2TransformMatrix, version 2."""
    points = _planar(landmarks)
    ends = [options["right_rotation_idx"], options["left_rotation_idx"]]
    across, down = points[ends[0]] - points[ends[1]]
    angle = options["target_rotation_radians"] - np.arctan2(down, across)
    centre, size = _box(points[options["subset_idxs"]], angle)
    picture = np.array([options["output_width"], options["output_height"]])
    back, shift, scale, middle = (np.eye(4) for _ in range(4))
    back[:2, :2] = rotation(-angle)
    shift[:2, 3] = centre
    scale[[0, 1], [0, 1]] = size * [options["scale_x"], options["scale_y"]] / picture
    middle[:2, 3] = -picture / 2
    return np.asarray(shift @ back @ scale @ middle)


def box_matrix(landmarks: np.ndarray, options: Mapping[str, Any]) -> np.ndarray:
    """Return the matrix of Landmarks2TransformMatrix, version 1."""
    points, reach = _planar(landmarks), options["landmarks_range"]
    ends = [options["right_rotation_idx"], options["left_rotation_idx"]]
    across, down = points[ends[0]] - points[ends[1]]
    angle = -np.arctan(down / across)
    centre, size = _box(points[options["subset"]], angle)
    scale = np.diag([*(size * options["bbox_size_multiplier"] / reach), 1.0])
    turn = np.eye(3)
    turn[:2, :2] = rotation(-angle)
    turn[:2, 2] = centre / reach * 2 - 1
    (height, width), (lines, columns) = options["output_hw"], options["input_hw"]
    relative = np.array(
        [[2 / (width - 1), 0, -1], [0, 2 / (height - 1), -1], [0, 0, 1.0]]
    )
    x, y = (columns - 1) / 2, (lines - 1) / 2
    absolute = np.array([[x, 0, x], [0, y, y], [0, 0, 1.0]])
    whole = absolute @ turn @ scale @ relative
    result = np.eye(4)
    result[:2, :2], result[:2, 3] = whole[:2, :2], whole[:2, 2]
    return result
