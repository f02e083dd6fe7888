#!/usr/bin/env python3
"""Compares a GGUF adapter, read by the `gguf` package, with the same adapter in PEFT's format.

Names come from gguf's own table (`get_tensor_name_map`), and the order of rows and columns from the formulas of llama.cpp's
converter. The scaling of each module comes from PEFT's rules on one side, and is `alpha / rank`, as in llama.cpp, on the other. The
script compares metadata, names, shapes, formats, and A and `scaling * B` of every module. If no scaling is folded into B, both
factors must be equal bit for bit. From the base model, only the architecture and the numbers of heads are read.
"""

import argparse
import json
import re
import sys
from pathlib import Path

# Replaces the directory of this file, whose modules would hide packages.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import gguf
import numpy
from safetensors import safe_open

from model_families import PERMUTED, families

PREFIX = "base_model.model."
ARCHITECTURES = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
# Relative error of one rounding to each format, with a margin for the f32 product.
ROUNDING = {"F32": 2.0**-23, "F16": 2.0**-11 * 1.001, "BF16": 2.0**-8 * 1.001}
# Below the normal numbers of f16 the error is absolute.
F16_TINY = 2.0**-25


# The fields for the heads of linear attention in config.json and in GGUF. In GGUF the last is the size of all value heads together.
LINEAR = {
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_key_head_dim": "ssm.state_size",
    "linear_value_head_dim": "ssm.inner_size",
}


def read_linear(path: Path) -> tuple:
    """For linear attention: (key heads, value heads, size of a key head, size of a value head); empty for other models."""
    if path.suffix == ".gguf":
        fields = gguf.GGUFReader(path).fields
        arch = fields["general.architecture"].contents()
        keys = [f"{arch}.{key}" for key in LINEAR.values()]
        if keys[0] not in fields:
            return ()
        n_key, n_value, key_dim, values = (fields[key].contents() for key in keys)
        return n_key, n_value, key_dim, values // n_value
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    return tuple(config[key] for key in LINEAR) if "linear_num_key_heads" in config else ()


def read_base(path: Path) -> tuple:
    """(architecture, query heads, key heads, number of layers)"""
    if path.suffix == ".gguf":
        fields = gguf.GGUFReader(path).fields
        arch = fields["general.architecture"].contents()
        n_q = fields[f"{arch}.attention.head_count"].contents()
        n_kv = fields[f"{arch}.attention.head_count_kv"].contents() if f"{arch}.attention.head_count_kv" in fields else n_q
        return ARCHITECTURES[arch], n_q, n_kv, fields[f"{arch}.block_count"].contents()
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    n_q = config["num_attention_heads"]
    architecture = families()[config["model_type"]]["architecture"]
    return ARCHITECTURES[architecture], n_q, config.get("num_key_value_heads") or n_q, config["num_hidden_layers"]


def read_peft(directory: Path) -> tuple:
    """(config, module -> (A, B))"""
    config = json.loads((directory / "adapter_config.json").read_text(encoding="utf-8"))
    with safe_open(directory / "adapter_model.safetensors", "numpy") as file:
        tensors = {key.removeprefix(PREFIX): file.get_tensor(key) for key in file.keys()}
    modules = {key.removesuffix(".lora_A.weight") for key in tensors if key.endswith(".lora_A.weight")}
    return config, {m: (tensors[f"{m}.lora_A.weight"], tensors[f"{m}.lora_B.weight"]) for m in sorted(modules)}


def peft_scaling(config: dict, module: str, rank: int) -> float:
    def by_pattern(patterns, default):
        return next((value for key, value in (patterns or {}).items() if re.match(rf"(.*\.)?({key})$", module)), default)

    expected = by_pattern(config.get("rank_pattern"), config["r"])
    if expected != rank:
        raise SystemExit(f"{module}: the config gives rank {expected}, its factors have {rank}")
    alpha = by_pattern(config.get("alpha_pattern"), config["lora_alpha"])
    return alpha / (rank**0.5 if config.get("use_rslora") else rank)


