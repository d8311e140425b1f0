"""The methods that diffusion is compared with."""

from suffuse.baselines.expansion import alpha_query_expansion, augment_database, average_query_expansion

__all__ = ["alpha_query_expansion", "augment_database", "average_query_expansion"]
