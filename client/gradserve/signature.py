"""Signatures: what tensors an op takes and returns, and the checks of a request against them.

The server checks every request here before TensorFlow sees it; the client uses the same class to bind positional
arguments and Python numbers.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping

from gradserve.dtypes import DType, dtype_of, dtype_on_wire
from gradserve.errors import InvalidRequest, quote, quote_all
from gradserve.tensors import Array
from gradserve.v1 import op_pb2, tensor_pb2

DEFAULT_KEY = "serving_default"
"""Key of the signature that answers when a request names none and its dtypes do not decide."""

Shape = tuple[int | None, ...] | None
"""Sizes by dimension, None where any size is taken; None for a tensor of any rank."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """What is known of a tensor before a call."""

    name: str
    """Name by which requests and responses call it."""
    dtype: DType
    """Element type."""
    shape: Shape
    """Sizes by dimension, None where any size is taken; None for any rank."""
    differentiable: bool
    """For an input: whether a gradient can come back. For an output: whether it takes an output gradient."""

    def accepts_shape(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of that shape fits."""
        if self.shape is None:
            return True
        return len(shape) == len(self.shape) and all(
            wanted is None or wanted == got for wanted, got in zip(self.shape, shape, strict=True)
        )

    def check(self, array: Array, place: str, *, stack: int = 0) -> None:
        """Refuses an array of another dtype, rank or shape.

        Args:
            array: The array.
            place: What it is, for the error.
            stack: Size of the leading axis that it must have beside its own; 0 for none.

        Raises:
            InvalidRequest: Reason DTYPE_MISMATCH or SHAPE_MISMATCH.
        """
        if array.dtype != self.dtype.numpy:
            raise dtype_mismatch(place, wanted=self.dtype, got=dtype_of(array.dtype, place))
        stacked, own = (array.shape[:1], array.shape[1:]) if stack else ((), array.shape)
        if stacked != (stack,) * bool(stack) or not self.accepts_shape(own):
            wanted = f"({stack}, *shape), with the shape {self.shape}," if stack else str(self.shape)
            raise shape_mismatch(place, wanted=wanted, got=array.shape)


def dtype_mismatch(place: str, *, wanted: DType, got: DType) -> InvalidRequest:
    """Returns the error for an array of another dtype than its place takes."""
    return InvalidRequest(
        f"{place}: dtype must be the signature's, since a request never casts: wanted {wanted.name}, got {got.name}; "
        "convert the array before the call, or call a signature of that dtype if the op has one",
        reason="DTYPE_MISMATCH",
        facts={"place": place, "wanted": wanted.name, "got": got.name},
    )


