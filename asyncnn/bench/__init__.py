"""Floor 7: benchmarks, always beside their peers and in the same run.

Figures are medians of interleaved rounds, goals are ratios: absolute times of a shared
machine do not carry to another one. `rounds` measures, `goals` says what is wanted,
`models` and `awaiting` are the benchmarks, `page` draws. Peers are optional and
imported when they are first needed.
"""
