"""Floor 7: benchmarks, always beside their peers and in the same run.

Figures are medians of interleaved rounds, goals are ratios: absolute times of a shared
machine do not carry to another one. Peers are optional and imported when they are
first needed.

A benchmark ``NAME`` is the module ``bench_NAME``, whose function ``bench`` measures and
returns a report. Reports are built of what `report` defines: contenders, goals,
placements and tables. `rounds` measures, `environment` pins, `processes` starts what
answers, `peers` and `litert` are who is measured beside, `drawing` shows a report.
"""
