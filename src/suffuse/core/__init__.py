"""Arrays in, arrays out: the method itself, from neighbour lists to columns; it knows no files and no processes."""
