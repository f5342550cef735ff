"""What the author of an op writes (``op``), what that makes (``OpDefinition``), and what the server runs (``Op``).

    module -> OpDefinition -> trace -> Op -> registry

This module imports no TensorFlow: specs are only carried here, and looked into where they are traced.
"""

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Literal

from gradserve.signature import DEFAULT_KEY, Signature, TensorSpec
from gradserve.tensors import MAX_RANK, Array
from gradserve_server.program import Program

GradientKind = Literal["exact", "surrogate", "unchecked"]
DECLARED = "__gradserve_ops__"
"""Where a module keeps the ops that it declares: its namespace alone would lose one whose Python name is used again."""
_SHARING = "sharing"
"""The group of the ops that may share what TensorFlow does not guard: Python objects, libraries, variables that change together."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,127}")
"""What a name of an op, and a signature key, looks like."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpDefinition:
    """An op as its author declared it; calling it calls what it wraps."""

    name: str
    """Name, unique with version and signature key."""
    function: Callable[..., Any]
    """The differentiable function: function, ``tf.function``, layer or bound method."""
    inputs: Mapping[str, Any]
    """``tf.TensorSpec`` by parameter name; mappings, lists and tuples of them may nest."""
    outputs: Sequence[str] | None = None
    """Names of the outputs, in the order of the flattened result; None to take them from its structure."""
    dtypes: Sequence[Any] = ()
    """Further dtypes, each of which makes a signature with all floating-point inputs of that dtype."""
    version: int = 1
    """Version, at least 1."""
    signature: str = DEFAULT_KEY
    """Key of the signature that ``inputs`` describes."""
    batch_axis: int | Mapping[str, int | None] | None = None
    """Axis along which rows are independent: one for all, or by name."""
    elementwise: bool = False
    """Whether each output element depends on the input elements at the same index alone."""
    gradient: GradientKind
    """What the gradient claims to be."""
    variables: Any = ()
    """Names for variables, or variables that tracing cannot see."""
    example: Mapping[str, Any] | None = None
    """Inputs for warm-up and checks, where they cannot be drawn."""
    stateful: bool = False
    """Whether a call changes state."""
    jit_compile: bool = False
    """Whether XLA compiles the op."""
    device: str | None = None
    """Device such as "cpu" or "gpu:1"; None for the server's."""
    documentation: str
    """The function's docstring."""
    module: str
    """Name of the module that declared it; empty if none did."""
    no_vjp: str = ""
    """Why it has no backward pass, where that is known before it is traced."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function that this wraps."""
        return self.function(*args, **kwargs)


def op(
    name: str | None = None,
    *,
    inputs: Mapping[str, Any],
    outputs: Sequence[str] | None = None,
    dtypes: Sequence[Any] = (),
    version: int = 1,
    signature: str = DEFAULT_KEY,
    batch_axis: int | Mapping[str, int | None] | None = None,
    elementwise: bool = False,
    gradient: GradientKind = "exact",
    variables: Any = (),
    example: Mapping[str, Any] | None = None,
    stateful: bool = False,
    jit_compile: bool = False,
    device: str | None = None,
) -> Callable[[Callable[..., Any]], OpDefinition]:
    """Declares a callable as an op; the server finds it by scanning the module that holds it.

    Args:
        name: Name of the op; the callable's own if absent.
        inputs: A ``tf.TensorSpec`` for each parameter, by its name; a shape or size of None takes any. Values may be
            mappings, lists or tuples of specs, whose leaves are then named like "state/h". Parameters that are left
            out keep their defaults.
        outputs: Names of the outputs. If absent: "output", or "output_0" and so on, or the keys of a mapping.
        dtypes: Further dtypes to serve: each makes a signature, keyed by the dtype's name, in which every
            floating-point input has that dtype.
        version: Version, at least 1; requests that name none get the highest.
        signature: Key of the signature that ``inputs`` describes.
        batch_axis: Axis along which all inputs and outputs have independent rows, or a mapping by name (None, or no
            entry, for a tensor without such an axis).
        elementwise: Whether each output element depends on the input elements at the same index alone.
        gradient: "exact" for the derivative, "surrogate" for a rule that is not the derivative on purpose,
            "unchecked" for no claim.
        variables: Names for variables (a mapping from name to variable), or variables that tracing cannot see (also a
            sequence of them): those that it reads by their handles alone.
        example: Inputs by name, for warm-up and checks, where they can't be drawn.
        stateful: Whether a call changes state; then it is never batched or repeated.
        jit_compile: Whether XLA compiles it.
        device: Device, such as "cpu" or "gpu:1"; the server's own if absent.

    Returns:
        A decorator that returns an ``OpDefinition``.

    Raises:
        ValueError: An argument is not one of its values.

    Example:
        >>> import tensorflow as tf  # doctest: +SKIP
        >>> @op(inputs={"x": tf.TensorSpec(None, tf.float32)}, elementwise=True, gradient="surrogate")  # doctest: +SKIP
        ... @tf.custom_gradient
        ... def round_with_identity_grad(x):
        ...     return tf.round(x), lambda dy: dy
    """
    namespace = sys._getframe(1).f_globals  # noqa: SLF001  # as collections.namedtuple does

    def define(function: Callable[..., Any]) -> OpDefinition:
        definition = OpDefinition(
            name=name or str(getattr(function, "__name__", "") or getattr(function, "name", "")),
            function=function,
            inputs=inputs,
            outputs=outputs,
            dtypes=tuple(dtypes),
            version=version,
            signature=signature,
            batch_axis=batch_axis,
            elementwise=elementwise,
            gradient=gradient,
            variables=variables,
            example=example,
            stateful=stateful,
            jit_compile=jit_compile,
            device=device,
            documentation=(inspect.getdoc(function) or "").encode(errors="replace").decode(),
            module=namespace.get("__name__", ""),
        )
        _check(definition)
        namespace.setdefault(DECLARED, []).append(definition)
        return definition

    return define


