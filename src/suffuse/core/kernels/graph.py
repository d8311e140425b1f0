"""The mutual k-NN graph: which edges there are, their affinity (eq. 1, or ours) and its normalisation (eq. 2)."""

import numpy as np

from suffuse.core.kernels.jit import GRAPH, compiled, f4, f8, helper, i4, i8, readonly, u1, u4, u8, void, writable
from suffuse.core.kernels.select import id_of, key_of, largest_first, sort_ascending

# Below this, numbers lose their digits, and with them S its bound on the eigenvalues: no edge.
_SMALLEST = np.finfo(np.float64).tiny


@helper
def _lists(ids, node, wanted):
    for position in range(u8(ids.shape[1])):
        if ids[node, position] == wanted:
            return True
    return False


@helper
def _enter(other, weight, begin, end, indices, out):
    """Put an edge into the row that begins at `begin` and ends at `end`, which stays sorted; returns its new end."""
    entry = end
    while entry > begin and indices[entry - u8(1)] > other:  # rows are short
        indices[entry], out[entry] = indices[entry - u8(1)], out[entry - u8(1)]
        entry -= u8(1)
    indices[entry], out[entry] = other, weight
    return end + u8(1)


@helper
def _enter_mutual(other, similarity, gamma, begin, end, indices, out):
    """The same with the affinity of two that list each other (eq. 1): max(sim, 0) ** gamma."""
    affinity = f8(similarity) ** gamma if similarity > f4(0.0) else f8(0.0)
    return _enter(other, affinity, begin, end, indices, out) if affinity >= _SMALLEST else end


_LISTS, _EDGES = (readonly(u4, 2), readonly(f4, 2), f8, i8), (writable(u8), writable(u4), writable(f8))


@compiled(void(*_LISTS, *_EDGES))
def fill_affinity(ids, sims, gamma, start, indptr, indices, out):
    """A (eq. 1) of as many rows as `indptr` has places for, from `start` on; each row of `indices` is sorted."""
    indptr[0] = u8(0)
    for row in range(u8(indptr.shape[0] - 1)):
        node, end = u8(start) + row, indptr[row]
        for position in range(u8(ids.shape[1])):
            other = ids[node, position]
            if other != u4(node) and _lists(ids, u8(other), u4(node)):
                end = _enter_mutual(other, sims[node, position], gamma, indptr[row], end, indices, out)
        indptr[row + u8(1)] = end


@compiled(void(readonly(u4, 2), writable(u8), writable(u4)))
def turn_lists(ids, list_ptr, out):
    """Who lists each element: element i is listed by out[list_ptr[i]:list_ptr[i + 1]], ascending."""
    nodes, k = u8(ids.shape[0]), u8(ids.shape[1])
    list_ptr[:] = u8(0)
    for node in range(nodes):
        for position in range(k):
            list_ptr[u8(ids[node, position]) + u8(1)] += u8(1)
    for node in range(nodes):
        list_ptr[node + u8(1)] += list_ptr[node]
    free = list_ptr.copy()
    for node in range(nodes):
        for position in range(k):
            other = u8(ids[node, position])
            out[free[other]] = u4(node)
            free[other] += u8(1)


@compiled(void(*_LISTS, readonly(u8), readonly(u4), *_EDGES))
def fill_affinity_of_listed(ids, sims, gamma, start, list_ptr, listers, indptr, indices, out):
    """The same as `fill_affinity`, several times faster, for which it needs all lists turned round.

    Where node and other list each other, other is among the listers of node: no list of another node is looked through.
    """
    lister_of = np.full(ids.shape[0], 0xFFFFFFFF, np.uint32)
    indptr[0] = u8(0)
    for row in range(u8(indptr.shape[0] - 1)):
        node, end = u8(start) + row, indptr[row]
        for place in range(list_ptr[node], list_ptr[node + u8(1)]):
            lister_of[u8(listers[place])] = u4(node)
        for position in range(u8(ids.shape[1])):
            other = ids[node, position]
            if other != u4(node) and lister_of[u8(other)] == u4(node):
                end = _enter_mutual(other, sims[node, position], gamma, indptr[row], end, indices, out)
        indptr[row + u8(1)] = end


