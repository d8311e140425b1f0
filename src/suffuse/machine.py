"""What this process may use of the machine."""

import os


def cores() -> int:
    """Processors that this process may use, which can be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
