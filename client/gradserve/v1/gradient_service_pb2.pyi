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
