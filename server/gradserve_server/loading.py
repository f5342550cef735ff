"""Loading: from the names of modules to a registry; the work between "the port is open" and "ready".

names -> import_modules -> definitions -> build_registry -> Registry
"""

from collections.abc import Callable, Iterator, Sequence

from gradserve_server.autodiff.tracing import trace
from gradserve_server.ops import Op, OpDefinition, OpLoadError
from gradserve_server.registry import Registry
from gradserve_server.sources import python_module


class Failures:
    """What could not be loaded: the first failure is raised, or all are kept, as the operator chose."""

    def __init__(self, *, skip: bool) -> None:
        """Takes whether failures are kept rather than raised."""
        self._skip = skip
        self.skipped: list[OpLoadError] = []
        """The failures that were kept."""

    def add(self, error: OpLoadError) -> None:
        """Keeps a failure, or raises it."""
        if not self._skip:
            raise error
        self.skipped.append(error)


def import_modules(modules: Sequence[str], failures: Failures) -> Iterator[tuple[str, OpDefinition]]:
    """Imports modules by path or dotted name.

    Yields:
        Each op with where it comes from.

    Raises:
        OpLoadError: A module cannot be imported or defines no op, and failures are not skipped.
    """
    for module in dict.fromkeys(modules):
        try:
            definitions = python_module.load(module)
        except OpLoadError as error:
            failures.add(error)
            continue
        for definition in definitions:
            yield f"module {module!r}", definition


def build_registry(
    definitions: Sequence[tuple[str, OpDefinition]], device_of: Callable[[str | None], str], failures: Failures
) -> Registry:
    """Traces ops and builds the registry of them.

    Args:
        definitions: Ops with where they come from.
        device_of: Turns the device that an op asks for (None: any) into the one that it gets, such as "cpu:0".
        failures: Takes what fails; those that name an op are listed in the registry.

    Raises:
        OpLoadError: An op cannot be traced or is registered twice, and failures are not skipped.
    """
    ops: dict[tuple[str, int, str], Op] = {}
    for source, definition in definitions:
        try:
            for op in _trace(definition, source, device_of):
                key = (op.name, op.version, op.signature.key)
                if key in ops:
                    raise _duplicate(op)
                ops[key] = op
        except OpLoadError as error:
            failures.add(error)
    return Registry(ops.values(), failures.skipped)


def _trace(definition: OpDefinition, source: str, device_of: Callable[[str | None], str]) -> list[Op]:
    try:
        device = device_of(definition.device)
    except ValueError as error:
        raise OpLoadError(
            str(error), source=source, cause="NO_SUCH_DEVICE", name=definition.name, version=definition.version
        ) from error
    return trace(definition, source=source, device=device)


def _duplicate(op: Op) -> OpLoadError:
    return op.failure(
        f"version {op.version}, signature {op.signature.key!r} is registered twice; "
        "give one of them another name, version or signature key",
        "DUPLICATE_NAME",
    )
