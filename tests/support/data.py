"""Made-up vectors of known shape, each from a generator that the test passes in."""

import numpy as np
from hypothesis import strategies as st

seeds_of_rng = st.integers(0, 2**32 - 1)


def unit(vectors):
    """Rows scaled to length 1, float32, C order: what lies below the border."""
    vectors = np.asarray(vectors, np.float64)
    return np.ascontiguousarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def scattered(rng, n, d):
    """Unit rows (n, d) without structure: about half of all similarities are negative."""
    return unit(rng.normal(size=(n, d)))


def clusters(rng, n, d, count=4, spread=0.3):
    """Unit rows (n, d) around `count` random centres; row i belongs to cluster i % count."""
    centres = unit(rng.normal(size=(count, d)))
    return unit(centres[np.arange(n) % count] + spread / np.sqrt(d) * rng.normal(size=(n, d)))


def curves(rng, n, d, count=3, noise=0.02):
    """Unit rows (n, d) along `count` great half circles, which diffusion follows and k-NN leaves; i is on i % count."""
    axes = np.stack([np.linalg.qr(rng.normal(size=(d, 2)))[0] for _ in range(count)])
    angles = rng.uniform(0.0, np.pi, size=n)
    places = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return unit(np.einsum("ndt,nt->nd", axes[np.arange(n) % count], places) + noise * rng.normal(size=(n, d)))


def duplicated(rng, n, d, distinct):
    """Unit rows (n, d) of which only `distinct` differ, in random order; each of those occurs."""
    which = rng.permutation(np.concatenate([np.arange(distinct), rng.integers(distinct, size=n - distinct)]))
    return np.ascontiguousarray(scattered(rng, distinct, d)[which])


def lattice(rng, n, d):
    """Unit rows (n, d) with four entries of +-1/2: their products are exact in any order, and ties are everywhere."""
    rows = np.zeros((n, d), np.float32)
    for row in rows:
        row[rng.choice(d, 4, replace=False)] = rng.choice([-0.5, 0.5], 4)
    return rows


def network(rng, n, degree):
    """A dense symmetric matrix (n, n) with about `degree` entries a row, none on the diagonal, |eigenvalues| <= 1."""
    weights = np.triu(rng.uniform(0.1, 1.0, (n, n)) * (rng.random((n, n)) < degree / n), 1)
    weights += weights.T
    roots = np.sqrt(weights.sum(axis=1))
    return weights / np.where(weights > 0, np.outer(roots, roots), 1.0)


def some_rows(rng, n=12, d=5, dtype="float32"):
    """Rows (n, d) of any length, as an extractor leaves them."""
    if dtype == "uint8":
        return rng.integers(1, 256, size=(n, d), dtype=np.uint8)
    return (10 * rng.normal(size=(n, d))).astype(dtype)
