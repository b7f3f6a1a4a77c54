"""Where the tensors of an LSTM operator are, alike for a step and for a sequence."""

WEIGHTS = range(1, 9)
"""From the input to the four gates, then from the latest output to them."""

PEEPHOLES = range(9, 12)
BIASES = range(12, 16)
PROJECTION, PROJECTION_BIAS = 16, 17
OUTPUT_STATE, CELL_STATE = 18, 19
LAYER_NORMS = range(20, 24)

HIDDEN = 4
"""The intermediate that tells how the output before the projection is quantised.

Those before it belong to the gates.
"""
