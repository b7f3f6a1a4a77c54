"""A fuzzer of all that reads what others have written: files, messages, calls.

`targets` has a table of what is fed, with a corpus that `corpora` makes by the writers
of the project, and `driver_calls` the grammar of calls to a driver. `mutators` damages
bytes; where atheris is installed, coverage says which mutants are worth keeping. All
runs in a process of its own (`worker`), which may die: `hunting` watches it, makes what
it has found small, and writes it to a file. `twins` compares modules in C with what
they stand for in Python.
"""
