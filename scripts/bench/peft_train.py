#!/usr/bin/env python3
"""One epoch of LoRA training with transformers and peft on the CPU, tuned for speed: the other side of scripts/bench/cpu.

All known optimisations are enabled: logits and loss only at supervised positions; no attention mask if causality hides
the right padding anyway; frozen base weights without gradients; fused AdamW; and, in bf16, bf16 base weights with f32
adapters under autocast. Rows are SLOT triples; prompt and answer are rendered as in tooltune. With --compile,
torch.compile compiles the layers for dynamic lengths before the first timed step.

Writes one JSON line per step: step, seconds, cpu_seconds, tokens (padding not counted), trained_tokens, peak_rss_bytes, loss.
"""

import argparse
import json
import random
import resource
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from peft.helpers import disable_input_dtype_casting
from transformers import AutoModelForCausalLM
from transformers.utils import logging

import hf_from_gguf

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
IGNORED = -100

PROMPT = (
    "Convert the following text into JSON format according to the specified schema. "
    "Ensure that both keys and values are strings, even for numerical values.\n\n"
    "Text: {text}\n\n"
    "Provide your response in the following JSON format: {schema}\n\n"
    "Please output ONLY the JSON structure and extract the attributes only present in the schema.\n\n"
    "Output:"
)


def in_schema_order(value, schema):
    """`value` with the keys of every object in schema order; other keys come last."""
    if isinstance(value, dict) and isinstance(schema, dict):
        properties = schema.get("properties", {})
        keys = [k for k in properties if k in value] + [k for k in value if k not in properties]
        return {k: in_schema_order(value[k], properties.get(k)) for k in keys}
    if isinstance(value, list) and isinstance(schema, dict):
        return [in_schema_order(item, schema.get("items")) for item in value]
    return value


def read_examples(path: Path, tokenizer) -> list:
    """[(input_ids, targets)] with targets shifted: targets[t] is predicted at t, IGNORED in the prompt."""
    examples = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        schema = json.dumps(row["json_schema"], ensure_ascii=False, separators=(",", ":"))
        turn = {"role": "user", "content": PROMPT.format(text=row["input_text"], schema=schema)}
        prompt = tokenizer.apply_chat_template([turn], add_generation_prompt=True, tokenize=False)
        answer = json.dumps(in_schema_order(row["gold"], row["json_schema"]), ensure_ascii=False)
        prompt_ids = tokenizer(prompt, add_special_tokens=False).input_ids
        answer_ids = tokenizer(answer, add_special_tokens=False).input_ids + [tokenizer.eos_token_id]
        targets = [IGNORED] * (len(prompt_ids) - 1) + answer_ids + [IGNORED]
        examples.append((prompt_ids + answer_ids, targets))
    return examples


def padded_batches(examples: list, size: int, pad: int):
    for start in range(0, len(examples), size):
        rows = examples[start : start + size]
        width = max(len(ids) for ids, _ in rows)
        input_ids = torch.full((len(rows), width), pad)
        targets = torch.full((len(rows), width), IGNORED)
        for k, (ids, row_targets) in enumerate(rows):
            input_ids[k, : len(ids)] = torch.tensor(ids)
            targets[k, : len(ids)] = torch.tensor(row_targets)
        yield input_ids, targets, None, sum(len(ids) for ids, _ in rows)


def best_fit(examples: list, room: int) -> list:
    """Best-fit decreasing: the longest first, each into the fullest pack that still has room."""
    packs = []
    for example in sorted(examples, key=lambda e: -len(e[0])):
        fitting = [p for p in packs if p["used"] + len(example[0]) <= room]
        pack = max(fitting, key=lambda p: p["used"], default=None)
        if pack is None:
            pack = {"used": 0, "examples": []}
            packs.append(pack)
        pack["used"] += len(example[0])
        pack["examples"].append(example)
    return [pack["examples"] for pack in packs]