# What a neighbour counts where two lists are compared, by its rank: 1 / (rank + 1). In whole numbers, so that a sum
# does not depend on its order, and the graph is symmetric to the bit; 64 bits hold the sum of any list.
_WHOLE = 1 << 28
# The rank of the neighbour whose distance is the scale of a place.
_SCALE_RANK = 8
# How much an edge of the length of that scale loses, as an exponent, and the most that any edge loses: places where
# many elements are the same have no scale.
_FALL, _MOST_FALL = 3.0, 4.0
# Similarities that differ by less are the same.
_SAME = 1e-6


@helper
def _length(ids, node):
    """How many entries the list of a node has; a short one ends with the node itself."""
    length = u8(ids.shape[1])
    while length > u8(1) and ids[node, length - u8(1)] == u4(node):
        length -= u8(1)
    return length


@helper
def _place(ids, sims, node):
    """Of the list of a node: the similarities of the nearest and of the last, and its scale, a squared distance."""
    length = _length(ids, node)
    rank = min(u8(_SCALE_RANK), length - u8(1))
    scale = f8(2.0) - f8(2.0) * f8(sims[node, rank])
    return f8(sims[node, min(u8(1), length - u8(1))]), f8(sims[node, length - u8(1)]), max(scale, f8(_SAME))


@helper
def _excess(similarity, place):
    """x: where a similarity lies between that of the last of a list (0) and that of its nearest (1)."""
    nearest, last, _ = place
    if nearest - last <= f8(_SAME):
        return f8(1.0)
    return max(similarity - last, f8(0.0)) / (nearest - last)


@helper
def _local_affinity(similarity, shared, a, b):
    """cbrt(x_ab x_ba) K^1.5 exp(-3 d^2 / (s_a s_b)); the place a is that of the smaller id, for the same bits."""
    fall = f8(_FALL) * (f8(2.0) - f8(2.0) * similarity) / (a[2] * b[2]) ** 0.5
    local = np.cbrt(_excess(similarity, a) * _excess(similarity, b))
    return local * shared * shared**0.5 * np.exp(-min(max(fall, f8(0.0)), f8(_MOST_FALL)))


@compiled(void(readonly(u4, 2), readonly(f4, 2), i8, *_EDGES))
def fill_local_affinity(ids, sims, start, indptr, indices, out):
    """Our A of as many rows as `indptr` has places for, from `start` on; each row of `indices` is sorted.

    A_ij = cbrt(x_ij x_ji) K_ij^1.5 exp(-3 d_ij^2 / (s_i s_j)) where i and j list each other and v_ij > 0: x is how far
    the similarity stands out from the list (`_excess`), K the cosine of both lists as vectors that hold 1 / (rank + 1)
    for each member, d the distance, and s_i that to the 8th neighbour of i.
    """
    k = u8(ids.shape[1])
    counts, own = np.empty(k, np.uint64), np.zeros(ids.shape[0], np.uint64)
    for rank in range(k):
        counts[rank] = u8(_WHOLE) // (rank + u8(1))
    squares = np.empty(k + u8(1), np.uint64)
    squares[0] = u8(0)
    for rank in range(k):
        squares[rank + u8(1)] = squares[rank] + counts[rank] * counts[rank]
    indptr[0] = u8(0)
    for row in range(u8(indptr.shape[0] - 1)):
        node, end = u8(start) + row, indptr[row]
        length, here = _length(ids, node), _place(ids, sims, node)
        for rank in range(length):
            own[u8(ids[node, rank])] = counts[rank]
        for position in range(u8(1), length):
            other, similarity = u8(ids[node, position]), f8(sims[node, position])
            if similarity <= f8(0.0) or not _lists(ids, other, u4(node)):
                continue
            shared, theirs = u8(0), _length(ids, other)
            for rank in range(theirs):
                shared += own[u8(ids[other, rank])] * counts[rank]
            cosine = f8(shared) / (f8(squares[length]) * f8(squares[theirs])) ** 0.5
            there = _place(ids, sims, other)
            first, second = (here, there) if node < other else (there, here)
            affinity = _local_affinity(similarity, cosine, first, second)
            if affinity >= _SMALLEST:
                end = _enter(u4(other), affinity, indptr[row], end, indices, out)
        for rank in range(length):
            own[u8(ids[node, rank])] = u8(0)
        indptr[row + u8(1)] = end


