"""Python modules as sources: imports a plain module by path or dotted name and finds the ops in it."""

import importlib
import importlib.util
import sys
import zlib
from pathlib import Path
from types import ModuleType

from gradserve_server.ops import DECLARED, OpDefinition, OpLoadError


def import_module(module_name: str) -> ModuleType:
    """Imports a module.

    Args:
        module_name: A path that ends in ".py", or a dotted name found in the working directory or on ``sys.path``.
            The folder of a path is importable too, so that a module may import its neighbours.

    Raises:
        OpLoadError: It cannot be imported (IMPORT_FAILED).
    """
    try:
        return _import_path(Path(module_name)) if module_name.endswith(".py") else _import_name(module_name)
    except BaseException as error:  # a module may raise anything, even to exit; the cause goes to the operator
        raise OpLoadError(
            f"import failed with {type(error).__name__}: {_text_of(error)}; --traceback shows where",
            source=f"module {module_name!r}",
            cause="IMPORT_FAILED",
        ) from error


def ops_of(module: ModuleType, module_name: str) -> list[OpDefinition]:
    """Returns the ops that a module defines, in order.

    Args:
        module: The module.
        module_name: What it was imported by, for errors.

    Raises:
        OpLoadError: It defines no op (NO_OPS).
    """
    named = [value for value in vars(module).values() if _is_defined_in(value, module)]
    found = {id(definition): definition for definition in [*vars(module).get(DECLARED, []), *named]}
    if not found:
        raise OpLoadError(
            "it defines no op; decorate a function with @gradserve_server.op(...), above all other decorators, "
            "or name a module that holds layers alone by --custom-objects",
            source=f"module {module_name!r}",
            cause="NO_OPS",
        )
    return list(found.values())


def _import_path(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    _make_importable(path.resolve().parent)
    # A name of its own, apart from installed modules and from files of the same name in other folders.
    name = f"gradserve_ops_{path.stem}_{zlib.crc32(bytes(path.resolve())):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"not a Python module: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _import_name(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ImportError(f"wanted a path that ends in .py, or a dotted name, got {name!r}")
    _make_importable(Path.cwd())
    return importlib.import_module(name)


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _is_defined_in(value: object, module: ModuleType) -> bool:
    """Whether a value is an op of this module, rather than one that it imported from the module that holds it."""
    if not isinstance(value, OpDefinition):
        return False
    home = sys.modules.get(value.module)
    return value.module == module.__name__ or home is None or not any(value is known for known in _named_ops(home))


def _named_ops(module: ModuleType) -> list[OpDefinition]:
    return [value for value in vars(module).values() if isinstance(value, OpDefinition)]


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the exception's own __str__ may fail; its class is named beside this
        return "(its text cannot be shown)"
