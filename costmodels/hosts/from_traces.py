"""Makes the host tables shipped from published traces: ``python -m costmodels.hosts.from_traces``.

Times are as profiled: the profiler's cost on those machines is not known. All licences permit
sharing derived figures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from costmodels.hosts.writing import write
from irgraph.backend import architecture_of
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import Tree, build_tree
from irgraph.capture.kineto.reading.selection import Marks
from irgraph.overheads.extract import NO_COST, PAPER_COST, ProfilerCost, extract
from irgraph.overheads.format import HostFile, pooled
from irgraph.replay.replay import build_replayer

TABLES = (
    ("v100-32gb-torchrec-profiled", "dlrm_8xV100", "facebookresearch/param", "MIT",
     "TorchRec DLRM on 8 V100-SXM2-32GB, 8 ranks, 1 step each"),
    ("v100-16gb-torchrec-profiled", "dlrm_4xV100_overlap", "pytorch/torchrec", "BSD-3-Clause",
     "TorchRec DLRM, pipelined, on 4 V100-SXM2-16GB, 4 ranks, 2 steps each"),
    ("rtx2080ti-mlp-profiled", "mlp_RTX2080Ti", "facebookresearch/param", "MIT",
     "an MLP of 21 layers on an RTX 2080 Ti, 38 steps"),
    ("rtx2080ti-resnet18-profiled", "resnet18_RTX2080Ti", "facebookresearch/param", "MIT",
     "ResNet-18 on an RTX 2080 Ti, 15 steps"),
    ("v100-dgxs-resnet50-profiled", "resnet50_V100", "pytorch/kineto", "BSD-3-Clause",
     "ResNet-50 on a V100-DGXS-32GB, 6 steps without loader processes, 6 with four, call stacks"),
)  # fmt: skip
"""Name, folder or trace, source, licence and description of each table."""


MARKS = {
    "mlp_RTX2080Ti": "Optimizer.zero_grad#SGD.zero_grad",
    "resnet18_RTX2080Ti": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
}
"""Event that starts each step, by folder, for traces recorded without the profiler's marks."""


LIBRARY = "fbgemm."
"""Prefix of the ops whose overheads in the default table come from TorchRec's traces."""


def published_tree(path: Path) -> Tree:
    """Return the event tree of a published trace."""
    return build_tree(read_kineto(path), Marks(MARKS.get(path.parent.name, "")))


def tables(folder: Path) -> Iterable[HostFile]:
    """Yield every table, from the published traces in ``folder``."""
    for name, place, source, licence, description in TABLES:
        yield msgspec.structs.replace(
            _extract_table(folder / "traces" / place, name, source, NO_COST),
            licence=licence,
            description=f"{description}; as profiled",
            made_by="python -m costmodels.hosts.from_traces",
            profiled=True,
        )


def library_calls(folder: Path) -> HostFile:
    """Return the overheads of FBGEMM's ops in TorchRec's traces, less the profiler's cost.

    The cost is the paper's, as in the default table. ``within`` is the mean T5 of these ops, each
    of which is one call with several launches.
    """
    name, place, source, *_ = TABLES[0]
    table = _extract_table(folder / "traces" / place, name, source, PAPER_COST)
    ops = {op: entry for op, entry in table.ops.items() if op.startswith(LIBRARY)}
    within = pooled([entry.t5 for entry in ops.values() if entry.t5], "FBGEMM's ops, TorchRec")
    return msgspec.structs.replace(table, ops=ops, within=within)


def _extract_table(place: Path, name: str, source: str, cost: ProfilerCost) -> HostFile:
    paths = sorted(place.glob("kineto*.json.gz")) if place.is_dir() else [place]
    trees = [published_tree(path) for path in paths]
    samples = [
        build_replayer(tree).samples().require_sufficient(tree.trace.source) for tree in trees
    ]
    card = architecture_of(trees[0].trace.device_name)
    return extract(samples, name, cost=cost, source=source, architecture=card)


if __name__ == "__main__":
    write(tables(Path(sys.argv[1])))
