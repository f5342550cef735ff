"""Checks of gradients, over the wire and when a server starts."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.support.processes import run_server

from gradserve import Client
from gradserve.errors import DeadlineExceeded, InvalidRequest, NotFound, OpContractError
from gradserve.gradient_check import Line
from gradserve_server.testing import RunningServer, running_server

WRONG = Path(__file__).with_name("ops_wrong.py")


@pytest.fixture
def wrong(serve: Callable[..., RunningServer]) -> Iterator[Client]:
    with serve(WRONG, check_gradients="off").client() as client:
        yield client


def test_start_with_a_wrong_gradient_is_refused_in_one_line_that_names_it() -> None:
    ended = run_server(WRONG)
    assert ended.returncode == 2
    (message,) = [line for line in ended.stderr.splitlines() if line.startswith("gradserve-server: ")]
    for part in (f"module '{WRONG}'", "op 'forgetful'", "WRONG_GRADIENT", "input 'x'", "forward values give", "dy"):
        assert part in message


def test_start_that_skips_lists_the_wrong_op_as_failed_and_serves_the_others() -> None:
    with running_server(str(WRONG), bad_ops="skip") as server, server.client() as client:
        infos = {info.name: info for info in client.ops()}
        assert infos["forgetful"].failure.startswith("WRONG_GRADIENT")
        assert (infos["right"].failure, infos["right"].check) == ("", "pass")
        assert infos["forgetful_and_narrow"].failure.startswith("WRONG_GRADIENT")
        with pytest.raises(OpContractError, match="WRONG_GRADIENT"):
            client.vjp("forgetful", np.float32([1]))


def test_start_that_warns_serves_the_wrong_op_and_says_so() -> None:
    with running_server(str(WRONG), check_gradients="warn") as server, server.client() as client:
        info = client.op("forgetful")
        assert (info.failure, info.check) == ("", "fail")
        assert "forward values give" in info.check_text


def test_start_checks_only_what_claims_to_be_exact_and_repeats(serve: Callable[..., RunningServer]) -> None:
    with serve(WRONG, check_gradients="warn").client() as client:
        checks = {info.name: info.check for info in client.ops()}
    assert checks.pop("forgetful") == checks.pop("forgetful_and_narrow") == "fail"
    assert checks == {"right": "pass", "rounded": None, "noisy": None, "whole": None}


def test_check_of_a_right_op_passes_every_test(wrong: Client) -> None:
    found = wrong.check_gradient("right")
    assert found.verdict == "pass"
    assert {finding.test for finding in found.findings} == {
        "finite", "elements", "adjoint", "taylor", "own_derivative", "linearity",
    }  # fmt: skip
    assert all(finding.verdict == "pass" for finding in found.findings)


def test_check_of_a_surrogate_departs_and_says_where(wrong: Client) -> None:
    found = wrong.check_gradient("rounded", np.float32([0.3, 1.2]))
    (elements,) = [finding for finding in found.findings if finding.test == "elements"]
    assert (found.verdict, elements.verdict) == ("departs", "departs")
    assert elements.index in [(0,), (1,)]
    assert abs(elements.wanted) < 1e-6 < abs(elements.got)


def test_check_is_remembered_in_the_info_of_the_op(wrong: Client) -> None:
    assert wrong.check_gradient("rounded").verdict == "departs"
    assert wrong.op("rounded").check == "departs"


def test_check_of_an_op_that_does_not_repeat_is_refused(wrong: Client) -> None:
    with pytest.raises(OpContractError) as caught:
        wrong.check_gradient("noisy")
    assert caught.value.reason == "NOT_REPEATABLE"


def test_check_of_an_op_without_gradients_is_refused(wrong: Client) -> None:
    with pytest.raises(OpContractError) as caught:
        wrong.check_gradient("whole")
    assert caught.value.reason == "NOT_DIFFERENTIABLE"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"points": 101}, "points"),
        ({"max_seconds": float("nan")}, "max_seconds"),
        ({"max_seconds": -1.0}, "max_seconds"),
        ({"line": Line(low=1, high=1)}, "line"),
        ({"line": Line(low=0, high=float("inf"))}, "line"),
        ({"line": Line(low=0, high=1, points=1)}, "line.points"),
    ],
)
def test_check_with_an_option_out_of_range_is_refused(wrong: Client, options: dict, named: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{named}: wanted") as caught:
        wrong.check_gradient("right", **options)
    assert caught.value.reason == "BAD_OPTION"


def test_check_along_a_line_of_an_unknown_input_is_refused(wrong: Client) -> None:
    with pytest.raises(InvalidRequest, match="'z'"):
        wrong.check_gradient("right", line=Line(input="z", low=0, high=1))


def test_check_of_an_unknown_op_is_not_found(wrong: Client) -> None:
    with pytest.raises(NotFound):
        wrong.check_gradient("nothing")


def test_check_along_a_line_returns_rule_own_derivative_and_differences(wrong: Client) -> None:
    found = wrong.check_gradient("right", line=Line(low=-1, high=1, points=5)).profile
    assert found is not None
    np.testing.assert_allclose(found.positions, [-1, -0.5, 0, 0.5, 1])
    np.testing.assert_allclose(found.outputs, found.positions**3, atol=1e-6)
    for derivative in (found.rule, found.own_derivative, found.differences):
        np.testing.assert_allclose(derivative, 3 * found.positions**2, atol=1e-3)


def test_calls_go_on_while_a_check_runs(wrong: Client) -> None:
    with ThreadPoolExecutor(1) as pool:
        check = pool.submit(wrong.check_gradient, "right", points=100, directions=100, max_seconds=20.0)
        answers = 0
        while not check.done():
            answers += wrong.vjp("right", np.float32([2])).gradient.tolist() == [12.0]
    assert answers > 10
    assert check.result().verdict == "pass"


def test_check_that_is_cancelled_leaves_the_turn_to_the_next(wrong: Client) -> None:
    with contextlib.suppress(DeadlineExceeded):
        wrong.check_gradient("right", points=100, directions=1000, max_seconds=60.0, timeout=0.5)
    assert wrong.check_gradient("rounded").verdict == "departs"


def test_server_that_stops_while_a_check_runs_lets_the_process_end() -> None:
    code = f"""
import threading
from gradserve_server.testing import running_server
with running_server({str(WRONG)!r}, check_gradients="off", grace_seconds=0.2) as server:
    client = server.client()
    threading.Thread(target=lambda: client.check_gradient("right", points=100, directions=1000), daemon=True).start()
    import time; time.sleep(1.0)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
