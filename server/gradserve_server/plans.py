"""Plans: how to answer requests that differ from one seen before in the elements of their tensors alone.

    bytes -> skeleton -> plan -> share        what stands around the elements says all else: op, names, dtypes, shapes
    results -> bytes                          likewise around those of the response

Decoding a small request, comparing it with its op and encoding its response takes several times as long as what is left then.
A plan is made of a call that went the long way, with all its checks; whatever is unusual goes that way always.
"""

import dataclasses
import functools
import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from google.protobuf.message import Message

from gradserve.tensors import Array
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.wire import LARGE_BYTES, Piece, aligned, elements_piece, places_of
from gradserve_server.ops import Op
from gradserve_server.registry import OpVersion
from gradserve_server.requests import EvaluationRequest
from gradserve_server.responses import Evaluation
from gradserve_server.scheduling.joining import MOST_BYTES, Results, Share, share_of

_MOST_PLANS = 1024
_MOST_SKELETON_BYTES = 2**12
_MOST_CUTS = 8
"""Of requests of one method and length, only those are planned whose elements lie at one of so many sets of places."""
_MOST_FAILURES = 8
"""After so many requests of one method and length that no plan could be made of, none is tried any more."""
_REQUESTS: Mapping[str, type[Message]] = {"Forward": pb.ForwardRequest, "Vjp": pb.VjpRequest}
_RESPONSES: Mapping[str, type[Message]] = {"Forward": pb.ForwardResponse, "Vjp": pb.VjpResponse}
_Cut: TypeAlias = Sequence[slice]
"""The places before, between and behind the elements of a message's tensors."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A call that went the long way, and what is known of it then."""

    version: OpVersion
    """Version of the op."""
    op: Op
    """The op."""
    request: EvaluationRequest
    """What was asked for."""
    share: Share
    """The form in which it could have been joined with others, were it not for its size."""
    evaluation: Evaluation
    """What came out."""
    response: bytes
    """What it was answered."""


