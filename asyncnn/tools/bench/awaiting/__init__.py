"""``asyncnn bench awaiting``: what it costs to await an operation that costs nothing.

A model that adds two vectors of four floats is run in this process, one layer after
the other, beside the ways of calling NumPy without it. Each layer's figure includes
those below it, so that a layer's own cost is the difference to the one before.
"""
