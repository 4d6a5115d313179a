"""Small random data in the formats that programs of others read."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

WORDS = 200


def write_digits(folder: Path) -> None:
    """Write images and labels in MNIST's format."""
    draw = np.random.default_rng(0)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for kind, count in (("train", 2048), ("t10k", 128)):
        pixels = draw.integers(0, 256, count * 784, dtype=np.uint8).tobytes()
        labels = draw.integers(0, 10, count, dtype=np.uint8).tobytes()
        images_header = struct.pack(">IIII", 2051, count, 28, 28)
        (raw / f"{kind}-images-idx3-ubyte").write_bytes(images_header + pixels)
        (raw / f"{kind}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels)


def write_text(folder: Path) -> None:
    """Write files of random words, one sentence a line."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for kind in ("train", "valid", "test"):
        lines = [" ".join(f"w{word}" for word in draw.integers(0, WORDS, 20)) for _ in range(200)]
        (folder / f"{kind}.txt").write_text("\n".join(lines) + "\n")


def write_images(folder: Path) -> None:
    """Write images of two classes, each in a folder, for training and for validation."""
    draw = np.random.default_rng(0)
    for kind in ("train", "validation"):
        for name in ("first", "second"):
            (folder / kind / name).mkdir(parents=True)
            for number in range(40):
                pixels = draw.integers(0, 256, (40, 40, 3), dtype=np.uint8)
                (folder / kind / name / f"{number}.png").write_bytes(png(pixels))


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return an image of 8 bits a channel as a PNG file."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # each row is stored unfiltered
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in content
    )


def write_tokens(folder: Path) -> None:
    """Write files of random tokens in 16 bits."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for kind in ("train", "val"):
        draw.integers(0, WORDS, 10_000, dtype=np.uint16).tofile(folder / f"{kind}.bin")
