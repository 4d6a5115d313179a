"""Published rows as cases, or the reason why a row cannot be rebuilt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from msgspec.structs import replace

from costmodels.evaluate.comparison import Row
from costmodels.evaluate.llm.case import LlmCase, RankLayout, Sharding
from costmodels.evaluate.llm.shape import Recompute, Shape
from costmodels.evaluate.whole.steps import csv_rows

MAX_ROWS = 24
"""Maximum number of rows of a source on a card: those whose names hash lowest."""

CARDS = {
    ("A100", "40"): "a100-sxm4-40gb", ("A100", ""): "a100-sxm4-80gb", ("H100", "96"): "h100-96gb",
    ("H100", ""): "h100-80gb-hbm3", ("H200", ""): "h200", ("B200", ""): "b200",
}  # fmt: skip
"""Device sheets by the prefix of a card's name and its memory; ``""`` is any other memory."""

EARLY = ("korthikanti-2022", "megatron-lm-2021", "vtrain", "bigscience")
"""Beginnings of sources of Megatron before FlashAttention and the overlap of sums with backward."""

HALVES = ("bf16", "fp16")

Selection = LlmCase | str
"""A case, or the reason why there is none."""


def card_of(name: str, memory: str) -> str:
    """Return the device sheet of a card, ``""`` if there is none."""
    kind = next((kind for kind, _ in CARDS if f" {name}".find(f" {kind}") >= 0), "")
    return CARDS.get((kind, memory)) or CARDS.get((kind, ""), "")


def read_cases(folder: Path) -> Iterator[Selection]:
    """Yield the cases of a folder's tables, and the reasons of rows that are not rebuilt."""
    readers = {
        "llm_foundry_mpt.csv": mpt_case, "torchtitan.csv": torchtitan_case,
        "llm_training.csv": training_case,
    }  # fmt: skip
    selections = [read(row) for name, read in readers.items() for row in csv_rows(folder / name)]
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for selection in selections:
        if isinstance(selection, LlmCase):
            groups[selection.source, selection.card].append(selection.name)
    chosen = {name for names in groups.values() for name in sorted(names, key=_hash)[:MAX_ROWS]}
    for selection in selections:
        is_spare = isinstance(selection, LlmCase) and selection.name not in chosen
        yield f"more than {MAX_ROWS} rows of a source on a card" if is_spare else selection


def _hash(name: str) -> str:
    return sha256(name.encode()).hexdigest()


MPT = {
    "mpt-125m": (12, 768, 12), "mpt-350m": (24, 1024, 16), "mpt-760m": (24, 1536, 12),
    "mpt-1b": (24, 2048, 16), "mpt-3b": (32, 2560, 20), "mpt-7b": (32, 4096, 32),
    "mpt-13b": (40, 5120, 40), "mpt-30b": (48, 7168, 56),
}  # fmt: skip
"""Layers, width and heads of llm-foundry's models (its configurations)."""

MPT_VOCAB = 50368


def mpt_case(row: Row) -> Selection:
    """Return a row of llm-foundry's table: FSDP with 16-bit parameters and sums.

    Its models of 2023 require ``flash-attn==1.0.3`` (huggingface.co/mosaicml/mpt-7b).
    """
    if row["precision"] == "amp_fp8":
        return "float8"
    layers, hidden, heads = MPT[row["model"]]
    shape = Shape(
        layers=layers,
        hidden=hidden,
        ffn=4 * hidden,
        heads=heads,
        kv_heads=heads,
        vocab=MPT_VOCAB,
        length=int(row["seq_len"]),
        recompute="full" if row["activation_checkpointing"] == "True" else "none",
    )
    if abs(shape.parameters / int(row["params"]) - 1) > MAX_PARAMETER_ERROR:
        return "sizes that contradict the number of parameters"
    card, _, memory = row["gpu"].upper().removesuffix("GB").partition("_")
    batch, rounds, gpus = (int(row[name]) for name in ("micro_batch", "grad_accum", "gpus"))
    return LlmCase(
        source="llm-foundry",
        name=f"{row['model']}, {shape.length} tokens x {batch} x {rounds}, {gpus} {card}",
        card=card_of(card, memory),
        precision="bf16",
        shape=shape,
        layout=RankLayout(gpus, sharding="fsdp" if row["sharding"] == "FULL_SHARD" else "retained"),
        batch=batch,
        rounds=rounds,
        measured=float(row["step_ms"]),
        software="torch-2.1",
        reduces_half=True,
    )


MAX_PARAMETER_ERROR = 0.01
"""Maximum relative difference of a number of parameters, without norms and biases."""

TITAN = {
    "llama2-13b": Shape(40, 5120, 13824, 40, 40, 32000),
    "llama2-70b": Shape(80, 8192, 28672, 64, 8, 32000),
    "llama3-8b": Shape(32, 4096, 14336, 32, 8, 128256),
    "llama3-70b": Shape(80, 8192, 28672, 64, 8, 128256),
    "llama3.1-405b": Shape(126, 16384, 53248, 128, 8, 128256),
}
"""Sizes of Llama by torchtitan's names (published model cards)."""

TITAN_RECOMPUTE: dict[str, Recompute] = {
    "none": "none", "full": "full", "selective op": "selective", "per-op selective": "selective",
    "selective layer": "alternate",
}  # fmt: skip


