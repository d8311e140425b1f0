"""Whether an index survives what may happen to it: writers that are killed, and files that are damaged.

    python -m benchmarks.reliability kills --moments 200 --seed 1
    python -m benchmarks.reliability damage --count 1000 --seed 1

Everything follows from the seed but the moments of the kills, which are a matter of time. The result goes to
OUTPUT/reliability-kills.json and OUTPUT/reliability-damage.json; the exit code is 1 if anything was lost, missed or
crashed. The tests do the same in small.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.support.kills import kill_often
from tests.support.random_damage import damage_often


def main() -> None:
    """Do one of both, and say what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("out/bench"))
    verbs = parser.add_subparsers(dest="verb", required=True)
    kills = verbs.add_parser("kills")
    kills.add_argument("--moments", type=int, default=200)
    damage = verbs.add_parser("damage")
    damage.add_argument("--count", type=int, default=1000)
    for verb in (kills, damage):
        verb.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.output) as folder:
        if options.verb == "kills":
            result = kill_often(Path(folder), options.moments, options.seed)
        else:
            result = damage_often(Path(folder), options.count, options.seed)
    (options.output / f"reliability-{options.verb}.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name != "each"}, indent=2))
    sys.exit(1 if result["failures"] else 0)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    main()
