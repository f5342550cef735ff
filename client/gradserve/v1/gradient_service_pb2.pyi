from gradserve.v1 import op_pb2 as _op_pb2
from gradserve.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GradientStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRADIENT_STATUS_UNSPECIFIED: _ClassVar[GradientStatus]
    GRADIENT_STATUS_DENSE: _ClassVar[GradientStatus]
    GRADIENT_STATUS_UNCONNECTED: _ClassVar[GradientStatus]
    GRADIENT_STATUS_NOT_DIFFERENTIABLE: _ClassVar[GradientStatus]

class UnconnectedGradients(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNCONNECTED_GRADIENTS_UNSPECIFIED: _ClassVar[UnconnectedGradients]
    UNCONNECTED_GRADIENTS_NONE: _ClassVar[UnconnectedGradients]
    UNCONNECTED_GRADIENTS_ZERO: _ClassVar[UnconnectedGradients]
GRADIENT_STATUS_UNSPECIFIED: GradientStatus
GRADIENT_STATUS_DENSE: GradientStatus
GRADIENT_STATUS_UNCONNECTED: GradientStatus
GRADIENT_STATUS_NOT_DIFFERENTIABLE: GradientStatus
UNCONNECTED_GRADIENTS_UNSPECIFIED: UnconnectedGradients
UNCONNECTED_GRADIENTS_NONE: UnconnectedGradients
UNCONNECTED_GRADIENTS_ZERO: UnconnectedGradients

class Gradient(_message.Message):
    __slots__ = ("name", "status", "tensor")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    status: GradientStatus
    tensor: _tensor_pb2.Tensor
    def __init__(self, name: _Optional[str] = ..., status: _Optional[_Union[GradientStatus, str]] = ..., tensor: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class ListOpsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListOpsResponse(_message.Message):
    __slots__ = ("ops",)
    OPS_FIELD_NUMBER: _ClassVar[int]
    ops: _containers.RepeatedCompositeFieldContainer[_op_pb2.Op]
    def __init__(self, ops: _Optional[_Iterable[_Union[_op_pb2.Op, _Mapping]]] = ...) -> None: ...

class GetOpRequest(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class GetOpResponse(_message.Message):
    __slots__ = ("op",)
    OP_FIELD_NUMBER: _ClassVar[int]
    op: _op_pb2.Op
    def __init__(self, op: _Optional[_Union[_op_pb2.Op, _Mapping]] = ...) -> None: ...

class ForwardRequest(_message.Message):
    __slots__ = ("op", "version", "signature", "inputs", "seed")
    OP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    op: str
    version: int
    signature: str
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    seed: int
    def __init__(self, op: _Optional[str] = ..., version: _Optional[int] = ..., signature: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., seed: _Optional[int] = ...) -> None: ...

class ForwardResponse(_message.Message):
    __slots__ = ("outputs", "version", "fingerprint")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    version: int
    fingerprint: str
    def __init__(self, outputs: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., version: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class VjpRequest(_message.Message):
    __slots__ = ("op", "version", "signature", "inputs", "seed", "output_gradients", "stack", "differentiate", "variable_gradients", "unconnected")
    OP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    DIFFERENTIATE_FIELD_NUMBER: _ClassVar[int]
    VARIABLE_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    UNCONNECTED_FIELD_NUMBER: _ClassVar[int]
    op: str
    version: int
    signature: str
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    seed: int
    output_gradients: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    stack: int
    differentiate: _containers.RepeatedScalarFieldContainer[str]
    variable_gradients: bool
    unconnected: UnconnectedGradients
    def __init__(self, op: _Optional[str] = ..., version: _Optional[int] = ..., signature: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., seed: _Optional[int] = ..., output_gradients: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., stack: _Optional[int] = ..., differentiate: _Optional[_Iterable[str]] = ..., variable_gradients: bool = ..., unconnected: _Optional[_Union[UnconnectedGradients, str]] = ...) -> None: ...

class VjpResponse(_message.Message):
    __slots__ = ("outputs", "input_gradients", "variable_gradients", "version", "fingerprint")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    INPUT_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    VARIABLE_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    input_gradients: _containers.RepeatedCompositeFieldContainer[Gradient]
    variable_gradients: _containers.RepeatedCompositeFieldContainer[Gradient]
    version: int
    fingerprint: str
    def __init__(self, outputs: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., input_gradients: _Optional[_Iterable[_Union[Gradient, _Mapping]]] = ..., variable_gradients: _Optional[_Iterable[_Union[Gradient, _Mapping]]] = ..., version: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class JvpRequest(_message.Message):
    __slots__ = ("op", "version", "signature", "inputs", "seed", "tangents", "unconnected")
    OP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TANGENTS_FIELD_NUMBER: _ClassVar[int]
    UNCONNECTED_FIELD_NUMBER: _ClassVar[int]
    op: str
    version: int
    signature: str
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    seed: int
    tangents: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    unconnected: UnconnectedGradients
    def __init__(self, op: _Optional[str] = ..., version: _Optional[int] = ..., signature: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., seed: _Optional[int] = ..., tangents: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., unconnected: _Optional[_Union[UnconnectedGradients, str]] = ...) -> None: ...

class JvpResponse(_message.Message):
    __slots__ = ("outputs", "output_tangents", "version", "fingerprint")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TANGENTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    output_tangents: _containers.RepeatedCompositeFieldContainer[Gradient]
    version: int
    fingerprint: str
    def __init__(self, outputs: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., output_tangents: _Optional[_Iterable[_Union[Gradient, _Mapping]]] = ..., version: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class HvpRequest(_message.Message):
    __slots__ = ("op", "version", "signature", "inputs", "seed", "output_gradients", "vectors", "unconnected")
    OP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    UNCONNECTED_FIELD_NUMBER: _ClassVar[int]
    op: str
    version: int
    signature: str
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    seed: int
    output_gradients: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    vectors: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    unconnected: UnconnectedGradients
    def __init__(self, op: _Optional[str] = ..., version: _Optional[int] = ..., signature: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., seed: _Optional[int] = ..., output_gradients: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., vectors: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., unconnected: _Optional[_Union[UnconnectedGradients, str]] = ...) -> None: ...

class HvpResponse(_message.Message):
    __slots__ = ("outputs", "products", "version", "fingerprint")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    PRODUCTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    products: _containers.RepeatedCompositeFieldContainer[Gradient]
    version: int
    fingerprint: str
    def __init__(self, outputs: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., products: _Optional[_Iterable[_Union[Gradient, _Mapping]]] = ..., version: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class JacobianRequest(_message.Message):
    __slots__ = ("op", "version", "signature", "inputs", "seed", "differentiate", "unconnected")
    OP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DIFFERENTIATE_FIELD_NUMBER: _ClassVar[int]
    UNCONNECTED_FIELD_NUMBER: _ClassVar[int]
    op: str
    version: int
    signature: str
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    seed: int
    differentiate: _containers.RepeatedScalarFieldContainer[str]
    unconnected: UnconnectedGradients
    def __init__(self, op: _Optional[str] = ..., version: _Optional[int] = ..., signature: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., seed: _Optional[int] = ..., differentiate: _Optional[_Iterable[str]] = ..., unconnected: _Optional[_Union[UnconnectedGradients, str]] = ...) -> None: ...

class Jacobian(_message.Message):
    __slots__ = ("output", "input", "status", "tensor")
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    output: str
    input: str
    status: GradientStatus
    tensor: _tensor_pb2.Tensor
    def __init__(self, output: _Optional[str] = ..., input: _Optional[str] = ..., status: _Optional[_Union[GradientStatus, str]] = ..., tensor: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class JacobianResponse(_message.Message):
    __slots__ = ("outputs", "jacobians", "version", "fingerprint")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    JACOBIANS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    jacobians: _containers.RepeatedCompositeFieldContainer[Jacobian]
    version: int
    fingerprint: str
    def __init__(self, outputs: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., jacobians: _Optional[_Iterable[_Union[Jacobian, _Mapping]]] = ..., version: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class CheckGradientRequest(_message.Message):
    __slots__ = ("op", "version", "signature", "inputs", "seed", "points", "directions", "max_elements", "max_seconds", "draw_seed", "line")
    OP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    DIRECTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    MAX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DRAW_SEED_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    op: str
    version: int
    signature: str
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    seed: int
    points: int
    directions: int
    max_elements: int
    max_seconds: float
    draw_seed: int
    line: Line
    def __init__(self, op: _Optional[str] = ..., version: _Optional[int] = ..., signature: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., seed: _Optional[int] = ..., points: _Optional[int] = ..., directions: _Optional[int] = ..., max_elements: _Optional[int] = ..., max_seconds: _Optional[float] = ..., draw_seed: _Optional[int] = ..., line: _Optional[_Union[Line, _Mapping]] = ...) -> None: ...

class Line(_message.Message):
    __slots__ = ("input", "low", "high", "points")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    input: str
    low: float
    high: float
    points: int
    def __init__(self, input: _Optional[str] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., points: _Optional[int] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("test", "input", "verdict", "index", "wanted", "got", "tolerance", "text")
    TEST_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    GOT_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    test: str
    input: str
    verdict: _op_pb2.CheckVerdict
    index: _containers.RepeatedScalarFieldContainer[int]
    wanted: float
    got: float
    tolerance: float
    text: str
    def __init__(self, test: _Optional[str] = ..., input: _Optional[str] = ..., verdict: _Optional[_Union[_op_pb2.CheckVerdict, str]] = ..., index: _Optional[_Iterable[int]] = ..., wanted: _Optional[float] = ..., got: _Optional[float] = ..., tolerance: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class Profile(_message.Message):
    __slots__ = ("input", "positions", "outputs", "rule", "own_derivative", "differences")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    OWN_DERIVATIVE_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    input: str
    positions: _tensor_pb2.Tensor
    outputs: _tensor_pb2.Tensor
    rule: _tensor_pb2.Tensor
    own_derivative: _tensor_pb2.Tensor
    differences: _tensor_pb2.Tensor
    def __init__(self, input: _Optional[str] = ..., positions: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., outputs: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., rule: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., own_derivative: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., differences: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class CheckGradientResponse(_message.Message):
    __slots__ = ("verdict", "text", "findings", "points", "signature", "profile", "version", "fingerprint")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    verdict: _op_pb2.CheckVerdict
    text: str
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    points: int
    signature: str
    profile: Profile
    version: int
    fingerprint: str
    def __init__(self, verdict: _Optional[_Union[_op_pb2.CheckVerdict, str]] = ..., text: _Optional[str] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., points: _Optional[int] = ..., signature: _Optional[str] = ..., profile: _Optional[_Union[Profile, _Mapping]] = ..., version: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class StreamVjpRequest(_message.Message):
    __slots__ = ("calls", "cancelled_ids")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_IDS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[StreamedCall]
    cancelled_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, calls: _Optional[_Iterable[_Union[StreamedCall, _Mapping]]] = ..., cancelled_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class StreamedCall(_message.Message):
    __slots__ = ("id", "method", "request", "timeout_microseconds", "request_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    method: str
    request: bytes
    timeout_microseconds: int
    request_id: str
    def __init__(self, id: _Optional[int] = ..., method: _Optional[str] = ..., request: _Optional[bytes] = ..., timeout_microseconds: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class StreamVjpResponse(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[StreamedAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[StreamedAnswer, _Mapping]]] = ...) -> None: ...

class StreamedAnswer(_message.Message):
    __slots__ = ("id", "response", "status", "timing", "request_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    response: bytes
    status: bytes
    timing: str
    request_id: str
    def __init__(self, id: _Optional[int] = ..., response: _Optional[bytes] = ..., status: _Optional[bytes] = ..., timing: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...
