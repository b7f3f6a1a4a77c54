"""Recurrent layers as files of one operator, float and integer, in all variants."""

from collections.abc import Iterator
from typing import Any

from tests.runtime.tflite.cases import Case
from tests.runtime.tflite.files import Op, T
from tests.runtime.tflite.layers import TANH, Integers, Lstm, Reals

PLAIN = Lstm()
PROJECTED = Lstm(outputs=3)
VARIANTS = {
    "plain": PLAIN,
    "coupled": Lstm(coupled=True),
    "peephole": Lstm(peephole=True),
    "coupled peephole": Lstm(coupled=True, peephole=True),
    "projection": PROJECTED,
    "projection bias": Lstm(outputs=3, projection_bias=True),
    "layer norm": Lstm(normalised=True),
    "coupled layer norm": Lstm(coupled=True, normalised=True),
    "everything": Lstm(outputs=6, peephole=True, normalised=True, projection_bias=True),
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "batches": {"batch": 2},
    "time-major": {"time_major": True},
    "time-major batches": {"batch": 2, "time_major": True},
    "one step": {"steps": 1},
    "long": {"steps": 9, "batch": 2},
}
CLIPS = {"CellClip": 0.3, "ProjClip": 0.05}


def _case(operator: Op, label: str, hal: str = "") -> Case:
    operations = tuple((hal or operator.name).split())
    return Case(f"{operator.name} {label}", operations, operator, steps=0)


def float_lstms() -> Iterator[Case]:
    for label, layer in VARIANTS.items():
        yield _case(layer.sequence(Reals()), label)
    for label, layout in LAYOUTS.items():
        yield _case(PLAIN.sequence(Reals(), **layout), label)
    yield _case(PROJECTED.sequence(Reals(), **CLIPS), "clips")
    for code in (1, 3):
        operator = PLAIN.sequence(Reals(), FusedActivationFunction=code)
        yield _case(operator, f"activation {code}")
    for label in ("plain", "coupled", "everything"):
        yield _case(VARIANTS[label].step(Reals(), batch=2), label)


def integer_lstms() -> Iterator[Case]:
    def case(label: str, layer: Lstm, draw: Integers, **settings: Any) -> Case:
        steps = settings.get("steps", 3)
        split, joined = (" SPLIT", " CONCATENATION") if steps > 1 else ("", "")
        hal = f"RESHAPE{split}{' QUANTIZED_LSTM' * steps}{joined} RESHAPE"
        return _case(layer.sequence(draw, **settings), f"int8 {label}", hal)

    for label, layer in VARIANTS.items():
        yield case(label, layer, Integers())
    for label, layout in LAYOUTS.items():
        yield case(label, PLAIN, Integers(), **layout)
    yield case("clips", PROJECTED, Integers(), **CLIPS)
    yield case("zero point", PLAIN, Integers(zero_point=-20))
    yield case("any activation", PLAIN, Integers(), FusedActivationFunction=1)
    zero_points = Integers(zero_point=11, hidden=-30)
    yield case("zero points", VARIANTS["projection bias"], zero_points)
    for label in ("plain", "coupled", "projection"):
        operator = VARIANTS[label].step(Integers(), batch=2)
        yield _case(operator, f"int8 {label}", "QUANTIZED_LSTM")


def rnns() -> Iterator[Case]:
    for code in range(TANH + 1):
        operator = rnn(Reals(), (2,), FusedActivationFunction=code)
        yield _case(operator, f"activation {code}")
    for time_major in (False, True):
        options = {"TimeMajor": time_major, "FusedActivationFunction": TANH}
        operator = rnn(Reals(), (2, 3), **options)
        yield _case(operator, "time-major" if time_major else "batch-major")


def svdfs() -> Iterator[Case]:
    for rank in (1, 2):
        yield _case(svdf(Reals(), rank), f"rank {rank}")
    yield _case(svdf(Reals(), biased=False, FusedActivationFunction=1), "no bias")


def bidirectional() -> Iterator[Case]:
    for merged in (False, True):
        for time_major in (False, True):
            label = f"merged {merged}, time major {time_major}"
            options = {"TimeMajor": time_major, "MergeOutputs": merged}
            yield _case(two_rnns(Reals(), **options), label)
            if time_major or not merged:
                # LiteRT's own results of batches differ when they are merged.
                yield _case(two_lstms(Reals(), Lstm(), **options), label)
    for label in ("coupled", "peephole", "projection"):
        yield _case(two_lstms(Reals(), VARIANTS[label]), label)


def two_rnns(draw: Reals, **options: Any) -> Op:
    """Return a layer on 2 sequences of 3 steps, read from both ends."""
    outer = (3, 2) if options.get("TimeMajor") else (2, 3)
    cells: list[T | None] = []
    for units in (5, 6):
        cells += [draw.matrix(units, 4), draw.matrix(units, units), draw.bias(units)]
        cells.append(draw.memory((2, units)))
    return Op(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        [draw.data((*outer, 4)), *cells, None, None, None],
        _results(draw, outer, 5, 6, merged=bool(options.get("MergeOutputs"))),
        "BidirectionalSequenceRNNOptions",
        {"FusedActivationFunction": TANH, **options},
    )


def two_lstms(draw: Reals, layer: Lstm, **options: Any) -> Op:
    outer = (3, 2) if options.get("TimeMajor") else (2, 3)
    forward, backward = (layer.cell(draw, 2) for _ in range(2))
    states = [*forward[17:19], *backward[17:19]]
    width = layer.outputs or layer.units
    return Op(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        [
            draw.data((*outer, layer.inputs)),
            *forward[:17],
            *backward[:17],
            *states,
            *[None] * 9,
        ],
        _results(draw, outer, width, width, merged=bool(options.get("MergeOutputs"))),
        "BidirectionalSequenceLSTMOptions",
        {"FusedActivationFunction": TANH, "TimeMajor": False, **options},
    )


def _results(
    draw: Reals, outer: tuple[int, ...], *widths: int, merged: bool
) -> list[T]:
    if merged:
        return [draw.result((*outer, sum(widths)))]
    return [draw.result((*outer, width)) for width in widths]


def rnn(draw: Reals, outer: tuple[int, ...], **options: Any) -> Op:
    """Return a layer on so many batches, or batches and steps in any order."""
    sequence = len(outer) == 2
    batch = outer[1] if options.get("TimeMajor") else outer[0]
    cell = draw.matrix(5, 4), draw.matrix(5, 5), draw.bias(5)
    return Op(
        "UNIDIRECTIONAL_SEQUENCE_RNN" if sequence else "RNN",
        [draw.data((*outer, 4)), *cell, draw.memory((batch, 5))],
        [draw.result((*outer, 5))],
        "SequenceRNNOptions" if sequence else "RNNOptions",
        options,
    )


def svdf(draw: Reals, rank: int = 1, *, biased: bool = True, **options: Any) -> Op:
    batch, units, memory = 2, 3, 5
    filters = units * rank
    return Op(
        "SVDF",
        [
            draw.data((batch, 4)),
            draw.matrix(filters, 4),
            draw.matrix(filters, memory),
            draw.bias(units) if biased else None,
            draw.memory((batch, memory * filters)),
        ],
        [draw.result((batch, units))],
        "SVDFOptions",
        {"Rank": rank, **options},
    )
