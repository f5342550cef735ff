"""SavedModels as sources: each signature of each version of a model becomes an op.

DIR/saved_model.pb                           -> version 1
DIR/1/saved_model.pb, DIR/2/saved_model.pb   -> versions 1 and 2, as TensorFlow Serving lays them out
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from gradserve.signature import DEFAULT_KEY
from gradserve_server.ops import NAME, OpDefinition, OpLoadError

_FILE = "saved_model.pb"
_CUSTOM_RULE = b"CustomGradient-"
_NO_RULE = (
    "its custom gradient was not saved with the model; save it with "
    "options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)"
)
_NOT_REGISTERED = re.compile(r"Op type not registered '(\w+)'")
_NUMBER = re.compile(r"0*[1-9][0-9]{0,17}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """One version of a model, on disk."""

    name: str
    """Name of the op that it becomes."""
    version: int
    """Its version."""
    folder: str
    """The folder that holds its "saved_model.pb"."""

    @property
    def source(self) -> str:
        """Where it comes from, for errors."""
        return f"SavedModel {self.folder!r}"

    def load(self) -> list[OpDefinition]:
        """Loads it and returns an op for each of its signatures, the default one first.

        Raises:
            OpLoadError: It cannot be loaded (LOAD_FAILED, UNKNOWN_OPERATION), or has no signatures (NO_SIGNATURES).
        """
        try:
            model = tf.saved_model.load(self.folder)
            unsaved = _unsaved_rules(Path(self.folder, _FILE))
        except Exception as error:  # whatever TensorFlow makes of a broken file; the cause goes to the operator
            raise self._failure(*_explain(error)) from error
        keys = sorted(model.signatures, key=lambda key: (key != DEFAULT_KEY, key))
        if not keys:
            raise self._failure("it has no signatures; save it with signatures={...}", "NO_SIGNATURES")
        return [self._define(_Signature(model, key), key, unsaved) for key in keys]

    def _define(self, function: "_Signature", key: str, unsaved: set[bytes]) -> OpDefinition:
        if not NAME.fullmatch(key):
            text = f"signature {key!r}: a key has letters, digits, '_', '.' or '-' alone, and starts with no digit"
            raise self._failure(text, "BAD_SIGNATURE")
        if not function.inputs:
            raise self._failure(f"signature {key!r} takes no inputs", "BAD_SIGNATURE")
        return OpDefinition(
            name=self.name,
            version=self.version,
            signature=key,
            function=function,
            inputs=function.inputs,
            gradient="unchecked",
            documentation=f"Signature {key!r} of a SavedModel.",
            module="",
            no_vjp=_NO_RULE if function.rules() & unsaved else "",
        )

    def _failure(self, text: str, cause: str) -> OpLoadError:
        return OpLoadError(text, source=self.source, cause=cause, name=self.name, version=self.version)


def versions(name: str, folder: str) -> list[ModelVersion]:
    """Finds the versions of a model.

    Args:
        name: Name of the op.
        folder: A folder with "saved_model.pb" in it, which is version 1, or with a numbered folder for each version.

    Raises:
        OpLoadError: There is no such folder, or no model in it (NO_MODEL).
    """
    if Path(folder, _FILE).is_file():
        return [ModelVersion(name=name, version=1, folder=folder)]
    numbered = [path for path in Path(folder).glob("*") if _NUMBER.fullmatch(path.name) and (path / _FILE).is_file()]
    if not numbered:
        what = f"it holds no {_FILE}, nor a numbered folder with one" if Path(folder).is_dir() else "no such folder"
        text = f"{what}; wanted what tf.saved_model.save or model.export wrote"
        raise OpLoadError(text, source=f"SavedModel {folder!r}", cause="NO_MODEL")
    found = [ModelVersion(name=name, version=int(path.name), folder=str(path)) for path in numbered]
    return sorted(found, key=lambda model: model.version)


class _Signature:
    """A signature as a function of tensors in the order of their names: the file keeps no order, so that it would vary."""

    def __init__(self, model: Any, key: str) -> None:
        self._model = model  # its variables live only as long as it does
        self._function = model.signatures[key]
        specs = self._function.structured_input_signature[1]
        self.inputs = {name: specs[name] for name in sorted(specs)}
        """A spec for each input, by name."""

    def __call__(self, *tensors: Any) -> dict[str, Any]:
        outputs = self._function(**dict(zip(self.inputs, tensors, strict=True)))
        return {name: outputs[name] for name in sorted(outputs)}

    def rules(self) -> set[bytes]:
        """Returns the names of the custom gradients that its graph uses."""
        graph = self._function.graph.as_graph_def()
        return set(_rules([graph.node, *(function.node_def for function in graph.library.function)]))


def _unsaved_rules(file: Path) -> set[bytes]:
    """Returns the names of the custom gradients that a model uses but was saved without.

    TensorFlow would look for them under these names, which number the rules of a process: it might find another one's.
    """
    saved_model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    used: set[bytes] = set()
    saved: set[bytes] = set()
    for graph in (meta_graph.graph_def for meta_graph in saved_model.meta_graphs):
        used.update(_rules([graph.node, *(function.node_def for function in graph.library.function)]))
        saved.update(rule.registered_op_type.encode() for rule in graph.library.registered_gradients)
    return used - saved


def _rules(bodies: list[Any]) -> Iterator[bytes]:
    names = (node.attr["_gradient_op_type"].s for body in bodies for node in body if "_gradient_op_type" in node.attr)
    return (name for name in names if name.startswith(_CUSTOM_RULE))


def _explain(error: Exception) -> tuple[str, str]:
    """Returns what TensorFlow raised while it loaded a model as text and cause."""
    unknown = _NOT_REGISTERED.search(str(error))
    if unknown is not None:
        text = f"TensorFlow does not know its operation {unknown[1]!r}; load the library that has it by --load-library"
        return text, "UNKNOWN_OPERATION"
    return f"it cannot be loaded: {type(error).__name__}: {error}", "LOAD_FAILED"
