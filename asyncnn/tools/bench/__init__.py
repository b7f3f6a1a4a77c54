"""Floor 7: benchmarks, always beside their peers and in the same run.

Figures are medians of interleaved rounds, goals are ratios: absolute times of a shared
machine do not carry to another one. Peers are optional and imported when they are
first needed.

A bench is a table of contenders, how they start, and goals; a command names it. It is
called with an `Order`, and returns a report: a document, and the tables that show it.
`rounds` measures, `benches` starts contenders, `report` judges and shows; `environment`
pins, `processes` has other processes, `peers` and `measured_models` who and what is
measured beside.
"""
