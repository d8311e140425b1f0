"""One target under atheris, in a process of its own: `python -m fuzz.guided TARGET FOLDER [libFuzzer's options]`."""

import sys
import time
import warnings
from pathlib import Path

import atheris

from fuzz import load_target

# A small input that takes so many seconds of CPU is as good as a hang. Not by the clock: others may use the machine.
_MOST_SECONDS = 10.0
_PACKAGES = ["suffuse", "pickle", "pickletools", "zipfile", "csv", "tokenize", "ast"]


def main() -> None:
    """Fuzz until libFuzzer ends the process: with 0 when the time is up, else with what it found in a file."""
    name = sys.argv[1]
    kernels = Path(__file__).parent.parent / "src" / "suffuse" / "core" / "kernels"
    # numba must see kernels as they are written.
    compiled = ["suffuse.core.kernels", *(f"suffuse.core.kernels.{path.stem}" for path in kernels.glob("*.py"))]
    with atheris.instrument_imports(include=_PACKAGES, exclude=compiled):
        target = load_target(name)
        from fuzz.judge import Absurd, judge, scarce_memory
    from numpy.lib import format as npy

    for function in (npy.read_magic, npy.read_array, npy.descr_to_dtype, npy.open_memmap):
        atheris.instrument_func(function)

    def once(data: bytes) -> None:
        start = time.process_time()
        judge(target.run, data)
        if (taken := time.process_time() - start) > _MOST_SECONDS:
            raise Absurd(f"{taken:.0f} seconds of CPU for an input of {len(data)} bytes")

    warnings.simplefilter("ignore")  # of numpy, about files that it can read all the same
    for seed in target.seeds().values():
        once(seed)
    with scarce_memory():
        atheris.Setup([sys.argv[0], *sys.argv[2:]], once)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
