"""The runner: `python -m fuzz [TARGET ...] [--seconds N] [--seed N]`."""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from fuzz import CASES, TARGETS, cases, load_target

_LONGEST_INPUT = 16384
_HANG_SECONDS = 120  # by the clock, so it is long; `guided` looks at the CPU


class Outcome(NamedTuple):
    """What one run did."""

    executions: int
    minutes: float  # of CPU
    branches: int  # of instrumented code that some input reached
    corpus: int  # inputs that each reached something new
    found: list[Path]


def main() -> None:
    """Fuzz the chosen targets in turn; the exit code says whether something was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all if none is named")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument("--seed", type=int, default=1, help="of the mutations (1); 0 for another one each time")
    parser.add_argument("--folder", type=Path, default=Path("out/fuzz"), help="of what is found (out/fuzz)")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.targets if name not in TARGETS]:
        parser.error(f"there is no target {unknown[0]!r}; choose of {', '.join(TARGETS)}")
    if importlib.util.find_spec("atheris") is None:
        parser.error("atheris is not installed; run: make fuzz")
    found = []
    for name in chosen.targets or TARGETS:
        outcome = fuzz(name, chosen.seconds, chosen.seed, chosen.folder.absolute())
        print(
            f"{name}: {outcome.executions:,} executions in {outcome.minutes:.1f} minutes of CPU, {outcome.branches}"
            f" branches reached, {outcome.corpus} inputs in the corpus, {len(outcome.found)} found",
            flush=True,
        )
        found += outcome.found
    if found:
        print(f"found: {', '.join(map(str, found))}\nAfter the repair keep each, made small, in {CASES.name}/TARGET.")
        sys.exit(1)


def fuzz(name: str, seconds: int, seed: int, folder: Path) -> Outcome:
    """Fuzz one target in a child process; the corpus of earlier runs is where it goes on."""
    home = folder / name
    corpus, log = home / "corpus", home / "log.txt"
    corpus.mkdir(parents=True, exist_ok=True)
    target = load_target(name)
    for number, content in enumerate([*target.seeds().values(), *cases(name).values()]):
        (corpus / f"seed-{number}").write_bytes(content)
    before = set(home.glob("found-*"))
    command = [
        sys.executable, "-m", "fuzz.guided", name, str(corpus), f"-artifact_prefix={home}/found-",
        f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={_LONGEST_INPUT}", f"-timeout={_HANG_SECONDS}",
        "-rss_limit_mb=6000", "-print_final_stats=1", "-len_control=0",
    ]  # fmt: skip
    # Kernels that check every index, compiled into a cache of their own: what would be a wild read is an IndexError.
    checked = {"NUMBA_BOUNDSCHECK": "1", "XDG_CACHE_HOME": str(folder / "kernels")}
    start = os.times()
    with log.open("wb") as stream:
        done = subprocess.run(
            command, env={**os.environ, **checked}, stdout=stream, stderr=subprocess.STDOUT, check=False
        )
    end = os.times()
    text = log.read_text(errors="replace")
    found = sorted(set(home.glob("found-*")) - before)
    if done.returncode and not found:
        raise SystemExit(f"{name} could not be fuzzed, see {log}:\n{text[-3000:]}")
    if found:
        print(text[-6000:])
    executions = re.findall(r"(?:^#|executed_units: )(\d+)\s", text, re.MULTILINE)
    branches = re.findall(r" cov: (\d+) ", text)
    return Outcome(
        int(executions[-1]) if executions else 0,
        (end.children_user + end.children_system - start.children_user - start.children_system) / 60,
        int(branches[-1]) if branches else 0,
        sum(1 for _ in corpus.iterdir()),
        found,
    )


if __name__ == "__main__":
    main()
