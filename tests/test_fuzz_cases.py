"""Hostile files for every reader, without a fuzzer: those that once broke one, and many mutations of sound ones."""

import random

import pytest

pytest.importorskip("resource", reason="memory is measured by what Windows does not have")

from fuzz import TARGETS, cases, load_target
from fuzz.judge import judge, scarce_memory
from fuzz.mutations import mutations

# About files that numpy and h5py can read all the same.
pytestmark = pytest.mark.filterwarnings("ignore")

KEPT = [(target, name) for target in TARGETS for name in cases(target)]
# Sound files that are of no use to the reader: a list of owners is no matrix, a few tensors are no network.
REFUSED = {"features": {"owners"}, "weights": {"tensors", "transposed", "layers"}}
# An index is a dozen files to write and as many searches.
MUTATIONS = dict.fromkeys(TARGETS, 200) | {"index": 30}


@pytest.fixture(scope="module")
def seeds():
    """The sound inputs of each target."""
    return {target: load_target(target).seeds() for target in TARGETS}


@pytest.fixture(scope="module")
def _scarce_memory(seeds):
    for target in TARGETS:  # libraries and kernels take their memory before it is scarce
        judge(load_target(target).run, next(iter(seeds[target].values())))
    with scarce_memory():
        yield


@pytest.mark.parametrize(("target", "name"), KEPT, ids=[f"{target} {name}" for target, name in KEPT])
@pytest.mark.usefixtures("_scarce_memory")
def test_what_once_broke_a_reader_gives_a_result_or_an_error_of_suffuse(target, name):
    judge(load_target(target).run, cases(target)[name])


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_are_sound_and_the_same_each_time(target, seeds):
    assert load_target(target).seeds() == seeds[target]
    for name, data in seeds[target].items():
        if name in REFUSED.get(target, ()):
            judge(load_target(target).run, data)
        else:
            load_target(target).run(data)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.usefixtures("_scarce_memory")
def test_damaged_files_give_a_result_or_an_error_of_suffuse(target, seeds):
    run = load_target(target).run
    for name, seed in seeds[target].items():
        for number, data in enumerate(mutations(seed, MUTATIONS[target], random.Random(name))):
            try:
                judge(run, data)
            except Exception as error:
                error.add_note(f"mutation {number} of {name}: {data[:2000]!r}")
                raise


@pytest.mark.parametrize("target", TARGETS)
def test_kept_cases_are_small(target):
    assert all(len(data) <= 12_000 for data in cases(target).values())