def torchtitan_case(row: Row) -> Selection:
    """Return a row of torchtitan's tables: FSDP2 of Llama."""
    if "float8" in row["precision"]:
        return "float8"
    kind, ranks, *others = row["parallelism"].split()
    if kind != "FSDP" or others:
        return MIXED
    length, batch, recompute = int(row["seq_len"]), int(row["local_batch"]), TITAN_RECOMPUTE
    shape = replace(
        TITAN[row["model"].replace("3.1-8b", "3-8b")],
        length=length,
        is_gated=True,
        is_tied=False,
        fuses_qkv=False,
        recompute=recompute[row["activation_checkpointing"]],
    )
    card, _, variant = row["gpu"].partition("-")
    # "inductor?" means unpublished: eager was the default of the time
    software = "compiled" if row["compiled"] == "inductor" else "eager"
    step = row["step_ms"] or 1e3 * batch * length / float(row["tokens_per_s_gpu"])
    return LlmCase(
        source="torchtitan",
        name=f"{row['model']}, {length} tokens x {batch}, {ranks} {card}, recompute "
        f"{shape.recompute}, {software}",
        card=card_of(card, variant[:2]),
        precision="bf16",
        shape=shape,
        layout=RankLayout(int(ranks), sharding="fsdp"),
        batch=batch,
        rounds=1,
        measured=float(step),
        memory=float(row["memory_GiB"] or 0) or None,
        is_compiled=software == "compiled",
    )


MIXED = "FSDP with tensor, context or pipeline parallelism"

SIZES = ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "seq_len")

SHARDINGS: dict[str, Sharding] = {"1": "zero1", "3": "fsdp", "fsdp": "fsdp"}

NEEDED = (
    *SIZES,
    "mlp_matrices",
    "tied",
    "micro_batch",
    "global_batch",
    "dp",
    "tp",
    "pp",
    "step_ms",
)


def training_case(row: Row) -> Selection:
    """Return a row of the large table: a dense model on data, tensor and pipeline ranks."""
    reason = _rejection(row)
    if reason:
        return reason
    source, layout = row["source"], _layout(row)
    layers, hidden, ffn, heads, kv_heads, vocab, length = (int(row[name]) for name in SIZES)
    if layout.ranks != int(row["gpus"]) or layers % (layout.stages * layout.chunks):
        return "layouts that contradict the number of cards or layers"
    is_early = source.startswith(EARLY)
    batch = int(row["micro_batch"])
    rounds = int(row["global_batch"]) // (batch * layout.data)
    degrees = f"{layout.data} x {layout.tensor} x {layout.stages}"
    return LlmCase(
        source=source,
        name=f"{row['id']} {row['model']}, {length} tokens x {batch} x {rounds}, "
        f"{degrees} {row['gpu']}",
        card=card_of(row["gpu"], row["gpu_mem_gb"].rstrip("?")),
        precision=_precision(row),
        shape=Shape(
            layers=layers,
            hidden=hidden,
            ffn=ffn,
            heads=heads,
            kv_heads=kv_heads,
            vocab=vocab,
            length=length,
            is_gated=row["mlp_matrices"] == "3",
            is_tied=row["tied"] == "1",
            fuses_qkv=layout.tensor == 1,
            fuses_attention=not is_early,
            recompute="full" if row["recompute"] == "full" else "none",
        ),
        layout=layout,
        batch=batch,
        rounds=rounds,
        measured=float(row["step_ms"]),
        memory=float(row["mem_gib"]) if row["mem_gib"] else None,
        software="torch-1.12-cuda-11.3" if is_early else "torch-2.7",
        is_compiled=row["compile"] == "inductor",
        accumulates=source.startswith("nanotron"),
    )


def _layout(row: Row) -> RankLayout:
    """Return the ranks of a row; Megatron splits the sequence unless the row denies it."""
    tensor, is_early = int(row["tp"]), row["source"].startswith(EARLY)
    splits = row["sp"] == "1" or (row["sp"] == "" and not is_early)
    return RankLayout(
        data=int(row["dp"]),
        tensor=tensor,
        splits_sequence=splits and tensor > 1,
        stages=int(row["pp"]),
        chunks=int(row["vpp"] or 1),
        sharding=SHARDINGS.get(row["zero"], "replicated"),
        overlaps=not is_early,
    )


def _rejection(row: Row) -> str:
    """Return the reason why a row of the large table is not rebuilt, ``""`` if it is."""
    splits_model = row["tp"] not in ("", "1") or row["pp"] not in ("", "1")
    is_sharded = SHARDINGS.get(row["zero"]) == "fsdp"
    checks = {
        "failed or out of memory": row["status"] != "ok",
        "trust other than good": row["trust"] != "good" or row["consistent"] != "1",
        "experts": bool(row["experts"]),
        "fine-tuning": row["task"] != "pretrain",
        "float8": _precision(row) not in HALVES,
        "context parallelism": row["cp"] not in ("", "1"),
        "sizes or layout not published": not all(row[name] for name in NEEDED),
        MIXED: is_sharded and splits_model,
        SLOW_NETWORK: row["source"] == "nanotron-sweep" and row["nodes"] != "1",
        "cards without a sheet": not card_of(row["gpu"], ""),
    }
    return next((reason for reason, applies in checks.items() if applies), "")


SLOW_NETWORK = "several machines of nanotron, whose network is slower than its data sheet"


def _precision(row: Row) -> str:
    """Return the first word of a precision in small letters."""
    words = row["precision"].lower().replace("?", "").replace(",", " ").split()
    return words[0] if words else ""
