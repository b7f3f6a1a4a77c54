"""Messages of the protocol's gRPC service, as one table and the classes made of it.

Names, numbers and types are as in KServe's ``grpc_predict_v2.proto`` with Triton's
additions: streams, statistics, repositories and system shared memory. They are in a
pool of their own, so that a process may have a client's stubs of the same names.
"""

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor_pb2 import (  # type: ignore[import-untyped]
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

_PARAMETERS = "map:InferParameter parameters"

TABLE = f"""
ServerLiveRequest
ServerLiveResponse: bool live 1
ServerReadyRequest
ServerReadyResponse: bool ready 1
ModelReadyRequest: string name 1, string version 2
ModelReadyResponse: bool ready 1
ServerMetadataRequest
ServerMetadataResponse: string name 1, string version 2, repeated:string extensions 3
ModelMetadataRequest: string name 1, string version 2
ModelMetadataResponse: string name 1, repeated:string versions 2, string platform 3,
    repeated:ModelMetadataResponse.TensorMetadata inputs 4,
    repeated:ModelMetadataResponse.TensorMetadata outputs 5
TensorMetadata of ModelMetadataResponse: string name 1, string datatype 2,
    repeated:int64 shape 3
InferParameter: one:bool bool_param 1, one:int64 int64_param 2,
    one:string string_param 3, one:double double_param 4, one:uint64 uint64_param 5
InferTensorContents: repeated:bool bool_contents 1, repeated:int32 int_contents 2,
    repeated:int64 int64_contents 3, repeated:uint32 uint_contents 4,
    repeated:uint64 uint64_contents 5, repeated:float fp32_contents 6,
    repeated:double fp64_contents 7, repeated:bytes bytes_contents 8
ModelInferRequest: string model_name 1, string model_version 2, string id 3,
    {_PARAMETERS} 4, repeated:ModelInferRequest.InferInputTensor inputs 5,
    repeated:ModelInferRequest.InferRequestedOutputTensor outputs 6,
    repeated:bytes raw_input_contents 7
InferRequestedOutputTensor of ModelInferRequest: string name 1, {_PARAMETERS} 2
InferInputTensor of ModelInferRequest: string name 1, string datatype 2,
    repeated:int64 shape 3, {_PARAMETERS} 4, InferTensorContents contents 5
ModelInferResponse: string model_name 1, string model_version 2, string id 3,
    {_PARAMETERS} 4, repeated:ModelInferResponse.InferOutputTensor outputs 5,
    repeated:bytes raw_output_contents 6
InferOutputTensor of ModelInferResponse: string name 1, string datatype 2,
    repeated:int64 shape 3, {_PARAMETERS} 4, InferTensorContents contents 5
ModelStreamInferResponse: string error_message 1, ModelInferResponse infer_response 2
ModelStatisticsRequest: string name 1, string version 2
StatisticDuration: uint64 count 1, uint64 ns 2
InferStatistics: StatisticDuration success 1, StatisticDuration fail 2,
    StatisticDuration queue 3, StatisticDuration compute_input 4,
    StatisticDuration compute_infer 5, StatisticDuration compute_output 6
ModelStatistics: string name 1, string version 2, uint64 last_inference 3,
    uint64 inference_count 4, uint64 execution_count 5,
    InferStatistics inference_stats 6
ModelStatisticsResponse: repeated:ModelStatistics model_stats 1
ModelRepositoryParameter: one:bool bool_param 1, one:int64 int64_param 2,
    one:string string_param 3, one:bytes bytes_param 4
RepositoryIndexRequest: string repository_name 1, bool ready 2
RepositoryIndexResponse: repeated:RepositoryIndexResponse.ModelIndex models 1
ModelIndex of RepositoryIndexResponse: string name 1, string version 2,
    string state 3, string reason 4
RepositoryModelLoadRequest: string repository_name 1, string model_name 2,
    map:ModelRepositoryParameter parameters 3
RepositoryModelLoadResponse: string model_name 1, bool isLoaded 2
RepositoryModelUnloadRequest: string repository_name 1, string model_name 2,
    map:ModelRepositoryParameter parameters 3
RepositoryModelUnloadResponse: string model_name 1, bool isUnloaded 2
SystemSharedMemoryStatusRequest: string name 1
SystemSharedMemoryStatusResponse:
    map:SystemSharedMemoryStatusResponse.RegionStatus regions 1
RegionStatus of SystemSharedMemoryStatusResponse: string name 1, string key 2,
    uint64 offset 3, uint64 byte_size 4
SystemSharedMemoryRegisterRequest: string name 1, string key 2, uint64 offset 3,
    uint64 byte_size 4
SystemSharedMemoryRegisterResponse
SystemSharedMemoryUnregisterRequest: string name 1
SystemSharedMemoryUnregisterResponse
"""
"""Each message with its fields: a type, a name and a number.

In front of the type is whether there are several, by name, or one of those so marked.
KServe's own messages of loading have the model's name where Triton's have the name of a
repository, and say in their answers what Triton's leave out.
"""


METHODS = {
    **{
        name: (f"{name}Request", f"{name}Response")
        for name in (
            *("ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex"),
            *("ModelReady", "ModelMetadata", "ModelStatistics", "ModelInfer"),
            *("RepositoryModelLoad", "RepositoryModelUnload"),
            *("SystemSharedMemoryStatus", "SystemSharedMemoryRegister"),
            "SystemSharedMemoryUnregister",
        )
    },
    "ModelStreamInfer": ("ModelInferRequest", "ModelStreamInferResponse"),
}
"""Messages of each method: its request and its answer; of the last one, in streams."""

_INTEGERS = ("int32", "int64", "uint32", "uint64")
_TYPES: dict[str, Any] = {
    name: getattr(FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("bool", "float", "double", "string", "bytes", *_INTEGERS)
}


def _file() -> FileDescriptorProto:
    """Return the table as protobuf describes a file."""
    file = FileDescriptorProto(
        name="asyncnn/oip.proto", package=PACKAGE, syntax="proto3"
    )
    found: dict[str, DescriptorProto] = {}
    for line in TABLE.replace("\n    ", " ").strip().splitlines():
        head, _, fields = line.partition(":")
        name, _, outer = head.partition(" of ")
        inside = found[outer].nested_type if outer else file.message_type
        message = found[name] = inside.add(name=name)
        for field in filter(None, map(str.strip, fields.split(", "))):
            _add(message, f"{outer}.{name}" if outer else name, *field.split())
    service = file.service.add(name=SERVICE.rpartition(".")[2])
    for name, (request, answer) in METHODS.items():
        service.method.add(
            name=name,
            input_type=f".{PACKAGE}.{request}",
            output_type=f".{PACKAGE}.{answer}",
            client_streaming="Stream" in name,
            server_streaming="Stream" in name,
        )
    return file


def _add(
    message: DescriptorProto, path: str, kind: str, name: str, number: str
) -> None:
    """Add a field; a map is, as in protobuf, a repeated message of keys and values."""
    how, _, type_ = kind.rpartition(":")
    if how == "map":
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add(entry, "", "string", "key", "1")
        _add(entry, "", type_, "value", "2")
        how, type_ = "repeated", f"{path}.{entry.name}"
    field = message.field.add(
        name=name,
        number=int(number),
        label=FieldDescriptorProto.LABEL_REPEATED
        if how == "repeated"
        else FieldDescriptorProto.LABEL_OPTIONAL,
    )
    if type_ in _TYPES:
        field.type = _TYPES[type_]
    else:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{type_}"
    if how == "one":
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0


def pool_of(others: Iterable[bytes] = ()) -> DescriptorPool:
    """Return a pool with the service, and other files as they are serialised."""
    pool = DescriptorPool()
    for serialized in (_file().SerializeToString(), *others):
        pool.AddSerializedFile(serialized)
    return pool


_pool = pool_of()


def message_class(name: str) -> Any:
    """Return the class of a message of the table."""
    return GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
