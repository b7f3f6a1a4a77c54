"""Messages of the protocol's gRPC service, as one table and the classes made of it.

Names, numbers and types are as in KServe's ``grpc_predict_v2.proto`` with Triton's
additions: streams, statistics, repositories and system shared memory. They are in a
pool of their own, so that a process may have a client's stubs of the same names.
"""

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]

from asyncnn.extensions import message_tables

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
"""Each message with its fields; see `asyncnn.extensions.message_tables`.

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


def pool_of(others: Iterable[bytes] = ()) -> DescriptorPool:
    """Return a pool with the service, and other files as they are serialised."""
    file = message_tables.described(PACKAGE, TABLE, syntax="proto3")
    service = file.service.add(name=SERVICE.rpartition(".")[2])
    for name, (request, answer) in METHODS.items():
        service.method.add(
            name=name,
            input_type=f".{PACKAGE}.{request}",
            output_type=f".{PACKAGE}.{answer}",
            client_streaming="Stream" in name,
            server_streaming="Stream" in name,
        )
    return message_tables.pool_of([file.SerializeToString(), *others])


_pool = pool_of()


def message_class(name: str) -> Any:
    """Return the class of a message of the table."""
    return message_tables.message_class_of(_pool, f"{PACKAGE}.{name}")
