"""Compiled loops over raw arrays: they take arrays, write into `out` last, check nothing, know no files.

    similarity  dot products of chosen pairs
    mutual      the mutual k-NN graph and its normalisation (eq. 1 and 2)
    walk        the support that a truncated random walk reaches
    solve       conjugate gradient on a slice of L_alpha
    pool        columns over regions summed to columns over images
    codes       columns in a compact code, and plain again
    table       the sum of columns, coded or plain, in a hash table
    combine     the weighted sum of columns, and its largest entries (Algorithm 1)
    refine      the cosine between a query's combined vector and a candidate's column
    select      the largest few of many
    match       the best similarity of a query's regions within each image
    per_query   the diffusion that baselines solve when a query comes

Each has a slow, obvious twin in the tests (tests/support/reference.py, or beside its tests).
"""
