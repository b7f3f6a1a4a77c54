"""Mutants: models, requests and packets with one thing changed that makes them illegal.

Each row of the public suite's list is a small function that yields mutants of any
model; `legal` knows what may be legal all the same from what must be refused. Every
conformance vector is mutated (`trial`), and a device must answer each mutant with
INVALID_ARGUMENT, notify the callback once, and start nothing (`refusing`). A burst
answers each altered packet with a failure, and goes on.
"""
