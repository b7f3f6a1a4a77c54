"""``asyncnn bench burst``: the way to a driver process through shared memory.

Bytes through a pair of queues and back, beside other ways to exchange as many with
another process: one after the other, after some milliseconds of idleness, and while
every CPU is wanted by somebody else; and messages one way. All of it with the two
processes on different CPUs and on the same one.
"""
