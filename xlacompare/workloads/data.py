"""Input data: what installed packages ship, and synthetic images. Nothing is downloaded."""

from __future__ import annotations

import functools
import hashlib
import pydoc_data.topics

import numpy as np

from xlacompare.workloads import spec


@functools.cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's handwritten digits (UCI, 1797 images).

    Returns:
      Images [1797, 8, 8, 1] float32, standardised with one mean and one standard deviation, and labels [1797] int32.
    """
    import sklearn.datasets  # here, so that the parent of a run without digits does not pay for the import

    bunch = sklearn.datasets.load_digits()
    images = np.asarray(bunch.images, np.float64)[..., None]
    images = (images - images.mean()) / images.std()
    return images.astype(np.float32), np.asarray(bunch.target, np.int32)


@functools.cache
def text() -> np.ndarray:
    """The language reference that every CPython carries (`pydoc_data.topics`), as UTF-8 bytes [n] uint8.

    Its text differs by Python version; `text_fingerprint` tells versions apart.
    """
    topics = pydoc_data.topics.topics
    joined = "\n".join(topics[key] for key in sorted(topics))
    return np.frombuffer(joined.encode("utf-8"), np.uint8)


def text_fingerprint() -> str:
    """SHA-256 of the text, in hex: equal where two machines train on the same bytes."""
    return hashlib.sha256(text().tobytes()).hexdigest()


def draw_digits(seed: int, batch_size: int, count: int) -> list[spec.Arrays]:
    """Batches of `inputs` [batch, 8, 8, 1] and `labels` [batch], without repetition until all images were used."""
    images, labels = digits()
    generator = np.random.default_rng(seed)
    order = np.concatenate([generator.permutation(len(labels)) for _ in range(-(-batch_size * count // len(labels)))])
    chunks = (order[i * batch_size : (i + 1) * batch_size] for i in range(count))
    return [{"inputs": images[chunk], "labels": labels[chunk]} for chunk in chunks]


def draw_text(seed: int, batch_size: int, length: int, count: int) -> list[spec.Arrays]:
    """Batches of `inputs` and `labels` [batch, length] int32: bytes at random offsets, and the next byte of each."""
    stream = text()
    generator = np.random.default_rng(seed)
    batches = []
    for _ in range(count):
        starts = generator.integers(0, len(stream) - length - 1, batch_size)
        windows = stream[starts[:, None] + np.arange(length + 1)].astype(np.int32)
        batches.append({"inputs": windows[:, :-1].copy(), "labels": windows[:, 1:].copy()})
    return batches


def draw_images(seed: int, batch_size: int, shape: tuple[int, ...], classes: int, count: int) -> list[spec.Arrays]:
    """Synthetic images [batch, height, width, channel] of standard normal float32, and uniform labels [batch]."""
    generator = np.random.default_rng(seed)
    return [
        {
            "inputs": generator.standard_normal((batch_size, *shape), np.float32),
            "labels": generator.integers(0, classes, batch_size, np.int32),
        }
        for _ in range(count)
    ]


def dropout_mask(generator: np.random.Generator, shape: tuple[int, ...], rate: float) -> np.ndarray:
    """float32 mask: 0 with probability `rate`, else 1 / (1 - rate)."""
    kept = generator.random(shape, np.float32) >= rate
    return kept.astype(np.float32) / np.float32(1 - rate)


def initial_values(tensors: tuple[spec.TensorSpec, ...], seed: int, gain: float = 2.0) -> spec.Arrays:
    """float32 initial values by name, each tensor from a stream of its own (its name is part of the seed).

    Kernels are normal with standard deviation sqrt(gain / fan_in): gain 2 before a relu (He et al. 2015), 1 elsewhere;
    embeddings have 0.02, as GPT-2. Biases, scales and running statistics are near their usual start but not on it, so
    that a lost bias, a swapped scale or a running mean that is never read cannot hide.
    """
    return {tensor.name: _initial_value(tensor, seed, gain).astype(np.float32) for tensor in tensors}


def _initial_value(tensor: spec.TensorSpec, seed: int, gain: float) -> np.ndarray:
    digest = hashlib.sha256(tensor.name.encode()).digest()
    normal = np.random.default_rng([seed, int.from_bytes(digest[:8], "little")]).standard_normal(tensor.shape)
    last = tensor.name.rsplit(".", 1)[-1]
    if last in ("bias", "mean"):
        return 0.1 * normal
    if last == "scale":
        return 1 + 0.1 * normal
    if last == "var":
        return 1 + 0.1 * np.abs(normal)
    if last == "embedding":
        return 0.02 * normal
    return np.sqrt(gain / np.prod(tensor.shape[:-1])) * normal


def state_bytes(tensors: tuple[spec.TensorSpec, ...], optimizer: spec.OptimizerSpec, dtype: str) -> int:
    """Bytes of one read and one write of all parameters and the optimizer's state (kept in float32 under bfloat16)."""
    copies = {"sgd": 2, "adamw": 3}[optimizer.name]
    return 2 * copies * count_elements(tensors) * (8 if dtype == "float64" else 4)


def activation_bytes(elements: int, dtype: str) -> int:
    """Bytes of one write and one read of `elements` activations."""
    return 2 * elements * {"float64": 8, "float32": 4, "bfloat16": 2}[dtype]


def count_elements(tensors: tuple[spec.TensorSpec, ...]) -> int:
    """Elements of all tensors together."""
    return sum(int(np.prod(tensor.shape)) for tensor in tensors)
