"""A coverage-guided fuzzer for every reader of foreign bytes: a result or an error of `suffuse.errors`, nothing else.

    python -m fuzz                            every target for a minute each; needs atheris (`make fuzz` brings it)
    python -m fuzz features --seconds 600     one target, for longer

A target is a module with `seeds()`, small sound inputs by name, and `run(data)`, which reads one input. What once
failed is kept in fuzz/cases/TARGET, and tests/test_fuzz_cases.py reads it again, with many mutations of the seeds; that
needs no atheris.
"""

import importlib
from pathlib import Path
from typing import Protocol

TARGETS = ("features", "index", "items", "truth", "weights")
CASES = Path(__file__).parent / "cases"


class Target(Protocol):
    """What a module of a target offers."""

    def seeds(self) -> dict[str, bytes]:
        """Sound inputs by name, the same ones each time."""

    def run(self, data: bytes) -> None:
        """Read one input; raises an error of Suffuse, or nothing."""


def load_target(name: str) -> Target:
    """The module of a target, imported only now: the fuzzer must see its imports."""
    module: Target = importlib.import_module(f"fuzz.{name}")
    return module


def cases(name: str) -> dict[str, bytes]:
    """The inputs of a target that once failed, by file name."""
    return {path.name: path.read_bytes() for path in sorted((CASES / name).glob("*")) if path.is_file()}
