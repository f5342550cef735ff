"""Loading: from names of modules to a registry, and what a failure does when it stops the start or is skipped."""

from pathlib import Path

import pytest
from tests.server.helpers import ANY

from gradserve_server.loading import Failures, build_registry, import_modules
from gradserve_server.ops import OpDefinition, OpLoadError, op
from gradserve_server.scheduling.device import resolve

HERE = Path(__file__).parent
BEHAVIOUR, EXITS = (str(HERE / f"ops_{name}.py") for name in ("behaviour", "exits"))


def declare(name: str, version: int = 1, **declared) -> OpDefinition:
    return op(name, version=version, **{"inputs": {"x": ANY}, **declared})(lambda x: x * 2.0)


def on(wanted: str | None) -> str:
    return resolve(wanted or "cpu")


def build(*definitions: OpDefinition, skip: bool = False):
    failures = Failures(skip=skip)
    return build_registry([("probe.py", definition) for definition in definitions], on, failures), failures.skipped


def test_import_modules_says_of_each_op_where_it_comes_from() -> None:
    found = list(import_modules([BEHAVIOUR], Failures(skip=False)))
    assert {source for source, _ in found} == {f"module {BEHAVIOUR!r}"}
    assert [definition.name for _, definition in found] == ["square", "sleep", "record", "boom", "take"]


def test_import_modules_of_a_module_named_twice_imports_it_once() -> None:
    assert len(list(import_modules([BEHAVIOUR, BEHAVIOUR], Failures(skip=False)))) == 5


def test_import_modules_that_skips_goes_on_after_a_failure() -> None:
    failures = Failures(skip=True)
    assert len(list(import_modules([EXITS, BEHAVIOUR], failures))) == 5
    assert [(failure.source, failure.cause) for failure in failures.skipped] == [(f"module {EXITS!r}", "IMPORT_FAILED")]


def test_import_modules_that_stops_raises_the_failure() -> None:
    with pytest.raises(OpLoadError, match="only runs on Sundays"):
        list(import_modules([EXITS, BEHAVIOUR], Failures(skip=False)))


def test_build_registry_joins_signatures_and_versions() -> None:
    registry, _ = build(
        declare("a"),
        declare("a", version=2, dtypes=["float64"]),
        declare("a", signature="other"),
    )
    assert {(i.version, *i.signatures) for i in registry.infos()} == {
        (1, "serving_default", "other"),
        (2, "serving_default", "float64"),
    }


def test_build_registry_of_a_name_registered_twice_is_refused_by_name() -> None:
    with pytest.raises(OpLoadError, match=r"op 'a': DUPLICATE_NAME: version 1, signature 'serving_default'"):
        build(declare("a"), declare("a"))


def test_build_registry_of_an_unknown_device_is_refused_by_name() -> None:
    with pytest.raises(OpLoadError, match="op 'a': NO_SUCH_DEVICE: device 'gpu:77': there is no such device"):
        build(declare("a", device="gpu:77"))


def test_build_registry_that_skips_keeps_the_rest_and_lists_what_failed() -> None:
    registry, skipped = build(declare("bad", device="gpu:77"), declare("good"), skip=True)
    assert [(info.name, bool(info.failure)) for info in registry.infos()] == [("bad", True), ("good", False)]
    assert [failure.cause for failure in skipped] == ["NO_SUCH_DEVICE"]


@pytest.mark.parametrize("broken", [lambda: None, lambda x: x["missing"]])
def test_build_registry_of_any_error_in_an_op_is_a_load_error(broken) -> None:
    with pytest.raises(OpLoadError):
        build(op("broken", inputs={"x": ANY})(broken))
