"""Which modules of Suffuse a call passes: those whose functions run, without kernels.

    python -m benchmarks.passes build
    python -m benchmarks.passes search

The fewer there are, the sooner a reader knows what happens. Classes of data and empty packages count only if
functions of theirs are called.
"""

import argparse
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import suffuse
from suffuse.offline import build as offline


def modules_passed(work: Callable[[], Any]) -> list[str]:
    """The modules whose functions run during the call, in any thread; imports do not count."""
    root, passed = Path(suffuse.__file__).parent, set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            passed.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    inside = (Path(name).relative_to(root) for name in passed if Path(name).is_relative_to(root))
    return sorted(
        ".".join(path.with_suffix("").parts)
        for path in inside
        if path.stem != "__init__" and "kernels" not in path.parts
    )


def main() -> None:
    """Print the modules that a build or a search passes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("build", "search"))
    what = parser.parse_args().what
    features = np.random.default_rng(0).standard_normal((300, 16))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.index"

        def build() -> None:
            offline.build(features, path)  # what `suffuse build` does

        # Once before, so that everything is imported.
        build()
        if what == "build":
            shutil.rmtree(path)
            passed = modules_passed(build)
        else:
            index = suffuse.Index.open(path)
            index.search(features[:2])
            passed = modules_passed(lambda: index.search(features[:2]))
    print(*passed, sep="\n")
    print(f"{len(passed)} modules")


if __name__ == "__main__":
    main()
