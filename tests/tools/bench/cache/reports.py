"""Reports of the cache benchmark, made by hand."""

from asyncnn.tools.bench.cache.report import ANEW, LOADED, CacheReport
from asyncnn.tools.bench.rounds import Figure


def report(
    anew_us: float,
    loaded_us: float,
    growth_bytes: int = 0,
    weights_bytes: int = 1000,
    is_largest: bool = False,
) -> CacheReport:
    us = {ANEW: anew_us, LOADED: loaded_us}
    figures = {name: Figure((time,)) for name, time in us.items()}
    ratio = loaded_us / anew_us
    return CacheReport(
        "model", figures, us, ratio, weights_bytes, growth_bytes, is_largest
    )