@compiled(void(*GRAPH, readonly(f8), writable(f8)))
def sum_scaled(indptr, indices, affinity, scales, out):
    """out[i] = sum_j A_ij * scales[j]."""
    for row in range(u8(out.shape[0])):
        total = f8(0.0)
        for place in range(indptr[row], indptr[row + u8(1)]):
            total += affinity[place] * scales[u8(indices[place])]
        out[row] = total


@compiled(void(readonly(u8), readonly(f8), writable(f8)))
def sum_rows(indptr, affinity, out):
    """The diagonal of D: out[i] = sum of row i."""
    for row in range(u8(out.shape[0])):
        total = f8(0.0)
        for place in range(indptr[row], indptr[row + u8(1)]):
            total += affinity[place]
        out[row] = total


@compiled(void(*GRAPH, i8, readonly(f8), writable(f8)))
def normalize_affinity(indptr, indices, affinity, start, degrees, out):
    """S = D^-1/2 A D^-1/2 (eq. 2) of the rows from `start` on, on the places of A; `degrees` are those of all nodes."""
    for row in range(u8(indptr.shape[0] - 1)):
        root = degrees[u8(start) + row] ** 0.5
        for place in range(indptr[row], indptr[row + u8(1)]):
            # The product of roots, in this order, is the same for (i, j) and (j, i): S is symmetric to the bit.
            out[place] = affinity[place] / (root * degrees[u8(indices[place])] ** 0.5)


_NONE = np.uint32(0xFFFFFFFF)
# How much nearer a wanted node counts than one that is not: so much that others only fill up a group.
_BONUS = np.float64(1e6)


@helper
def _near(node, indptr, indices, weights, wanted, group, mass, reached, keys):
    """Keys of the nodes without a group that two steps from `node` reach, by their mass; returns how many."""
    count = u8(0)
    for place in range(indptr[node], indptr[node + u8(1)]):
        other, weight = u8(indices[place]), weights[place]
        reached[count] = u4(other)
        count += u8(mass[other] == f8(0.0))
        mass[other] += weight
        for further in range(indptr[other], indptr[other + u8(1)]):
            end = u8(indices[further])
            reached[count] = u4(end)
            count += u8(mass[end] == f8(0.0))
            mass[end] += weight * weights[further]
    free = u8(0)
    for r in range(count):
        other = u8(reached[r])
        if group[other] == _NONE and other != node:
            keys[free] = key_of(mass[other] * (_BONUS if wanted[other] else f8(1.0)), other)
            free += u8(1)
        mass[other] = f8(0.0)
    return free


@helper
def _make_groups(starts, wanted, size, indptr, indices, weights, group, members):
    """Fill members[g * size:(g + 1) * size] with groups of near nodes, from `starts` on; returns how many groups."""
    nodes = u8(indptr.shape[0] - 1)
    mass, reached, keys = np.zeros(nodes), np.empty(nodes + u8(1), np.uint32), np.empty(nodes, np.uint64)
    groups = u8(0)
    for start in starts:
        node = u8(start)
        if group[node] != _NONE or not wanted[node]:
            continue
        free = _near(node, indptr, indices, weights, wanted, group, mass, reached, keys)
        if free + u8(1) < size:
            continue  # not enough are left around it: one of the rest
        largest_first(keys, free, size - u8(1))
        first = groups * size
        members[first], group[node] = u4(node), u4(groups)
        for k in range(size - u8(1)):
            members[first + u8(1) + k] = id_of(keys[k])
            group[u8(id_of(keys[k]))] = u4(groups)
        groups += u8(1)
    return groups


