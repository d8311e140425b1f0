"""The index on disk: files, checksums, manifest, segments, names, locks; and readers of feature files."""
