"""``asyncnn bench service``: what it costs to have a driver process do the work.

Two exchanges with another process, each beside other ways to have it: an execution that
computes nothing, and a float image of 224 x 224 in with 1001 floats out. Both are
measured with the two processes on different CPUs and on the same one, since what a
wake-up across CPUs costs decides most of it.

The driver of the first publishes the no-op device, which validates what it is given and
computes nothing; that of all else the reference device.
"""
