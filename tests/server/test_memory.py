"""Memory that large blocks leave stays with the process; seen in fresh ones, since the setting lasts."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
from gradserve_server.memory import keep_freed_memory

kept = {keeps} and keep_freed_memory()
for _ in range(50):
    block = bytearray(2**22)
    block[::4096] = b"x" * 1024
    other = bytearray(2**22)
    other[::4096] = b"x" * 1024
    del block, other
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""
GLIBC = platform.libc_ver()[0] == "glibc"


def run(*, keeps: bool, **env: str) -> tuple[bool, int]:
    """Returns whether memory is kept, and how many pages a process took that uses and frees large blocks."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", FAULTS.format(keeps=keeps)]
    printed = subprocess.run(command, env={**clean, **env}, capture_output=True, text=True, check=True).stdout
    kept, faults = printed.split()
    return kept == "True", int(faults)


@pytest.mark.skipif(not GLIBC, reason="only glibc can be told")
def test_memory_that_was_freed_is_not_taken_anew() -> None:
    (kept, faults), (_, without) = run(keeps=True), run(keeps=False)
    assert kept
    assert without - faults > 20 * 2**10  # of 50 * 2 * 1024 pages


def test_environment_that_tunes_the_c_library_has_its_way() -> None:
    assert not run(keeps=True, MALLOC_ARENA_MAX="2")[0]
