"""Small indexes that change: their kinds, changes of them that can be told and repeated, and what they must then hold.

An image is known by a number from which its vectors and its name follow, so that a whole state is a few numbers, and
two processes can speak about it.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tests.support.kinds import DIMENSIONS, KINDS, TINY, is_regional

from suffuse import Hits, Index, Params, build
from suffuse.errors import SuffuseError
from suffuse.index.writer import Addition, ChangeSummary, Mode, change, compact
from suffuse.store.locks import LOCK
from suffuse.store.manifest import MANIFEST, base_of, read_manifest

_CENTRES = np.random.default_rng(0).normal(size=(5, DIMENSIONS))

Verb = Literal["add", "remove", "replace", "compact"]


class Change(NamedTuple):
    """What is done to an index."""

    verb: Verb
    ids: list[int]  # that go
    tokens: list[int]  # of what comes
    mode: Mode = "fast"


class State(NamedTuple):
    """What an index holds: the number of each image by its id, and the id of the next one."""

    images: dict[int, int]
    next_id: int

    def after(self, change: Change) -> "State":
        """What it holds after a change."""
        images = {id: token for id, token in self.images.items() if id not in change.ids}
        ids = change.ids if change.verb == "replace" else range(self.next_id, self.next_id + len(change.tokens))
        images |= dict(zip(ids, change.tokens, strict=True)) if change.tokens else {}
        return State(dict(sorted(images.items())), self.next_id + len(change.tokens) * (change.verb == "add"))


class World(NamedTuple):
    """A kind of index, and where it is."""

    kind: str
    path: Path

    @property
    def regional(self) -> bool:
        """Whether elements are regions of images."""
        return is_regional(self.kind)

    def rows(self, token: int) -> NDArray[np.float64]:
        """The vectors of an image: one, or up to three where it has regions."""
        rng = np.random.default_rng(token)
        count = 1 + token % 3 if self.regional else 1
        return np.asarray(_CENTRES[token % len(_CENTRES)] + 0.5 * rng.normal(size=(count, DIMENSIONS)))

    def together(self, tokens: list[int]) -> Addition:
        """The vectors of several images."""
        parts = [self.rows(token) for token in tokens]
        owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts]) if self.regional else None
        return Addition(np.concatenate(parts), owners, [name_of(token) for token in tokens])

    def build(self, tokens: list[int]) -> State:
        """A fresh index of these images."""
        features, owners, names = self.together(tokens)
        build(features, self.path, Params(**TINY | KINDS[self.kind]), owners=owners, names=names, jobs=1)
        return State(dict(enumerate(tokens)), len(tokens))

    def make(self, told: Change) -> ChangeSummary:
        """Do a change."""
        if told.verb == "compact":
            return compact(self.path)
        added = self.together(told.tokens) if told.tokens else None
        return change(self.path, added=added, removed=told.ids, replace=told.verb == "replace", mode=told.mode)

    def random_change(self, state: State, rng: np.random.Generator) -> Change:
        """Any change, so that the number of images stays about what it is."""
        few, many = len(state.images) < 40, len(state.images) > 80
        verb: Verb = rng.choice(["add", "remove", "replace", "compact"], p=[0.35, 0.3, 0.15, 0.2])
        verb = "remove" if many and verb == "add" else "add" if few and verb == "remove" else verb
        count = int(rng.integers(1, 9))
        going = verb in ("remove", "replace")
        ids = sorted(rng.choice(list(state.images), count, replace=False).tolist()) if going else []
        tokens = rng.integers(1, 1 << 30, count).tolist() if verb in ("add", "replace") else []
        return Change(verb, ids, tokens, "exact" if rng.random() < 0.15 else "fast")

    def difference(self, state: State) -> str:
        """How the index differs from what it must hold, image by image; empty if it does not."""
        index = Index.open(self.path)
        if (ids := index.ids.list_visible().tolist()) != list(state.images) or len(index) != len(ids):
            return f"ids {ids} instead of {list(state.images)}"
        if index.manifest.next_id != state.next_id:
            return f"the next id is {index.manifest.next_id} instead of {state.next_id}"
        for id, token in state.images.items():
            place = index.ids.find_row(id)
            elements = np.flatnonzero(index.owners == place) if index.owners is not None else [place]
            if not np.array_equal(index.features[elements], index.prepare(self.rows(token))):
                return f"image {id} has other features"
            if index.items[id] != {"name": name_of(token)}:
                return f"image {id} has the name {index.items[id]}"
        return self._wrong_hits(index, state)

    def _wrong_hits(self, index: Index, state: State) -> str:
        """Whether the plain ranking is that of these images, and diffusion finds each of them once."""
        asked = index.prepare(queries())
        sims = np.array([(asked @ index.prepare(self.rows(token)).T).max(axis=1) for token in state.images.values()])
        expected = np.array(list(state.images))[np.argsort(-sims, axis=0, kind="stable")].T
        if not np.array_equal(index.search(queries(), len(index), method="knn").ids, expected):
            return "the plain ranking is another one"
        found = np.sort(index.search(queries(), len(index)).ids, axis=1)
        return "" if (found == list(state.images)).all() else "diffusion does not rank each image once"


def name_of(token: int) -> str:
    """What an image is called."""
    return f"image {token}"


def queries() -> NDArray[np.float64]:
    """Five vectors to search with, always the same ones."""
    return np.asarray(_CENTRES + 0.3 * np.random.default_rng(1).normal(size=_CENTRES.shape))


def searches(index: Index) -> list[Callable[[], Hits]]:
    """Searches of all kinds."""
    asked: list[Callable[[], Hits]] = [
        lambda: index.search(queries(), 15, 4),
        lambda: index.search(queries()[:1], 5, 2),
        lambda: index.search(queries(), len(index), 30, refine=0),
        lambda: index.search(queries(), len(index), method="knn"),
        lambda: index.combine(np.arange(6)[None], np.ones((1, 6)), 20),
    ]
    if "owners.npy" in index.manifest.files and index.params.pool == "none":
        asked.append(lambda: index.search(queries(), 9, pooling="max"))
        asked.append(lambda: index.search(queries(), 9, pooling="gmp"))
    return asked


def answers(path: Path) -> list[Hits]:
    """What they find, to the last bit."""
    return [search() for search in searches(Index.open(path))]


def digest(path: Path) -> str:
    """All that searches find, and all names, as one number."""
    total = hashlib.sha256(repr(list(Index.open(path).items)).encode())
    for hits in answers(path):
        for array in hits:
            total.update(array.tobytes())
    return total.hexdigest()


def contents(path: Path) -> dict[str, bytes]:
    """Every file of an index; the lock is none of it."""
    files = (file for file in sorted(path.rglob("*")) if file.is_file() and file.name != LOCK)
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def leftovers(path: Path) -> list[str]:
    """What lies in an index and does not belong to its generation."""
    manifest = read_manifest(path)
    base = base_of(path, manifest)
    owned = {MANIFEST, *(segment["name"] for segment in manifest.segments)}
    owned |= {str((base / name).relative_to(path)) for name in manifest.files}
    return sorted(set(contents(path)) - owned) + [
        entry.name for entry in path.iterdir() if entry.is_dir() and entry.name != manifest.base
    ]


def said(error: SuffuseError) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}"
