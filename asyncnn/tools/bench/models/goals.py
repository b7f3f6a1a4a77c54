"""What the reference device is to reach beside its peers, model by model."""

from collections.abc import Mapping

from asyncnn.tools.bench.goals import LITERT, LITERT_REF, Goal, Verdict

REF_MATTERS_ABOVE_US = 100.0
"""Models that take the reference kernels less are too small for the general goal."""

GENERAL = Goal(LITERT_REF, 1.0)

_GOALS: dict[str, tuple[Goal, ...]] = {
    "kws_ref_model": (Goal(LITERT_REF, 0.5),),
    "mobilenet_v1_224_float": (Goal(LITERT_REF, 0.1), Goal(LITERT, 2.5)),
    "pretrainedResnet": (Goal(LITERT_REF, 0.1), Goal(LITERT, 2.5)),
    "pretrainedResnet_quant": (Goal(LITERT_REF, 0.5), Goal(LITERT, 10.0)),
    "vww_96_float": (Goal(LITERT_REF, 0.5), Goal(LITERT, 8.0)),
    "vww_96_int8": (Goal(LITERT_REF, 0.5), Goal(LITERT, 16.0)),
}


def goals_for(model: str, ref_us: float | None) -> tuple[Goal, ...]:
    """Return the goals of ``model``.

    ``ref_us`` is what LiteRT's reference kernels take, None if that is unknown.
    """
    if model in _GOALS:
        return _GOALS[model]
    is_tiny = ref_us is None or ref_us <= REF_MATTERS_ABOVE_US
    return () if is_tiny else (GENERAL,)


def judge(
    model: str, ratios: Mapping[str, float], ref_us: float | None
) -> tuple[Verdict, ...]:
    """Hold ``ratios``, by peer, against the goals of ``model``.

    Peers that were not measured are left out.
    """
    return tuple(
        Verdict.of(goal, ratios[goal.peer])
        for goal in goals_for(model, ref_us)
        if goal.peer in ratios
    )
