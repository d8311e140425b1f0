"""The methods that diffusion is compared with, each as good and as fast as a careful person would write it.

    expansion   Cosine (knn, dba), QueryExpansion (aqe, alpha-qe)
    per_query   Online, OnlineEarly, OnlineLate, OnlineRegional: solved when a query comes
    spectral    Spectral: fast spectral ranking
    regions     RMatch, RMatchExpansion

Each is a frozen value made of what is computed offline, with a method `rank(queries, top) -> Ranking`, or
`rank(query_regions, query_ptr, top)` where a query has several regions. Below the border: unit rows in float32.
"""

from suffuse.research.baselines.expansion import (
    Cosine,
    QueryExpansion,
    alpha_query_expansion,
    augment_database,
    average_query_expansion,
    expand_queries,
)
from suffuse.research.baselines.per_query import (
    Online,
    OnlineEarly,
    OnlineLate,
    OnlineRegional,
    early_diffusion,
    late_diffusion,
    online_diffusion,
)
from suffuse.research.baselines.ranking import Ranking, Scored, positive_first
from suffuse.research.baselines.regions import Regions, RMatch, RMatchExpansion, r_match, r_match_aqe
from suffuse.research.baselines.spectral import Spectral

__all__ = [
    "Cosine",
    "Online",
    "OnlineEarly",
    "OnlineLate",
    "OnlineRegional",
    "QueryExpansion",
    "RMatch",
    "RMatchExpansion",
    "Ranking",
    "Regions",
    "Scored",
    "Spectral",
    "alpha_query_expansion",
    "augment_database",
    "average_query_expansion",
    "early_diffusion",
    "expand_queries",
    "late_diffusion",
    "online_diffusion",
    "positive_first",
    "r_match",
    "r_match_aqe",
]
