"""FarmHash Fingerprint64."""

import numpy as np
import pytest

from asyncnn.kernels.lookup import fingerprint64

FINGERPRINTS = {
    0: 0x9AE16A3B2F90404F,
    1: 0x57821EFDEE1B7472,
    2: 0xAAFDE8C2F5C95FB0,
    3: 0xAFFAC617A0DC5511,
    4: 0x3969CEE1B4C8AECF,
    7: 0x79509642AC402B3E,
    8: 0x8B74D44C0718E2A7,
    9: 0xD70C5FE4A038123E,
    16: 0x1E509280154249E8,
    17: 0xF0D0A694FF9469AE,
    31: 0x27562BBFAD148FB9,
    32: 0xF8239A1603250932,
    33: 0x563060708DDBB38D,
    48: 0xFB03B085D2543425,
    64: 0xA882FE550BECF6D6,
    65: 0xA2483905C9ADE150,
    127: 0x6E262CFAFC210788,
    128: 0xD36A08F85E288AAB,
    129: 0xC51EDF737A322FB3,
    200: 0x32C7BCB58A8C2E90,
}
"""What the published implementation gives for keys of `key`, by length."""


def key(length):
    return [(i * i * 31 + length * 7) % 251 for i in range(length)]


@pytest.mark.parametrize("length", FINGERPRINTS)
def test_fingerprints_are_those_of_the_published_implementation(length) -> None:
    keys = np.array([key(length)], np.uint8)
    assert fingerprint64(keys).tolist() == [FINGERPRINTS[length]]


@pytest.mark.parametrize("text", ["hello", "&&3gRU?[^&ok:He[|K:"])
def test_texts_have_their_known_fingerprints(text) -> None:
    known = {"hello": 13009744463427800296, "&&3gRU?[^&ok:He[|K:": 11792583603419566171}
    keys = np.frombuffer(text.encode(), np.uint8)[np.newaxis]
    assert fingerprint64(keys).tolist() == [known[text]]


@pytest.mark.parametrize("length", FINGERPRINTS)
def test_each_key_is_hashed_by_itself(length) -> None:
    keys = np.random.default_rng(length).integers(0, 256, (5, length), np.uint8)
    keys[2] = key(length)
    together = fingerprint64(keys)
    assert together[2] == FINGERPRINTS[length]
    alone = [fingerprint64(keys[i : i + 1])[0] for i in range(5)]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("length", FINGERPRINTS)
def test_no_keys_have_no_fingerprints(length) -> None:
    assert fingerprint64(np.empty((0, length), np.uint8)).shape == (0,)
