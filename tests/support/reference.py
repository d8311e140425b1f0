"""The slow, obvious twin of each kernel: dense matrices, float64, no cleverness."""

import itertools

import numpy as np


def unit_rows(matrix):
    """x_i / |x_i| for each row, float64."""
    rows = np.asarray(matrix, np.float64)
    return np.stack([row / np.sqrt((row * row).sum()) for row in rows])


def similarities(queries, features):
    """sim(q, i) = q . x_i, (m, n), rounded to float32 at the very end."""
    products = queries.astype(np.float64)[:, None, :] * features.astype(np.float64)[None, :, :]
    return products.sum(axis=2).astype(np.float32)


def nearest(queries, features, k, own=None):
    """NN_k: all ids by falling similarity, ties by id, and own[q] before all others; returns ids and sims, (m, k)."""
    sims = similarities(queries, features)
    everyone = range(len(features))
    ids = [
        sorted(everyone, key=lambda i: (own is None or i != own[q], -sims[q, i], i))[:k] for q in range(len(queries))
    ]
    return np.array(ids), np.take_along_axis(sims, np.array(ids), axis=1)


def dense(graph):
    """A graph in compressed rows as a matrix, (n, n)."""
    n = len(graph[0]) - 1
    matrix = np.zeros((n, n))
    for i in range(n):
        places = slice(int(graph[0][i]), int(graph[0][i + 1]))
        matrix[i, graph[1][places]] = graph[2][places]
    return matrix


def compressed(matrix):
    """The opposite of `dense`: where rows start, the ids in them, and the weights, in the types of the kernels."""
    rows, ids = np.nonzero(matrix)
    indptr = np.searchsorted(rows, np.arange(len(matrix) + 1)).astype(np.uint64)
    return indptr, ids.astype(np.uint32), np.ascontiguousarray(matrix[rows, ids])


def affinity(ids, sims, gamma):
    """A_ij = max(sim, 0) ** gamma where i and j list each other and i != j, else 0 (eq. 1)."""
    n = len(ids)
    a = np.zeros((n, n))
    for i in range(n):
        for j, sim in zip(ids[i], sims[i], strict=True):
            if i != j and i in ids[j]:
                a[i, j] = max(float(sim), 0.0) ** gamma
    return a


def local_affinity(ids, sims):
    """A_ij = cbrt(x_ij x_ji) K_ij^1.5 exp(-min(3 d_ij^2 / (s_i s_j), 4)) where i and j list each other and v_ij > 0."""
    n = len(ids)
    lists = [[j for place, j in enumerate(row) if place == 0 or j != i] for i, row in enumerate(ids.tolist())]
    sims = sims.astype(np.float64)

    def excess(v, i):
        first, last = sims[i, min(1, len(lists[i]) - 1)], sims[i, len(lists[i]) - 1]
        return 1.0 if first - last <= 1e-6 else max(v - last, 0) / (first - last)

    def shared(i, j):
        a, b = ({other: 1 / (rank + 1) for rank, other in enumerate(lists[node])} for node in (i, j))
        both = sum(a[other] * b[other] for other in a.keys() & b.keys())
        return both / np.sqrt(sum(x * x for x in a.values()) * sum(x * x for x in b.values()))

    scales = [max(2 - 2 * sims[i, min(8, len(lists[i]) - 1)], 1e-6) for i in range(n)]
    a = np.zeros((n, n))
    for i in range(n):
        for rank, j in enumerate(lists[i]):
            v = sims[i, rank]
            if rank and i in lists[j] and v > 0:
                fall = min(max(3 * (2 - 2 * v) / np.sqrt(scales[i] * scales[j]), 0), 4)
                a[i, j] = np.cbrt(excess(v, i) * excess(v, j)) * shared(i, j) ** 1.5 * np.exp(-fall)
    return a


