"""How kernels are compiled: for fixed types, without the GIL, cached in the user's cache directory.

Types are fixed because a memory map is read-only, which numba counts as another type: without a signature
the first search of an opened index would compile everything a second time. All kernels are serial: the
threads are ours (see `offline`), since numba's own abort the process when two Python threads use them.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import platformdirs
from numba import types

# numba fills this module at run time, so its type is beyond mypy.
_settings: Any = numba.config

f4, f8 = types.float32, types.float64
u1, u2, u4, u8 = types.uint8, types.uint16, types.uint32, types.uint64
i4, i8, void = types.int32, types.int64, types.void


def readonly(dtype: types.Type, ndim: int = 1) -> types.Array:
    """An array that the kernel only reads; writable arrays fit as well."""
    return types.Array(dtype, ndim, "C", readonly=True)


def writable(dtype: types.Type, ndim: int = 1) -> types.Array:
    """An array that the kernel writes."""
    return types.Array(dtype, ndim, "C")


# A graph: indptr, indices and weights.
GRAPH = (readonly(u8), readonly(u4), readonly(f8))


def compiled(*signatures: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile for exactly these signatures; take the machine code from the cache where it is there."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        # numba knows one setting for everybody; ours must not become those of the user's own kernels.
        theirs, lanes = _settings.CACHE_DIR, _settings.SLP_VECTORIZE
        _settings.CACHE_DIR = theirs or str(_cache_directory())
        _settings.SLP_VECTORIZE = 1  # what makes one instruction of eight equal ones (see `in_lanes`)
        try:
            return _njit(function, signatures, cache=True)
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
            # Nothing on this machine is writable: compile anew in each process rather than not at all.
            return _njit(function, signatures, cache=False)
        finally:
            _settings.CACHE_DIR, _settings.SLP_VECTORIZE = theirs, lanes

    return decorate


def _njit(function: Callable[..., Any], signatures: tuple[Any, ...], *, cache: bool) -> Callable[..., Any]:
    # Sums may be reordered, so that they use all lanes; the order is fixed when compiled, so results repeat.
    decorated: Callable[..., Any] = numba.njit(
        list(signatures), nogil=True, cache=cache, error_model="numpy", fastmath={"reassoc", "contract", "nsz"}
    )(function)
    return decorated


# A helper is compiled into the kernels that call it.
helper = numba.njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})

# The same for one that does equal things in several lanes: sums keep their order, or the compiler would turn them round
# and add up within a lane, for which it has to gather.
in_lanes = numba.njit(error_model="numpy", fastmath={"contract", "nsz"})


def _cache_directory() -> Path:
    # numba notices a changed file, but not a changed helper in another file: one directory per state of all.
    sources = sorted(Path(__file__).parent.glob("*.py"))
    state = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    return platformdirs.user_cache_path("suffuse", appauthor=False) / f"jit-{state}"
