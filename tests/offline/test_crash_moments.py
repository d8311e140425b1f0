"""Every moment of a build: it ends before its first change of a file, before its second, ...; nothing is lost."""

import errno
import os
import shutil
import sys
from pathlib import Path

import pytest
from tests.support.builds import Given, assert_resumes, directory_bytes, names_beside

from suffuse.errors import BuildInterrupted, IndexExists, IndexMissing
from suffuse.index.index import Index
from suffuse.index.snapshot import verify
from suffuse.offline.build import build

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs the signals of POSIX")


class Killed(BaseException):
    """Stands for SIGKILL: once raised, nothing changes on disk any more, whatever a `finally` may try."""


class Fault:
    """Lets the changes of files below a directory go wrong from a given one on, by Python's audit events."""

    current = None

    def __init__(self, directory, first, error, kinds=("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")):
        self.directory, self.first, self.error, self.kinds = str(directory), first, error, kinds
        self.changes = []

    def __enter__(self):
        Fault.current = self
        return self

    def __exit__(self, *_):
        Fault.current = None

    def happened(self):
        return len(self.changes) > self.first

    def see(self, event, args):
        if event not in self.kinds or (event == "open" and not self.is_writing(args)):
            return
        self.changes.append(f"{event} {args[0]}")
        if self.happened():
            raise self.error()

    def is_writing(self, args):
        path, _, flags = args
        inside = isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.directory)
        return inside and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)


def watch(event, args):
    if Fault.current is not None:
        Fault.current.see(event, args)


@pytest.fixture(scope="module")
def faults():
    sys.addaudithook(watch)  # stays, but sees nothing without a Fault


@pytest.fixture(scope="module")
def little(tmp_path_factory):
    """Two blocks, so that there are fewer than a hundred changes of files."""
    return Given(tmp_path_factory.mktemp("little"), 200)


def moments(directory, prepare, make, error, **others):
    """A new path for each change that `make` does, with the fault that let it end there."""
    for moment in range(1000):
        path = directory / str(moment) / "x.index"
        path.parent.mkdir()
        prepare(path)
        with Fault(path.parent, moment, error, **others) as fault:
            outcome = None
            try:
                make(path)
            except (Killed, BuildInterrupted) as caught:
                outcome = caught
        if not fault.happened():
            assert outcome is None
            return
        yield path, fault.changes[moment], outcome
        shutil.rmtree(path.parent)
    pytest.fail("a build of two blocks changes files without end")


def content(path):
    """The bytes of the index at a path; None where there is none."""
    try:
        Index.open(path)
    except IndexMissing:
        return None
    verify(path)
    return directory_bytes(path)


@pytest.mark.usefixtures("faults")
def test_a_build_that_dies_at_any_moment_leaves_a_whole_index_or_none(little, tmp_path):
    seen = []
    for path, change, outcome in moments(tmp_path, lambda _: None, lambda path: little.build(path, jobs=1), Killed):
        assert isinstance(outcome, Killed), change
        found = content(path)
        seen.append(found is not None)
        if found is None:
            assert_resumes(little, path)
        else:
            assert found == little.expected, change
            with pytest.raises(IndexExists):
                little.build(path)
            little.build(path, force=True)
        assert directory_bytes(path) == little.expected, change
        assert names_beside(path) == ["x.index"], change
    # None before one moment, whole from there on.
    assert seen == sorted(seen)
    assert seen.count(False) > 30
    assert seen.count(True) > 3


@pytest.mark.usefixtures("faults")
def test_a_build_that_dies_while_it_drafts_columns_goes_on(tmp_path):
    given = Given(tmp_path, 200, truncation=400)
    with Fault(tmp_path, 1000, Killed) as fault:
        given.build(tmp_path / "whole" / "x.index", jobs=1)
    drafting = [moment for moment, change in enumerate(fault.changes) if "draft" in change or "supports" in change]
    assert len(drafting) > 8
    for moment in drafting:
        path = tmp_path / str(moment) / "x.index"
        with Fault(path.parent, moment, Killed), pytest.raises(Killed):
            given.build(path, jobs=1)
        if (found := content(path)) is None:
            assert_resumes(given, path)
        else:  # drafts go last, when the index has its name
            assert found == given.expected
            assert moment > drafting[8]


