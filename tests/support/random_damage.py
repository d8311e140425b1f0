"""Damage one file of an index after the other, and look at what every use of the index makes of it."""

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.support.kinds import KINDS
from tests.support.small_worlds import Change, State, World, contents, said, searches

from suffuse import Hits, Index, verify
from suffuse.errors import IndexProblem, SuffuseError

# How long one damage may take before it counts as a hang; a sound index takes less than a second for all of it.
PATIENCE = 120.0
# What an index has been through before it is damaged.
STAGES = ("built", "changed", "compacted", "compacted and changed")


class Damage(NamedTuple):
    """One damage of one file."""

    file: str
    flip: int | None  # the bit, counted from the beginning of the file
    length: int | None  # what it is cut to

    def do(self, path: Path) -> None:
        """Do it."""
        data = bytearray((path / self.file).read_bytes())
        if self.flip is not None:
            data[self.flip // 8] ^= 1 << self.flip % 8
        (path / self.file).write_bytes(data[: self.length])


def random_damage(files: dict[str, bytes], rng: np.random.Generator) -> Damage:
    """A flipped bit or a shorter file; every file as often as any other."""
    names = sorted(name for name, data in files.items() if data)
    name = names[rng.integers(len(names))]
    size = len(files[name])
    if rng.random() < 0.3:
        return Damage(name, None, int(rng.choice([0, size - 1, int(rng.integers(size))])))
    # Small files are mostly header, large ones mostly data.
    within = min(size, 128) if rng.random() < 0.15 else size
    return Damage(name, int(rng.integers(8 * within)), None)


def prepared(world: World, stage: str, rng: np.random.Generator) -> State:
    """An index at one of the stages."""
    state = world.build(rng.integers(1, 1 << 30, 40).tolist())
    changes = []
    if stage != "built":
        changes += [Change("add", [], [7, 8, 9]), Change("remove", [3, 17], []), Change("replace", [5], [11])]
        changes += [Change("add", [], list(range(100, 120)))]
    if stage.startswith("compacted"):
        changes += [Change("compact", [], [])]
    if stage == "compacted and changed":
        changes += [Change("remove", [8, 21, 41], []), Change("add", [], [12, 13])]
    for change in changes:
        world.make(change)
        state = state.after(change)
    return state


def changes_to_try(state: State) -> dict[str, Change]:
    """What is done to a damaged index."""
    some = list(state.images)[2:4]
    return {
        "add": Change("add", [], [21, 22]),
        "remove": Change("remove", some, []),
        "replace": Change("replace", some, [23, 24]),
        "compact": Change("compact", [], []),
        "exact": Change("add", [], [25], "exact"),
    }


class Sound(NamedTuple):
    """A sound index, what searches find in it, and what it becomes by changes."""

    world: World
    state: State
    files: dict[str, bytes]
    answers: list[Any]
    changed: dict[str, dict[str, bytes]]


def sound_index(place: Path, number: int) -> Sound:
    """The sound index of a number: kinds go round faster than stages."""
    kind, stage = list(KINDS)[number % len(KINDS)], STAGES[number // len(KINDS) % len(STAGES)]
    world = World(kind, place / f"{number}" / "x.index")
    world.path.parent.mkdir(parents=True)
    state = prepared(world, stage, np.random.default_rng(number))
    assert not world.difference(state)
    changed = {}
    for name, change in changes_to_try(state).items():
        copy = World(kind, world.path.with_name(name))
        shutil.copytree(world.path, copy.path)
        copy.make(change)
        changed[name] = contents(copy.path)
        shutil.rmtree(copy.path)
    found = [use() for use in _uses(Index.open(world.path))]
    return Sound(world, state, contents(world.path), found, changed)


def examine(sound: Sound, damage: Damage) -> dict[str, Any]:
    """What becomes of every use of the damaged index; "failures" says what must not be."""
    copy = World(sound.world.kind, sound.world.path.with_name("copy"))
    outcome: dict[str, Any] = {"kind": copy.kind, **damage._asdict(), "failures": []}

    def restore() -> None:
        shutil.rmtree(copy.path, ignore_errors=True)
        shutil.copytree(sound.world.path, copy.path)
        damage.do(copy.path)

    restore()
    with contextlib.suppress(IndexProblem):
        verify(copy.path)
        outcome["failures"].append("verify did not find it")
    outcome["search"] = _searched(sound, copy.path)
    if outcome["search"] not in ("the same", "refused"):
        outcome["failures"].append(f"searching gave {outcome['search']}")
    for name, change in changes_to_try(sound.state).items():
        restore()
        before = contents(copy.path)
        try:
            copy.make(change)
        except SuffuseError as error:
            outcome[name] = "refused"
            if (after := contents(copy.path)) != before:
                names = [file for file in {*before, *after} if before.get(file) != after.get(file)]
                outcome["failures"].append(f"{name} failed ({said(error)}) and changed {names}")
            continue
        outcome[name] = "done, still found"
        with contextlib.suppress(IndexProblem):
            verify(copy.path)
            outcome[name] = "done, and sound"
            if contents(copy.path) != sound.changed[name]:
                outcome["failures"].append(f"{name} made an index that verifies, and is not what it should be")
    return outcome


def _searched(sound: Sound, path: Path) -> str:
    """What came of searching: each search, all names and the graph, each as if nothing had been read before."""
    outcomes = [_outcome(sound, path, number) for number in range(len(sound.answers))]
    return max(outcomes, key=["the same", "refused", "another answer", "an image that does not exist"].index)


def _outcome(sound: Sound, path: Path, number: int) -> str:
    try:
        found = _uses(Index.open(path))[number]()
    except IndexProblem:
        return "refused"
    right = sound.answers[number]
    if not isinstance(found, Hits):
        return "the same" if found == right else "another answer"
    if not set(found.ids.ravel().tolist()) <= {*sound.state.images, -1}:
        return "an image that does not exist"
    return (
        "the same"
        if found.ids.tolist() == right.ids.tolist() and found.scores.tolist() == right.scores.tolist()
        else "another answer"
    )


def _uses(index: Index) -> list[Callable[[], Any]]:
    """Ways to read of an index."""
    return [*searches(index), lambda: list(index.items), lambda: [array.tobytes() for array in index.graph or ()]]


def work(told: dict[str, Any]) -> None:
    """Examine damages from a number on, a line before and after each; run in a process of its own, as it may crash."""
    os.fsync = os.fstat  # type: ignore[assignment]  # nobody pulls the plug here
    known: dict[int, Sound] = {}
    for number in range(told["first"], told["count"]):
        which = number % (len(KINDS) * len(STAGES))
        if which not in known:
            known[which] = sound_index(Path(told["place"]) / f"from {told['first']}", which)
        damage = random_damage(known[which].files, np.random.default_rng([told["seed"], number]))
        stage = STAGES[which // len(KINDS)]
        print(json.dumps({"number": number, "stage": stage, "kind": known[which].world.kind, **damage._asdict()}))
        sys.stdout.flush()
        try:
            outcome = examine(known[which], damage)
        except Exception as error:  # anything that is no error of Suffuse is a failure
            outcome = {**damage._asdict(), "failures": [f"{type(error).__name__}: {error}"]}
        print(json.dumps({"number": number, "stage": stage, **outcome}), flush=True)


def damage_often(place: Path, count: int, seed: int) -> dict[str, Any]:
    """Examine so many damages, in a process that is started again when it crashes or hangs."""
    print(f"seed {seed}", file=sys.stderr)
    each: list[dict[str, Any]] = []
    began = time.monotonic()
    while len(each) < count:
        told = {"place": str(place), "first": len(each), "count": count, "seed": seed}
        each += _one_worker(told)
        print(f"{len(each)} of {count}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    failures = [outcome for outcome in each if outcome["failures"]]
    uses = ("search", "add", "remove", "replace", "compact", "exact")
    return {
        "damages": len(each),
        "seed": seed,
        "flips": sum(outcome["flip"] is not None for outcome in each),
        "truncations": sum(outcome["length"] is not None for outcome in each),
        "found by verify": sum("verify did not find it" not in outcome["failures"] for outcome in each),
        **{use: Counter(outcome.get(use, "-") for outcome in each) for use in uses},
        "files": Counter(Path(outcome["file"]).name.split("-")[0] for outcome in each),
        "failures": failures,
        "each": each,
    }


def _one_worker(told: dict[str, Any]) -> list[dict[str, Any]]:
    """The outcomes of one process; the last one is a failure if it did not come to its end."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.support.random_damage", json.dumps(told)]
    outcomes: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines: queue.Queue[str] = queue.Queue()
        complaints: list[str] = []
        stdout, stderr = process.stdout, process.stderr

        def pass_on() -> None:
            for line in stdout:
                lines.put(line)
            lines.put("")

        readers = [threading.Thread(target=pass_on), threading.Thread(target=lambda: complaints.extend(stderr))]
        for reader in readers:
            reader.start()
        begun: dict[str, Any] | None = None
        why = ""
        while not why:
            try:
                line = lines.get(timeout=PATIENCE)
            except queue.Empty:
                why = "it hangs"
                break
            if not line:
                break
            said = json.loads(line)
            if "failures" in said:
                outcomes.append(said)
                begun = None
            else:
                begun = said
        process.kill() if why else process.wait()
        for reader in readers:
            reader.join()
    if begun is not None:
        outcomes.append(begun | {"failures": [why or f"it ended with {process.returncode}: {''.join(complaints)}"]})
    elif process.returncode:
        raise RuntimeError("".join(complaints))
    return outcomes


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))
