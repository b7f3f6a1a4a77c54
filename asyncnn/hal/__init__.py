"""Floor 1: the HAL in data and rules.

Owns the types, the interface protocols, the operation table and validation. Imports
nothing of asyncnn but other modules of this floor; knows nothing of threads, sockets or
kernels.
"""
