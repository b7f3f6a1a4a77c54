"""A profile as it might be, of two partitions and a loop."""

from asyncnn.tools.profiling import (
    OperationProfile,
    PartitionProfile,
    Profile,
    SegmentProfile,
    StageProfile,
    Subgraph,
)


def operation(
    index: int,
    type_: str,
    time_us: float,
    *,
    partition: int = 0,
    subgraph: Subgraph = None,
    segment: int | None = None,
    reads: tuple[int, ...] = (),
) -> OperationProfile:
    return OperationProfile(
        partition=partition,
        subgraph=subgraph,
        index=index,
        type=type_,
        device=("accelerated", "reference")[partition],
        kernel="arithmetic" if segment is None else f"LiteRT, segment {segment}",
        rounding="float32",
        segment=segment,
        time_us=float(time_us),
        share=time_us / 200,
        calls=1.0 if subgraph is None else 3.0,
        is_apportioned=segment is not None,
        input_bytes=4000,
        output_bytes=2000,
        weight_bytes=36000,
        temporary_bytes=None if segment is not None else 2000,
        shapes=((1, 500),),
        reads=reads,
    )


OPERATIONS = (
    operation(0, "CONV_2D", 60, segment=0),
    operation(1, "RELU", 10, segment=0, reads=(0,)),
    operation(2, "WHILE", 5, partition=1, reads=(1,)),
    operation(0, "LESS", 20, partition=1, subgraph=0, reads=(2,)),
    operation(0, "com.example/TWIST<b>", 45, partition=1, subgraph=1, reads=(2,)),
)

PROFILE = Profile(
    model="loop.tflite",
    device="framework",
    version="0.1.0",
    inputs="random",
    runs=50,
    run_us=170.0,
    observed_us=210.0,
    observing_us=10.0,
    accounted=0.995,
    operations_share=0.7,
    operations=OPERATIONS,
    segments=(
        SegmentProfile(
            partition=0,
            subgraph=None,
            engine="LiteRT 2.3.0",
            operations=(0, 1),
            time_us=70.0,
            share=0.35,
            parts_us=66.0,
        ),
    ),
    partitions=(
        PartitionProfile(
            device="accelerated",
            operations=(0, 1),
            time_us=75.0,
            share=0.375,
            arena_bytes=4096,
        ),
        PartitionProfile(
            device="reference",
            operations=(2,),
            time_us=None,
            share=None,
            arena_bytes=0,
            instead_of="sample-minimal",
        ),
    ),
    stages=(
        StageProfile(
            name="to the device", meaning="the HAL is called", time_us=39.0, share=0.195
        ),
        StageProfile(
            name="between partitions", meaning="handed on", time_us=20.0, share=0.1
        ),
    ),
    folded=1,
    environment="a machine",
)
