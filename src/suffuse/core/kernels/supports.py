"""The support that a short truncated random walk reaches: `support="graph"`."""

import numpy as np

from suffuse.core.kernels.codes import BROKEN, STORED, lies_inside, longest_column, read
from suffuse.core.kernels.jit import GRAPH, compiled, f4, f8, helper, i8, in_lanes, readonly, u1, u4, u8, void, writable
from suffuse.core.kernels.select import id_of, key_of, largest_first
from suffuse.core.kernels.solve import LANES, add_product, in_all, lanes_of, write_lanes

# The bits of a positive float32 that sort it into a bin: its exponent and four bits of its fraction.
_BINS, _SHIFT = 4096, 19


@helper
def walk_support(first, last, indptr, indices, steps_weights, truncation, steps, scratch, support):
    """The `truncation` nodes with the most mass after `steps` steps of v <- alpha S v; returns how many there are.

    The walk begins at the nodes first..last with equal mass: a group that shares its support, or one node.
    The mass of all steps is added up, and each step goes on from its `truncation` largest entries only.
    `steps_weights` is alpha S; `support` receives the nodes; `scratch` is left clean for the next node.
    """
    mass, spread, frontier, values, touched, reached, keys, bins = scratch
    size, visited = last - first, last - first
    for f in range(size):
        frontier[f], values[f] = u4(first + f), f8(1.0)
        touched[f], mass[first + f] = u4(first + f), f8(1.0)
    for _ in range(steps):
        count = step(frontier, values, size, indptr, indices, steps_weights, spread, reached)
        size = largest(spread, reached, count, truncation, keys, bins, frontier)
        for f in range(size):
            other = u8(frontier[f])
            values[f], before = spread[other], mass[other]
            touched[visited] = u4(other)
            visited += u8(before == f8(0.0))
            mass[other] = before + values[f]
        for r in range(count):
            spread[u8(reached[r])] = f8(0.0)
    for node in range(first, last):
        mass[node] = np.inf  # a node is always in its support
    size = largest(mass, touched, visited, truncation, keys, bins, support)
    for t in range(visited):
        mass[u8(touched[t])] = f8(0.0)
    return size


@helper
def step(frontier, values, size, indptr, indices, steps_weights, spread, reached):
    """spread += alpha S v, where v is `values` at the nodes frontier[:size]; returns how many nodes it reached."""
    count = u8(0)
    for f in range(size):
        value = values[f]
        for place in range(indptr[u8(frontier[f])], indptr[u8(frontier[f]) + u8(1)]):
            other, moved = u8(indices[place]), steps_weights[place] * value
            before = spread[other]
            # No branch, as nobody could predict it. What underflows to zero is not reached: counted, the node
            # would be listed again and again.
            reached[count] = u4(other)
            count += u8(before == f8(0.0)) & u8(moved > f8(0.0))
            spread[other] = before + moved
    return count


@helper
def largest(value, nodes, count, most, keys, bins, out):
    """Write the `most` of nodes[:count] with the largest value to `out`, in any order; returns how many.

    Bins tell at once which nodes are surely among them; only those of the bin on the edge are compared.
    """
    if count <= u8(most):
        for n in range(count):
            out[n] = nodes[n]
        return count
    for n in range(count):
        bins[_bin(value[u8(nodes[n])])] += u4(1)
    edge, above = u8(_BINS - 1), u8(0)
    while above + u8(bins[edge]) < u8(most):
        above += u8(bins[edge])
        edge -= u8(1)
    bins[:] = u4(0)
    size, equal = u8(0), u8(0)
    for n in range(count):
        node = nodes[n]
        bin = _bin(value[u8(node)])
        out[size] = node  # those above the edge are fewer than `most`
        size += u8(bin > edge)
        keys[equal] = key_of(value[u8(node)], node)
        equal += u8(bin == edge)
    largest_first(keys, equal, u8(most) - size)
    for k in range(u8(most) - size):
        out[size + k] = id_of(keys[k])
    return u8(most)


@helper
def _bin(value):
    return u8(np.float32(value).view(np.uint32) >> u4(_SHIFT))


@helper
def new_scratch(nodes, truncation):
    """What `walk_support` works with."""
    return (
        np.zeros(nodes, np.float64),
        np.zeros(nodes, np.float64),
        np.empty(truncation, np.uint32),
        np.empty(truncation, np.float64),
        np.empty(nodes + 1, np.uint32),  # one more: what is not counted is written all the same
        np.empty(nodes + 1, np.uint32),
        np.empty(nodes + 1, np.uint64),
        np.zeros(_BINS, np.uint32),
    )


_SUPPORTS = (i8, writable(u4, 2), writable(i8))


