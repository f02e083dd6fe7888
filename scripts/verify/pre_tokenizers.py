#!/usr/bin/env python3
"""Compares llama.cpp's tokens of difficult texts with the tokenizers library, for each pre-tokenizer name in GGUF.

For each name, the script writes a model of zeros with the vocabulary of tests/fixtures/pre_tokenizers, and llama.cpp's own server
tokenizes each text. Texts with combining marks are counted separately: llama.cpp does not normalize text to NFC, and its regular
expressions for gpt-4o and tekken do not handle marks.
"""

import argparse
import importlib.metadata
import json
import sys
import tempfile
import unicodedata
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Replaces the directory of this file, whose modules would hide packages.
sys.path[0] = str(ROOT / "scripts")

import gguf
import numpy as np
import xllamacpp

from verification_section import record

FIXTURE = ROOT / "tests/fixtures/pre_tokenizers"
HIDDEN = 32


def has_marks(text: str) -> bool:
    return any(unicodedata.category(character).startswith("M") for character in text)


def write_model(path: str, pre: str, vocabulary: dict) -> None:
    tokens = sorted(vocabulary["vocab"], key=vocabulary["vocab"].get)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(2048)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_rope_dimension_count(HIDDEN // 2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges([" ".join(merge) for merge in vocabulary["merges"]])
    writer.add_add_bos_token(False)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    square, row = np.zeros((HIDDEN, HIDDEN), np.float32), np.zeros(HIDDEN, np.float32)
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", np.zeros((len(tokens), HIDDEN), np.float32))
    writer.add_tensor("output_norm.weight", row)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", square)
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", row)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_by_llama_cpp(path: str, texts: list) -> list:
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.port, params.verbosity = 0, 0
    params.n_ctx, params.n_parallel, params.warmup = 512, 1, False
    server = xllamacpp.Server(params)

    def posted(path: str, body: dict) -> dict:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    # A server that is deleted before its event loop starts never ends. A completion waits for the loop.
    posted("/completion", {"prompt": "x", "n_predict": 1})
    return [posted("/tokenize", {"content": text, "add_special": False, "parse_special": False})["tokens"] for text in texts]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="some names; all by default")
    parser.add_argument("--record", action="store_true", help="write the table into benchmarks/verification.md")
    arguments = parser.parse_args()
    vocabulary = json.loads((FIXTURE / "vocabulary.json").read_text())
    fixture = json.loads((FIXTURE / "cases.json").read_text())
    texts, cases = fixture["texts"], fixture["cases"]
    marked = [has_marks(text) for text in texts]
    rows = ["| `tokenizer.ggml.pre` | a model that has it | texts without marks | texts with combining marks |", "|---|---|---|---|"]
    failed = []
    for name in arguments.names or cases:
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/model.gguf"
            write_model(path, name, vocabulary)
            read = read_by_llama_cpp(path, texts)
        same = [found == expected for found, expected in zip(read, cases[name]["ids"], strict=True)]

        def count(with_marks: bool) -> str:
            chosen = [is_same for is_same, mark in zip(same, marked, strict=True) if mark == with_marks]
            return f"{sum(chosen)} of {len(chosen)} the same"

        rows.append(f"| `{name}` | {cases[name]['model']} | {count(False)} | {count(True)} |")
        print(rows[-1], flush=True)
        failed += [name for is_same, mark in zip(same, marked, strict=True) if not (is_same or mark)]
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in ("xllamacpp", "gguf"))
    if arguments.record:
        text = f"The same tokens in llama.cpp and in the tokenizers library ({versions}):\n\n" + "\n".join(rows)
        record(ROOT / "benchmarks/verification.md", "scripts/verify/pre-tokenizers", "Pre-tokenizers in GGUF", text)
    if failed:
        print(f"pre-tokenizers: llama.cpp tokenizes texts without marks differently: {', '.join(sorted(set(failed)))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
