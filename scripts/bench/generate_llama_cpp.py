#!/usr/bin/env python3
"""Completes prompts greedily with llama.cpp: a third side of scripts/bench/generate.

Reads lines `BATCH NEW_TOKENS` and prints a JSON line for each, as trainer/examples/generate.rs does. The rows of a
batch are sequences of one context, each with its own part of the cache, and go through llama_decode together; otherwise
llama.cpp's defaults apply, such as an f16 cache. The best token of a row is numpy's argmax of its logits.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from llama_cpp_model import LlamaCppModel


def completed(model: LlamaCppModel, prompts: list, new_tokens: int) -> dict:
    model.clear()
    start = (time.perf_counter(), time.process_time())
    last = len(prompts[0]) - 1
    asked = [(token, i, row, i == last) for row, prompt in enumerate(prompts) for i, token in enumerate(prompt)]
    tokens = [[best] for best in model.logits(asked).argmax(-1).tolist()]
    first = (time.perf_counter(), time.process_time())
    for position in range(last + 1, last + new_tokens):
        logits = model.logits([(found[-1], position, row, True) for row, found in enumerate(tokens)])
        for found, best in zip(tokens, logits.argmax(-1).tolist()):
            found.append(best)
    end = (time.perf_counter(), time.process_time())
    return {
        "prefill": {"wall": first[0] - start[0], "cpu": first[1] - start[1]},
        "decode": {"wall": end[0] - first[0], "cpu": end[1] - first[1]},
        "tokens": tokens,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="GGUF of the weights in the type to be measured")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON list of lists of token ids, of equal lengths")
    parser.add_argument("--new-tokens", type=int, required=True, help="maximum tokens per request")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    prompts = json.loads(arguments.prompts.read_text())
    n_ctx = len(prompts[0]) + arguments.new_tokens
    models = {}  # one per batch size, so that no request pays for unused cache
    for line in sys.stdin:
        batch, new_tokens = map(int, line.split())
        if batch > len(prompts):
            raise SystemExit(f"{line.strip()}: the file has only {len(prompts)} prompts")
        if batch not in models:
            models[batch] = LlamaCppModel(arguments.model, n_ctx=n_ctx, n_rows=batch, threads=arguments.threads)
        print(json.dumps(completed(models[batch], prompts[:batch], new_tokens)), flush=True)


if __name__ == "__main__":
    main()
