"""Loading: from what the operator named to a registry; the work between "the port is open" and "ready".

Sources (modules, SavedModels, Keras models) -> find_ops -> definitions -> build_registry -> Registry
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import ParamSpec, TypeVar, cast

from gradserve_server.autodiff.compiled_shapes import MOST_SHAPES
from gradserve_server.autodiff.tracing import trace
from gradserve_server.config import Settings, split_pair
from gradserve_server.ops import GradientKind, Op, OpDefinition, OpLoadError
from gradserve_server.registry import Registry
from gradserve_server.sources import keras_model, library, python_module, saved_model

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the operator named."""

    modules: Sequence[str] = ()
    """Modules that define ops, by path or dotted name."""
    saved_models: Sequence[tuple[str, str]] = ()
    """Names of ops, and folders of SavedModels."""
    keras_models: Sequence[tuple[str, str]] = ()
    """Names of ops, and files of Keras models."""
    custom_objects: Sequence[str] = ()
    """Modules that hold layers and functions of Keras models, by path or dotted name."""
    libraries: Sequence[str] = ()
    """Paths of libraries of compiled ops."""
    gradients: Mapping[str, GradientKind] = dataclasses.field(default_factory=dict)
    """What gradients claim to be, by the name of the op; in the place of what the ops claim themselves."""

    @classmethod
    def of(cls, settings: Settings) -> "Sources":
        """Returns what the settings name."""
        return cls(
            modules=settings.modules,
            saved_models=[split_pair(text) for text in settings.saved_models],
            keras_models=[split_pair(text) for text in settings.keras_models],
            custom_objects=settings.custom_objects,
            libraries=settings.load_libraries,
            gradients={name: cast("GradientKind", kind) for name, kind in map(split_pair, settings.gradients)},
        )


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


def find_ops(sources: Sources, failures: Failures) -> list[tuple[str, OpDefinition]]:
    """Loads libraries, then modules, then the models that may use what those hold.

    Returns:
        Each op with where it comes from.

    Raises:
        OpLoadError: Something cannot be loaded, a module defines no op, or ``gradients`` names none, and failures are
            not skipped.
    """
    found = list(_load(sources, failures))
    names = {definition.name for _, definition in found} | {error.name for error in failures.skipped if error.name}
    for name in sorted(sources.gradients.keys() - names):
        failures.add(
            OpLoadError(
                f"there is no op {name!r}: wanted one of {sorted(names)}", source="gradients", cause="NO_SUCH_OP"
            )
        )
    claims = sources.gradients
    return [
        (source, dataclasses.replace(definition, gradient=claims.get(definition.name, definition.gradient)))
        for source, definition in found
    ]


def _load(sources: Sources, failures: Failures) -> Iterator[tuple[str, OpDefinition]]:
    for path in sources.libraries:
        _attempt(failures, library.load, path)
    modules = _import_modules([*sources.modules, *sources.custom_objects], failures)
    for name in dict.fromkeys(sources.modules):
        if name in modules:
            yield from _named(f"module {name!r}", _attempt(failures, python_module.ops_of, modules[name], name))
    for name, folder in sources.saved_models:
        for version in _attempt(failures, saved_model.versions, name, folder) or []:
            yield from _named(version.source, _attempt(failures, version.load))
    objects = keras_model.custom_objects(modules.values())
    for name, file in sources.keras_models:
        yield from _named(f"Keras model {file!r}", _attempt(failures, keras_model.load, name, file, objects))


def _import_modules(names: Sequence[str], failures: Failures) -> dict[str, ModuleType]:
    found = {name: _attempt(failures, python_module.import_module, name) for name in dict.fromkeys(names)}
    return {name: module for name, module in found.items() if module is not None}


def _attempt(
    failures: Failures, load: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result | None:
    """Returns what ``load`` returns; None if it failed and failures are skipped."""
    try:
        return load(*args, **kwargs)
    except OpLoadError as error:
        failures.add(error)
        return None


def _named(source: str, definitions: Sequence[OpDefinition] | None) -> Iterator[tuple[str, OpDefinition]]:
    return ((source, definition) for definition in definitions or [])


def build_registry(
    definitions: Sequence[tuple[str, OpDefinition]],
    device_of: Callable[[str | None], str],
    failures: Failures,
    *,
    max_compiled_shapes: int = MOST_SHAPES,
) -> Registry:
    """Traces ops and builds the registry of them.

    Args:
        definitions: Ops with where they come from.
        device_of: Turns the device that an op asks for (None: any) into the one that it gets, such as "cpu:0".
        failures: Takes what fails; those that name an op are listed in the registry.
        max_compiled_shapes: For how many shapes XLA may compile each op.

    Raises:
        OpLoadError: An op cannot be traced or is registered twice, and failures are not skipped.
    """
    ops: dict[tuple[str, int, str], Op] = {}
    for source, definition in definitions:
        try:
            device = _device(definition, source, device_of)
            for op in trace(definition, source=source, device=device, max_compiled_shapes=max_compiled_shapes):
                key = (op.name, op.version, op.signature.key)
                if key in ops:
                    raise _duplicate(op)
                ops[key] = op
        except OpLoadError as error:
            failures.add(error)
    return Registry(ops.values(), failures.skipped)


def _device(definition: OpDefinition, source: str, device_of: Callable[[str | None], str]) -> str:
    try:
        return device_of(definition.device)
    except ValueError as error:
        raise OpLoadError(
            str(error), source=source, cause="NO_SUCH_DEVICE", name=definition.name, version=definition.version
        ) from error


def _duplicate(op: Op) -> OpLoadError:
    return op.failure(
        f"version {op.version}, signature {op.signature.key!r} is registered twice; "
        "give one of them another name, version or signature key",
        "DUPLICATE_NAME",
    )
