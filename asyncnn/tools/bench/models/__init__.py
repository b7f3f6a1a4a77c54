"""``asyncnn bench models``: the reference device beside LiteRT, model by model."""
