"""What families share: how stored numbers are read, computed and rounded.

`float16` and `quantized` say what stored values stand for, `requantize` and `rounding`
how exact sums become codes again, and `tables` looks functions of codes up.
"""
