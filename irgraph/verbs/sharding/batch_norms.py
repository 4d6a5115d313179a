"""Batch norms of samples that ranks share: with statistics of all ranks, or of each rank.

Statistics of all ranks are computed as by ``torch.nn.SyncBatchNorm``: each rank's mean, deviation
and number of samples are gathered, and the two sums in the gradient are added up over ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from irgraph.ir.effects import written_by
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import DeviceRef, DType, Tensor
from irgraph.ops.book import names_with
from irgraph.ops.call import Call
from irgraph.ops.operator import Trait
from irgraph.ops.places import ONCE, OWN, PARTIAL, SAME, Place, split
from irgraph.verbs.sharding.choices.candidates import changed_tensors
from irgraph.verbs.sharding.choices.choice import Choice
from irgraph.verbs.sharding.local_tensors import LocalTensors

TRAINING = ("training", "train", "update")
"""Names of the flag by which a call uses the statistics of its samples."""

GRADIENT = ("grad_out", "grad_output")
SAVED = ("save_mean", "save_invstd", "save_var", "reserve", "reserveSpace")


class BatchNorms:
    """Ways to run batch norms on a rank's samples.

    Attributes:
        tensors: the rank's tensors.
        is_local: whether each rank normalises by the statistics of its samples alone.
    """

    def __init__(self, tensors: LocalTensors, *, is_local: bool) -> None:
        self.tensors, self.is_local = tensors, is_local
        self.names = names_with(Trait.BATCH_NORM)

    def choice(self, op: Op) -> Choice | None:
        """Return the way to run a norm of split samples, ``None`` for all other ops."""
        if op.name not in self.names:
            return None
        call = Call(op)
        image = call.tensor("input")
        if image is None or not self._uses_samples(call) or not self._has_samples(image):
            return None
        gradient = next(filter(None, map(call.tensor, GRADIENT)), None)
        factor = self._factor(gradient) if gradient is not None else 0
        operands = dict(self._operand_places(call, factor))
        results = {}
        for tensor in changed_tensors(op):
            results[tensor.name] = self._result_place(op, tensor, factor)
        writer = None if self.is_local else self._synchronized
        return Choice(operands, results, "n", writer=writer)

    def _uses_samples(self, call: Call) -> bool:
        flags = [call.arguments[name] for name in TRAINING if name in call.arguments]
        return all(flags)

    def _has_samples(self, image: Tensor) -> bool:
        place = self.tensors.places[image.name]
        return (place.kind, place.axis, place.outer) == ("split", 0, ONCE)

    def _factor(self, gradient: Tensor) -> int:
        """Return the power by which a gradient is too large after it is split."""
        place = self.tensors.places[gradient.name]
        return 0 if place.kind == "partial" else place.factor

    def _operand_places(self, call: Call, factor: int) -> Iterator[tuple[str, Place]]:
        for name, span in call.spans.items():
            for index in span:
                tensor = call.inputs[index]
                if tensor.rank > 1:
                    place = replace(split(0), factor=factor if name in GRADIENT else 0)
                else:
                    place = OWN if self.is_local and name in SAVED else SAME
                yield tensor.name, place

    def _result_place(self, op: Op, tensor: Tensor, factor: int) -> Place:
        if tensor.rank > 1:
            return replace(split(0), factor=factor)
        if op.base.endswith("_backward"):
            return replace(PARTIAL, factor=factor)
        is_saved = tensor not in written_by(op)
        return OWN if self.is_local and is_saved else SAME

    def _synchronized(self, op: Op, local: Mapping[str, Tensor]) -> Op:
        """Write a norm with the statistics of all ranks; return the call with its main result.

        Args:
            op: the call of the whole step.
            local: the rank's operands, by name in the whole step.
        """
        call = Call(op)
        norm = _Norm(self.tensors, call, local)
        return norm.gradients() if op.base.endswith("_backward") else norm.outputs()


class _Norm:
    """Writer of the calls of one norm."""

    def __init__(self, tensors: LocalTensors, call: Call, local: Mapping[str, Tensor]) -> None:
        self.tensors, self.write = tensors, tensors.write
        self.call, self.local = call, local
        self.image = self._dense("input")
        self.channels = self.image.shape[1]
        axes = (self.image.shape[0], *self.image.shape[2:])
        self.count = self.write.sizes.times(1, *axes)

    def _operand(self, name: str) -> Tensor | None:
        tensor = self.call.tensor(name)
        return self.local[tensor.name] if tensor is not None else None

    def _dense(self, name: str) -> Tensor:
        tensor = self._operand(name)
        assert tensor is not None
        return tensor if tensor.dense else self.write.contiguous(tensor)

    def _argument(self, *names: str) -> Value:
        return next(self.call.arguments[name] for name in names if name in self.call.arguments)

    def _statistic(self, name: str, dtype: str) -> Tensor:
        return self.write.fresh(name, dtype, [self.channels])

    def _counts(self, ranks: int, dtype: str) -> Tensor:
        """Return a list with the number of a rank's elements of a channel for some ranks."""
        counts = self.write.fresh("count", dtype, [ranks])
        attributes: dict[str, Value] = {
            "size": (ranks,),
            "fill_value": self.count,
            "dtype": DType(dtype),
            "device": DeviceRef(self.write.device),
        }
        return self.write.call("aten.full", [], counts, **attributes)

    def outputs(self) -> Op:
        """Write the forward calls; return the last."""
        write, ranks, channels = self.write, self.tensors.shares.ranks, self.channels
        output, *saved = self.call.outputs
        dtype = saved[0].dtype
        of_rank = self._statistic("mean", dtype), self._statistic("invstd", dtype)
        eps = self._argument("eps", "epsilon")
        write.ops.append(Op("aten.batch_norm_stats", (self.image,), of_rank, {"eps": eps}))
        combined = write.cat([*of_rank, self._counts(1, dtype)], 0)
        gathered = write.view(write.all_gather(combined, ranks), ranks, 2 * channels + 1)
        means, deviations, counts = (
            write.cut(gathered, 1, 0, channels),
            write.cut(gathered, 1, channels, channels),
            write.cut(gathered, 1, 2 * channels, 1),
        )
        statistics = tuple(map(self.tensors.shares.whole_tensor, saved[:2]))
        running = self._operand("running_mean"), self._operand("running_var")
        momentum = self._argument("momentum", "exponential_average_factor")
        operands = (self.image, means, deviations, *running, momentum, eps, write.flat(counts))
        name = "aten.batch_norm_gather_stats_with_counts"
        write.ops.append(Op(name, operands, statistics))
        weight, bias = self._operand("weight"), self._operand("bias")
        normalised = self._like_image(output)
        return Op(
            "aten.batch_norm_elemt", (self.image, weight, bias, *statistics, eps), (normalised,)
        )

    def gradients(self) -> Op:
        """Write the backward calls; return the last."""
        write, channels = self.write, self.channels
        gradient = self._dense("grad_out" if self.call.tensor("grad_out") else "grad_output")
        mean = self._operand("save_mean")
        deviation = self._operand("save_invstd") or self._operand("save_var")
        assert mean is not None and deviation is not None
        weight = self._operand("weight")
        outputs = [value if isinstance(value, Tensor) else None for value in self.call.op.results]
        images, *of_parameters = outputs
        sums = self._statistic("sum_dy", mean.dtype), self._statistic("sum_dy_xmu", mean.dtype)
        parameters = tuple(
            None if tensor is None else self.tensors.shares.whole_tensor(tensor)
            for tensor in of_parameters
        )
        operands = (gradient, self.image, mean, deviation, weight)
        mask = tuple(tensor is not None for tensor in outputs)
        reduction = Op("aten.batch_norm_backward_reduce", (*operands, *mask), (*sums, *parameters))
        if images is None:
            return reduction
        write.ops.append(reduction)
        total = write.cat(sums, 0)
        write.all_reduce([total], "sum")
        parts = write.cut(total, 0, 0, channels), write.cut(total, 0, channels, channels)
        counts = self._counts(self.tensors.shares.ranks, "i32")
        image_gradient = self._like_image(images)
        return Op("aten.batch_norm_backward_elemt", (*operands, *parts, counts), (image_gradient,))

    def _like_image(self, tensor: Tensor) -> Tensor:
        """Return the rank's block of a tensor, in the memory order of its images."""
        shape = self.tensors.shares.split_shape(tensor, 0)
        return replace(tensor, shape=shape, strides=self.image.strides)
