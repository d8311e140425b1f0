"""The slow, obvious twin of each baseline: dense matrices, float64, no cleverness."""

import numpy as np
from tests.support import reference


def seeded(query, features, seeds, gamma):
    """y of one query: max(sim, 0) ** gamma at its nearest elements, 0 elsewhere, (n,)."""
    ids, sims = reference.nearest(query[None], features, seeds)
    y = np.zeros(len(features))
    y[ids[0]] = np.maximum(sims[0], 0).astype(np.float64) ** gamma
    return y


def solved(alpha_s, support, y):
    """f with (I - alpha S)[J, J] f[J] = y[J] on the support J, and 0 elsewhere, (n,)."""
    f = np.zeros(len(alpha_s))
    f[support] = np.linalg.solve(np.eye(len(support)) - alpha_s[np.ix_(support, support)], y[support])
    return f


def solved_early(a, alpha, support, y):
    """The same, where S is the slice A[J, J] normalised by its own degrees."""
    alpha_s = np.zeros_like(a)
    alpha_s[np.ix_(support, support)] = alpha * reference.transition(a[np.ix_(support, support)])
    return solved(alpha_s, support, y)


def ranked(scores, similarities):
    """All ids: the positive scores first, largest first, then the rest by similarity, ties by id."""
    scores, everyone = np.asarray(scores).astype(np.float32), range(len(similarities))
    first = [i for i in everyone if scores[i] > 0]
    rest = [i for i in everyone if scores[i] <= 0]
    return sorted(first, key=lambda i: (-scores[i], i)) + sorted(rest, key=lambda i: (-similarities[i], i))


def expanded(vectors, features, ids, sims, alpha):
    """Each vector plus its neighbours times max(sim, 0) ** alpha, of unit length, (m, d)."""
    out = []
    for vector, near, sim in zip(vectors.astype(np.float64), ids, sims, strict=True):
        total = vector + sum(max(float(s), 0.0) ** alpha * features[j] for j, s in zip(near, sim, strict=True))
        out.append(total / np.linalg.norm(total))
    return np.array(out)


def reachable(s):
    """Which nodes a walk from each node can reach, itself included, (n, n)."""
    return np.linalg.matrix_power(np.eye(len(s)) + (s > 0), len(s)) > 0


def filtered(s, alpha, y, rank):
    """U h(lambda) U^T y with the `rank` first eigenvectors of each connected component, (n,)."""
    f, reach = np.zeros(len(s)), reachable(s)
    for nodes in {tuple(np.flatnonzero(row)) for row in reach}:
        values, vectors = np.linalg.eigh(s[np.ix_(nodes, nodes)])
        values, vectors = values[-rank:], vectors[:, -rank:]
        f[list(nodes)] = vectors @ ((1 - alpha) / (1 - alpha * values) * (vectors.T @ y[list(nodes)]))
    return f


def regional_seeds(regions, features, rows, seeds, gamma):
    """y of a query with several regions: similarities summed over them, the best `seeds` ** gamma, (n,)."""
    ids, sims = reference.nearest(regions, features[rows], seeds)
    sums = {}
    for near, sim in zip(ids, sims, strict=True):
        for j, s in zip(near, sim, strict=True):
            sums[rows[j]] = sums.get(rows[j], 0.0) + float(s)
    y = np.zeros(len(features))
    for i in sorted(sums, key=lambda i: (-np.float32(sums[i]), i))[:seeds]:
        y[i] = max(sums[i], 0.0) ** gamma
    return y
