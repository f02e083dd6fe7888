"""Reads the output of `tooltune verify RUN --logits FILE`: safetensors with `prompt<k>.input_ids` [n] and `prompt<k>.logits` [n, vocab]."""

from pathlib import Path

import numpy
from safetensors import SafetensorError
from safetensors.numpy import load_file


def read_prompts(path: Path) -> list:
    """[(input_ids [n] i64, logits [n, vocab] f32)], or exits with an error message."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise SystemExit(f"{path}: not a readable safetensors file: {error}")
    prompts = []
    while f"prompt{len(prompts)}.input_ids" in tensors:
        k = len(prompts)
        ids, logits = tensors[f"prompt{k}.input_ids"], tensors.get(f"prompt{k}.logits")
        if logits is None or logits.ndim != 2 or ids.shape != logits.shape[:1]:
            raise SystemExit(f"{path}: prompt{k}.logits must be [n, vocab] for prompt{k}.input_ids [n]")
        if not numpy.isfinite(logits).all():
            raise SystemExit(f"{path}: prompt{k}.logits has non-finite values")
        prompts.append((ids.astype(numpy.int64), logits.astype(numpy.float32)))
    if not prompts:
        raise SystemExit(f"{path}: has no prompt0.input_ids; it has {', '.join(sorted(tensors)[:5]) or 'no tensors'}")
    return prompts
