"""The methods that diffusion is compared with."""

import numpy as np

from suffuse.neighbors import Features, Neighbors, nearest


def average_query_expansion(queries: Features, features: Features, top: int, expand: int = 10) -> Neighbors:
    """AQE: search, average the query with its `expand` nearest elements, search again with that."""
    first = nearest(queries, features, expand)
    expanded = queries + features[first.ids].sum(axis=1)
    expanded /= np.linalg.norm(expanded, axis=1, keepdims=True)
    return nearest(expanded, features, top)
