"""Calls that differ in nothing but shapes: a server's memory and traces stay what they were, and leaks would be seen.

``python -m tests.support.random_shapes 100000`` is the same at full size.
"""

import os

import pytest
from tests.support.random_shapes import OPS, survey

from gradserve_server.testing import server_process

CALLS = 3000
ENV = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"}
"""oneDNN keeps what it prepared for each of the last shapes of a kernel; some 10,000 calls fill that, with 150 MB."""
MOST_GROWTH_BYTES = 10 * 10**6
"""Memory still rises by a few MB after so few calls."""


def test_calls_of_many_shapes_leave_memory_and_traces_as_they_were() -> None:
    with server_process(OPS, env=ENV) as server:
        found = survey(server, CALLS)
    assert found.shortfalls(MOST_GROWTH_BYTES) == [], str(found)
    assert found.shapes > CALLS / 2


@pytest.fixture(scope="module")
def leaks() -> list[str]:
    """What is found wrong with a server of which two ops leak."""
    with server_process(OPS, "tests.support.ops_that_leak", env=ENV) as server:
        return survey(server, CALLS).shortfalls(MOST_GROWTH_BYTES)


@pytest.mark.parametrize("what", ["memory grew", "functions were traced"])
def test_leak_at_each_call_of_one_op_is_found(leaks: list[str], what: str) -> None:
    assert any(what in leak for leak in leaks)
