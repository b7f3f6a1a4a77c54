"""Compilation caching: prepared models in files that clients keep.

Each model has two files. The *model cache* holds everything that decides what runs:
graph, plans, small constants. It is sealed with a key of the driver and not believed
unless every byte is as it was written. The *data cache* holds nothing but numbers that
operations compute with, large weights and what kernels packed of them. It is mapped and
not checked, as the HAL allows: if it is damaged, results are wrong and nothing else.

Source: 1.2/IDevice.hal (getNumberOfCacheFilesNeeded, prepareModelFromCache).
"""

from asyncnn.devices.cache.cache_files import DATA_FILES, MODEL_FILES
from asyncnn.devices.cache.cache_format import Compiled
from asyncnn.devices.cache.model_caches import ModelCaches, Prepare

__all__ = (
    "DATA_FILES",
    "MODEL_FILES",
    "Compiled",
    "ModelCaches",
    "Prepare",
)
