"""The method: arrays in, arrays out; no files, no processes."""


class Damaged(Exception):
    """Data is not what was written, or does not fit other data; `store.files.report_damage` words it for users."""