@helper
def _root(parent, node):
    """The end of the way up from a node; the way is halved as it is walked."""
    while u8(parent[node]) != node:
        parent[node] = parent[u8(parent[node])]
        node = u8(parent[node])
    return node


@compiled(i8(readonly(u4), readonly(u1), i8, *GRAPH, writable(u4)))
def number_along(starts, wanted, size, indptr, indices, weights, out):
    """out = all wanted nodes, so that each `size` of them, one after the other, are near to each other on the graph.

    Groups are made around `starts`, all nodes in the order of their turn; then groups and what is left, which comes
    last, are listed in the order in which a breadth-first search meets them. `weights` is alpha S. wanted[i] is 1 for
    the nodes to list; near ones that are not wanted may fill up a group. Returns how many these are; all others follow,
    in the order in which they are met.
    """
    nodes, size = u8(indptr.shape[0] - 1), u8(size)
    group, members = np.full(nodes, _NONE, np.uint32), np.empty(nodes, np.uint32)
    groups = _make_groups(starts, wanted, size, indptr, indices, weights, group, members)
    listed = np.zeros(groups, np.bool_)
    queue, met, rest = np.empty(nodes, np.uint32), np.zeros(nodes, np.bool_), np.empty(nodes, np.uint32)
    others, behind = np.empty(nodes, np.uint32), u8(0)
    head, tail, filled, left = u8(0), u8(0), u8(0), u8(0)
    for start in starts:
        if not met[u8(start)]:
            met[u8(start)], queue[tail] = True, start
            tail += u8(1)
        while head < tail:
            node = u8(queue[head])
            head += u8(1)
            if group[node] == _NONE:
                if wanted[node]:
                    rest[left] = u4(node)
                    left += u8(1)
                else:
                    others[behind] = u4(node)
                    behind += u8(1)
            elif not listed[u8(group[node])]:
                listed[u8(group[node])] = True
                for m in range(u8(group[node]) * size, (u8(group[node]) + u8(1)) * size):
                    out[filled] = members[m]
                    filled += u8(1)
            for place in range(indptr[node], indptr[node + u8(1)]):
                other = u8(indices[place])
                if not met[other]:
                    met[other], queue[tail] = True, u4(other)
                    tail += u8(1)
    out[filled : filled + left] = rest[:left]
    out[filled + left :] = others[:behind]
    return i8(filled + left)


@compiled(void(readonly(u4), readonly(u4), *GRAPH, writable(u4), writable(f8)))
def renumber(nodes, number, indptr, indices, weights, new_indices, out):
    """The rows of `nodes`, one after another, where node i is now called number[i]; each is sorted again."""
    end = u8(0)
    for node in nodes:
        begin = end
        for old in range(indptr[u8(node)], indptr[u8(node) + u8(1)]):
            end = _enter(number[u8(indices[old])], weights[old], begin, end, new_indices, out)


@compiled(void(readonly(u8), readonly(u4), writable(u4)))
def join_components(indptr, indices, out):
    """out[i] = the smallest node that i is connected with."""
    nodes = u8(out.shape[0])
    for node in range(nodes):
        out[node] = u4(node)
    for node in range(nodes):
        for place in range(indptr[node], indptr[node + u8(1)]):
            a, b = _root(out, u8(node)), _root(out, u8(indices[place]))
            out[max(a, b)] = u4(min(a, b))
    for node in range(nodes):
        out[node] = u4(_root(out, u8(node)))


# --- districts


@helper
def _take_free(node, size, indptr, indices, weights, group, keys):
    """Keys of the neighbours without a group that are tied to `node` the most, `size` at most; returns how many."""
    free = u8(0)
    for place in range(indptr[node], indptr[node + u8(1)]):
        if group[u8(indices[place])] == _NONE and u8(indices[place]) != node:
            keys[free] = key_of(weights[place], indices[place])
            free += u8(1)
    if free > size:
        largest_first(keys, free, size)
    return min(free, size)


