#!/usr/bin/env python3
"""Loads a merged model with transformers, using only its folder, and compares its logits with the checkpoint's.

The checkpoint's logits come from `tooltune verify RUN --logits FILE`. Both sides compute in f32. Merged weights with 16 bits are
rounded once more than the checkpoint's, which changes each by at most 2^-9 (bf16) or 2^-11 (f16) of its value.
"""

import argparse
import importlib.metadata
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Replaces the directory of this file, whose modules would hide packages.
sys.path[0] = str(ROOT / "scripts")

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from hf_logits import logits_of, prompts_of

F32_BOUND, ROUNDED_SHARE = 1e-4, 0.02


def stored_dtypes(folder: Path) -> set:
    found = set()
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            found |= {tensors.get_slice(name).get_dtype() for name in tensors.keys()}
    return found


def check_token_ids(folder: Path, model, tokenizer) -> None:
    """Exits unless the ids of config.json and generation_config.json are in the vocabulary and equal the tokenizer's."""
    for role in ("bos", "eos", "pad"):
        token = getattr(tokenizer, f"{role}_token_id")
        for name, config in (("config.json", model.config), ("generation_config.json", model.generation_config)):
            value = getattr(config, f"{role}_token_id", None)
            ids = value if isinstance(value, list) else [value] if value is not None else []
            if any(not 0 <= id < model.config.vocab_size for id in ids):
                raise SystemExit(f"{folder}/{name}: {role}_token_id {value} is outside the vocabulary")
            if ids and token is not None and token not in ids:
                raise SystemExit(f"{folder}/{name}: {role}_token_id is {value}, but the tokenizer has {token}")


def compared(folder: Path, logits: Path) -> dict:
    """Compares the logits of transformers with tooltune's; exits if the tokens of a prompt or special token ids differ."""
    dtypes = stored_dtypes(folder)
    if not dtypes:
        raise SystemExit(f"{folder}: no safetensors; write them with `tooltune export RUN --to merged --output DIR`")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    check_token_ids(folder, model, tokenizer)
    prompts, worst, largest = prompts_of(logits), 0.0, 0.0
    same = total = 0
    for k, (ids, ours) in enumerate(prompts):
        theirs = logits_of(model, ids)
        difference = float((theirs - ours).abs().max())
        # NaN is worse than any number.
        worst = worst if difference <= worst else difference
        largest = max(largest, float(ours.abs().max()))
        same += int((theirs.argmax(-1) == ours.argmax(-1)).sum())
        total += len(ids)
        again = tokenizer(tokenizer.decode(ids), add_special_tokens=False)["input_ids"]
        if again != ids.tolist():
            raise SystemExit(f"prompt{k}: the folder's tokenizer gives different tokens for the prompt")
    bound = F32_BOUND if dtypes == {"F32"} else ROUNDED_SHARE * largest
    return {
        "dtypes": dtypes, "prompts": len(prompts), "worst": worst, "bound": bound, "largest": largest, "same": same, "total": total,
        # With an infinite logit the bound would allow everything.
        "agrees": math.isfinite(bound) and worst <= bound,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="output of `tooltune export RUN --to merged`")
    parser.add_argument("logits", type=Path, help="file from `tooltune verify RUN --logits FILE`")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    found = compared(arguments.model, arguments.logits)
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("torch", "transformers", "tokenizers", "safetensors"))
    verdict = "agrees with" if found["agrees"] else "DIFFERS from"
    print(
        f"{arguments.model} ({', '.join(sorted(found['dtypes']))}) {verdict} the checkpoint in transformers: {found['prompts']} prompts, "
        f"largest difference of a logit {found['worst']:.2e} (bound {found['bound']:.2e}, largest logit {found['largest']:.1f}), the most "
        f"likely token agrees at {found['same']} of {found['total']} positions, the prompts' tokens are the same ({versions})"
    )
    return 0 if found["agrees"] else 1


if __name__ == "__main__":
    sys.exit(main())
