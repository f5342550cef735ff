from gradserve.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GradientKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRADIENT_KIND_UNSPECIFIED: _ClassVar[GradientKind]
    GRADIENT_KIND_EXACT: _ClassVar[GradientKind]
    GRADIENT_KIND_SURROGATE: _ClassVar[GradientKind]
    GRADIENT_KIND_UNCHECKED: _ClassVar[GradientKind]

class OpState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OP_STATE_UNSPECIFIED: _ClassVar[OpState]
    OP_STATE_READY: _ClassVar[OpState]
    OP_STATE_FAILED: _ClassVar[OpState]

class CheckVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECK_VERDICT_UNSPECIFIED: _ClassVar[CheckVerdict]
    CHECK_VERDICT_PASS: _ClassVar[CheckVerdict]
    CHECK_VERDICT_DEPARTS: _ClassVar[CheckVerdict]
    CHECK_VERDICT_FAIL: _ClassVar[CheckVerdict]
    CHECK_VERDICT_UNCHECKED: _ClassVar[CheckVerdict]
GRADIENT_KIND_UNSPECIFIED: GradientKind
GRADIENT_KIND_EXACT: GradientKind
GRADIENT_KIND_SURROGATE: GradientKind
GRADIENT_KIND_UNCHECKED: GradientKind
OP_STATE_UNSPECIFIED: OpState
OP_STATE_READY: OpState
OP_STATE_FAILED: OpState
CHECK_VERDICT_UNSPECIFIED: CheckVerdict
CHECK_VERDICT_PASS: CheckVerdict
CHECK_VERDICT_DEPARTS: CheckVerdict
CHECK_VERDICT_FAIL: CheckVerdict
CHECK_VERDICT_UNCHECKED: CheckVerdict

class Signature(_message.Message):
    __slots__ = ("key", "inputs", "outputs", "batch_axes")
    class BatchAxesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    BATCH_AXES_FIELD_NUMBER: _ClassVar[int]
    key: str
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSpec]
    outputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSpec]
    batch_axes: _containers.ScalarMap[str, int]
    def __init__(self, key: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_tensor_pb2.TensorSpec, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[_tensor_pb2.TensorSpec, _Mapping]]] = ..., batch_axes: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Op(_message.Message):
    __slots__ = ("name", "version", "documentation", "signatures", "gradient", "elementwise", "stateful", "device", "fingerprint", "state", "failure", "variables", "unrepeatable", "traces", "check", "check_text", "linear_in_output_gradients")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTATION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    ELEMENTWISE_FIELD_NUMBER: _ClassVar[int]
    STATEFUL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    UNREPEATABLE_FIELD_NUMBER: _ClassVar[int]
    TRACES_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    CHECK_TEXT_FIELD_NUMBER: _ClassVar[int]
    LINEAR_IN_OUTPUT_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    documentation: str
    signatures: _containers.RepeatedCompositeFieldContainer[Signature]
    gradient: GradientKind
    elementwise: bool
    stateful: bool
    device: str
    fingerprint: str
    state: OpState
    failure: str
    variables: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSpec]
    unrepeatable: bool
    traces: int
    check: CheckVerdict
    check_text: str
    linear_in_output_gradients: bool
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., documentation: _Optional[str] = ..., signatures: _Optional[_Iterable[_Union[Signature, _Mapping]]] = ..., gradient: _Optional[_Union[GradientKind, str]] = ..., elementwise: bool = ..., stateful: bool = ..., device: _Optional[str] = ..., fingerprint: _Optional[str] = ..., state: _Optional[_Union[OpState, str]] = ..., failure: _Optional[str] = ..., variables: _Optional[_Iterable[_Union[_tensor_pb2.TensorSpec, _Mapping]]] = ..., unrepeatable: bool = ..., traces: _Optional[int] = ..., check: _Optional[_Union[CheckVerdict, str]] = ..., check_text: _Optional[str] = ..., linear_in_output_gradients: bool = ...) -> None: ...
