"""The verbs of the transformation language as functions over graphs: one file a verb."""

from irgraph.verbs.fuse import Fusion, fuse
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.remove import remove

__all__ = ["Fusion", "RefusedError", "fuse", "remove"]
