#!/usr/bin/env python3
"""Compares an export in NF4 with transformers and bitsandbytes; started by scripts/verify/nf4.

`PLAIN NF4 DEQUANTISED`: compares the folder NF4 with the codes that bitsandbytes computes for PLAIN in bf16, and its values in
transformers with the folder DEQUANTISED. bitsandbytes' CPU kernel rounds absmax values to 65,535 steps before it looks for the nearest
8-bit value, so up to one in a hundred of these may be the neighbouring value.
"""

import importlib.metadata
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Replaces the directory of this file, whose modules would hide packages.
sys.path[0] = str(ROOT / "scripts")

import torch
from bitsandbytes import functional as bnb
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

# Distance between the values to which bitsandbytes' CPU kernel rounds absmax values, and the share that may have another code.
STEP = 2 / 65_535
NEIGHBOURS = 0.01


def tensors_of(folder: str) -> dict:
    tensors = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def check(is_equal: bool, what: str) -> None:
    if not is_equal:
        raise SystemExit(f"verify/nf4: {what}")


def weights(source: str, nf4: str, dequantised: str) -> None:
    plain, ours, values = tensors_of(source), tensors_of(nf4), tensors_of(dequantised)
    loaded = AutoModelForCausalLM.from_pretrained(nf4, dtype=torch.bfloat16, device_map="cpu")
    n_weights = n_absmax = n_neighbours = 0
    for name, parameter in loaded.named_parameters():
        state = getattr(parameter, "quant_state", None)
        check(torch.equal(values[name].float(), (bnb.dequantize_4bit(parameter.data, state) if state else parameter).float()), f"{name}: other values in transformers")
        if state is None:
            continue
        n_weights += 1
        packed, theirs = bnb.quantize_4bit(plain[name].bfloat16(), blocksize=64, compress_statistics=True, quant_type="nf4")
        check(torch.equal(packed, ours[name]), f"{name}: other codes in bitsandbytes")
        parts = {f"{name}.{part}": tensor for part, tensor in theirs.as_dict(packed=True).items()}
        own = {part for part in ours if part.startswith(f"{name}.")}
        check(own == set(parts), f"{name}: the parts {sorted(own ^ set(parts))} differ")
        for part, tensor in parts.items():
            check((ours[part].dtype, ours[part].dim()) == (tensor.dtype, tensor.dim()), f"{part}: another type")
        first, second = ours[f"{name}.absmax"].long(), parts[f"{name}.absmax"].long()
        values_apart = (theirs.state2.code[first] - theirs.state2.code[second]).abs()
        is_near = ((first - second).abs() <= 1) | (values_apart <= 2 * STEP)
        check(bool(is_near.all()), f"{name}: an absmax differs by more than a step")
        n_absmax, n_neighbours = n_absmax + first.numel(), n_neighbours + int((first != second).sum())
        offset = torch.tensor([state.offset, theirs.offset]).view(torch.int32)
        check(abs(int(offset[0] - offset[1])) <= 1, f"{name}: another nested_offset")
    check(n_weights > 0, "transformers loaded no weight in 4 bits")
    check(n_neighbours <= NEIGHBOURS * n_absmax + 1, f"{n_neighbours} of {n_absmax} absmax values differ")
    print(
        f"{n_weights} weights have the codes of bitsandbytes, and {n_neighbours} of {n_absmax} absmax values a neighbouring code; "
        "transformers reads the values of tooltune bit for bit"
    )


def main() -> None:
    packages = ("torch", "transformers", "bitsandbytes")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages))
    weights(*sys.argv[1:])


if __name__ == "__main__":
    main()
