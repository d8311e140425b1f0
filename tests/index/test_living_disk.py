"""Disks that are full, broken or read-only: a change fails with a clear message, and the index is as before."""

import errno
import json
import os
import shutil
import subprocess
import sys

import pytest
from tests.support.faults import CHANGES, moments, new_world
from tests.support.small_worlds import Change, contents, leftovers

from suffuse import ChangeFailed, verify
from suffuse.store.manifest import read_manifest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs the file systems of POSIX")

# Against a hang only: nothing here is that slow.
FOREVER = 300.0


@pytest.mark.parametrize("verb", CHANGES)
@pytest.mark.parametrize(
    ("number", "kinds"),
    [(errno.ENOSPC, ("open", "os.mkdir")), (errno.EIO, ("fsync", "os.rename", "os.remove", "os.rmdir"))],
    ids=["full", "broken"],
)
def test_a_disk_that_fails_at_any_step_leaves_the_index_as_the_error_says(tmp_path, verb, number, kinds):
    told = CHANGES[verb]
    steps = moments(tmp_path, "coded", told, lambda: OSError(number, os.strerror(number)), kinds=kinds)
    before, after = next(steps)
    original, failed = contents(tmp_path / "original.index"), 0
    for world, step, outcome in steps:
        verify(world.path)
        if outcome is None:
            # Only what was left over could not be removed.
            assert not world.difference(after), step
            continue
        failed += 1
        assert isinstance(outcome, ChangeFailed), step
        assert os.strerror(number) in str(outcome)
        if "the index is as it was before" in str(outcome):
            assert not world.difference(before), step
            assert {name: contents(world.path).get(name) for name in original} == original, step
            world.make(told)
        else:
            assert "the change is there" in str(outcome)
        assert not world.difference(after), step
        world.make(Change("add", [], [78]))
        assert not leftovers(world.path), step
    assert failed > 2


def attempts_with(world, state, harm, heal):
    """Every change fails while the harm lasts, and works afterwards; returns what was said."""
    messages = []
    for change in CHANGES.values():
        before, generation = contents(world.path), read_manifest(world.path).generation
        harm()
        try:
            with pytest.raises(ChangeFailed, match="the index is as it was before") as refused:
                world.make(change)
            assert contents(world.path) == before
            assert not world.difference(state)
            verify(world.path)
        finally:
            heal()
        world.make(change)
        state = state.after(change)
        assert not world.difference(state)
        assert read_manifest(world.path).generation == generation + 1
        verify(world.path)
        messages.append(str(refused.value))
    return messages


# Run in a process of its own, which may limit itself and mount what only it sees.
ALONE = """
import json, os, resource, signal, subprocess, sys
from pathlib import Path
from tests.index.test_living_disk import attempts_with
from tests.support.faults import new_world
place = Path(sys.argv[1])

def mount(*options):
    subprocess.run(["mount", *options, place], check=True)

if sys.argv[2] != "limit":
    mount("-t", "tmpfs", "-o", "size=4m", "tmpfs")
world, state = new_world(place)
# The first change makes the lock, without which nothing can be tried.
filler = place / "filler"

def fill():
    with filler.open("wb", buffering=0) as stream:
        try:
            while stream.write(bytes(4096)):
                pass
        except OSError:
            pass

unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
harm, heal = {
    "full": (fill, filler.unlink),
    "read-only": (lambda: mount("-o", "remount,ro"), lambda: mount("-o", "remount,rw")),
    "limit": (
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY)),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, unlimited),
    ),
}[sys.argv[2]]
print(json.dumps(attempts_with(world, state, harm, heal)))
"""


def alone(place, how, before=()):
    ended = subprocess.run(
        [*before, sys.executable, "-c", ALONE, str(place), how],
        capture_output=True, text=True, timeout=FOREVER, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    messages = json.loads(ended.stdout)
    assert len(messages) == len(CHANGES)
    return messages


def test_files_that_may_not_grow_fail_a_change(tmp_path):
    for message in alone(tmp_path, "limit"):
        assert message.startswith("File too large")


@pytest.mark.parametrize(
    ("how", "message"), [("full", "No space left on device"), ("read-only", "Read-only file system")]
)
def test_a_full_or_read_only_disk_fails_a_change(tmp_path, how, message):
    # A mount that only the child sees, and that goes with it.
    private = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or not shutil.which("mount"):
        pytest.skip("there is no unshare or no mount on this machine")
    probe = subprocess.run(
        [*private, "mount", "-t", "tmpfs", "tmpfs", tmp_path], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"this user may not mount a file system: {probe.stderr.strip()}")
    for said in alone(tmp_path, how, private):
        assert said.startswith(message)


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="permissions do not bind root")
def test_a_directory_without_permission_to_write_fails_a_change(tmp_path):
    world, state = new_world(tmp_path)
    for said in attempts_with(world, state, lambda: world.path.chmod(0o555), lambda: world.path.chmod(0o755)):
        assert said.startswith("Permission denied")