def permuted(weights: numpy.ndarray, n_head: int) -> numpy.ndarray:
    """`LlamaModel.permute` of convert_hf_to_gguf.py."""
    return weights.reshape(n_head, 2, weights.shape[0] // n_head // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def by_turns(weights: numpy.ndarray, axis: int, first: int, n_key: int, width: int) -> numpy.ndarray:
    """`_LinearAttentionVReorderBase._reorder_v_heads` of conversion/qwen.py: interleaves the value heads after `first` rows or columns."""
    kept, values = numpy.split(weights, [first], axis)
    shape = values.shape
    heads = values.reshape(*shape[:axis], n_key, -1, width, *shape[axis + 1 :])
    return numpy.concatenate([kept, heads.swapaxes(axis, axis + 1).reshape(shape)], axis)


def ordered_linear(module: str, a: numpy.ndarray, b: numpy.ndarray, heads: tuple) -> tuple:
    """Returns A and B of a linear attention module in the converter's order."""
    n_key, _, key_dim, value_dim = heads
    kind = module.rpartition(".linear_attn.")[2]
    if kind == "out_proj":
        return by_turns(a, 1, 0, n_key, value_dim), b
    first = 2 * n_key * key_dim if kind == "in_proj_qkv" else 0
    width = 1 if kind in ("in_proj_a", "in_proj_b") else value_dim
    return a, by_turns(b, 0, first, n_key, width)


def values_of(tensor) -> numpy.ndarray:
    kind = tensor.tensor_type
    shape = tuple(int(dim) for dim in reversed(tensor.shape))
    if kind.name == "BF16":
        bits = tensor.data.view(numpy.uint16).astype(numpy.uint32) << 16
        return bits.view(numpy.float32).reshape(shape)
    return tensor.data.astype(numpy.float32).reshape(shape)


def close(ours: numpy.ndarray, wanted: numpy.ndarray, rounding: float, tiny: float) -> bool:
    return bool((numpy.abs(ours - wanted) <= rounding * numpy.abs(wanted) + tiny).all())


def compare(peft: Path, adapter: Path, base: Path) -> list:
    """Returns the differences as lines, and prints a summary."""
    arch, n_q, n_kv, n_layers = read_base(base)
    linear = read_linear(base)
    config, modules = read_peft(peft)
    reader = gguf.GGUFReader(adapter)
    differences = []
    wanted = {
        "general.type": "adapter",
        "general.architecture": gguf.MODEL_ARCH_NAMES[arch],
        "adapter.type": "lora",
    }
    for key, value in wanted.items():
        found = reader.fields[key].contents() if key in reader.fields else None
        if found != value:
            differences.append(f"{key} is {found!r}, expected {value!r}")
    alpha_field = reader.fields["adapter.lora.alpha"]
    if alpha_field.types != [gguf.GGUFValueType.FLOAT32]:
        differences.append(f"adapter.lora.alpha is {alpha_field.types}, not f32")
    alpha = float(alpha_field.contents())
    if reader.alignment != 32 or any(t.data_offset % 32 for t in reader.tensors):
        differences.append("tensors do not begin at multiples of 32 bytes")
    tensors = {t.name: t for t in reader.tensors}
    names = gguf.get_tensor_name_map(arch, n_layers)
    n_exact, n_folded, formats = 0, 0, set()
    for module, (a, b) in modules.items():
        name = names.get_name(f"{module}.weight", try_suffixes=(".weight",))
        halves = [tensors.pop(f"{name}.lora_{half}", None) for half in "ab"]
        if None in halves:
            differences.append(f"{module}: {name}.lora_a or .lora_b is missing")
            continue
        formats |= {half.tensor_type.name for half in halves}
        rank = a.shape[0]
        # ggml counts dimensions from the innermost: [in, rank] and [rank, out].
        shapes = [[a.shape[1], rank], [rank, b.shape[0]]]
        found = [[int(dim) for dim in half.shape] for half in halves]
        if found != shapes:
            differences.append(f"{module}: the factors have the shapes {found}, expected {shapes}")
            continue
        rounding, tiny = ROUNDING[halves[0].tensor_type.name], F16_TINY if halves[0].tensor_type.name == "F16" else 0.0
        if gguf.MODEL_ARCH_NAMES[arch] in PERMUTED and module.endswith((".q_proj", ".k_proj")):
            b = permuted(b, n_q if module.endswith(".q_proj") else n_kv)
        if ".linear_attn." in module:
            a, b = ordered_linear(module, a, b, linear)
        ours_a, ours_b = (values_of(half) for half in halves)
        exact = halves[0].tensor_type.name == "F32"
        if not (numpy.array_equal(ours_a, a) if exact else close(ours_a, a, rounding, tiny)):
            differences.append(f"{module}: A differs")
        scaling = peft_scaling(config, module, rank)
        theirs = float(numpy.float32(alpha) / numpy.float32(rank)) if alpha else 1.0
        factor = scaling / theirs
        if abs(factor - 1) < 1e-6:
            n_exact += 1
            same = numpy.array_equal(ours_b, b) if exact else close(ours_b, b, rounding, tiny)
        else:
            n_folded += 1
            same = close(ours_b.astype(numpy.float64), b.astype(numpy.float64) * factor, 2 * rounding, tiny)
        if not same:
            differences.append(f"{module}: scaling * B differs")
    differences += [f"{name} belongs to no module of {peft}" for name in tensors]
    print(
        f"{adapter}: {len(modules)} modules, {', '.join(sorted(formats))}, alpha {alpha:g}; "
        f"B as in {peft} for {n_exact}, with a folded scaling for {n_folded}."
    )
    return differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peft", type=Path, help="directory with adapter_config.json and adapter_model.safetensors")
    parser.add_argument("adapter", type=Path, help="the GGUF file")
    parser.add_argument(
        "--base", type=Path, default=Path("models/smollm2-135m-instruct.gguf"), help="a GGUF file or a Hugging Face directory"
    )
    arguments = parser.parse_args()
    for path in (arguments.peft / "adapter_config.json", arguments.adapter, arguments.base):
        if not path.exists():
            raise SystemExit(f"{path}: no such file")
    differences = compare(arguments.peft, arguments.adapter, arguments.base)
    for line in differences[:20]:
        print(line)
    verdict = f"DIFFERS in {len(differences)} places" if differences else "agrees"
    print(f"The GGUF adapter {verdict}.")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
