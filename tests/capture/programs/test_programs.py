"""Programs of others, unmodified: captured, all ops known, and torch's count of operations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from irgraph.ir.graph import Graph
from irgraph.ops.flops import flops
from irgraph.predict.options import PredictOptions
from irgraph.predict.prediction import predict
from irgraph.text import parse
from tests.capture.programs.captured import MARK
from tests.capture.programs.stand_ins import write_digits, write_images, write_text, write_tokens
from tests.conftest import NO_PROGRAMS

ROOT = Path(__file__).parents[3]
RECURRENT = ("_cudnn_rnn", "_cudnn_rnn_backward")
ATTENTION_BACKWARD = (
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention_backward",
)
LANGUAGE = ("--data", "data/text", "--batch_size", "8", "--use-optimizer", "--dropout", "0")
SMALL_GPT = (
    "--dataset=tokens", "--compile=False", "--batch_size=4", "--block_size=32", "--n_layer=2",
    "--n_head=2", "--n_embd=64", "--gradient_accumulation_steps=2", "--eval_iters=1",
    "--eval_interval=1000", "--always_save_checkpoint=False",
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A program with its arguments, those on a CPU or an accelerator alone, and its folder."""

    path: str
    arguments: tuple[str, ...] = ()
    cpu: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    folder: str = "work/run"


EXAMPLES = "pytorch-examples"

PROGRAMS = {
    "lstm": Program(f"{EXAMPLES}/word_language_model/main.py", LANGUAGE, cuda=("--accel",)),
    "transformer": Program(
        f"{EXAMPLES}/word_language_model/main.py",
        (*LANGUAGE, "--model", "Transformer"),
        cuda=("--accel",),
    ),
    "nanogpt": Program(
        "nanoGPT/train.py", SMALL_GPT, cpu=("--device=cpu", "--dtype=float32"), folder="nanoGPT"
    ),
    "mnist": Program(f"{EXAMPLES}/mnist/main.py", ("--batch-size", "16")),
    "mnist_rnn": Program(
        f"{EXAMPLES}/mnist_rnn/main.py", ("--batch-size", "16"), cuda=("--accel",)
    ),
    "siamese": Program(f"{EXAMPLES}/siamese_network/main.py", ("--batch-size", "4")),
    "vae": Program(f"{EXAMPLES}/vae/main.py", ("--batch-size", "16")),
    "dcgan": Program(
        f"{EXAMPLES}/dcgan/main.py",
        ("--dataset", "fake", "--batchSize", "8", "--workers", "0"),
        cuda=("--accel",),
    ),
    "imagenet": Program(
        f"{EXAMPLES}/imagenet/main.py", ("--dummy", "-b", "4", "--workers", "0", "--gpu", "0")
    ),
    "timm": Program(
        "timm_train.py",
        (
            "data/images",
            "--model=resnet18",
            "-b=8",
            "--epochs=1",
            "--workers=0",
            "--num-classes=2",
            "--img-size=32",
            "--no-prefetcher",
            "--output=out",
        ),
        cpu=("--device=cpu",),
    ),
}
"""Programs, all but the first three with torchvision, the last one with timm."""


@pytest.fixture(scope="session")
def unpacked(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the programs' archives unpacked, and with data in their formats."""
    archives = data_dir.parent / "programs"
    if not archives.is_dir():
        pytest.skip(NO_PROGRAMS)
    folder = tmp_path_factory.mktemp("programs")
    for name in (EXAMPLES, "nanoGPT"):
        with tarfile.open(archives / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    shutil.copy(archives / "timm_train.py", folder)
    run = folder / "work" / "run"
    run.mkdir(parents=True)
    (run / "results").mkdir()
    write_digits(folder / "work" / "data")
    write_text(run / "data" / "text")
    write_tokens(run / "data" / "tokens")
    write_images(run / "data" / "images")
    (folder / "data").symlink_to(folder / "work" / "data")
    for path in (run / "data" / "text", run / "data" / "tokens"):
        (folder / "nanoGPT" / "data" / path.name).symlink_to(path)
    return folder


def output(*command: str, folder: Path) -> str:
    """Return the output of a Python process in a folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    ran = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def comparable_flops(graph: Graph) -> int:
    """Return the operations of a step that torch counts on a CPU as well.

    It does not count recurrent layers there, and scores of attention are not computed again in the
    backward pass: one of five products.
    """
    total = 0
    for op in graph.leaves():
        count = flops(op)
        assert count is not None, op.name
        if op.base in RECURRENT:
            continue
        total += count * 4 // 5 if op.base in ATTENTION_BACKWARD else count
    return total


def check_program(program: Program, unpacked: Path) -> None:
    """Capture a program and compare its operations with those that torch counts on the CPU."""
    path, folder = str(unpacked / program.path), unpacked / program.folder
    on_cpu = (*program.arguments, *program.cpu)
    counted = output("tests.capture.programs.counted", path, *on_cpu, folder=folder)
    captured = output(
        "tests.capture.programs.captured", path, *program.arguments, *program.cuda, folder=folder
    )
    graph = parse(captured.partition(MARK)[2])
    assert comparable_flops(graph) == int(counted.split()[-1]) > 0
    assert not predict(graph, PredictOptions(device="a100")).priced.unknown


@pytest.mark.data
def test_a_program_counts_the_operations_of_torch(unpacked: Path) -> None:
    check_program(PROGRAMS["nanogpt"], unpacked)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"nanogpt"}))
def test_other_programs_count_the_operations_of_torch(name: str, unpacked: Path) -> None:
    check_program(PROGRAMS[name], unpacked)
