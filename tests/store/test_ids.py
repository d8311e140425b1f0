"""Ids that stay and places that change: against plain dictionaries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffuse.errors import InvalidInput
from suffuse.store.ids import Ids


@st.composite
def known(draw):
    """(ids, a dictionary of the shown ones to their places, the hidden places): as removals and replacements leave."""
    count = draw(st.integers(1, 12))
    hidden = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.uint8)
    if draw(st.booleans()):
        names, given_ids = list(range(count)), None
    else:
        names = draw(st.lists(st.integers(0, 30), min_size=count, max_size=count, unique=True))
        for place in range(count):
            if hidden[place] and draw(st.booleans()):
                names[place] = draw(st.sampled_from(names))  # replaced: its id is that of another place now
        given_ids = np.array(names, np.int64)
    ids = Ids(count, given_ids, None if not hidden.any() and draw(st.booleans()) else hidden)
    return ids, {names[place]: place for place in range(count) if not hidden[place]}, names, hidden


@settings(deadline=None, max_examples=300)
@given(known())
def test_ids_and_places_are_what_a_dictionary_says(example):
    ids, places, names, hidden = example
    assert (ids.count, ids.visible) == (len(names), len(places))
    assert ids.list_visible().tolist() == sorted(places)
    assert ids.list_visible_rows().tolist() == sorted(places.values())
    assert ids.hidden.tolist() == (hidden.tolist() if hidden.any() else [])
    asked = np.arange(-3, 40)
    assert ids.find_rows(asked).tolist() == [places.get(id, -1) for id in asked.tolist()]
    assert ids.find_rows(asked.reshape(-1, 1)).tolist() == [[places.get(id, -1)] for id in asked.tolist()]
    assert (ids.numbers is None and names == list(range(len(names)))) or ids.numbers.tolist() == names


@settings(deadline=None, max_examples=100)
@given(known(), st.one_of(st.integers(-3, 40), st.sampled_from([2**62 - 1, 2**62, 2**63, 10**30, -(10**30)])))
def test_a_single_id_has_its_place_or_is_refused(example, id):
    ids, places, _, _ = example
    if id in places:
        assert ids.find_row(id) == places[id]
        return
    with pytest.raises(InvalidInput) as refusal:
        ids.find_row(id)
    said = f"there is no image {id}; "
    if not places:
        said += "all images were removed"
    else:
        said += f"ids go from {min(places)} to {max(places)}"
        said += ", and some of them were removed" if len(places) <= max(places) - min(places) else ""
    assert str(refusal.value) == said


@settings(deadline=None)
@given(known())
def test_nothing_that_was_given_is_changed(example):
    ids, _, _, hidden = example
    before = hidden.copy()
    ids.find_rows(np.arange(50))
    np.testing.assert_array_equal(hidden, before)
    asked = np.array([0, 1, 99])
    ids.find_rows(asked)
    assert asked.tolist() == [0, 1, 99]
