"""Write docs/command-line.md from the help texts of the commands; with --check, fail if it is out of date."""

import os
import subprocess
import sys
from pathlib import Path

TARGET = Path(__file__).parent / "command-line.md"
VERBS = (
    "build",
    "search",
    "info",
    "verify",
    "demo",
    "add",
    "replace",
    "remove",
    "compact",
    "upgrade",
    "images",
    "extract",
    "serve",
    "export",
    "evaluate",
    "tune",
    "reproduce",
    "bench",
    "datasets list",
    "datasets fetch",
)

HEAD = """# The command line

<!-- Written by docs/generate.py from the help texts (`make docs`); do not edit. -->

Data goes to stdout, everything else (progress, warnings, errors) to stderr. Exit codes: 0 success,
1 something about the data or the index is wrong, 2 the command was called wrongly.
"""


def render() -> str:
    """The whole page."""
    parts = [HEAD, _section("suffuse", [])]
    parts += [_section(f"suffuse {verb}", verb.split()) for verb in VERBS]
    return "\n".join(parts)


def _section(title: str, arguments: list[str]) -> str:
    environment = {**os.environ, "COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "suffuse", *arguments, "--help"]
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout  # noqa: S603
    text = text.replace("python -m suffuse", "suffuse")
    body = "\n".join(line.rstrip() for line in text.strip("\n").splitlines()).strip()
    return f"## {title}\n\n```text\n{body}\n```\n"


def main() -> None:
    """Write the page, or compare it."""
    if "--check" in sys.argv[1:]:
        if not TARGET.exists() or TARGET.read_text() != render():
            sys.exit("docs/command-line.md does not match the help texts; run: make docs")
    else:
        TARGET.write_text(render())


if __name__ == "__main__":
    main()
