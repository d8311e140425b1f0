"""Damage by chance, the same each time: what the tests do to seeds where no fuzzer is installed."""

import random
from collections.abc import Callable, Iterator

_NUMBERS = (b"0", b"-1", b"4294967296", b"9223372036854775807", b"1e999", b"NaN", b"null", b"[]", b"9" * 30)
_WORDS = (b"\x00" * 4, b"\xff" * 4, b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80", b"\xff" * 8, b"\x00" * 8)


def mutations(seed: bytes, count: int, rng: random.Random) -> Iterator[bytes]:
    """`count` damaged copies, each with one to four kinds of damage."""
    for _ in range(count):
        data = bytearray(seed)
        for _ in range(rng.randint(1, 4)):
            rng.choice(_DAMAGES)(data, rng)
        yield bytes(data)


def _flip(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _word(data: bytearray, rng: random.Random) -> None:
    word, place = rng.choice(_WORDS), rng.randrange(len(data) + 1)
    data[place : place + len(word)] = word


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _drop(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.randint(1, 16)]


def _repeat(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    data[start:start] = data[start : start + rng.randint(1, 64)] * rng.randint(1, 3)


def _number(data: bytearray, rng: random.Random) -> None:
    """Put something odd in place of digits."""
    digits = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
    if digits:
        place = rng.choice(digits)
        data[place : place + 1] = rng.choice(_NUMBERS)


_DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (_flip, _set, _word, _cut, _drop, _repeat, _number)
