"""An index in use: opened, searched, explained and changed."""
