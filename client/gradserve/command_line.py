"""Tensors on the command line: ``name=value`` arguments in, .npy files out."""

import ast
import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gradserve import binding
from gradserve.gradient_check import Line
from gradserve.op_info import OpInfo
from gradserve.results import ForwardResult
from gradserve.signature import Signature
from gradserve.tensors import Array

OUTPUT_GRADIENT_PREFIX = "d:"
"""Marks an argument as the output gradient of the output whose name follows."""
VECTOR_PREFIX = "v:"
"""Marks an argument as the vector (the tangent) of the input whose name follows."""

_JSON_NAME = {"nan": "NaN", "inf": "Infinity", "infinity": "Infinity"}
_NONFINITE = re.compile(rf"\b(?:{'|'.join(_JSON_NAME)})\b", re.IGNORECASE)


class Arguments(NamedTuple):
    """The tensors of a command line."""

    inputs: dict[str, Any]
    """By name."""
    output_gradients: dict[str, Any]
    """By name of the output."""
    vectors: dict[str, Any]
    """By name of the input."""


def read_tensors(arguments: Sequence[str], info: OpInfo, key: str, *, seeded: bool = False) -> Arguments:
    """Reads the tensors of a call.

    An argument is ``NAME=VALUE`` for an input, ``d:NAME=VALUE`` for the gradient of an output, and ``v:NAME=VALUE`` for the
    vector (the tangent) of an input. The gradient of a single output may also be written ``dy=VALUE``, and the vector of a
    single differentiable input ``v=VALUE``, unless an input has that name. A value is a number, a nested list of numbers, a
    string, or ``@FILE.npy``.

    Args:
        arguments: The arguments.
        info: The op that is called.
        key: Signature key, empty for the one that fits.
        seeded: Whether a seed fills one of the inputs.

    Raises:
        ValueError: An argument is not of that form, or stands twice.
        OSError: A file cannot be read.
    """
    specs = {name: spec for signature in info.signatures.values() for name, spec in signature.inputs.items()}
    named: dict[str, Any] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not (name and equals):
            raise ValueError(f"argument {argument!r}: wanted NAME=VALUE, such as x=3.0, x=[[1,2]] or x=@file.npy")
        if name in named:
            raise ValueError(f"argument {argument!r}: {name!r} stands twice")
        is_string = name in specs and specs[name].dtype.is_string
        named[name] = _read_string(name, text) if is_string else _read_value(name, text)
    gradients = {name: value for name, value in named.items() if _is_gradient(name, specs)}
    vectors = {name: value for name, value in named.items() if _is_vector(name, specs)}
    inputs = {name: value for name, value in named.items() if name not in gradients and name not in vectors}
    signature, _ = binding.choose_signature(inputs, info, key, seeded=seeded)
    return Arguments(
        inputs=inputs,
        output_gradients={_output_name(name, signature): value for name, value in gradients.items()},
        vectors={_input_name(name, signature): value for name, value in vectors.items()},
    )


def read_line(text: str) -> Line:
    """Reads ``[INPUT=]LOW:HIGH[:POINTS]``.

    Raises:
        ValueError: It is not of that form.
    """
    name, _, numbers = text.rpartition("=")
    low, _, rest = numbers.partition(":")
    high, _, points = rest.partition(":")
    try:
        return Line(input=name, low=float(low), high=float(high), points=int(points) if points else 201)
    except ValueError:
        raise ValueError(f"line {text!r}: wanted [INPUT=]LOW:HIGH[:POINTS], such as -3:3 or x=-3:3:201") from None


def save_result(result: ForwardResult, folder: str) -> list[Path]:
    """Writes each output to ``FOLDER/NAME.npy`` and each gradient to ``FOLDER/NAME.gradient.npy``.

    A "/" in a name makes a subfolder. Strings, which .npy keeps only as pickles, are refused. Other derivatives go by their
    kinds: ``.variable_gradient.npy``, ``.tangent.npy``, ``.product.npy``, and ``OUTPUT by INPUT.jacobian.npy``.

    Returns:
        The files.

    Raises:
        ValueError: A tensor holds strings.
        OSError: A file cannot be written.
    """
    arrays: dict[str, Array | None] = {f"{name}.npy": array for name, array in result.outputs.items()}
    for kind, derivatives in result.derivatives().items():
        suffix = kind.replace(" ", "_")
        arrays.update({f"{name}.{suffix}.npy": derivative.array for name, derivative in derivatives.items()})
    written = []
    for name, array in arrays.items():
        if array is None:
            continue
        path = Path(folder, *[part for part in name.split("/") if part not in ("", "..", ".")])
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array, allow_pickle=False)
        written.append(path)
    return written


def _read_value(name: str, text: str) -> Any:
    if text.startswith("@"):
        return _read_file(name, text[1:])
    spelt = _NONFINITE.sub(lambda found: _JSON_NAME[found[0].lower()], text)
    for read, form in ((json.loads, text), (json.loads, spelt), (ast.literal_eval, text)):
        try:
            return read(form)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    if text.startswith(("[", "(", "{")):
        raise ValueError(f"argument {name!r}: wanted a number, a nested list of numbers or @FILE.npy, got {text!r}")
    return text


def _read_file(name: str, path: str) -> Array:
    try:
        with Path(path).open("rb") as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except OSError as error:
        raise ValueError(f"argument {name!r}: cannot read {path}: {error.strerror}") from error
    except (ValueError, EOFError, MemoryError) as error:
        raise ValueError(f"argument {name!r}: {path} is no .npy file of numbers or bools") from error


def _read_string(name: str, text: str) -> Any:
    """Reads a value of an input of strings: a list of them, one in quotes, a file, or the text as it is."""
    return _read_value(name, text) if text.startswith(("@", "[", '"', "'")) else text


def _is_gradient(name: str, input_names: Collection[str]) -> bool:
    return name.startswith(OUTPUT_GRADIENT_PREFIX) or (name == "dy" and name not in input_names)


def _is_vector(name: str, input_names: Collection[str]) -> bool:
    return name.startswith(VECTOR_PREFIX) or (name == "v" and name not in input_names)


def _input_name(name: str, signature: Signature) -> str:
    if name.startswith(VECTOR_PREFIX):
        return name.removeprefix(VECTOR_PREFIX)
    candidates = [spec.name for spec in signature.inputs.values() if spec.dtype.is_differentiable]
    if len(candidates) != 1:
        wanted = ", ".join(f"{VECTOR_PREFIX}{candidate}=VALUE" for candidate in candidates)
        raise ValueError(f"argument 'v': the op has {len(candidates)} differentiable inputs; wanted {wanted or 'none'}")
    return candidates[0]


def _output_name(name: str, signature: Signature) -> str:
    if name.startswith(OUTPUT_GRADIENT_PREFIX):
        return name.removeprefix(OUTPUT_GRADIENT_PREFIX)
    if len(signature.outputs) != 1:
        outputs = ", ".join(f"{OUTPUT_GRADIENT_PREFIX}{output}=VALUE" for output in signature.outputs)
        raise ValueError(f"argument 'dy': the op has {len(signature.outputs)} outputs; wanted {outputs}")
    return next(iter(signature.outputs))
