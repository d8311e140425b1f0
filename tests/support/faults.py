"""Changes of an index that go wrong at a chosen moment; small_worlds.py has the indexes themselves."""

import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.support.small_worlds import Change, World

from suffuse.errors import SuffuseError

CHANGES = {
    "add": Change("add", [], [31, 32, 33]),
    "remove": Change("remove", [0, 4], []),
    "replace": Change("replace", [6, 9], [34, 35]),
    "compact": Change("compact", [], []),
    "exact": Change("add", [], [36], "exact"),
}
# What Python reports before it does them; of `open`, only those that write.
ALL_KINDS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "fsync")


class Killed(BaseException):
    """Stands for SIGKILL: once raised, nothing changes on disk any more, whatever a `finally` may try."""


class Fault:
    """Lets what a writer does to files below a directory go wrong, from the first thing of its kind on."""

    current = None
    hooked = False

    def __init__(self, directory, first, error, kinds=ALL_KINDS):
        self.directory, self.first, self.error, self.kinds = str(directory), first, error, kinds
        self.steps = []
        self._fsync = os.fsync
        if not Fault.hooked:
            sys.addaudithook(lambda event, args: Fault.current and Fault.current.see(event, args))
            Fault.hooked = True  # it stays, but sees nothing without a Fault

    def __enter__(self):
        Fault.current = self
        os.fsync = lambda _: self.see("fsync", ("",))  # which has no audit event, and nobody pulls the plug here
        return self

    def __exit__(self, *_):
        Fault.current, os.fsync = None, self._fsync

    def happened(self):
        return len(self.steps) > self.first

    def see(self, event, args):
        if event not in self.kinds or (event == "open" and not self._is_writing(args)):
            return
        self.steps.append(f"{event} {args[0]}")
        if self.happened():
            raise self.error()

    def _is_writing(self, args):
        path, _, flags = args
        inside = isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.directory)
        return inside and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)


class Moment(NamedTuple):
    """A change that ended at one of its steps."""

    world: World
    step: str
    outcome: BaseException | None


def moments(place, kind, told, error, **others):
    """The change on a new copy of an index with segments, ended at its first step, at its second, ...; and its states.

    First come the states before and after the change, then the moments.
    """
    original = World(kind, place / "original.index")
    before = original.build(list(range(1, 25)))
    for change in (Change("add", [], [26, 27]), Change("remove", [3], [])):
        original.make(change)
        before = before.after(change)
    yield before, before.after(told)
    for first in range(1000):
        world = World(kind, place / str(first) / "x.index")
        shutil.copytree(original.path, world.path)
        outcome = None
        with Fault(world.path, first, error, **others) as fault:
            try:
                world.make(told)
            except (Killed, SuffuseError) as caught:
                outcome = caught
        if not fault.happened():
            assert outcome is None
            return
        yield Moment(world, fault.steps[first], outcome)
        shutil.rmtree(world.path.parent)
    pytest.fail("a change of a tiny index takes steps without end")


def new_world(place: Path, kind: str = "coded", images: int = 30):
    """A small index and what it holds."""
    world = World(kind, place / "x.index")
    return world, world.build(np.random.default_rng(8).integers(1, 1 << 30, images).tolist())