@compiled(i8(readonly(u4), i8, i8, *GRAPH, writable(u4)))
def group_nodes(starts, size, most, indptr, indices, weights, out):
    """out = the group of each node, `size` nodes that are tied the most; returns how many groups there are.

    Groups are made around `starts`, all nodes in the order of their turn. A node that finds no free neighbour joins the
    group of the neighbour it is tied to the most, of those with fewer than `most` nodes, or starts one; a node without
    neighbours has none, 0xFFFFFFFF.
    """
    nodes, groups, left = u8(out.shape[0]), u8(0), u8(0)
    keys, counts, late = np.empty(nodes, np.uint64), np.zeros(nodes, np.uint32), np.empty(nodes, np.uint32)
    out[:] = _NONE
    for start in starts:
        node = u8(start)
        if out[node] != _NONE or indptr[node] == indptr[node + u8(1)]:
            continue
        taken = _take_free(node, u8(size - 1), indptr, indices, weights, out, keys)
        if taken == u8(0):
            late[left] = start
            left += u8(1)
            continue
        out[node], counts[groups] = u4(groups), u4(taken + u8(1))
        for k in range(taken):
            out[u8(id_of(keys[k]))] = u4(groups)
        groups += u8(1)
    for node in late[:left]:
        best, heaviest = groups, f8(-1.0)
        for place in range(indptr[u8(node)], indptr[u8(node) + u8(1)]):
            theirs = out[u8(indices[place])]
            if theirs != _NONE and u8(counts[u8(theirs)]) < u8(most) and weights[place] > heaviest:
                best, heaviest = u8(theirs), weights[place]
        groups += u8(best == groups)
        out[u8(node)] = u4(best)
        counts[best] += u4(1)
    return i8(groups)


@compiled(
    void(readonly(u8), readonly(u4), readonly(u4), readonly(f8), *GRAPH, writable(u8), writable(u4), writable(f8))
)
def merge_groups(group_ptr, members, group, scales, indptr, indices, weights, new_indptr, new_indices, out):
    """The sums of weights[i, j] * scales[i] * scales[j] between groups: row g has those of members[group_ptr[g]:...].

    Rows are sorted. Where `out` has no room, only `new_indptr` is written.
    """
    groups = u8(group_ptr.shape[0] - 1)
    sums, touched, end = np.zeros(groups), np.empty(groups, np.uint64), u8(0)
    new_indptr[0] = u8(0)
    for g in range(groups):
        count = u8(0)
        for m in range(group_ptr[g], group_ptr[g + u8(1)]):
            node = u8(members[m])
            for place in range(indptr[node], indptr[node + u8(1)]):
                other = u8(indices[place])
                to = u8(group[other])
                if sums[to] == f8(0.0):
                    touched[count] = to
                    count += u8(1)
                sums[to] += weights[place] * scales[node] * scales[other]
        sort_ascending(touched, count)
        for t in range(count):
            if out.shape[0] > 0:
                new_indices[end + t], out[end + t] = u4(touched[t]), sums[touched[t]]
            sums[touched[t]] = f8(0.0)
        end += count
        new_indptr[g + u8(1)] = end


@compiled(void(readonly(i8), readonly(u4), readonly(f4), readonly(i4), writable(i4, 2), writable(f4)))
def find_districts(indptr, entries, values, home, districts, shares):
    """The two districts with the most of each vector, and the share of the first of them; -1 where there is none.

    Vector i has values[indptr[i]:indptr[i + 1]] at `entries`; `home` is the district of each node.
    """
    for row in range(u8(shares.shape[0])):
        start, stop = u8(indptr[row]), u8(indptr[row + u8(1)])
        first, second, most, more = i4(-1), i4(-1), f4(0.0), f4(0.0)
        for a in range(start, stop):
            district, total = home[u8(entries[a])], f4(0.0)
            if district < i4(0) or district in (first, second):
                continue
            for b in range(a, stop):
                total += values[b] if home[u8(entries[b])] == district else f4(0.0)
            if total > most:
                first, second, most, more = district, first, total, most
            elif total > more:
                second, more = district, total
        districts[row, 0], districts[row, 1] = first, second if second >= i4(0) else first
        shares[row] = most / (most + more) if first >= i4(0) else f4(1.0)