@compiled(void(i8, i8, i8, *GRAPH, *_SUPPORTS))
def walk_supports(start, stop, group, indptr, indices, weights, steps, supports, out):
    """The supports of the nodes start..stop, one for each `group` of them in a row; out = how many nodes there are.

    A row of `supports` has room for as many nodes as a support has at most.
    """
    nodes, truncation = indptr.shape[0] - 1, u8(supports.shape[1])
    scratch = new_scratch(nodes, truncation)
    first, place = u8(start), u8(0)
    while first < u8(stop):
        last = min(first + u8(group), u8(stop))
        out[place] = i8(
            walk_support(first, last, indptr, indices, weights, truncation, steps, scratch, supports[place])
        )
        first, place = last, place + u8(1)


# The share of the mass on nodes that no column knows yet above which the columns from before tell too little: where
# many new nodes come at once to one place, one step only reaches the first of them.
_TOO_NEW = 0.25
# The share of a support that they have to find: less is too little, as of columns that keep only a few entries.
_TOO_FEW = 0.5


@helper
def _reach(node, met, reached, count):
    """List a node whose mass is about to grow; returns how many are listed."""
    reached[count] = u4(node)
    count += u8(met[node] == u1(0))
    met[node] = u1(1)
    return count


@helper
def _ask(node, lane, weight, is_whole, asked, count):
    """Have `weight` times the column of a node, or of its head, added to a member's; returns how many columns that are.

    A column of which one member wants the whole is read as a whole for all.
    """
    nodes, whole, place_of, shares = asked
    place = u8(place_of[node])  # from 1 on; 0 is none
    if place == u8(0):
        nodes[count], whole[count] = u4(node), u1(0)
        count += u8(1)
        place = count
        place_of[node] = u4(place)
    whole[place - u8(1)] |= u1(is_whole)
    shares[place, lane] += f4(weight)
    return count


@helper
def _least_whole(weights, heaviest):
    """The weight of the heaviest.shape[0]-th heaviest edge, or 0 if there are not so many."""
    filled, room = u8(0), u8(heaviest.shape[0])
    for weight in weights:
        if filled == room and weight <= heaviest[room - u8(1)]:
            continue
        place = min(filled, room - u8(1))
        filled += u8(filled < room)
        while place > u8(0) and heaviest[place - u8(1)] < weight:
            heaviest[place] = heaviest[place - u8(1)]
            place -= u8(1)
        heaviest[place] = weight
    return heaviest[room - u8(1)] if filled == room else f8(0.0)


@helper
def _ask_for_members(first, last, known, order, graph, asked, heaviest, mass, met, reached):
    """Which columns make up those of the nodes first..last; returns how many, and how many nodes have mass already.

    Those are the members themselves, and their neighbours that are new and have no column.
    """
    indptr, indices, weights = graph
    columns, count = u8(0), u8(0)
    for node in range(first, last):
        lane = node - first
        count = _reach(node, met, reached, count)
        mass[node, lane] += f4(1.0)
        least = _least_whole(weights[indptr[node] : indptr[node + u8(1)]], heaviest)
        for place in range(indptr[node], indptr[node + u8(1)]):
            other = u8(indices[place])
            if u8(order[other]) >= known:
                count = _reach(other, met, reached, count)
                mass[other, lane] += f4(weights[place])
            else:
                columns = _ask(other, lane, weights[place], weights[place] >= least, asked, columns)
    return columns, count


@in_lanes
def _add_column(element, whole, shares, number, columns, room, mass, met, reached, count):
    """Add a column or its head to all members, as much as each has of it; returns how many are listed, or BROKEN."""
    ids, numbers = room
    if not lies_inside(columns[0], columns[1], columns[2], element):
        return BROKEN
    length = read(*columns, element, not whole, ids, numbers)
    if length == BROKEN:
        return BROKEN
    for entry in range(length):
        if u8(ids[entry]) >= u8(columns[0].shape[0]):
            return BROKEN
        node = u8(number[u8(ids[entry])])
        count = _reach(node, met, reached, count)
        write_lanes(mass, node, add_product(lanes_of(mass, node), shares, in_all(f4(numbers[entry]))))
    return count


@helper
def _most(mass, node):
    """What the member has that has the most; 0 for what is no number."""
    most = f4(0.0)
    for lane in range(LANES):
        most = mass[node, lane] if mass[node, lane] > most else most
    return f8(most)


@in_lanes
def _step_to_new(frontier, size, known, order, graph, mass, met, reached, count, arrived, came):
    """Give new nodes the mass that one step from the frontier brings; returns how many nodes are listed."""
    indptr, indices, weights = graph
    for f in range(size):
        values = lanes_of(mass, u8(frontier[f]))
        for place in range(indptr[u8(frontier[f])], indptr[u8(frontier[f]) + u8(1)]):
            other = u8(indices[place])
            if u8(order[other]) >= known:
                new = u8(order[other]) - known
                arrived[new] = u4(other)
                write_lanes(came, new, add_product(lanes_of(came, new), values, in_all(f4(weights[place]))))
    for new in range(u8(came.shape[0])):
        if _most(came, new) > f8(0.0):
            node = u8(arrived[new])
            count = _reach(node, met, reached, count)
            write_lanes(mass, node, lanes_of(came, new))
            write_lanes(came, new, in_all(f4(0.0)))
    return count


