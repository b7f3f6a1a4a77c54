"""MLPerf's LoadGen, with this project and what users would write as systems under test.

LoadGen decides when queries come, measures, and judges whether a run is valid; nothing
of that is changed here. `judge` runs it, `systems` has the systems of this project,
`peers` those of others, `comparing` holds one against the other.

Needs mlcommons-loadgen: pip install asyncnn[loadgen].
"""
