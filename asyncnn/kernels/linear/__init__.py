"""Kernels that sum products with weights: convolutions, fully connected, matrices.

``lowering`` turns stored values into floats that multiply exactly, ``patches`` lays
images out and keeps each step in the cache, ``matrix`` multiplies, and ``epilogue``
turns sums into stored values.
"""
