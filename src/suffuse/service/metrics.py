"""Requests counted and timed, in the text format of Prometheus."""

import bisect
import threading
from collections import defaultdict

# Upper ends of the buckets, in seconds: a query takes milliseconds, an upload most of a second.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """One histogram of times for each method, route and status."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0] * (len(_BUCKETS) + 1))
        self._sums: dict[tuple[str, str, int], float] = defaultdict(float)
        self._lock = threading.Lock()
        self.in_flight = 0

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request that has been answered."""
        with self._lock:
            self._counts[method, route, status][bisect.bisect_left(_BUCKETS, seconds)] += 1
            self._sums[method, route, status] += seconds

    def render(self, gauges: dict[str, tuple[str, float]]) -> str:
        """The page that Prometheus reads; `gauges` are name -> (help, value)."""
        with self._lock:
            counts = {key: list(buckets) for key, buckets in self._counts.items()}
            sums = dict(self._sums)
        lines = [
            "# HELP suffuse_requests_total Requests that have been answered.",
            "# TYPE suffuse_requests_total counter",
        ]
        lines += [f"suffuse_requests_total{{{_labels(key)}}} {sum(buckets)}" for key, buckets in sorted(counts.items())]
        lines += [
            "# HELP suffuse_request_seconds Time from the request to the end of the answer.",
            "# TYPE suffuse_request_seconds histogram",
        ]
        for key, buckets in sorted(counts.items()):
            total = 0
            for end, count in zip((*map(str, _BUCKETS), "+Inf"), buckets, strict=True):
                total += count
                lines.append(f'suffuse_request_seconds_bucket{{{_labels(key)},le="{end}"}} {total}')
            lines.append(f"suffuse_request_seconds_sum{{{_labels(key)}}} {sums[key]:.6f}")
            lines.append(f"suffuse_request_seconds_count{{{_labels(key)}}} {total}")
        for name, (text, value) in gauges.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _labels(key: tuple[str, str, int]) -> str:
    method, route, status = key
    return f'method="{method}",route="{route}",status="{status}"'
