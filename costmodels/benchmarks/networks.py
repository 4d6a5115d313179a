"""Sweeps over layers as networks of today have them; the families of their kernels price them.

They complete the families' own sweeps: stems and strided windows, single gradients,
wide rows, long texts, masks, matrix units in f32, products by groups and in 8 bits.
"""

from __future__ import annotations

from collections.abc import Mapping

from costmodels.benchmarks.bench import Array, Bench, Call, Maker, gradient
from costmodels.benchmarks.sweep import Function, Sweep, backward, forward

GROUPS = 8
"""Number of groups of a grouped convolution, whose channels are a multiple of it."""

EIGHT_BITS = "float8_e4m3fn"
"""Element type of a product in 8 bits."""


def bench_product(bench: Bench) -> Call:
    """Prepare a linear layer with its bias, or one of its gradients, by the case's op."""
    torch, op = bench.torch, bench.case.op.removesuffix("_tf32")
    first, second = bench.values(bench["m"], bench["k"]), bench.values(bench["n"], bench["k"])
    if op.endswith("_gradient"):
        gradient = bench.values(bench["m"], bench["n"])
        if op == "input_gradient":
            return lambda: torch.mm(gradient, second)
        return lambda: torch.mm(gradient.t(), first)
    bias = bench.values(bench["n"])
    if op == "linear":
        return lambda: torch.nn.functional.linear(first, second, bias)
    return lambda: torch.addmm(bias, first, second.t())


def bench_rows(bench: Bench) -> Call:
    """Prepare a lookup of single rows, or its gradient by the table."""
    lookup, backward = bench.torch.nn.functional.embedding, bench.case.op.endswith("backward")
    weight = bench.values(bench["rows"], bench["dim"], grad=backward)
    indices = bench.rows(bench["rows"], bench["batch"] * bench["lookups"])
    if not backward:
        return lambda: lookup(indices, weight)
    bench.spend(weight.nbytes)
    return gradient(bench, lookup(indices, weight), weight)


