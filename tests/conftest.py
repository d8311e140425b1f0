"""What several test files share."""

import sys

import pytest

from suffuse.cli import main


@pytest.fixture
def suffuse(monkeypatch, capsys):
    """Run the command line in this process, on a wide terminal; gives exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["suffuse", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run
