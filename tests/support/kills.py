"""Kill processes that change an index, at random moments, and look at what they leave."""

import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from tests.support.kinds import KINDS
from tests.support.small_worlds import Change, State, World, digest, leftovers

from suffuse import verify


class Writers:
    """A process that starts others, each of which changes an index until it is killed.

    They are forked from one that has imported everything, which takes far longer than to change a small index.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.support.kills"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, told: dict[str, Any]) -> int:
        """Start a writer; returns its number."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def kill(self, writer: int) -> bool:
        """Kill it; whether that is what ended it."""
        os.kill(writer, signal.SIGKILL)
        return self._answer() == -signal.SIGKILL

    def alive(self, writer: int) -> bool:
        """Whether it has not ended by itself."""
        return Path(f"/proc/{writer}").exists() or not Path("/proc").exists()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def start_writers() -> None:
    """For each line of the input: start a writer, say its number, and when it has ended, say how."""
    for line in sys.stdin:
        writer = os.fork()
        if not writer:
            try:
                change_forever(json.loads(line))
            finally:
                traceback.print_exc()
                os._exit(1)
        print(writer, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]), flush=True)


class Line(NamedTuple):
    """A line of the log of a writer: a change that it begins, or has done."""

    done: bool
    change: Change
    digest: str = ""  # of what searches find afterwards


def change_forever(told: dict[str, Any]) -> None:
    """Change an index until somebody ends this process; a line in the log before and after each change."""
    world, rng = World(told["kind"], Path(told["path"])), np.random.default_rng(told["seed"])
    state = State({int(id): token for id, token in told["images"].items()}, told["next_id"])
    with Path(told["log"]).open("w", buffering=1) as log:
        while True:
            change = world.random_change(state, rng)
            log.write(json.dumps([False, change, ""]) + "\n")
            world.make(change)
            log.write(json.dumps([True, change, digest(world.path)]) + "\n")
            state = state.after(change)


def read_log(path: Path) -> list[Line]:
    """The lines that are whole."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [Line(done, Change(*change), digest) for done, change, digest in map(json.loads, lines)]


def kill_once(writers: Writers, world: World, state: State, seed: int, delay: float) -> tuple[dict[str, Any], State]:
    """Let a process change the index for so many seconds, kill it, and look at what it left.

    Returns what was found, with what is wrong under "failure", and what the index holds now.
    """
    log, before = world.path.with_name("log"), world.path.with_name("before")
    log.unlink(missing_ok=True)
    shutil.rmtree(before, ignore_errors=True)
    shutil.copytree(world.path, before)
    known = digest(world.path)
    told = {"kind": world.kind, "path": str(world.path), "log": str(log), "seed": seed, **state._asdict()}
    writer = writers.start(told)
    while not log.exists() and writers.alive(writer):
        time.sleep(0.001)
    time.sleep(delay)
    found: dict[str, Any] = {"kind": world.kind, "seed": seed, "delay": round(delay, 4), "failure": ""}
    if not writers.kill(writer):
        return found | {"failure": "the writer ended by itself"}, state
    lines = read_log(log)
    finished = [line for line in lines if line.done]
    for line in finished:
        state, known = state.after(line.change), line.digest
    underway = lines[-1].change if lines and not lines[-1].done else None
    found |= {"during": underway.verb if underway else "between changes", "left": leftovers(world.path)}
    found |= {"changes": len(finished)}
    different = world.difference(state)
    # A compaction shows in what searches find alone.
    compacted = underway is not None and underway.verb == "compact" and digest(world.path) != known
    if underway is not None and (different or compacted):
        # Then the change must be there as a whole, as if nobody had been killed.
        state, again = state.after(underway), World(world.kind, before)
        different = world.difference(state)
        for line in finished:
            again.make(line.change)
        again.make(underway)
        known, found["committed"] = digest(before), True
    verify(world.path)
    if different or digest(world.path) != known:
        return found | {"failure": different or "searches find something else"}, state
    change = Change("add", [], [int(seed) + 1])
    summary = world.make(change)
    found["seconds"] = summary.seconds
    if summary.ids.tolist() != [state.next_id]:
        found["failure"] = "the next writer gave an id twice, or left one out"
    state = state.after(change)
    found["failure"] = found["failure"] or world.difference(state)
    if left := leftovers(world.path):
        found["failure"] = found["failure"] or f"the next writer left {left}"
    verify(world.path)
    return found, state


def kill_often(place: Path, moments: int, seed: int) -> dict[str, Any]:
    """Kill writers of indexes of all kinds in turn; each index lives on from kill to kill."""
    rng = np.random.default_rng(seed)
    print(f"seed {seed}", file=sys.stderr)
    worlds = [World(kind, place / str(number) / "x.index") for number, kind in enumerate(KINDS)]
    states = []
    for world in worlds:
        world.path.parent.mkdir()
        states.append(world.build(rng.integers(1, 1 << 30, 60).tolist()))
    each: list[dict[str, Any]] = []
    with Writers() as writers:
        while len(each) < moments and not any(found["failure"] for found in each):
            which, own_seed = len(each) % len(worlds), int(rng.integers(1 << 30))
            # A few changes long, however busy the machine is.
            delay = float(rng.uniform(0, 8 * (each[-1]["seconds"] if each else 0.1)))
            found, states[which] = kill_once(writers, worlds[which], states[which], own_seed, delay)
            print(len(each), found, file=sys.stderr, flush=True)
            each.append(found)
    return {
        "kills": len(each),
        "seed": seed,
        "during": collections.Counter(found.get("during", "") for found in each),
        "with files left over": sum(bool(found.get("left")) for found in each),
        "committed though not confirmed": sum(bool(found.get("committed")) for found in each),
        "changes that were confirmed": sum(found.get("changes", 0) for found in each),
        "failures": [found for found in each if found["failure"]],
        "each": each,
    }


if __name__ == "__main__":
    start_writers()
