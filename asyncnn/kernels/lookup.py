"""EMBEDDING_LOOKUP, HASHTABLE_LOOKUP and LSH_PROJECTION.

Rows of a table [rows, ...] of any dtype, by int32 index or by key; and the bits that
say on which side of random hyperplanes an input lies. Those are signs of sums in
float64 of FarmHash Fingerprint64, a stable 64-bit hash of bytes. The hash has one form
for each range of key lengths, so it is vectorised over keys of equal length; its
arithmetic is modulo 2**64 and words are little-endian.

Source: 1.3/types.hal (the operations above); NN common/cpu_operations/
LSHProjection.cpp; the published definition of FarmHash (``farmhashna::Hash64``).
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import Array, BoundOperation, OperationFailedError
from asyncnn.hal.operations.lookup import DENSE, SPARSE
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    stateless,
    with_scratch,
)

Words: TypeAlias = NDArray[np.uint64]
"""One 64-bit word for each key."""

Fetch: TypeAlias = Callable[[int], Words]
"""Gives the eight bytes of every key that begin at an offset."""

_MODULUS = 2**64
_K0 = 0xC3A5C85C97CB3127
_K1 = 0xB492B66FBE98F273
_K2 = 0x9AE16A3B2F90404F
_BLOCK = 64


def fingerprint64(keys: NDArray[np.uint8]) -> Words:
    """Return the fingerprints [count] of ``keys`` [count, length]."""
    count, length = keys.shape

    def fetch(at: int) -> Words:
        return _words(keys[:, at : at + 8], "<u8")

    if length == 0:
        return np.full(count, _K2, np.uint64)
    if length < 4:
        return _hash_1_to_3(keys)
    if length < 8:
        first, last = _words(keys[:, :4], "<u4"), _words(keys[:, -4:], "<u4")
        return _mix((first << 3) + length, last, _multiplier(length))
    if length <= 16:
        return _hash_8_to_16(fetch, length)
    if length <= 32:
        return _mix(*_halves(fetch, length), _multiplier(length))
    if length <= _BLOCK:
        return _hash_33_to_64(fetch, length)
    return _hash_long(fetch, length)


def _words(parts: NDArray[np.uint8], dtype: str) -> Words:
    words: Words = np.ascontiguousarray(parts).view(dtype)[:, 0].astype(np.uint64)
    return words


def _constant(value: int) -> np.uint64:
    return np.uint64(value % _MODULUS)


def _multiplier(length: int) -> np.uint64:
    return _constant(_K2 + 2 * length)


def _rotate(words: Words, bits: int) -> Words:
    return (words >> np.uint64(bits)) | (words << np.uint64(64 - bits))


def _fold(words: Words) -> Words:
    return words ^ (words >> np.uint64(47))


def _mix(first: Words, second: Words, multiplier: Words | np.uint64) -> Words:
    """Condense two words into one."""
    inner = _fold((first ^ second) * multiplier)
    return _fold((second ^ inner) * multiplier) * multiplier


def _hash_1_to_3(keys: NDArray[np.uint8]) -> Words:
    length = keys.shape[1]
    first, middle, last = (
        keys[:, at].astype(np.uint64) for at in (0, length // 2, length - 1)
    )
    low = (first + (middle << 8)) * _constant(_K2)
    high = ((last << 2) + length) * _constant(_K0)
    return _fold(low ^ high) * _constant(_K2)


def _hash_8_to_16(fetch: Fetch, length: int) -> Words:
    multiplier = _multiplier(length)
    first = fetch(0) + _constant(_K2)
    last = fetch(length - 8)
    return _mix(
        _rotate(last, 37) * multiplier + first,
        (_rotate(first, 25) + last) * multiplier,
        multiplier,
    )


def _halves(fetch: Fetch, length: int) -> tuple[Words, Words]:
    """Return two words that depend on the first and the last 16 bytes."""
    a = fetch(0) * _constant(_K1 if length <= 32 else _K2)
    b = fetch(8)
    c = fetch(length - 8) * _multiplier(length)
    d = fetch(length - 16) * _constant(_K2)
    return (
        _rotate(a + b, 43) + _rotate(c, 30) + d,
        a + _rotate(b + _constant(_K2), 18) + c,
    )


def _hash_33_to_64(fetch: Fetch, length: int) -> Words:
    multiplier = _multiplier(length)
    outer, other = _halves(fetch, length)
    inner = _mix(outer, other, multiplier)
    a = fetch(0) * _constant(_K2)
    e = fetch(16) * multiplier
    f = fetch(24)
    g = (outer + fetch(length - 32)) * multiplier
    h = (inner + fetch(length - 24)) * multiplier
    return _mix(
        _rotate(e + f, 43) + _rotate(g, 30) + h, e + _rotate(f + a, 18) + g, multiplier
    )


class _HashState(NamedTuple):
    """What a block of 64 bytes leaves to the next."""

    x: Words
    y: Words
    z: Words
    v: tuple[Words, Words]
    w: tuple[Words, Words]


def _hash_long(fetch: Fetch, length: int) -> Words:
    """Hash all blocks but the last, then the last 64 bytes, which may overlap them."""
    state = _initial(fetch(0))
    blocks = (length - 1) // _BLOCK
    for block in range(blocks):
        state = _absorb(state, fetch, block * _BLOCK, _constant(_K1))
    factor = _constant(_K1) + 2 * (state.z & _constant(0xFF))
    w = state.w[0] + (length - 1) % _BLOCK
    v = state.v[0] + w
    state = state._replace(v=(v, state.v[1]), w=(w + v, state.w[1]))
    x, y, z, v_pair, w_pair = _absorb(state, fetch, length - _BLOCK, factor, 9)
    return _mix(
        _mix(v_pair[0], w_pair[0], factor) + _fold(y) * _constant(_K0) + z,
        _mix(v_pair[1], w_pair[1], factor) + x,
        factor,
    )


def _initial(start: Words) -> _HashState:
    zeros = np.zeros_like(start)
    y = zeros + _constant(81 * _K1 + 113)
    z = _fold(y * _constant(_K2) + 113) * _constant(_K2)
    return _HashState(start + _constant(81 * _K2), y, z, (zeros, zeros), (zeros, zeros))


def _absorb(
    state: _HashState, fetch: Fetch, at: int, factor: Words | np.uint64, carry: int = 1
) -> _HashState:
    """Mix in the 64 bytes at ``at``; ``carry`` weighs what earlier blocks left."""
    v_low, v_high = state.v
    w_low, w_high = state.w
    x = _rotate(state.x + state.y + v_low + fetch(at + 8), 37) * factor
    x = x ^ (w_high * carry)
    y = _rotate(state.y + v_high + fetch(at + 48), 42) * factor
    y = y + v_low * carry + fetch(at + 40)
    z = _rotate(state.z + w_low, 33) * factor
    v = _absorb_32(fetch, at, v_high * factor, x + w_low)
    w = _absorb_32(fetch, at + 32, z + w_high, y + fetch(at + 16))
    return _HashState(z, y, x, v, w)


def _absorb_32(fetch: Fetch, at: int, a: Words, b: Words) -> tuple[Words, Words]:
    """Mix 32 bytes into a pair of words."""
    a = a + fetch(at)
    last = fetch(at + 24)
    total = a + fetch(at + 8) + fetch(at + 16)
    b = _rotate(b + a + last, 21)
    return total + last, b + _rotate(total, 44) + a


def _prepare_embedding(operation: BoundOperation) -> PreparedKernel:
    """Give ``values[lookups[i]]`` for each i.

    ``lookups: int32 [k]``, ``values: any [rows, ...]``; the output is [k, ...].

    :raises OperationFailedError: if an index is not one of a row; at execution where
        only that says the indices.
    """
    rows = operation.shape(1)[0]
    constant = operation.input(0).value
    if constant is not None:
        _require_rows(constant, rows)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        lookups, values = inputs
        if constant is None:
            _require_rows(lookups, rows)
        if lookups.size:
            values.take(lookups, 0, outputs[0], "clip")

    return stateless(run)


def _require_rows(lookups: Array, rows: int) -> None:
    outside = lookups[(lookups < 0) | (lookups >= rows)]
    if outside.size:
        raise OperationFailedError(
            f"EMBEDDING_LOOKUP: {outside[0]} is not the index of one of {rows} rows"
        )


def _prepare_hashtable(operation: BoundOperation) -> PreparedKernel:
    """Give the row of values that has the key ``lookups[i]``, and whether there is one.

    ``lookups: int32 [k]``, ``keys: int32 [rows]`` in ascending order, ``values: any
    [rows, ...]``. The outputs are [k, ...], with stored zeros where the key is missing,
    and the hits uint8 [k], 0 or 1.
    """
    rows = operation.shape(1)[0]

    def run(inputs: Inputs, outputs: Outputs) -> None:
        lookups, keys, values = inputs
        found, hits = outputs
        places = np.searchsorted(keys, lookups)
        np.equal(keys.take(places, mode="clip"), lookups, out=hits, casting="unsafe")
        values.take(places, 0, found, "clip")
        found[hits == 0] = 0

    def run_without_keys(inputs: Inputs, outputs: Outputs) -> None:
        for output in outputs:
            output.fill(0)

    return stateless(run if rows else run_without_keys)


_SEED_BYTES = 4
_KEY_BYTES_AT_ONCE = 2**20


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Give the bits ``sum(weight[i] * hash(seed, input[i])) > 0`` of all seeds.

    ``hash: float [hashes, bits]`` holds the seeds, ``input: any [rows, ...]``,
    ``weight: float [rows]`` (optional, 1 if omitted). The hash of a row is the signed
    64-bit fingerprint of the seed's float32 bytes followed by the row's bytes; sums
    are taken in float64.

    DENSE gives [hashes * bits], one int32 for each bit. SPARSE gives [hashes], the bits
    of each hash as a number, first bit highest, plus ``hash << bits``; that last term
    is missing from SPARSE_DEPRECATED.

    :raises OperationFailedError: if the input has no rows.
    """
    hashes, bits = operation.shape(0)
    rows, *row = operation.shape(1)
    row_bytes = math.prod(row) * operation.input(1).dtype.itemsize
    kind = operation.integer(3)
    operation.require(rows > 0, "the input has no rows")
    powers = np.int64(1) << np.arange(bits - 1, -1, -1, dtype=np.int64)
    offsets = np.arange(hashes, dtype=np.int64) << bits if kind == SPARSE else 0
    key_bytes = _SEED_BYTES + row_bytes
    seeds_at_once = min(hashes * bits, _KEY_BYTES_AT_ONCE // (rows * key_bytes))

    def run(keys: Array, inputs: Inputs, outputs: Outputs) -> None:
        seeds, data, weight = inputs[:3]
        keys[..., _SEED_BYTES:] = data.reshape(rows, -1).view(np.uint8)
        signs = _signs(keys, seeds.astype(np.float32).reshape(-1), weight)
        if kind == DENSE:
            np.copyto(outputs[0], signs)
        else:
            signatures = signs.reshape(hashes, bits) @ powers + offsets
            # Signatures wrap around to int32.
            np.copyto(outputs[0], signatures, casting="unsafe")

    shape = (max(seeds_at_once, 1), rows, key_bytes)
    return with_scratch(run, (shape, np.uint8))


def _signs(keys: Array, seeds: Array, weight: Array | None) -> NDArray[np.bool_]:
    """Return one bit for each float32 seed; ``keys`` has room for some at once."""
    signs = np.empty(seeds.size, np.bool_)
    for start in range(0, seeds.size, len(keys)):
        some = seeds[start : start + len(keys)]
        part = keys[: some.size]
        part[..., :_SEED_BYTES] = some.view(np.uint8).reshape(-1, 1, _SEED_BYTES)
        hashes = fingerprint64(part.reshape(-1, keys.shape[2])).view(np.int64)
        terms = hashes.reshape(part.shape[:2]).astype(np.float64)
        if weight is not None:
            np.multiply(terms, weight, out=terms)
        # Running sums add row after row; a plain sum would round in another order.
        signs[start : start + some.size] = np.add.accumulate(terms, axis=1)[:, -1] > 0
    return signs


KERNELS: dict[OperationType, Prepare] = {
    OperationType.EMBEDDING_LOOKUP: _prepare_embedding,
    OperationType.HASHTABLE_LOOKUP: _prepare_hashtable,
    OperationType.LSH_PROJECTION: _prepare,
}