def balanced(a, power=0.3):
    """A'_ij = A_ij / (d_i d_j)^power, where d are the sums of A."""
    d = a.sum(axis=1)
    scales = np.where(d > 0, np.maximum(d, 1e-300) ** -power, 0)
    return scales[:, None] * a * scales


def transition(a):
    """S_ij = A_ij / sqrt(D_i D_j) with D_i = sum_j A_ij (eq. 2); an empty row stays empty."""
    degrees = a.sum(axis=1)
    s = np.zeros_like(a)
    for i, j in zip(*np.nonzero(a), strict=True):
        s[i, j] = a[i, j] / np.sqrt(degrees[i] * degrees[j])
    return s


def largest(values, count):
    """The ids of the `count` largest positive values as float32, largest first, ties by id."""
    rounded = np.asarray(values).astype(np.float32)
    return sorted(np.flatnonzero(values).tolist(), key=lambda i: (-rounded[i], i))[:count]


def walk_mass(alpha_s, nodes, truncation, steps):
    """sum_t v_t with v_0 = 1 at the node, or nodes, and v_t = alpha S v_(t-1) cut to its `truncation` largest."""
    v = np.zeros(len(alpha_s))
    v[nodes] = 1.0
    mass = v.copy()
    for _ in range(steps):
        spread, v = alpha_s @ v, np.zeros(len(alpha_s))
        frontier = largest(spread, truncation)
        v[frontier] = spread[frontier]
        mass += v
    return mass


def walk_support(alpha_s, nodes, truncation, steps):
    """The `truncation` nodes with the most mass, the node itself, or all of a group, always among them."""
    mass = walk_mass(alpha_s, nodes, truncation, steps)
    mass[nodes] = np.inf
    return largest(mass, truncation)


def column(alpha_s, support, node):
    """c with (I - alpha S)[J, J] c[J] = e_node on the support J, and 0 elsewhere, (n,)."""
    c = np.zeros(len(alpha_s))
    e = np.array([float(j == node) for j in support])
    c[support] = np.linalg.solve(np.eye(len(support)) - alpha_s[np.ix_(support, support)], e)
    return c


def inverse(alpha_s):
    """(I - alpha S)^-1, all columns without truncation, (n, n)."""
    return np.linalg.inv(np.eye(len(alpha_s)) - alpha_s)