def shape_mismatch(place: str, *, wanted: str, got: tuple[int, ...]) -> InvalidRequest:
    """Returns the error for an array of another shape than its place takes."""
    return InvalidRequest(
        f"{place}: shape must fit: wanted {wanted}, got {got}",
        reason="SHAPE_MISMATCH",
        facts={"place": place, "wanted": wanted, "got": str(got)},
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Named inputs and outputs, in order."""

    key: str
    """Key by which a request names it."""
    inputs: Mapping[str, TensorSpec]
    """Inputs by name, in the order of positional arguments."""
    outputs: Mapping[str, TensorSpec]
    """Outputs by name, in order."""
    batch_axes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Axis along which rows are independent, by input or output name; none for a name that is absent."""

    def inputs_in_order(self, arrays: Mapping[str, Array], op: str) -> list[Array]:
        """Returns the inputs in the signature's order, each checked against its spec.

        Raises:
            InvalidRequest: Inputs are missing or unknown (BAD_INPUT_NAMES), or one has another dtype or shape.
        """
        missing = [name for name in self.inputs if name not in arrays]
        unknown = [name for name in arrays if name not in self.inputs]
        if missing or unknown:
            raise _bad_names(op, "inputs", self.inputs, missing=missing, unknown=unknown)
        for name, spec in self.inputs.items():
            spec.check(arrays[name], f"op {quote(op)}, input {quote(name)}")
        return [arrays[name] for name in self.inputs]

    def output_gradients_in_order(self, arrays: Mapping[str, Array], op: str, *, stack: int = 0) -> list[Array | None]:
        """Returns an entry for each differentiable output, in order: its gradient, or None where none was given.

        Only what the signature knows can be checked here; sizes that it leaves open are checked against the outputs.
        Each has a leading axis of size ``stack`` if that is not 0.

        Raises:
            InvalidRequest: A name is unknown (BAD_OUTPUT_GRADIENT_NAMES), the output is of an integer, bool or string
                dtype (NOT_DIFFERENTIABLE), or the array has another dtype or shape.
        """
        unknown = [name for name in arrays if name not in self.outputs]
        if unknown:
            raise _bad_names(op, "output gradients", self.outputs, missing=[], unknown=unknown)
        for name, array in arrays.items():
            spec, place = self.outputs[name], f"op {quote(op)}, output gradient {quote(name)}"
            if not spec.differentiable:
                raise InvalidRequest(
                    f"{place}: an output of dtype {spec.dtype.name} takes no output gradient; leave it out",
                    reason="NOT_DIFFERENTIABLE",
                    facts={"place": place, "dtype": spec.dtype.name},
                )
            spec.check(array, place, stack=stack)
        return [arrays.get(name) for name, spec in self.outputs.items() if spec.differentiable]

    def vectors_in_order(
        self, arrays: Mapping[str, Array], inputs: Iterable[Array], op: str, what: str
    ) -> list[Array | None]:
        """Returns an entry for each floating-point or complex input, in order: its tangent, or None where none was given.

        Args:
            arrays: The tangents, or other vectors like the inputs, by name.
            inputs: The inputs, in order.
            op: Name of the op, for errors.
            what: What they are called, such as "tangents", for errors.

        Raises:
            InvalidRequest: A name is unknown (BAD_TANGENT_NAMES and the like), there is none (NO_VECTORS), the input is of an integer,
                bool or string dtype (NOT_DIFFERENTIABLE), or the array has another dtype or shape than the input.
        """
        unknown = [name for name in arrays if name not in self.inputs]
        if unknown:
            raise _bad_names(op, what, self.inputs, missing=[], unknown=unknown)
        if not arrays:
            raise InvalidRequest(
                f"op {quote(op)}, {what}: wanted at least one, by the name of its input; got none", reason="NO_VECTORS"
            )
        for (name, spec), value in zip(self.inputs.items(), inputs, strict=True):
            if name not in arrays:
                continue
            place = f"op {quote(op)}, {what.removesuffix('s')} {quote(name)}"
            if not spec.dtype.is_differentiable:
                raise InvalidRequest(
                    f"{place}: an input of dtype {spec.dtype.name} takes none; leave it out",
                    reason="NOT_DIFFERENTIABLE",
                    facts={"place": place, "dtype": spec.dtype.name},
                )
            dataclasses.replace(spec, shape=value.shape).check(arrays[name], place)
        return [arrays.get(name) for name, spec in self.inputs.items() if spec.dtype.is_differentiable]

    def check_differentiate(self, names: Iterable[str], op: str) -> None:
        """Refuses a list of inputs to differentiate that holds unknown or repeated names.

        Raises:
            InvalidRequest: Reason BAD_DIFFERENTIATE_NAMES.
        """
        names = list(names)
        unknown = [name for name in names if name not in self.inputs]
        if unknown:
            raise _bad_names(op, "differentiate", self.inputs, missing=[], unknown=unknown)
        check_no_repeats(names, f"op {quote(op)}, differentiate", "BAD_DIFFERENTIATE_NAMES")

    def fits_dtypes(self, arrays: Mapping[str, Array]) -> bool:
        """Whether every array with a name of this signature has its dtype."""
        return all(
            array.dtype == self.inputs[name].dtype.numpy for name, array in arrays.items() if name in self.inputs
        )


def check_no_repeats(names: list[str], place: str, reason: str) -> None:
    """Refuses names that stand twice.

    Raises:
        InvalidRequest: With the given reason.
    """
    if len(set(names)) == len(names):
        return
    repeated = sorted(name for name, count in collections.Counter(names).items() if count > 1)
    raise InvalidRequest(
        f"{place}: each name may stand once: repeated {quote_all(repeated)}",
        reason=reason,
        facts={"place": place, "repeated": quote_all(repeated)},
    )


def _bad_names(
    op: str, what: str, known: Mapping[str, TensorSpec], *, missing: list[str], unknown: list[str]
) -> InvalidRequest:
    wanted = quote_all(list(known))
    got = [f"{label} {quote_all(names)}" for label, names in (("missing", missing), ("unknown", unknown)) if names]
    return InvalidRequest(
        f"op {quote(op)}, {what}: names must be the signature's: wanted {wanted}; {', '.join(got)}",
        reason=f"BAD_{what.upper().replace(' ', '_').removesuffix('S')}_NAMES",
        facts={"op": op[:64], "wanted": wanted, "missing": quote_all(missing), "unknown": quote_all(unknown)},
    )


def signature_to_message(signature: Signature) -> op_pb2.Signature:
    """Inverse of ``signature_from_message``."""
    return op_pb2.Signature(
        key=signature.key,
        inputs=[spec_to_message(spec) for spec in signature.inputs.values()],
        outputs=[spec_to_message(spec) for spec in signature.outputs.values()],
        batch_axes=dict(signature.batch_axes),
    )


def signature_from_message(message: op_pb2.Signature) -> Signature:
    """Inverse of ``signature_to_message``."""
    return Signature(
        key=message.key,
        inputs={spec.name: spec_from_message(spec) for spec in message.inputs},
        outputs={spec.name: spec_from_message(spec) for spec in message.outputs},
        batch_axes=dict(message.batch_axes),
    )


def spec_to_message(spec: TensorSpec) -> tensor_pb2.TensorSpec:
    """Inverse of ``spec_from_message``."""
    return tensor_pb2.TensorSpec(
        name=spec.name,
        dtype=spec.dtype.wire,
        shape=[-1 if size is None else size for size in spec.shape or ()],
        unknown_rank=spec.shape is None,
        differentiable=spec.differentiable,
    )


def spec_from_message(message: tensor_pb2.TensorSpec) -> TensorSpec:
    """Inverse of ``spec_to_message``.

    Raises:
        InvalidRequest: The dtype is not one that this client knows (UNKNOWN_DTYPE).
    """
    dtype = dtype_on_wire(message.dtype)
    if dtype is None:
        raise InvalidRequest(
            f"the server describes {quote(message.name)} with a dtype that this client does not know: "
            f"{message.dtype}; install a newer client",
            reason="UNKNOWN_DTYPE",
        )
    shape = None if message.unknown_rank else tuple(None if size < 0 else size for size in message.shape)
    return TensorSpec(name=message.name, dtype=dtype, shape=shape, differentiable=message.differentiable)
