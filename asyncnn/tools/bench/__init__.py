"""Floor 7: benchmarks, always beside their peers and in the same run.

Figures are medians of interleaved rounds, goals are ratios: absolute times of a shared
machine do not carry to another one. Peers are optional and imported when they are
first needed.

The function that measures a benchmark is named by its command; it takes an `Order`, and
returns a report.
Reports are built of what `report` defines: contenders, goals and tables. `rounds`
measures, `benches` in more than one placement, `environment` pins, `processes` starts
what answers, `peers` and `measured_models` have who is measured beside.
"""
