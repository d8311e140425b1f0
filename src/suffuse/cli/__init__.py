"""The command line: one module for each group of verbs."""

from suffuse.cli import app
from suffuse.cli.app import main

__all__ = ["app", "main"]