def _check(definition: OpDefinition) -> None:
    """Refuses what needs no trace to be seen wrong."""
    place = f"op {definition.name!r}"
    if not NAME.fullmatch(definition.name):
        raise ValueError(
            f"{place}: a name has 1 to 128 letters, digits, '_', '.' or '-' and starts with no digit; "
            "give one: @op('my_name', ...)"
        )
    if not isinstance(definition.version, int) or not 1 <= definition.version < 2**63:
        raise ValueError(f"{place}: version must be an integer of at least 1, got {definition.version!r}")
    if definition.gradient not in ("exact", "surrogate", "unchecked"):
        raise ValueError(f"{place}: gradient must be 'exact', 'surrogate' or 'unchecked', got {definition.gradient!r}")
    if not isinstance(definition.inputs, Mapping) or not definition.inputs:
        raise ValueError(f"{place}: inputs must be a mapping from parameter names to tf.TensorSpec, with an entry")
    if not NAME.fullmatch(definition.signature):
        raise ValueError(f"{place}: a signature key is formed like a name, got {definition.signature!r}")
    axis = definition.batch_axis
    axes = list(axis.values()) if isinstance(axis, Mapping) else [axis]
    if not all(value is None or (isinstance(value, int) and abs(value) < MAX_RANK) for value in axes):
        raise ValueError(f"{place}: batch_axis must be an axis, or a mapping from names to axes, got {axis!r}")


class OpLoadError(Exception):
    """An op or its source could not be loaded. ``str()`` is one line that names source, op and cause."""

    def __init__(self, text: str, *, source: str, cause: str, name: str = "", version: int = 0) -> None:
        """Describes the failure.

        Args:
            text: What went wrong, in one line.
            source: Where it comes from, as the operator named it, such as "module 'ops.py'".
            cause: Kind of the failure, in UPPER_SNAKE_CASE, such as "UNSUPPORTED_KIND".
            name: Name of the op; empty if the source as a whole failed.
            version: Version of the op.
        """
        self.text = " ".join(text.split()).encode(errors="replace").decode()[:2000]
        self.source = source
        self.cause = cause
        self.name = name
        self.version = version
        op_part = f", op {name!r}" if name else ""
        super().__init__(f"{source}{op_part}: {cause}: {self.text}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Along which axes the tensors of an op have rows that do not depend on each other."""

    inputs: Sequence[int | None]
    """The axis of each input; None for one that all rows share."""
    outputs: Sequence[int]
    """The axis of each output."""
    output_gradients: Sequence[int]
    """The axis of each output gradient: that of its output."""
    gradients: Sequence[int]
    """The input of each gradient that the op returns."""
    is_flat: bool
    """Whether each element is a row, whatever the shape; axes are those of the flattened tensors."""
    is_padded: bool = False
    """Whether calls get further rows, up to one of a few numbers: XLA compiles the op anew for each."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One signature of one version of an op, traced and ready to run."""

    name: str
    """Name, unique with version and signature key."""
    version: int
    """Version, at least 1."""
    signature: Signature
    """Its inputs and outputs. An input is differentiable if ``Program.vjp`` returns a gradient for it."""
    documentation: str
    """Documentation, as its author wrote it."""
    gradient: GradientKind
    """What the gradient claims to be."""
    elementwise: bool
    """Whether each output element depends on the input elements at the same index alone."""
    stateful: bool
    """Whether a call changes state."""
    device: str
    """Device that computes it, such as "cpu:0"."""
    fingerprint: str
    """Hexadecimal digest of its graphs."""
    variables: Mapping[str, TensorSpec]
    """Variables that it reads, by name; the differentiable ones are the trainable ones."""
    connected_variables: Collection[str]
    """The variables that ``Program.vjp`` returns gradients for when asked."""
    program: Program
    """Its traced functions."""
    example: Sequence[Array]
    """Inputs in order, for warm-up: the author's, or drawn."""
    example_is_given: bool
    """Whether the author gave the example, so that an op which fails on it is wrong."""
    source: str
    """Where it comes from, as the operator named it, such as "module 'ops.py'"."""
    no_vjp: str = ""
    """Why it has no backward pass; empty if it has one."""
    repeatable: bool = True
    """Whether equal requests have equal answers: it draws no random numbers but from its inputs."""
    has_custom_rule: bool = True
    """Whether a rule of someone's own stands in for TensorFlow's, so that its gradient may be anything."""
    linear: bool | None = None
    """Whether gradients are linear in the output gradients; None if that is not known."""
    is_compiled: bool = False
    """Whether XLA compiles it or a part of it, anew for each shape."""
    layout: Layout | None = None
    """Where the rows of its tensors are, once that has been tried out; None if its calls run one by one."""

    @property
    def key(self) -> tuple[str, int, str]:
        """What it is found by: name, version and signature key."""
        return self.name, self.version, self.signature.key

    @property
    def group(self) -> Hashable:
        """What must not run at once: the calls of one op, and those of all that run Python code, or change or read variables."""
        return _SHARING if self.stateful or self.variables or self.program.has_python else self.key

    def failure(self, text: str, cause: str) -> OpLoadError:
        """Returns the error that says why this op cannot be served; see ``OpLoadError``."""
        return OpLoadError(text, source=self.source, cause=cause, name=self.name, version=self.version)