def _convolution(bench: Bench) -> Call:
    """Prepare a strided convolution, or its gradient by the weights or by the data alone.

    Words of the op's name select the variant: ``depthwise`` or ``grouped``, ``last`` for
    channels-last format, ``weights`` or ``data`` for a gradient.
    """
    torch, words = bench.torch, bench.case.op.split("_")
    groups = 1
    if "grouped" in words:
        groups = GROUPS
    channels = -(-bench["channels"] // groups) * groups
    out = -(-bench["out"] // groups) * groups
    if "depthwise" in words:
        groups = out = channels

    def values(*shape: int, grad: bool) -> Array:
        tensor = bench.values(*shape)
        if "last" in words:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor.requires_grad_() if grad else tensor

    window, stride = bench["window"], bench["stride"]
    image = values(bench["batch"], channels, bench["side"], bench["side"], grad="data" in words)
    weight = values(out, channels // groups, window, window, grad="weights" in words)

    def call() -> Array:
        return torch.conv2d(image, weight, None, stride, window // 2, 1, groups)

    if "weights" in words:
        return gradient(bench, call(), weight)
    if "data" in words:
        return gradient(bench, call(), image)
    return call


def _mean_pool(bench: Bench) -> Call:
    """Prepare a pool of means over windows, or (``adaptive``) over whole images."""
    functions, words = bench.torch.nn.functional, bench.case.op.split("_")
    side, window, stride = bench["side"], bench["window"], bench["stride"]
    image = bench.values(bench["batch"], bench["channels"], side, side)
    if "last" in words:
        image = image.contiguous(memory_format=bench.torch.channels_last)
    is_gradient = "backward" in words
    image.requires_grad_(is_gradient)

    def call() -> Array:
        if "adaptive" in words:
            return functions.adaptive_avg_pool2d(image, window)
        return functions.avg_pool2d(image, window, stride)

    return gradient(bench, call(), image) if is_gradient else call


def _recurrent(bench: Bench) -> Call:
    """Prepare the pass of a recurrent layer in training, or its gradient."""
    torch, words = bench.torch, bench.case.op.split("_")
    kind = torch.nn.LSTM if "lstm" in words else torch.nn.GRU
    layer = kind(bench["inputs"], bench["hidden"], device=bench.device, dtype=bench.dtype)
    data = bench.values(bench["steps"], bench["batch"], bench["inputs"], grad=True)
    if "backward" in words:
        return gradient(bench, layer(data)[0], data, *layer.parameters())
    return lambda: layer(data)


def _attention(bench: Bench) -> Call:
    """Prepare attention without a mask, ``causal``, or with a boolean mask (``masked``)."""
    torch, words = bench.torch, bench.case.op.split("_")
    shape = (bench["batch"], bench["heads"], bench["length"], bench["dim"])
    is_gradient = "backward" in words
    heads = [bench.values(*shape, grad=is_gradient) for _ in range(3)]
    mask = None
    if "masked" in words:
        bench.spend(bench["length"] ** 2)
        mask = torch.ones(bench["length"], bench["length"], dtype=torch.bool, device=bench.device)
        mask = mask.tril()
    is_causal = "causal" in words

    def call() -> Array:
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(*heads, attn_mask=mask, is_causal=is_causal)

    return gradient(bench, call(), *heads) if is_gradient else call


def _cross_entropy(bench: Bench) -> Call:
    """Prepare a loss over a vocabulary, or its gradient by the scores."""
    is_gradient = bench.case.op.endswith("backward")
    scores = bench.values(bench["rows"], bench["cols"], grad=is_gradient)
    classes = bench.rows(bench["cols"], bench["rows"])
    bench.spend(2 * scores.nbytes)
    loss = bench.torch.nn.functional.cross_entropy
    if is_gradient:
        return gradient(bench, loss(scores, classes), scores)
    return lambda: loss(scores, classes)


def _update(bench: Bench) -> Call:
    """Prepare an optimizer's step over large tensors, or the norm of all gradients."""
    torch, op = bench.torch, bench.case.op
    weights = [bench.values(bench["elements"]) for _ in range(bench["tensors"])]
    for weight in weights:
        bench.spend(3 * weight.nbytes)
        weight.grad = torch.ones_like(weight)
    if op == "clip":
        return lambda: torch.nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
    options = {op.rpartition("_")[2]: True}
    return torch.optim.AdamW(weights, lr=1e-3, **options).step  # type: ignore[no-any-return]


def _tf32(bench: Bench) -> Call:
    """Prepare a product in f32 by the matrix units."""
    settings = bench.torch.backends.cuda.matmul
    product = bench_product(bench)

    def call() -> object:
        previous, settings.allow_tf32 = settings.allow_tf32, True
        try:
            return product()
        finally:
            settings.allow_tf32 = previous

    return call


def _scaled(bench: Bench) -> Call:
    """Prepare a product of matrices in 8 bits, scaled as wholes or (``rows``) by rows."""
    torch = bench.torch
    kind = getattr(torch, EIGHT_BITS)
    first = bench.values(bench["m"], bench["k"]).to(kind)
    second = bench.values(bench["n"], bench["k"]).to(kind)
    shapes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    if bench.case.op.endswith("rows"):
        shapes = (bench["m"], 1), (1, bench["n"])
    scales = [torch.ones(shape, device=bench.device) for shape in shapes]
    return lambda: torch._scaled_mm(first, second.t(), *scales, out_dtype=bench.dtype)


def _grouped(bench: Bench) -> Call:
    """Prepare products of equal groups of rows with one matrix each."""
    torch, groups = bench.torch, bench["batch"]
    rows = bench.values(groups * bench["m"], bench["k"])
    weights = bench.values(groups, bench["n"], bench["k"])
    ends = bench["m"] * torch.arange(1, groups + 1, device=bench.device, dtype=torch.int32)
    return lambda: torch._grouped_mm(rows, weights.transpose(1, 2), offs=ends)


def _linalg(function: Function) -> Maker:
    """Return the maker of a function of a batch of square, positive definite matrices."""

    def make(bench: Bench) -> Call:
        torch = bench.torch
        matrices = bench.values(bench["batch"], bench["side"], bench["side"])
        if bench.device != "meta":
            matrices = matrices @ matrices.mT
            matrices.diagonal(dim1=-2, dim2=-1).add_(float(bench["side"]))
        return lambda: function(torch, matrices)

    return make


_LINALG: Mapping[str, Function] = {
    "fft": lambda t, x: t.fft.fft2(x),
    "rfft": lambda t, x: t.fft.rfft(x),
    "cdist": lambda t, x: t.cdist(x, x),
    "cholesky": lambda t, x: t.linalg.cholesky_ex(x),
    "solve_triangular": lambda t, x: t.linalg.solve_triangular(x, x, upper=False),
    "lu": lambda t, x: t.linalg.lu_factor_ex(x),
    "qr": lambda t, x: t.linalg.qr(x),
    "inverse": lambda t, x: t.linalg.inv_ex(x),
    "eigh": lambda t, x: t.linalg.eigh(x),
    "svd": lambda t, x: t.linalg.svd(x, full_matrices=False),
}

_NORMS: Mapping[str, Function] = {
    "rms_norm": lambda t, x: t.rms_norm(x, x.shape[-1:], t.ones_like(x[0])),
    "wide_layer_norm": lambda t, x: t.nn.functional.layer_norm(x, x.shape[-1:]),
}

_LAYOUTS = ("", "_last")
_KINDS = ("", "_depthwise", "_grouped")
_GRADIENTS = ("", "_weights", "_data")
_PRODUCTS = ("linear", "input_gradient", "weight_gradient")
_MASKS = ("full", "causal", "masked")
_BY_WORDS = {"m": (256, 2**16), "n": (256, 2**15), "k": (256, 2**15)}

_CONVOLUTIONS = tuple(
    f"strided{kind}{grad}{layout}" for kind in _KINDS for grad in _GRADIENTS for layout in _LAYOUTS
)
_STEMS = tuple(f"stem{grad}{layout}" for grad in ("", "_weights") for layout in _LAYOUTS)
_POOLS = tuple(
    f"{kind}{grad}{layout}"
    for kind in ("mean", "mean_adaptive")
    for grad in ("", "_backward")
    for layout in _LAYOUTS
)


def _with_backward(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}{end}" for name in names for end in ("", "_backward"))


SWEEPS = {
    "strided": Sweep(
        dict.fromkeys(_CONVOLUTIONS, _convolution),
        {"batch": (4, 256), "channels": (8, 2048), "out": (8, 2048), "side": (5, 112),
         "window": (1, 7), "stride": (1, 2)},
        max_product=2.0**33,
        multiples={"channels": (1, 8, 32), "out": (1, 8, 32)},
    ),
    "stem": Sweep(
        dict.fromkeys(_STEMS, _convolution),
        {"batch": (4, 256), "channels": (1, 4), "out": (8, 1024), "side": (28, 384),
         "window": (2, 16), "stride": (1, 16)},
        max_product=2.0**31,
        multiples={"out": (8, 32)},
    ),
    "mean_pool": Sweep(
        dict.fromkeys(_POOLS, _mean_pool),
        {"batch": (4, 256), "channels": (8, 2048), "side": (7, 112), "window": (1, 7),
         "stride": (1, 3)},
        max_product=2.0**29,
    ),
    "trained_recurrent": Sweep(
        dict.fromkeys(_with_backward(("trained_lstm", "trained_gru")), _recurrent),
        {"batch": (4, 256), "steps": (4, 128), "inputs": (32, 1024), "hidden": (32, 2048)},
        max_product=2.0**33,
        multiples={"inputs": (1, 8, 64), "hidden": (1, 8, 64)},
    ),
    "wide_norm": Sweep(
        {**forward(_NORMS), **backward(_NORMS)},
        {"rows": (32, 2**16), "cols": (64, 2**14)},
        max_product=2.0**29,
        multiples={"cols": (1, 8, 64)},
    ),
    "heads": Sweep(
        dict.fromkeys(_with_backward(tuple(f"heads_{mask}" for mask in _MASKS)), _attention),
        {"batch": (1, 32), "heads": (1, 32), "length": (64, 8192), "dim": (32, 256)},
        max_product=2.0**25,
        multiples={"length": (1, 64, 64), "dim": (8, 16, 64)},
    ),
    "wide_embedding": Sweep(
        dict.fromkeys(_with_backward(("wide_embedding",)), bench_rows),
        {"rows": (1000, 200_000), "dim": (512, 4096), "batch": (1, 1), "lookups": (256, 2**16)},
        multiples={"dim": (8, 64)},
    ),
    "vocabulary": Sweep(
        dict.fromkeys(_with_backward(("vocabulary",)), _cross_entropy),
        {"rows": (256, 2**14), "cols": (2**13, 2**18)},
        max_product=2.0**30,
        multiples={"cols": (1, 8, 64)},
    ),
    "large_update": Sweep(
        dict.fromkeys(("adamw_fused", "adamw_foreach", "clip"), _update),
        {"tensors": (1, 16), "elements": (2**18, 2**26)},
        max_product=2.0**29,
    ),
    "wide_linear": Sweep(
        dict.fromkeys(_PRODUCTS, bench_product),
        _BY_WORDS,
        max_product=2.0**38,
        multiples={"m": (64,), "n": (1, 8, 64, 64), "k": (8, 64, 64)},
    ),
    "tf32": Sweep(
        dict.fromkeys(tuple(f"{name}_tf32" for name in _PRODUCTS), _tf32),
        {"m": (16, 2**14), "n": (16, 2**14), "k": (16, 2**14)},
        max_product=2.0**36,
        multiples={"n": (1, 2, 4, 64), "k": (1, 2, 4, 64)},
    ),
    "scaled": Sweep(
        dict.fromkeys(("scaled", "scaled_rows"), _scaled),
        _BY_WORDS,
        max_product=2.0**38,
        multiples={"m": (64,), "n": (64,), "k": (64,)},
    ),
    "grouped": Sweep(
        {"grouped_mm": _grouped},
        {"batch": (2, 64), "m": (16, 8192), "n": (256, 16384), "k": (256, 16384)},
        max_product=2.0**38,
        multiples={"m": (8,), "n": (64,), "k": (64,)},
    ),
    "linalg": Sweep(
        {name: _linalg(function) for name, function in _LINALG.items()},
        {"batch": (1, 256), "side": (4, 512)},
        max_product=2.0**11,
    ),
}  # fmt: skip
