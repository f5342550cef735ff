"""The gradient check against random ops, right and with one gradient element off.

``python -m tests.support.random_ops 400`` is the same at full size.
"""

from tests.support.random_ops import DTYPES, trials

from gradserve_server.checking.gradient_check import CheckOptions


def test_check_of_random_ops_fails_none_that_is_right_and_finds_faults() -> None:
    seen = list(trials(16, seed=20_261, options=CheckOptions(points=2), dtypes=DTYPES))
    assert [trial.texts[0] for trial in seen if trial.correct_verdict == "fail"] == []
    missed = [trial.texts[1] for trial in seen if trial.faulty_verdict != "fail"]
    assert missed == []
