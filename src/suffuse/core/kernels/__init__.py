"""Compiled loops over raw arrays: they take arrays, write into `out` last, check nothing, know no files.

    jit        how kernels are compiled and cached
    select     keys that order by score and then by id; the largest few of many; a hash table's slots
    nearest    the largest entries of a product that comes tile by tile; a scan; similarities of pairs and by image
    hnsw       search along the links of an HNSW graph
    graph      the mutual k-NN graph, its normalisation (eq. 1 and 2), the order of its nodes, its components
    supports   where a column is solved: the reach of a random walk, or what the columns of the neighbours hold
    solve      conjugate gradient on a slice of L_alpha, for eight columns at once or one; the baselines' diffusion
    codes      columns in a compact code, and plain again; columns over regions summed to columns over images
    combine    the weighted sum of columns (Algorithm 1), and the second look
    growth     newcomers in k-NN lists, longer columns, columns that a change concerns
    chain      the strongest path through the graph between two sets of nodes
    checksums  sums of the pages of files, and whether what is read is what was written

Each has a slow, obvious twin in the tests (tests/support/reference.py, or beside its tests).
"""
