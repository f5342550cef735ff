"""Keras models as sources: a ``.keras`` file becomes an op with the names that the model gives its inputs and outputs."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import tensorflow as tf

from gradserve_server.autodiff import structure
from gradserve_server.ops import OpDefinition, OpLoadError

_UNKNOWN_CLASS = re.compile(r"Could not locate (class|function) '([^']*)'")
_DUMP = re.compile(r"Full object config:.*|config=\{.*?Exception encountered:", re.DOTALL)
"""What Keras puts around the cause: the configuration of the whole model."""
_UNSAFE = "Requested the deserialization of a `Lambda` layer"
_BOUND_RULE = "to be a dict for Bind"


def custom_objects(modules: Iterable[ModuleType]) -> dict[str, Any]:
    """Returns the classes and functions in the namespaces of modules, by their own names, which a file asks for them by.

    Those that are registered with Keras it finds by itself.
    """
    values = [value for module in modules for value in vars(module).values()]
    named = [value for value in values if inspect.isclass(value) or inspect.isfunction(value)]
    return {value.__name__: value for value in named if not _is_of_a_framework(value)}


def _is_of_a_framework(value: Any) -> bool:
    return str(value.__module__).split(".")[0] in ("keras", "tensorflow", "gradserve_server")


def load(name: str, file: str, objects: Mapping[str, Any]) -> list[OpDefinition]:
    """Loads a Keras model and returns it as an op.

    Args:
        name: Name of the op.
        file: The file, as ``model.save`` wrote it.
        objects: Classes and functions that it may ask for, by name.

    Raises:
        OpLoadError: It cannot be loaded (NO_MODEL, LOAD_FAILED), asks for what no module defines (UNKNOWN_CLASS) or
            for code to be run (UNSAFE_LAYER), or does not tell its inputs (UNKNOWN_INPUTS).
    """
    try:
        model = _read(file, objects)
    except _Unusable as error:
        raise OpLoadError(
            str(error), source=f"Keras model {file!r}", cause=error.cause, name=name, version=1
        ) from error.__cause__
    function = _Inference(model)
    return [
        OpDefinition(
            name=name,
            function=function,
            inputs=function.inputs,
            outputs=function.outputs,
            gradient="unchecked",
            documentation=f"Keras model {model.name!r}.",
            module="",
        )
    ]


class _Unusable(Exception):
    """A file that holds no model which can be served."""

    def __init__(self, text: str, cause: str) -> None:
        super().__init__(text)
        self.cause = cause


def _read(file: str, objects: Mapping[str, Any]) -> Any:
    if not (file.endswith(".keras") and Path(file).is_file()):
        what = "no such file" if not Path(file).exists() else "wanted a file that ends in .keras"
        raise _Unusable(f"{what}; save the model with model.save('NAME.keras')", "NO_MODEL")
    try:
        model = tf.keras.models.load_model(file, custom_objects=dict(objects), compile=False, safe_mode=True)
    except BaseException as error:  # layers may raise anything, even to exit; the cause goes to the operator
        raise _Unusable(*_explain(error)) from error
    if not getattr(model, "inputs", None):
        raise _Unusable(
            "it does not tell its inputs, as a subclassed or unbuilt model does not; make it of keras.Input, save it "
            "with model.export(DIR) and serve it by --saved-model, or declare it in a module with @op(inputs=...)",
            "UNKNOWN_INPUTS",
        )
    return model


class _Inference:
    """A model as a function of flat tensors, as it is used after training."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._tree = getattr(model, "input", model.inputs[0])  # a Sequential model has no ``input``
        by_key = isinstance(self._tree, Mapping)
        self.inputs = {(path if by_key else leaf.name): _spec(leaf) for path, leaf in structure.flatten(self._tree)}
        """A spec for each input, by the name that the model gives it."""
        self.outputs = _output_names(model)
        """The names that the model gives its outputs; None where they are the keys of what it returns."""

    @property
    def variables(self) -> Sequence[Any]:
        """Its variables, whose paths name them."""
        return list(self._model.variables)

    @property
    def non_trainable_variables(self) -> Sequence[Any]:
        """Those of its variables that are frozen, or that are no weights."""
        return list(self._model.non_trainable_variables)

    def __call__(self, *tensors: Any) -> Any:
        return self._model(structure.pack(self._tree, tensors), training=False)


def _spec(tensor: Any) -> Any:
    """Returns the spec of an input; one that is no dense tensor gets its own kind, which is refused by name."""
    if getattr(tensor, "ragged", False):
        return tf.RaggedTensorSpec(tensor.shape, tensor.dtype)
    return (tf.SparseTensorSpec if tensor.sparse else tf.TensorSpec)(tensor.shape, tensor.dtype)


def _output_names(model: Any) -> list[str] | None:
    """Returns the names of the layers that the outputs come from, which Keras too calls them by."""
    result = getattr(model, "output", None)
    nests = isinstance(result, list | tuple) and len(result) != len(model.outputs)
    if isinstance(result, Mapping) or nests:
        return None
    layers = getattr(model, "output_names", None) or [model.layers[-1].name]
    if len(layers) != len(model.outputs):
        return None
    return [f"{layer}_{n}" if (n := layers[:i].count(layer)) else layer for i, layer in enumerate(layers)]


def _explain(error: BaseException) -> tuple[str, str]:
    """Returns what Keras raised as text and cause, without the dump of the model in which it buries them."""
    text = str(error)
    unknown = _UNKNOWN_CLASS.search(text)
    if unknown is not None:
        return (
            f"no module defines its {unknown[1]} {unknown[2]!r}; name the module that does by --custom-objects MODULE",
            "UNKNOWN_CLASS",
        )
    if _UNSAFE in text:
        return (
            "it has a Lambda layer, whose code stands in the file and is never run; write it as a class of layers",
            "UNSAFE_LAYER",
        )
    if _BOUND_RULE in text:
        text = "Keras cannot load a tf.custom_gradient function that a layer was given, as its activation for example"
        return f"{text}; call it in a plain function, or in a class of layers", "LOAD_FAILED"
    return f"Keras cannot load it: {type(error).__name__}: {_DUMP.sub(' ', text)}", "LOAD_FAILED"