@pytest.mark.usefixtures("faults")
def test_a_forced_build_that_dies_at_any_moment_loses_no_index(little, tmp_path):
    build(little.features[:20], tmp_path / "old.index", little.params)
    old, seen = directory_bytes(tmp_path / "old.index"), []
    for path, change, outcome in moments(
        tmp_path,
        lambda path: shutil.copytree(tmp_path / "old.index", path),
        lambda path: little.build(path, jobs=1, force=True),
        Killed,
    ):
        assert isinstance(outcome, Killed), change
        found = content(path)
        seen.append("old" if found == old else "new" if found == little.expected else found)
        if found is None:
            # Between the two renames: any build brings the old one back.
            with pytest.raises(IndexExists):
                little.build(path)
            assert content(path) == old, change
        little.build(path, force=True)
        assert directory_bytes(path) == little.expected, change
        assert names_beside(path) == ["x.index"], change
    assert list(dict.fromkeys(seen)) == ["old", None, "new"]
    assert seen.count(None) == 1


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("number", "kinds"),
    [
        (errno.ENOSPC, ("open", "os.mkdir")),
        (errno.EIO, ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")),
    ],
    ids=["full", "broken"],
)
@pytest.mark.usefixtures("faults")
def test_a_disk_that_fails_at_any_moment_interrupts_the_build(little, tmp_path, number, kinds, force):
    build(little.features[:20], tmp_path / "old.index", little.params)
    old, interrupted = directory_bytes(tmp_path / "old.index"), 0
    for path, change, outcome in moments(
        tmp_path,
        lambda path: shutil.copytree(tmp_path / "old.index", path) if force else None,
        lambda path: little.build(path, jobs=1, force=force),
        lambda: OSError(number, os.strerror(number)),
        kinds=kinds,
    ):
        found = content(path)
        if outcome is None:
            # Only what was left over could not be removed.
            assert found == little.expected, change
            continue
        interrupted += 1
        assert os.strerror(number) in str(outcome)
        assert "the same build goes on" in str(outcome)
        if found is None and force:
            # The old index could not even be brought back: the next build does.
            assert change.startswith("os.rename"), change
        else:
            assert found == (old if force else None), change
        little.build(path, force=force)
        assert directory_bytes(path) == little.expected, change
        assert names_beside(path) == ["x.index"], change
    assert interrupted > 15


def test_a_build_that_dies_while_it_tidies_up_does_not_spoil_the_next(little, tmp_path, monkeypatch):
    path, remove = tmp_path / "x.index", shutil.rmtree

    def dies(work):
        if work.name in ("pairs", "lists", "edges"):  # removed as soon as what they are for is known
            remove(work)
            return
        # The worst order: without its arrays, the graph still says that it is done.
        remove(work / "columns")
        for array in (work / "graph").glob("*.npy"):
            array.unlink()
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", dies)
        with pytest.raises(Killed):
            little.build(path)
    assert content(path) == little.expected
    assert (tmp_path / "x.index.building" / "graph" / "summary.json").exists()
    little.build(path, force=True)
    assert directory_bytes(path) == little.expected
    assert names_beside(path) == ["x.index"]


@pytest.mark.parametrize("force", [False, True])
def test_a_rename_that_fails_leaves_what_was_there(little, tmp_path, monkeypatch, force):
    path, old = tmp_path / "x.index", {}
    if force:
        build(little.features[:20], path, little.params)
        old = directory_bytes(path)
    rename = Path.rename

    def refused(self, target):
        if self.name == "index":
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refused)
        with pytest.raises(BuildInterrupted, match="Permission denied"):
            little.build(path, force=force)
    assert (content(path) or {}) == old
    assert little.build(path, force=force).resumed == 4
    assert directory_bytes(path) == little.expected
    assert names_beside(path) == ["x.index"]
