"""Programs that name their device themselves, or leave that to a library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from tests.zoo.steps import Data, Program, Step
from tests.zoo.user_steps import PICTURES, WORDS, Own, sentences


class OnCuda(Step):
    """Names cuda, copies on a stream of its own, and waits for the device."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.device != "cpu":
            self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            self.model.cuda()
            self.side = torch.cuda.Stream()

    def copied(self) -> dict[str, torch.Tensor]:
        if self.device == "cpu":
            return dict(self.inputs)
        with torch.cuda.stream(self.side):
            copies = {k: v.cuda(non_blocking=True) for k, v in self.inputs.items()}
        torch.cuda.current_stream().wait_stream(self.side)
        return copies

    def __call__(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        weights = torch.tensor([1.0, 2.0, 0.5, 1.0, 1.0], device=self.device)
        data = self.copied()
        scores = self.model(data["images"])
        loss = functional.cross_entropy(scores, data["target"], weight=weights) * torch.tensor(2.0)
        loss.backward()
        self.optimizer.step()
        if self.device != "cpu":
            torch.cuda.synchronize()
        return loss.detach()


class Accelerated(Step):
    """Prepared by Accelerate, whose state knows one device at a time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)
        self.accelerator = Accelerator(cpu=self.device == "cpu")
        self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)

    def __call__(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        data = {k: v.to(self.accelerator.device) for k, v in self.inputs.items()}
        loss = self.loss(self.model, data)
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()


class Distributed(Step):
    """Gradients reduced among processes, of which there is one."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.device != "cpu":
            from torch import distributed

            distributed.init_process_group("nccl", rank=0, world_size=1)
            self.reduced = torch.nn.parallel.DistributedDataParallel(self.model.cuda())

    def __call__(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        model = getattr(self, "reduced", self.model)
        loss = self.loss(model, {k: v.to(self.device) for k, v in self.inputs.items()})
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Trained(Step):
    """The trainer of transformers, step by step."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        from accelerate.state import AcceleratorState
        from transformers import Trainer, TrainingArguments

        AcceleratorState._reset_state(reset_partial_state=True)
        options = TrainingArguments("build/trainer", report_to=[], use_cpu=self.device == "cpu")
        self.trainer = Trainer(self.model, options, optimizers=(self.optimizer, None))
        self.trainer.current_gradient_accumulation_steps = 1

    def __call__(self) -> torch.Tensor:
        self.model.zero_grad()
        loss = self.trainer.training_step(self.model, dict(self.inputs))
        self.optimizer.step()
        return loss


def classifier() -> torch.nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=WORDS, intermediate_size=64, num_labels=5, **sizes)
    return BertForSequenceClassification(config)


def labelled(batch: int) -> Data:
    data = sentences(batch)
    return {"input_ids": data["words"], "labels": data["target"]}


PROGRAMS: Mapping[str, Own] = {
    "program/cuda": Own(PICTURES, OnCuda),
    "program/accelerate": Own(PICTURES, Accelerated),
    "program/ddp": Own(PICTURES, Distributed),
    "program/trainer": Own(
        Program(classifier, labelled, lambda model, data: model(**data).loss), Trained
    ),
}
