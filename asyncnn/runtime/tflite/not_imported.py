"""Why the other builtin operators of the TFLite schema are not imported."""

from collections.abc import Mapping

_SHAPE = "the shape of its result depends on the data"
_TABLES = "the HAL has no tables of keys"
_RANDOM = "each run draws other numbers, and the HAL has no such generator"
_VOLUMES = "the HAL has images, of rank 4, but no volumes"
_SEGMENTS = "the HAL has no reductions by segment"
_BITS = "the HAL has no arithmetic on bits"
_STABLEHLO = "of StableHLO, only what works element by element is imported"
_STABLEHLO_NAMES = """
BROADCAST_IN_DIM COMPARE CONCATENATE CONVOLUTION CUSTOM_CALL DOT_GENERAL DYNAMIC_SLICE
DYNAMIC_UPDATE_SLICE GATHER IOTA PAD REDUCE RESHAPE SCATTER SLICE SORT TRANSPOSE WHILE
"""
_STRINGS = "the HAL has no strings"
_WINDOWS = "the HAL has pools of averages, roots and largest values, on images"

NOT_IMPORTED: Mapping[str, str] = {
    "CONCAT_EMBEDDINGS": "TFLite itself has no kernel of it",
    "SKIP_GRAM": _STRINGS,
    "CUSTOM": "it is known by its name: see the extensions",
    "DELEGATE": "it stands for a part that another runtime has taken",
    "PLACEHOLDER_FOR_GREATER_OP_CODES": "it is no operator",
    "EMBEDDING_LOOKUP_SPARSE": "the HAL looks up whole rows",
    "UNIQUE": _SHAPE,
    "WHERE": f"{_SHAPE}; of constants it is computed when the file is read",
    "RANGE": f"{_SHAPE}; of constants it is computed when the file is read",
    "BROADCAST_ARGS": "it is computed, of constants, when the file is read",
    "NON_MAX_SUPPRESSION_V4": "the HAL's suppression returns boxes, but not which",
    "NON_MAX_SUPPRESSION_V5": "the HAL's suppression returns boxes, but not which",
    "SEGMENT_SUM": _SEGMENTS,
    "UNSORTED_SEGMENT_PROD": _SEGMENTS,
    "UNSORTED_SEGMENT_MAX": _SEGMENTS,
    "UNSORTED_SEGMENT_SUM": _SEGMENTS,
    "UNSORTED_SEGMENT_MIN": _SEGMENTS,
    "CONV_3D": _VOLUMES,
    "CONV_3D_TRANSPOSE": _VOLUMES,
    "HASHTABLE": _TABLES,
    "HASHTABLE_FIND": _TABLES,
    "HASHTABLE_IMPORT": _TABLES,
    "HASHTABLE_SIZE": _TABLES,
    "RANDOM_STANDARD_NORMAL": _RANDOM,
    "RANDOM_UNIFORM": _RANDOM,
    "BITCAST": _BITS,
    "BITWISE_XOR": _BITS,
    "DILATE": "the HAL puts nothing between elements",
    "REDUCE_WINDOW": _WINDOWS,
    "STABLEHLO_REDUCE_WINDOW": _WINDOWS,
    "STABLEHLO_RNG_BIT_GENERATOR": _RANDOM,
    "STABLEHLO_SHIFT_LEFT": _BITS,
    "STABLEHLO_REMAINDER": "a remainder of floats is not exact in the HAL",
    "STABLEHLO_CBRT": "the HAL's powers are of positive numbers",
    **{f"STABLEHLO_{name}": _STABLEHLO for name in _STABLEHLO_NAMES.split()},
}
"""By the operator's name in the schema."""
