"""Pictures to features: agreement with the reference descriptors of Oxford5k, pictures per second, busy network.

    python -m benchmarks.extraction -o out/bench [--data ../shared/data] [--copies 10]

Raw results go to extraction.json, the tables to stdout. The samples are the photographs at 768 px, written anew as
JPEG; the reference was made from the originals, which are not here. The second column is a diagnosis, not a result: the
same pictures with noise of one grey level in each colour, which stands for the fine grain that the samples lost.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from suffuse.images import Extractor, load_extractor
from suffuse.images.folder import extract_folder
from suffuse.store.files import write_json

LEAST_COSINE = 0.98
LEAST_BUSY = 0.9


def main() -> None:
    """Measure, write raw results, print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--copies", type=int, default=10, help="of each sample, in the measurement of speed")
    options = parser.parse_args()
    folder = options.data / "oxford5k"
    if not folder.is_dir():
        print(f"no data at {folder}: nothing measured")
        return
    options.output.mkdir(parents=True, exist_ok=True)
    extractor = load_extractor()
    rows = agreement(folder, extractor)
    speeds = [
        {
            "size": size,
            "regions": regions,
            **speed(folder / "samples", load_extractor(size=size), regions, options.copies),
        }
        for size, regions in ((512, False), (512, True), (224, False))
    ]
    write_json(options.output / "extraction.json", {"agreement": rows, "speed": speeds})
    print("| photograph | cosine | with grain |")
    print("|---|---|---|")
    for row in rows:
        print(f"| {row['name']} | {row['cosine']:.4f} | {row['with_grain']:.4f} |")
    for column in ("cosine", "with_grain"):
        values = np.array([row[column] for row in rows])
        print(
            f"{column}: least {values.min():.4f}, mean {values.mean():.4f},"
            f" {np.count_nonzero(values >= LEAST_COSINE)} of {len(values)} at least {LEAST_COSINE}"
        )
    print("\n| size | vectors | images/s | network busy | |")
    print("|---|---|---|---|---|")
    for row in speeds:
        print(
            f"| {row['size']} | {'regions' if row['regions'] else 'one'} | {row['rate']:.1f} | {row['busy']:.1%}"
            f" | {'ok' if row['busy'] >= LEAST_BUSY else f'below {LEAST_BUSY:.0%}'} |"
        )


def agreement(folder: Path, extractor: Extractor) -> list[dict[str, Any]]:
    """The cosine of each sample's descriptor with its reference, as it is and with grain."""
    names = json.loads((folder / "ground_truth.json").read_bytes())["images"]
    reference = np.load(folder / "gallery_rmac.npy", mmap_mode="r")
    rng = np.random.default_rng(0)
    grey_level = np.float32(1 / 255 / extractor.preparation.std[0])
    rows = []
    for file in sorted((folder / "samples").glob("*.jpg")):
        wanted = reference[names.index(file.stem)].astype(np.float32)
        wanted /= np.linalg.norm(wanted)
        pixels = extractor.prepare(file)
        grain = grey_level * rng.standard_normal(pixels.shape, np.float32)
        plain, grained = (extractor.pool(extractor.run(image[None])[0]) for image in (pixels, pixels + grain))
        rows.append({"name": file.stem, "cosine": float(plain @ wanted), "with_grain": float(grained @ wanted)})
    return rows


def speed(samples: Path, extractor: Extractor, regions: bool, copies: int) -> dict[str, float]:
    """Pictures per second and the share of time in the network, over copies of all samples."""
    with tempfile.TemporaryDirectory() as place:
        photos = Path(place) / "photos"
        photos.mkdir()
        for file in samples.glob("*.jpg"):
            for copy in range(copies):
                # Bytes behind the end of a JPEG change nothing but its hash: equal files are extracted only once.
                (photos / f"{file.stem}-{copy}.jpg").write_bytes(file.read_bytes() + bytes([copy % 256, copy // 256]))
        found = extract_folder(photos, Path(place) / "cache", extractor, regions=regions)
        return {"pictures": found.extracted, "rate": found.rate, "busy": found.busy}


if __name__ == "__main__":
    main()
