"""Kernels that sum products with weights: convolutions, fully connected, matrices.

``lowering`` turns stored values into floats that multiply exactly, and sums into stored
values; ``patches`` lays images out and keeps each step in the cache.
"""