def varint(number):
    """LEB128: seven bits a byte, the lowest first; all bytes but the last have the high bit set."""
    return [number] if number < 128 else [number % 128 + 128, *varint(number // 128)]


def encode_column(rows, values):
    """(bytes, scale, entries) of a column whose largest value comes first (docs/index-format.md)."""
    if not len(rows):
        return b"", 0.0, 0
    depths = np.log2(float(values[0]) / np.asarray(values, np.float64)) * 16
    depths = depths[np.rint(depths) < 256]
    head, tail, codes, previous = min(len(depths), 20), range(20, len(depths)), [], 0
    for place in sorted(range(head), key=lambda place: rows[place]):
        codes += [*varint(int(rows[place]) - previous), int(np.rint(depths[place]))]
        previous = int(rows[place])
    if tail:
        width, previous = (depths[-1] - depths[20]) / 8, 0
        parts = [min(int((depth - depths[20]) / width), 7) if width > 0 else 0 for depth in depths[20:]]
        for part in range(8):
            members = [depth for depth, own in zip(depths[20:], parts, strict=True) if own == part]
            codes.append(int(np.rint(np.mean(members))) if members else 0)
        for place in sorted(tail, key=lambda place: rows[place]):
            codes += varint((int(rows[place]) - previous) * 8 + parts[place - 20])
            previous = int(rows[place])
    return bytes(codes), float(values[0]), len(depths)


def decode_column(codes, scale):
    """[(id, value), ...] of a coded column, as they are stored; None if it is damaged."""
    data, entries, id, tail = list(codes), [], 0, None
    while data:
        if len(entries) == 20 and tail is None:
            if len(data) < 8:
                return None
            tail, id = data[:8], 0
            del data[:8]
        else:
            length = next((place + 1 for place, byte in enumerate(data[:5]) if byte < 128), None)
            if length is None or (tail is None and length == len(data)):
                return None
            number = sum((byte % 128) << 7 * place for place, byte in enumerate(data[:length]))
            del data[:length]
            id += number if tail is None else number >> 3
            if id >= 2**32 - 1:
                return None
            level = data.pop(0) if tail is None else tail[number % 8]
            entries.append((id, float(scale) * 2.0 ** (-level / 16)))
    return entries


def combine(seeds, weights, columns, owners=None, images=None):
    """f = sum_j weights[j] * columns[:, seeds[j]] (Algorithm 1), summed over the elements of each image."""
    f = np.zeros(len(columns))
    for seed, weight in zip(seeds, weights, strict=True):
        f += weight * columns[:, seed]
    return f if owners is None else np.array([f[owners == image].sum() for image in range(images)])


def diffuse(regions, features, columns, seeds, params, owners=None, images=None):
    """f of one query: its regions' nearest elements are the seeds, with the weights that the graph has for them."""
    ids, sims = nearest(regions, features, seeds)
    weights = [seed_weights(*one, features, params) for one in zip(ids, sims, strict=True)]
    return combine(ids.ravel(), np.concatenate(weights), columns, owners, images)


def seeds_of(regions, features, seeds, params):
    """(ids, weights) of y for one query: the nearest elements of its first region, then those of the others."""
    ids, sims = nearest(regions, features, seeds)
    weights = [seed_weights(*one, features, params) for one in zip(ids, sims, strict=True)]
    return ids.ravel(), np.concatenate(weights)


def seed_weights(ids, sims, features, params):
    """y of the seeds of one vector, the nearest first: max(sim, 0) ** gamma, or (r r')^-0.75 where sim > 0."""
    if params.graph == "paper":
        return np.maximum(sims, 0).astype(np.float64) ** params.gamma
    weights = []
    for rank, (id, sim) in enumerate(zip(ids, sims, strict=True), 1):
        listed = nearest(features[[id]], features, min(params.k, len(features)), own=[id])[1][0]
        weights.append((rank * rank_among(1 - float(sim), listed, params.k)) ** -0.75 if sim > 0 else 0.0)
    return np.array(weights)


def rank_among(distance, listed, k):
    """The rank of something at this distance in a list of similarities, as far as an index knows it; k if outside."""
    ranks = [rank for rank in (2**power for power in range(30)) if rank < k - 1] + [k - 1]
    marks = [np.float16(max(1 - listed[rank], 0)) if rank < len(listed) else np.float16(2) for rank in ranks]
    marks = [float(mark) for mark in marks]
    if distance <= marks[0] + 1e-6:
        return 1.0
    for (near, first), (far, second) in itertools.pairwise(zip(marks, ranks, strict=True)):
        if distance <= far + 1e-6:
            share = min((distance - near) / max(far - near, 1e-6), 1)
            return float(np.exp(np.log(first) * (1 - share) + np.log(second) * share))
    return float(k)


def far_field(members, shares, between, seeds, weights):
    """G_j = sum_i y_i m_i^T B m_j: elements have shares in two districts, -1 for none; B[g, h] is what h gives g."""
    m = np.zeros((len(members), len(between)))
    for i, (first, second) in enumerate(members.tolist()):
        share = float(shares[i])
        if first >= 0:
            m[i, first] += share
        if second >= 0:
            m[i, second] += 1 - share
    return m @ between @ (np.asarray(weights, np.float64) @ m[seeds])


def match(regions, features, owners, images):
    """R-match: the best similarity of each query region within an image, summed; -inf for an image without regions."""
    sims = similarities(regions, features).astype(np.float64)
    return np.array([sims[:, owners == image].max(axis=1, initial=-np.inf).sum() for image in range(images)])
