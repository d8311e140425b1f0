"""The hits that SQL must find: those of an index by what is exported of it, which has no districts."""

import numpy as np
from psycopg import sql

from suffuse.core.neighbors import Neighbors
from suffuse.index import search as similar
from suffuse.index.search import Hits
from suffuse.postgres.connection import write_vectors


def find_seeds(database, vectors, count):
    """The nearest elements of prepared vectors by their ids, (m, count), and their weights, as SQL has them."""
    statement = sql.SQL("SELECT * FROM {}.seeds(%s, %s, true)").format(database._schema)
    found = [database._connection.execute(statement, [text, count]).fetchall() for text in write_vectors(vectors)]
    ids, sims, weights = np.array(found, np.float64).transpose(2, 0, 1)
    return Neighbors(ids.astype(np.int32), sims.astype(np.float32)), weights


def rank_by_columns(snapshot, query, top, seeds=10, found=None):
    """What SQL finds: the hits of the index as far as columns reach, then the nearest of the others, with the score 0.

    The index itself goes on by districts there. `found` are the nearest elements, where they are known already.
    """
    everything = similar.search(snapshot, query, len(snapshot), seeds, refine=0, found=found)
    nearest = similar.search(snapshot, query, len(snapshot), method="knn")
    y = similar.find_seeds(snapshot, query, seeds, found=found)
    columns = similar.diffuse(snapshot, y, snapshot.image_rows, 0, None)
    ids, scores = [], []
    for q, (hits, near) in enumerate(zip(everything.rows(), nearest.rows(), strict=True)):
        reached = np.isin(hits.ids, snapshot.name_rows(columns.rows[q, : columns.counts[q]]))
        count = int(reached.sum())
        assert reached[:count].all()  # nothing comes between them
        assert (hits.scores[:count] > 0).all()
        rest = near.ids[~np.isin(near.ids, hits.ids[:count])]
        ids.append(np.concatenate([hits.ids[:count], rest])[:top])
        scores.append(np.where(np.arange(len(hits.ids)) < count, hits.scores, np.float32(0))[:top])
    return Hits(ids[0], scores[0]) if query.single else Hits(np.stack(ids), np.stack(scores))
