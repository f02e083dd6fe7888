"""The logits that `tooltune verify RUN --logits FILE` wrote, and those of a model in transformers for the same prompts.

The file is safetensors with `prompt<k>.input_ids` [n] (integers) and `prompt<k>.logits` [n, vocab] (f32).
"""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file


def read_prompts(path: Path) -> list:
    """[(input_ids [n], logits [n, vocab])], or an exit that says what is wrong with the file."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise SystemExit(f"{path}: not a readable safetensors file: {error}")
    prompts = []
    while f"prompt{len(prompts)}.input_ids" in tensors:
        k = len(prompts)
        ids, logits = tensors[f"prompt{k}.input_ids"].long(), tensors.get(f"prompt{k}.logits")
        if logits is None or logits.dim() != 2 or ids.shape != logits.shape[:1]:
            raise SystemExit(f"{path}: prompt{k}.logits must be [n, vocab] beside prompt{k}.input_ids [n]")
        if not torch.isfinite(logits).all():
            raise SystemExit(f"{path}: prompt{k}.logits holds values that are not finite")
        prompts.append((ids, logits.float()))
    if not prompts:
        raise SystemExit(f"{path}: holds no prompt0.input_ids; it has {', '.join(sorted(tensors)[:5]) or 'no tensors'}")
    return prompts


def logits_of(model, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids[None], use_cache=False).logits[0].float()