class _Tensor(NamedTuple):
    """What is known of a tensor of a request."""

    source: slice | Array
    """Where its elements lie in the request; or what the server fills in, as the request has no such tensor."""
    dtype: "np.dtype[Any]"
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """How to answer all requests of one skeleton."""

    version: OpVersion
    """Version of the op."""
    op: Op
    """The op."""
    wanted: Sequence[bool]
    """For each input, whether its gradient is asked for."""
    blank: Share
    """The share of the call that this was made of, without its tensors."""
    is_alone: bool
    """Whether it is too large to be joined with others."""
    has_own_key: bool
    """Whether what calls share is a matter of their elements, too."""
    inputs: Sequence[_Tensor]
    """The inputs, in order."""
    output_gradients: Sequence[_Tensor]
    """The output gradients, in order."""
    results: Sequence[tuple["np.dtype[Any]", tuple[int, ...]]]
    """Dtype and shape of each output and gradient, in order."""
    sent: Sequence[int]
    """Which of these the response has, in its order."""
    around: Sequence[bytes]
    """What stands before, between and behind their elements."""
    response_bytes: int
    """Size of the response."""

    def share(self, data: bytes) -> Share | None:
        """Returns a request as ``share_of`` does, whatever its size."""
        inputs = [_array(tensor, data) for tensor in self.inputs]
        output_gradients = [_array(tensor, data) for tensor in self.output_gradients]
        blank = self.blank
        if self.has_own_key:
            return share_of(blank.layout, blank.call, inputs, output_gradients, self.wanted)
        return Share(
            key=blank.key,
            layout=blank.layout,
            call=blank.call,
            inputs=inputs,
            output_gradients=output_gradients,
            rows=blank.rows,
        )

    @functools.cached_property
    def is_contiguous(self) -> bool:
        """Whether the elements of several requests, one behind the other, are those of the joined request."""
        layout = self.blank.layout
        axes = {*layout.inputs, *layout.outputs}
        return not (self.is_alone or self.has_own_key or self.blank.stack) and (layout.is_flat or axes == {0})

    def share_of_all(self, requests: Sequence[bytes]) -> Share:
        """Returns several requests as one, if they are contiguous."""
        blank, count = self.blank, len(requests)

        def joined(tensor: _Tensor) -> Array:
            source = tensor.source
            if not isinstance(source, slice):
                return source
            elements = np.frombuffer(b"".join([data[source] for data in requests]), tensor.dtype)
            return elements.reshape(self._joined_shape(tensor.shape, count))

        return dataclasses.replace(
            blank,
            inputs=[joined(tensor) for tensor in self.inputs],
            output_gradients=[joined(tensor) for tensor in self.output_gradients],
            rows=count * blank.rows,
        )

    def encode_all(self, results: Results, count: int) -> list[bytes] | None:
        """Returns the response of each of so many requests that ran as one; None as ``encode`` does."""
        arrays = [*results[0], *results[1]]
        wanted = [(dtype, self._joined_shape(shape, count)) for dtype, shape in self.results]
        if [(array.dtype, array.shape) for array in arrays] != wanted:
            return None
        elements = [(data := arrays[index].tobytes(), len(data) // count) for index in self.sent]
        responses = []
        for number in range(count):
            pieces = [self.around[0]]
            for (data, size), after in zip(elements, self.around[1:], strict=True):
                pieces += (data[number * size : (number + 1) * size], after)
            responses.append(b"".join(pieces))
        return responses

    def _joined_shape(self, shape: tuple[int, ...], count: int) -> tuple[int, ...]:
        if self.blank.layout.is_flat:
            return (count * math.prod(shape),)
        return (count * shape[0], *shape[1:])

    def encode(self, results: Results) -> bytes | None:
        """Returns the response; None if the results have other dtypes or shapes than those that were checked."""
        arrays = [*results[0], *results[1]]
        if [(array.dtype, array.shape) for array in arrays] != self.results:
            return None
        pieces: list[Piece] = [self.around[0]]
        for index, after in zip(self.sent, self.around[1:], strict=True):
            pieces += (elements_piece(arrays[index]), after)
        return b"".join(pieces)


def _array(tensor: _Tensor, data: bytes) -> Array:
    source = tensor.source
    if not isinstance(source, slice):
        return source
    if source.stop - source.start > LARGE_BYTES:
        return aligned(memoryview(data)[source]).view(tensor.dtype).reshape(tensor.shape)
    return np.frombuffer(data[source], tensor.dtype).reshape(tensor.shape)


class Plans:
    """The plans for the ops of one registry."""

    def __init__(self) -> None:
        """Has none."""
        self._failures: dict[Hashable, int] = {}
        self._by_length: dict[Hashable, list[tuple[_Cut, dict[bytes, Plan]]]] = {}
        self._count = 0

    def find(self, method: str, data: bytes) -> Plan | None:
        """Returns the plan for a request of a method, if there is one."""
        for cut, plans in self._by_length.get((method, len(data)), ()):
            plan = plans.get(_skeleton(data, cut))
            if plan is not None:
                return plan
        return None

    def wants(self, method: str, data: bytes) -> bool:
        """Returns whether to make a plan of a request that there is none for: if another of its length has been seen."""
        if method not in _REQUESTS:
            return False
        key = (method, len(data))
        failures = self._failures.get(key)
        if failures is not None:
            return failures < _MOST_FAILURES
        if len(self._failures) >= _MOST_PLANS:
            self._failures.clear()
        self._failures[key] = 0
        return False

    def add(self, method: str, data: bytes, answered: Answered | None) -> None:
        """Makes a plan of a call that was answered, unless there is anything unusual about it."""
        key = (method, len(data))
        places = None if answered is None else places_of(_REQUESTS[method], data)
        plan = None if answered is None or places is None else _plan(method, places, answered)
        if plan is None or places is None or not self._keep(key, data, _cut(places.values(), len(data)), plan):
            self._failures[key] = self._failures.get(key, 0) + 1

    def _keep(self, key: Hashable, data: bytes, cut: _Cut, plan: Plan) -> bool:
        skeleton = _skeleton(data, cut)
        if len(skeleton) > _MOST_SKELETON_BYTES:
            return False
        if self._count >= _MOST_PLANS:  # seldom enough that to begin anew costs nothing
            self._by_length.clear()
            self._count = 0
        cuts = self._by_length.setdefault(key, [])
        plans = next((plans for known, plans in cuts if known == cut), None)
        if plans is None:
            if len(cuts) == _MOST_CUTS:
                return False
            plans = {}
            cuts.append((cut, plans))
        self._count += skeleton not in plans
        plans[skeleton] = plan
        return True


def _plan(method: str, places: Mapping[tuple[int, int], slice], answered: Answered) -> Plan | None:
    """Makes a plan; returns None if a tensor has no elements of its own, or its bytes are not its elements as they are."""
    request, op, share = answered.request, answered.op, answered.share
    given = [*request.inputs.values(), *request.output_gradients.values()]
    if len(places) != len(given) or any(array.dtype.kind in "bO" for array in given):
        return None
    signature, layout, response = op.signature, share.layout, answered.response
    has_gradients = method == "Vjp"
    asked = request.differentiate or signature.inputs
    wanted = [has_gradients and name in asked for name in signature.inputs]
    gradients = layout.gradients if has_gradients else []
    outputs = answered.evaluation.outputs.values()
    sent = [*range(len(outputs)), *(len(outputs) + n for n, index in enumerate(gradients) if wanted[index])]
    around = places_of(_RESPONSES[method], response)
    if around is None or len(around) != len(sent):
        return None
    differentiable = [name for name, spec in signature.outputs.items() if spec.differentiable]
    is_alone = sum(array.nbytes for array in (*share.inputs, *share.output_gradients)) > MOST_BYTES
    return Plan(
        version=answered.version,
        op=op,
        wanted=wanted,
        blank=dataclasses.replace(share, inputs=(), output_gradients=()),
        is_alone=is_alone,
        has_own_key=not (is_alone or layout.is_flat)
        and (None in layout.inputs or not all(array.ndim for array in share.output_gradients)),
        inputs=_tensors(method, places, request, "inputs", zip(signature.inputs, share.inputs, strict=True)),
        output_gradients=_tensors(
            method, places, request, "output_gradients", zip(differentiable, share.output_gradients, strict=False)
        ),  # a forward call has none
        results=[(array.dtype, array.shape) for array in (*outputs, *(share.inputs[index] for index in gradients))],
        sent=sent,
        around=[response[place] for place in _cut(around.values(), len(response))],
        response_bytes=len(response),
    )


def _tensors(
    method: str,
    places: Mapping[tuple[int, int], slice],
    request: EvaluationRequest,
    field: str,
    arrays: Iterable[tuple[str, Array]],
) -> list[_Tensor]:
    number = _REQUESTS[method].DESCRIPTOR.fields_by_name[field].number if getattr(request, field) else 0
    given = {name: places[number, index] for index, name in enumerate(getattr(request, field))}
    return [_Tensor(given.get(name, array), array.dtype, array.shape) for name, array in arrays]


def _cut(places: Collection[slice], size: int) -> _Cut:
    """Returns what is left of so many bytes before, between and behind some places."""
    begins = [0, *(place.stop for place in places)]
    ends = [*(place.start for place in places), size]
    return list(map(slice, begins, ends))


def _skeleton(data: bytes, cut: _Cut) -> bytes:
    return b"".join([data[place] for place in cut])
