"""Every error that a user of Suffuse can meet.

    SuffuseError                 the root: catch this to catch them all
    ├── InvalidInput             features, queries, owners or names that cannot be used (also a ValueError)
    ├── InvalidParams            a parameter that does not exist or is out of range (also a ValueError and a TypeError)
    ├── DatabaseProblem          a database that cannot be reached, does not hold what it should, or refuses
    ├── IndexProblem             an index directory that cannot be used
    │   ├── IndexMissing         there is nothing, or not an index, at that path (also a FileNotFoundError)
    │   ├── IndexBroken          a file of the index is damaged, truncated or does not fit the others
    │   ├── IndexTooNew          the index was written by a newer format version
    │   ├── IndexExists          a build would overwrite an index (also a FileExistsError)
    │   └── IndexBusy            another process is changing the index
    ├── BuildInterrupted         a build could not go on (disk full, no permission, a worker died); it can be resumed
    ├── ChangeFailed             a change could not be written (disk full, no permission); the index is as it was
    └── MissingExtra             an optional dependency is not installed (also an ImportError)

Each message says what was wrong, what was found, and what to do.
"""

import contextlib
from collections.abc import Iterator


class SuffuseError(Exception):
    """The root of all errors that Suffuse raises on purpose."""


class InvalidInput(SuffuseError, ValueError):
    """Features, queries, owners or names that cannot be used."""


class DatabaseProblem(SuffuseError):
    """A database that cannot be reached, does not hold what it should, or refuses."""


class InvalidParams(SuffuseError, ValueError, TypeError):
    """A parameter that does not exist, or is outside its range."""


class IndexProblem(SuffuseError):
    """An index directory that cannot be used."""


class IndexMissing(IndexProblem, FileNotFoundError):
    """There is nothing, or not an index, at that path."""


class IndexBroken(IndexProblem):
    """A file of the index is damaged, truncated or does not fit the others."""


class IndexTooNew(IndexProblem):
    """The index was written by a newer format version."""


class IndexExists(IndexProblem, FileExistsError):
    """A build would overwrite an index."""


class IndexBusy(IndexProblem):
    """Another process is changing the index."""


class ChangeFailed(SuffuseError):
    """A change could not be written; the index is as it was before."""


class BuildInterrupted(SuffuseError):
    """A build could not go on; what is finished is kept, and the same build resumes there."""


class MissingExtra(SuffuseError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"{module} is not installed; install it with: pip install 'suffuse[{extra}]'")
        self._given = module, extra

    def __reduce__(self) -> tuple[type["MissingExtra"], tuple[str, str]]:
        """Pickled by its arguments, not by its message: it may be raised on a worker."""
        return type(self), self._given


def first_line(error: BaseException) -> str:
    """What an error of another library says, short enough for one of ours; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:300]


@contextlib.contextmanager
def name_extra(package: str, extra: str) -> Iterator[None]:
    """Around imports of a package that may not be installed: the error names the extra that installs it."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(package, extra) from error
