"""Quality beside time, on real data; run by `make bench`."""
