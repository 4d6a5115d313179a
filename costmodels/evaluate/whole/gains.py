"""Published gains compared with predicted ones: the time before over the time after."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from msgspec import Struct

from costmodels.evaluate.comparison import Comparison, Point, Row, Series
from costmodels.evaluate.dlrm_v100 import HOST
from costmodels.evaluate.measurements import measurements
from costmodels.evaluate.whole.programs import (
    as_cuda_graph,
    bags,
    classifier,
    dlrm_inference,
    result_or_reason,
)
from costmodels.evaluate.whole.steps import (
    BOARDS,
    MIXED,
    TRAINING_SOFTWARE,
    csv_rows,
    nvidia,
    select_by_hash,
)
from costmodels.formulas.software import PROFILES
from costmodels.learnable.measurements import read_table
from irgraph.ir.graph import Graph
from irgraph.ir.tensor import DType
from irgraph.language import load_pass, run
from irgraph.predict.prediction import predict

FUSED = "fuse-embedding"
BAGS = f"fused bags (pass {FUSED}): TorchRec's collections of embedding bags, V100"
AUTOCAST = "mixed precision and NHWC (autocast, captured; no pass does both): NVIDIA's classifiers"
LAYOUTS = "channels_last (captured; no pass does it): timm's models in training, RTX 3090, AMP"
GRAPHS = "CUDA graph (pass cuda-graph: all calls in one launch): NVIDIA's DLRM, inference"

LARGE = 10_000_000
CRITEO = (
    45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10, 2209,
    11267, 128, 4, 974, 14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35,
)  # fmt: skip
"""Rows of DLRM's tables in TorchRec's benchmark, which divides sizes above ``LARGE``."""

EQUAL_TABLE_COUNTS = (10, 100)
"""Counts of equal tables whose gain is compared, as the median over their sizes. A measurement of
1,000 tables exists, but capturing them takes minutes."""

CUDA_11 = "torch-1.10-cuda-11.3"
"""Software of TorchRec's measurements of June 2022."""

LAYOUT_MODELS = 12
"""Number of models whose gain of ``channels_last`` is compared: names with the lowest hashes."""

BATCHES = ("64", "1024", "4096", "16384")
CARDS = {"1x A100 80GB": "a100-sxm4-80gb", "1x V100 32GB": "v100-sxm2-32gb"}

NOT_PREDICTED = (
    "torch.compile, weights in bf16 beside it (timm, nanoGPT, torchtitan, Segment Anything): the "
    "kernels that Inductor makes are not known before it ran",
    "SDPA for eager attention, Triton, int8, sparse (Segment Anything): both sides of each pair "
    "are compiled; its bf16 for f32, whose decoder runs over prompts that nobody lists",
    "checkpointing, float8, async tensor parallelism (torchtitan): 8 to 512 cards with FSDP, of "
    "whose collectives and prefetching there is no captured program",
    "foreach or a loop for fused AdamW (Hugging Face, torchtitan): a pair of sequences whose "
    "length is not known, and one whose second figure is a remark",
    "mixed precision of other NVIDIA examples: their programs are not captured here",
)
NOTES = (
    "No pair was used to choose or fit anything (of channels_last, other pairs were). Host "
    "overheads are those of the default table.",
    "fused bags: gradients are added to before, given up after. FBGEMM's check of indices and its "
    "module's Python are not in the program.",
    "channels_last: grouped convolutions have no good kernel for it in cuDNN 8 (0.3 to 0.5 times "
    "as fast); rates of its kernels are fitted to other networks of the same table, and "
    "predictions warn of them.",
    "CUDA graphs: one call for each of NVIDIA's fused MLPs and for its pairwise products; what "
    "they compute is priced as plain PyTorch.",
)


class ProgramPair(Struct, frozen=True):
    """A measured gain and the programs before and after; ``samples`` after over samples before."""

    group: str
    name: str
    card: str
    gain: float
    before: Callable[[], Graph]
    after: Callable[[], Graph]
    samples: float = 1.0
    software: str = PROFILES[0].name


def evaluate_gains() -> Comparison:
    """Return measured and predicted gains by kind of change.

    Raises ``IrgraphError`` if ``IRGRAPH_DATA`` is unset, or torch is missing.
    """
    folder = measurements() / "steps"
    points: defaultdict[str, list[Point]] = defaultdict(list)
    missing: dict[str, None] = {}
    for pair in (*_bags(folder), *_graphs(folder), *_autocast(folder), *_layouts(folder)):
        gain = result_or_reason(partial(_gain, pair))
        if isinstance(gain, str):
            missing[f"{pair.name}: {gain}"] = None
        else:
            points[pair.group].append(Point(pair.name, pair.gain, gain))
    series = [Series(name, group_points, unit="x") for name, group_points in points.items()]
    left_out = (f"not predicted: {text}" for text in (*NOT_PREDICTED, *missing))
    return Comparison("gains", series, {}, (*NOTES, *left_out))


