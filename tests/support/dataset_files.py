"""Files of public data sets in small: five images, random features, and truths as pickles."""

import pickle

import numpy as np

IMAGES = ["all_souls_1", "bodleian_1", "oxford_1", "oxford_2", "oxford_3"]


def rows(n, d=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def pairs(judgements):
    return [(found.positives.tolist(), found.junk.tolist()) for found in judgements]


def write_pickle(path, gnd, protocol=2):
    content = {"imlist": IMAGES, "qimlist": [f"query_{i}" for i in range(len(gnd))], "gnd": gnd}
    path.write_bytes(pickle.dumps(content, protocol))
