"""Reads the output of `tooltune verify RUN --logits FILE` as PyTorch tensors, and computes a transformers model's logits for the same prompts."""

from pathlib import Path

import torch

from logits_file import read_prompts


def prompts_of(path: Path) -> list:
    """[(input_ids [n] i64, logits [n, vocab] f32)], or exits with an error message."""
    return [(torch.from_numpy(ids), torch.from_numpy(logits)) for ids, logits in read_prompts(path)]


def logits_of(model, ids: torch.Tensor) -> torch.Tensor:
    """[n, vocab] f32."""
    with torch.no_grad():
        return model(input_ids=ids[None], use_cache=False).logits[0].float()
