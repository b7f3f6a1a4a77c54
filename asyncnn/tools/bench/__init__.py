"""Floor 7: benchmarks, always beside their peers and in the same run.

Figures are medians of interleaved rounds, goals are ratios: absolute times of a shared
machine do not carry to another one. Peers are optional and imported when they are
first needed.

Each benchmark has a package. Its `report` is the JSON document and, where there is no
`goals`, says what is measured and what is wanted; `measuring` makes a report, `table`
shows it. What several benchmarks need lies beside the packages: `rounds` measures,
`placement` pins, `processes` starts what answers.
"""
