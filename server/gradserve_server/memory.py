"""Memory: has the C library keep what large tensors leave, so that the next ones do not take each page anew from the system."""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of glibc's ``mallopt``. Source: https://www.gnu.org/software/libc/manual/html_node/Malloc-Tunable-Parameters.html"""
_KEPT_BYTES = 2**28
_LARGEST_BYTES = 2**25
"""Blocks up to this come out of what is kept; glibc takes no larger number."""


def keep_freed_memory() -> bool:
    """Lets up to 256 MiB that were freed stay with the process, unless the environment says otherwise (MALLOC_...).

    Returns:
        Whether it will be so: not where the C library is no glibc.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return (
        mallopt is not None
        and mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES) == 1
        and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES) == 1
    )
