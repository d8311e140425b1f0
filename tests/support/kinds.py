"""The seven kinds of index that differ in their files, or in what a change does.

Plain values, without an import of Suffuse, so that benchmarks/net.py can build them with older code, too.
"""

from typing import Any

DIMENSIONS = 8
TINY: dict[str, Any] = {"k": 6, "truncation": 30, "keep": 15}
# Parameters of each kind, on top of those that follow from its size.
KINDS: dict[str, dict[str, Any]] = {
    "coded": {"with_graph": True},
    "plain": {"values": "float16"},
    "float32": {"values": "float32", "whiten": 6},
    "linked": {"seed_search": "hnsw"},
    "regions": {},
    "regions, plain": {"values": "float16"},
    "regions, not pooled": {"pool": "none"},
}


def is_regional(kind: str) -> bool:
    """Whether elements are regions of images."""
    return kind.startswith("regions")
