from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ElementType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ELEMENT_TYPE_UNSPECIFIED: _ClassVar[ElementType]
    ELEMENT_TYPE_INT64: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT64: _ClassVar[ElementType]
    ELEMENT_TYPE_BYTE: _ClassVar[ElementType]
    ELEMENT_TYPE_INT32: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT32: _ClassVar[ElementType]
ELEMENT_TYPE_UNSPECIFIED: ElementType
ELEMENT_TYPE_INT64: ElementType
ELEMENT_TYPE_FLOAT64: ElementType
ELEMENT_TYPE_BYTE: ElementType
ELEMENT_TYPE_INT32: ElementType
ELEMENT_TYPE_FLOAT32: ElementType

class ArrayChunk(_message.Message):
    __slots__ = ("name", "type", "shape", "fraction_bits", "offset", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    FRACTION_BITS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: ElementType
    shape: _containers.RepeatedScalarFieldContainer[int]
    fraction_bits: int
    offset: int
    data: bytes
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[ElementType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., fraction_bits: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ArrayChunks(_message.Message):
    __slots__ = ("chunks", "last")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[ArrayChunk]
    last: bool
    def __init__(self, chunks: _Optional[_Iterable[_Union[ArrayChunk, _Mapping]]] = ..., last: _Optional[bool] = ...) -> None: ...
