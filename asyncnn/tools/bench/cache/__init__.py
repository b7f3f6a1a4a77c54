"""``asyncnn bench cache``: loading prepared models from cache files, model by model.

Beside it, preparing the same model anew. Loading leaves some work to the first
execution, so that the time until its outputs is measured as well, for both.

Another process, which has loaded a copy of the model, then loads the model, to see by
how much its resident memory grows; what is mapped and not touched is not resident.
"""