def packed_batches(examples: list, room: int, keep_apart: bool):
    """One pack per step, without padding. If kept apart, a mask restricts each document to itself; otherwise it also attends to earlier ones."""
    for pack in best_fit(examples, room):
        input_ids = torch.tensor([[i for ids, _ in pack for i in ids]])
        targets = torch.tensor([[t for _, row in pack for t in row]])
        positions = torch.tensor([[p for ids, _ in pack for p in range(len(ids))]]) if keep_apart else None
        yield input_ids, targets, positions, input_ids.numel()


def batches_of(arguments, examples: list, pad: int):
    if arguments.batches == "padded":
        return list(padded_batches(examples, arguments.batch_size, pad))
    return list(packed_batches(examples, arguments.max_length, arguments.batches == "packed-apart"))


def loss_of(model, batch: tuple, in_bf16: bool):
    input_ids, targets, positions, _ = batch
    decoder, head = model.base_model.model.model, model.base_model.model.lm_head
    learned = targets != IGNORED
    with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16), disable_input_dtype_casting(model, active=in_bf16):
        hidden = decoder(input_ids=input_ids, position_ids=positions, use_cache=False).last_hidden_state
        return F.cross_entropy(head(hidden[learned]).float(), targets[learned])


def compile_and_warm_up(arguments, model, batches: list) -> float:
    """Compiles, and runs the shortest and the longest batch, so that lengths in between do not recompile; returns the seconds.

    Compiles each layer for dynamic lengths: the whole model in one graph, or widths padded to multiples of 64, compile
    for minutes and were not faster.
    """
    start = time.perf_counter()
    for layer in model.base_model.model.model.layers:
        layer.compile(dynamic=True)
    by_width = {batch[0].shape[1]: batch for batch in batches}
    for width in (min(by_width), max(by_width)):
        loss_of(model, by_width[width], arguments.dtype == "bf16").backward()
    model.zero_grad(set_to_none=True)
    return time.perf_counter() - start


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def train(arguments, model, batches: list):
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0, fused=True)
    model.train()
    compile_seconds = compile_and_warm_up(arguments, model, batches) if arguments.compile else 0.0
    with arguments.timing.open("w") as timing:
        for step, batch in enumerate(batches, start=1):
            wall, cpu = time.perf_counter(), time.process_time()
            loss = loss_of(model, batch, arguments.dtype == "bf16")
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            record = {
                "step": step,
                "loss": float(loss.detach()),
                "seconds": time.perf_counter() - wall,
                "cpu_seconds": time.process_time() - cpu,
                "tokens": batch[-1],
                "trained_tokens": int((batch[1] != IGNORED).sum()),
                "peak_rss_bytes": peak_rss_bytes(),
                "compile_seconds": compile_seconds,
            }
            timing.write(json.dumps(record) + "\n")
            timing.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="Hugging Face directory, converted from the GGUF if missing")
    parser.add_argument("--gguf", type=Path, default=hf_from_gguf.DEFAULT_PATH)
    parser.add_argument("--prepare", action="store_true", help="only create the directory of --base")
    parser.add_argument("--rows", type=Path, help="JSON Lines of SLOT triples")
    parser.add_argument("--timing", type=Path, help="file to write")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--batches", choices=["padded", "packed", "packed-apart"], default="padded")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--compile", action="store_true", help="compile the layers with torch.compile")
    parser.add_argument("--max-length", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    if arguments.prepare:
        hf_from_gguf.load_model(arguments.gguf).save_pretrained(arguments.base)
        return
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    tokenizer = hf_from_gguf.load_tokenizer(arguments.gguf)
    examples = read_examples(arguments.rows, tokenizer)
    random.Random(arguments.seed).shuffle(examples)
    batches = batches_of(arguments, examples, tokenizer.pad_token_id)
    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(arguments.base, dtype=dtype, attn_implementation="sdpa")
    model.config.use_cache = False
    config = LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.0, target_modules=TARGETS, bias="none", task_type="CAUSAL_LM"
    )
    train(arguments, get_peft_model(model, config), batches)


if __name__ == "__main__":
    main()
