"""`python -m suffuse` is the command line."""

from suffuse.cli import main

main()
