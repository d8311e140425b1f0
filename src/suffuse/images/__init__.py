"""Images to vectors: decode, run a network by onnxruntime, pool its feature map.

`weights` reads a torch file without torch, `efficientnet` makes the default network from it, `pictures` decodes,
`regions` pools, `network` holds the extractor, `cache` and `folder` take whole folders.
"""

from suffuse.images.network import Extractor, extractor_from, load_extractor

__all__ = ["Extractor", "extractor_from", "load_extractor"]
