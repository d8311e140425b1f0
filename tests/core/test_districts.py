"""Districts: groups along the strongest edges, the graph between them, and what they say about elements far away."""

import numpy as np
import pytest
from tests.support import reference
from tests.support.data import clusters, curves, unit

from suffuse import Params
from suffuse.core import districts
from suffuse.core.columns import Columns
from suffuse.core.graph import balance, degrees_of, local_affinity, sums_of_balanced, transition
from suffuse.core.neighbors import nearest_to_rows

PARAMS = Params(k=10, truncation=400, keep=400)
NONE = 0xFFFFFFFF


def graph_of(features, k=10):
    """The lists, alpha S and d' of a gallery."""
    lists = nearest_to_rows(unit(features), 0, len(features), k)
    a = local_affinity(lists)
    degrees = degrees_of(a)
    balanced = balance(a, 0, degrees)
    s = transition(a, 0, balanced)
    return lists, s._replace(weights=PARAMS.alpha * s.weights), sums_of_balanced(degrees, balanced)


@pytest.fixture(params=["curves", "clusters", "lonely"])
def world(request):
    rng = np.random.default_rng(7)
    if request.param == "curves":
        return graph_of(curves(rng, 400, 8))
    if request.param == "clusters":
        return graph_of(clusters(rng, 300, 12, count=30, spread=0.1))
    return graph_of(np.concatenate([curves(rng, 200, 40), np.eye(40)]))  # the last ones are like nobody


def grouped_slowly(dense, size=8, most=12):
    """Groups by the rule, in plain words."""
    edges = (dense != 0).sum(axis=1)
    group, members, late = [NONE] * len(dense), [], []
    for i in sorted(range(len(dense)), key=lambda i: (-edges[i], i)):
        if group[i] != NONE or not edges[i]:
            continue
        free = [j for j in np.flatnonzero(dense[i]) if j != i and group[j] == NONE]
        if not free:
            late.append(i)
            continue
        best = sorted(free, key=lambda j: (-np.float32(dense[i, j]), j))[: size - 1]
        for j in [i, *best]:
            group[j] = len(members)
        members.append(1 + len(best))
    for i in late:
        able = [j for j in np.flatnonzero(dense[i]) if group[j] != NONE and members[group[j]] < most]
        if able:
            group[i] = group[max(able, key=lambda j: (dense[i, j], -j))]
        else:
            group[i] = len(members)
            members.append(0)
        members[group[i]] += 1
    return group, members


def test_groups_and_the_graph_between_them_equal_their_definitions(world):
    _, alpha_s, degrees = world
    dense = reference.dense(alpha_s)
    found = districts.coarsen(alpha_s, degrees)
    group, members = grouped_slowly(dense)
    assert found.group.tolist() == group
    assert np.bincount(found.group[found.group != NONE]).tolist() == members
    assert max(members) <= 12
    p = np.array([[g == h for h in range(len(members))] for g in group], float)
    a = p.T @ (dense * np.sqrt(np.outer(degrees, degrees))) @ p
    np.testing.assert_allclose(found.degrees, p.T @ degrees, rtol=1e-12)
    expected = a / np.sqrt(np.outer(found.degrees, found.degrees))
    np.testing.assert_allclose(reference.dense(found.alpha_s), expected, rtol=1e-9, atol=1e-15)


def test_an_element_that_is_tied_to_nobody_takes_the_district_of_the_nearest_that_has_one(world):
    lists, alpha_s, degrees = world
    groups = districts.coarsen(alpha_s, degrees)
    coarse = districts.coarsen(groups.alpha_s, groups.degrees)
    n = len(degrees)
    order = np.random.default_rng(0).permutation(n).astype(np.uint32)
    as_elements = districts.find_homes(alpha_s, groups, coarse, np.arange(n, dtype=np.uint32), lists.ids)
    named = np.empty_like(lists.ids)  # the same graph, whose node i is element order[i]
    named[order] = order[lists.ids].astype(np.int32)
    np.testing.assert_array_equal(districts.find_homes(alpha_s, groups, coarse, order, named)[order], as_elements)
    reach = np.linalg.matrix_power((reference.dense(alpha_s) > 0) + np.eye(n), 64) > 0
    small = reach.sum(axis=1) <= 20
    for i in range(n):
        own = coarse.group[groups.group[i]] if groups.group[i] != NONE else -1
        near = [j for j in lists.ids[i] if not small[j]]
        expected = as_elements[near[0]] if small[i] and near else own
        assert as_elements[i] == np.int32(expected)


def test_the_far_field_is_diffusion_between_districts(world):
    lists, alpha_s, degrees = world
    n = len(degrees)
    groups = districts.coarsen(alpha_s, degrees)
    coarse = districts.coarsen(groups.alpha_s, groups.degrees)
    home = districts.find_homes(alpha_s, groups, coarse, np.arange(n, dtype=np.uint32), lists.ids)
    columns = districts.solve_districts(coarse, PARAMS)
    heads = reference.inverse(reference.dense(alpha_s))
    entries = [[j for j in np.argsort(-row, kind="stable")[:20] if row[j] > 1e-12] for row in heads]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in entries])])
    values = np.concatenate([heads[i, row] for i, row in enumerate(entries)]).astype(np.float32)
    plain = Columns.of(indptr, np.concatenate(entries).astype(np.int32), values)
    members, shares = districts.place_columns(plain.heads(np.arange(n)), home)
    m = np.zeros((n, len(coarse.degrees)))
    for i in range(n):
        homes = home[entries[i]]
        mass = {int(h): heads[i, entries[i]][homes == h].sum() for h in set(homes.tolist()) - {-1}}
        best = sorted(mass.values(), reverse=True)[:2]
        if not mass:
            assert members[i].tolist() == [-1, -1]
            continue
        assert mass[int(members[i, 0])] == pytest.approx(best[0], rel=1e-5)
        assert float(shares[i]) == pytest.approx(best[0] / sum(best), rel=1e-3)
        m[i, members[i, 0]] += float(shares[i])
        m[i, members[i, 1]] += 1 - float(shares[i])
    c = reference.inverse(reference.dense(coarse.alpha_s))
    root = 1 / np.sqrt(coarse.degrees)
    seeds, weights = np.array([3, 90, 7], np.int32), np.array([1.0, 0.5, -0.2])
    expected = (weights @ m[seeds]) @ (root[:, None] * c * root) @ m.T
    found = districts.diffuse_far(districts.Districts(members, shares, columns), seeds, weights)
    np.testing.assert_allclose(found, expected, atol=0.1 * np.abs(expected).max())  # columns are coded
    assert np.corrcoef(found, expected)[0, 1] > 0.995