def _gain(pair: ProgramPair) -> float:
    before, after = (
        predict(make(), pair.card, host=HOST, software=pair.software).step_time
        for make in (pair.before, pair.after)
    )
    return before / after * pair.samples


def _bags(folder: Path) -> Iterator[ProgramPair]:
    rows = csv_rows(folder / "torchrec_ebc.csv")
    for row in rows:
        if row["rows"].startswith("DLRM/"):
            parts = int(row["rows"].removeprefix("DLRM/"))
            sizes = tuple(n // parts if n >= LARGE else n for n in CRITEO)
            yield _fused_pair(
                f"DLRM's 26 tables, large ones by {parts}", sizes, 128, float(row["gain"])
            )
    for count in EQUAL_TABLE_COUNTS:
        case_rows = [row for row in rows if row["case"].startswith(f"scaling-{count}-")]
        size, width = (int(median(int(row[key]) for row in case_rows)) for key in ("rows", "dim"))
        name = f"{count} equal tables"
        yield _fused_pair(
            name, (size,) * count, width, median(float(row["gain"]) for row in case_rows)
        )


def _fused_pair(name: str, sizes: tuple[int, ...], width: int, gain: float) -> ProgramPair:
    before = partial(bags, sizes, width, keep_gradients=True)
    after = partial(_bags_fused, sizes, width)
    return ProgramPair(BAGS, name, "v100-sxm2-16gb", gain, before, after, software=CUDA_11)


def _bags_fused(sizes: tuple[int, ...], width: int) -> Graph:
    return run(load_pass(FUSED), bags(sizes, width, keep_gradients=False, rejoin_inputs=True)).graph


def _graphs(folder: Path) -> Iterator[ProgramPair]:
    for row in csv_rows(folder / "nvidia_dlrm_cudagraph_gains.csv"):
        if row["batch"] in BATCHES:
            name = f"{row['gpu'][3:]}, {row['precision']}, B = {row['batch']}"
            eager = partial(_dlrm, row)
            graph = partial(_as_cuda_graph, row)
            yield ProgramPair(GRAPHS, name, CARDS[row["gpu"]], float(row["gain"]), eager, graph)


def _dlrm(row: Row) -> Graph:
    graph = dlrm_inference(int(row["batch"]), half=row["precision"] == MIXED)
    if row["precision"] != "TF32":
        return graph
    return run(load_pass("cast-gemms"), graph, {"narrow": DType("tf32")}).graph


def _as_cuda_graph(row: Row) -> Graph:
    return as_cuda_graph(_dlrm(row))


def _autocast(folder: Path) -> Iterator[ProgramPair]:
    mixed_by_name = {
        case.name.rpartition(", B")[0]: case for case in nvidia(folder) if _is_mixed(case.group)
    }
    for before in nvidia(folder):
        name = before.name.rpartition(", B")[0]
        after = mixed_by_name.get(name)
        if after is not None and not _is_mixed(before.group):
            samples = after.batch / before.batch
            gain = before.measured / after.measured * samples
            change = f"{before.group.rpartition(' ')[2]} to {MIXED}"
            programs = before.program, after.program
            yield ProgramPair(AUTOCAST, f"{name}, {change}", before.card, gain, *programs, samples)


def _layouts(folder: Path) -> Iterator[ProgramPair]:
    settings = {
        "change": "channels_last",
        "phase": "train",
        "gpu": "RTX-3090",
        "torch": "1.12",
        "same_batch": "1",
    }
    rows = read_table(folder / "timm_gains.csv.gz")[0]
    selected = [row for row in rows if all(row[key] == value for key, value in settings.items())]
    for row in select_by_hash(selected, LAYOUT_MODELS):
        sizes = int(row["batch_before"]), int(row["image"])
        before, after = (
            partial(classifier, row["model"], *sizes, channels_last=last, older=True)
            for last in (False, True)
        )
        name = f"{row['model']}, B = {sizes[0]}"
        gain, card = float(row["gain"]), BOARDS[row["gpu"]]
        yield ProgramPair(LAYOUTS, name, card, gain, before, after, software=TRAINING_SOFTWARE)


def _is_mixed(group: str) -> bool:
    return group.endswith(MIXED)