@helper
def _support(first, last, order, number, graph, columns, room, asked, lanes, truncation, scratch, support):
    """The nodes of which a member of the group has the most; returns how many there are.

    0 if the columns tell too little, so that a walk has to find them, and BROKEN if one is damaged.
    """
    best, _, frontier, _, _, reached, keys, bins = scratch
    mass, met, arrived, came, heaviest = lanes
    nodes, whole, place_of, shares = asked
    known = u8(columns[0].shape[0])
    wanted, count = _ask_for_members(first, last, known, order, graph, asked, heaviest, mass, met, reached)
    for place in range(wanted):
        node = u8(nodes[place])
        share = lanes_of(shares, place + u8(1))
        count = _add_column(u8(order[node]), whole[place], share, number, columns, room, mass, met, reached, count)
        if count == BROKEN:
            return BROKEN
        write_lanes(shares, place + u8(1), in_all(f4(0.0)))
        place_of[node] = u4(0)
    if came.shape[0] > 0:
        for r in range(count):
            best[u8(reached[r])] = _most(mass, u8(reached[r]))
        size = largest(best, reached, count, truncation, keys, bins, frontier)
        count = _step_to_new(frontier, size, known, order, graph, mass, met, reached, count, arrived, came)
    total, new, listed = f8(0.0), f8(0.0), count
    for r in range(listed):
        node = u8(reached[r])
        best[node] = _most(mass, node)
        total += best[node]
        new += best[node] if u8(order[node]) >= known else f8(0.0)
    for node in range(first, last):
        count = _reach(node, met, reached, count)
        best[node] = np.inf  # a node is always in its support
    tells = f8(count) >= f8(_TOO_FEW) * f8(truncation) and new <= f8(_TOO_NEW) * total
    size = largest(best, reached, count, truncation, keys, bins, support) if tells else u8(0)
    for r in range(count):
        node = u8(reached[r])
        best[node], met[node] = f8(0.0), u1(0)
        write_lanes(mass, node, in_all(f4(0.0)))
    return size


@helper
def _new_room(group, whole, indptr, starts, stops, entries):
    """Room for any one column; for the shares of those that a group asks for; and for the masses of its members."""
    nodes, known = indptr.shape[0] - 1, starts.shape[0]
    longest, widest = longest_column(starts, stops, entries), u8(0)
    for node in range(u8(nodes)):
        widest = max(widest, indptr[node + u8(1)] - indptr[node])
    most = u8(group) * (widest + u8(1)) + u8(1)
    room = (np.empty(longest, np.uint32), np.empty(longest, np.float64))
    asked = (
        np.empty(most, np.uint32),
        np.empty(most, np.uint8),
        np.zeros(nodes, np.uint32),
        np.zeros((most, LANES), np.float32),
    )
    lanes = (
        np.zeros((nodes, LANES), np.float32),
        np.zeros(nodes, np.uint8),
        np.empty(nodes - known, np.uint32),
        np.zeros((nodes - known, LANES), np.float32),
        np.empty(min(u8(whole), widest + u8(1)), np.float64),
    )
    return room, asked, lanes


@compiled(*(void(i8, i8, i8, i8, readonly(u4), readonly(u4), *GRAPH, *columns, *_SUPPORTS) for columns in STORED))
def known_supports(
    start, stop, group, whole, order, number, indptr, indices, weights, starts, stops, entries, values, steps, supports,
    out,
):  # fmt: skip
    """The supports of the nodes start..stop, one for each `group` of them in a row, LANES at most; out = their sizes.

    Node i is element order[i], and element j is node number[j]. `weights` is alpha S; the columns are those of `table`,
    of the elements that are known; elements after them are new. Of the `whole` neighbours with the heaviest edges, the
    whole column is read, of the others its head. Where the columns tell too little, a walk of `steps` steps takes their
    place. A row of `supports` has room for as many nodes as a support has at most. out = -1 for a damaged column.
    """
    graph, columns = (indptr, indices, weights), (starts, stops, entries, values)
    room, asked, lanes = _new_room(group, whole, indptr, starts, stops, entries)
    truncation = u8(supports.shape[1])
    scratch = new_scratch(indptr.shape[0] - 1, truncation)
    first, place = u8(start), u8(0)
    while first < u8(stop):
        last, support = min(first + u8(group), u8(stop)), supports[place]
        size = _support(first, last, order, number, graph, columns, room, asked, lanes, truncation, scratch, support)
        if size == BROKEN:
            out[:] = i8(-1)
            return
        if size == u8(0):
            size = walk_support(first, last, indptr, indices, weights, truncation, steps, scratch, support)
        out[place] = i8(size)
        first, place = last, place + u8(1)
