"""LiteRT as an engine that runs whole graphs: writing them, running them."""
