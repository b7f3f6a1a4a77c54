"""Floor 2: TFLite files as records, trusting no byte of them.

`contents` turns the bytes into `tables`, by `flatbuffer`, which reads tables and
vectors; `sparse` makes constants dense that are stored sparsely. What a graph means is
the business of those who import it, or hand it to an engine: `runnable` has what is
dangerous to that, by `operator_rules`.
"""
