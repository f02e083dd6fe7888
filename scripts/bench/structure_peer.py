#!/usr/bin/env python3
"""Structures rows with transformers, constrained to their schemas by xgrammar: the other side of scripts/bench/structure.

Uses the prompt and the chat template of the export, in batches sorted by length, to minimise padding; schemas are
compiled with tooltune's separators and key order. The time is from the first row to the last answer: schemas, prompts
and decoding, without loading the model. Prints one JSON line.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import xgrammar
from jinja2 import Environment
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging
from xgrammar.contrib.hf import LogitsProcessor


def conversations(rows: list, prompt: Path) -> list:
    template = Environment(trim_blocks=True, lstrip_blocks=True).from_string(prompt.read_text(encoding="utf-8"))
    compact = lambda schema: json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    asked = [template.render(input_text=row["text"], json_schema=compact(row["json_schema"])) for row in rows]
    return [[{"role": "user", "content": text}] for text in asked]


def answered(model, tokenizer, rows: list, arguments) -> list:
    """The texts of the rows, in order, and their token counts."""
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=model.config.vocab_size)
    compiler = xgrammar.GrammarCompiler(info, max_threads=arguments.threads)
    prompts = [
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        for messages in conversations(rows, arguments.model / "prompt.jinja")
    ]
    order = sorted(range(len(rows)), key=lambda i: len(prompts[i]))
    texts, n_tokens = [None] * len(rows), 0
    for start in range(0, len(order), arguments.batch):
        batch = order[start : start + arguments.batch]
        grammars = [
            compiler.compile_json_schema(
                json.dumps(rows[i]["json_schema"]), any_whitespace=False, separators=(", ", ": "), strict_mode=False
            )
            for i in batch
        ]
        inputs = tokenizer.pad({"input_ids": [prompts[i] for i in batch]}, padding_side="left", return_tensors="pt")
        with torch.inference_mode():
            output = model.generate(
                **inputs, max_new_tokens=arguments.new_tokens, do_sample=False, logits_processor=[LogitsProcessor(grammars)]
            )
        for i, ids in zip(batch, output[:, inputs["input_ids"].shape[1] :].tolist()):
            stop = next((at for at, token in enumerate(ids) if token == tokenizer.eos_token_id), len(ids))
            texts[i] = tokenizer.decode(ids[:stop], skip_special_tokens=True)
            n_tokens += stop
    return texts, n_tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="merged export, with prompt.jinja")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--dtype", choices=["f32", "bf16"], required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--new-tokens", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(arguments.threads)
    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype, attn_implementation="sdpa").eval()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    rows = [json.loads(line) for line in arguments.rows.read_text(encoding="utf-8").splitlines()]
    begun = time.perf_counter()
    texts, n_tokens = answered(model, tokenizer, rows, arguments)
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "n_tokens": n_tokens, "texts": texts}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
