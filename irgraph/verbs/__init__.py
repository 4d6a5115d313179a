"""The verbs of the transformation language as functions over graphs: one file a verb."""

from irgraph.verbs.cast import Casting, cast, check_cast
from irgraph.verbs.fuse import Fusion, fuse
from irgraph.verbs.insert import Insertion, check_insertion, insert
from irgraph.verbs.parallelize import parallelize
from irgraph.verbs.recompute import RecomputeResult, recompute
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.remove import Removal, check_removal, remove
from irgraph.verbs.reorder import Move, reorder
from irgraph.verbs.replace import replace
from irgraph.verbs.resize import Axis, Resizing, resize

__all__ = [
    "Axis",
    "Casting",
    "Fusion",
    "Insertion",
    "Move",
    "RecomputeResult",
    "RefusedError",
    "Removal",
    "Resizing",
    "cast",
    "check_cast",
    "check_insertion",
    "check_removal",
    "fuse",
    "insert",
    "parallelize",
    "recompute",
    "remove",
    "reorder",
    "replace",
    "resize",
]
