"""`python -m suffuse` is the command line."""

from suffuse.cli.app import main

main()
