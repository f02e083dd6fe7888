#!/usr/bin/env python3
"""Compares CPU training steps and decoding with weights in NF4 and in bf16; standard library only. Started by
scripts/bench/nf4.

Weights and tokens are random, with the shapes of SmolLM2-135M and of two blocks of Llama 3 8B with a small vocabulary.
Both sides take turns. Each turn is a process that repeats the step; the fastest step of all turns counts. Times are
CPU seconds of all threads, so that other programs on the machine hardly change them.
"""

import json
import subprocess
from pathlib import Path

from machine import MIB, ROOT, environment, say
from page import Options, Page

FOLDER = Path("runs/bench-nf4")
SHAPES = {
    "SmolLM2-135M": {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152, "tie_word_embeddings": True,
    },
    "two blocks of Llama 3 8B": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 2, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 1024, "tie_word_embeddings": True,
    },
}  # fmt: skip
COMMON = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05, "hidden_act": "silu", "attention_bias": False, "rope_theta": 500000.0,
}  # fmt: skip
# Documents and new tokens of decoding.
DECODING = [(1, 32), (8, 32)]
SIDES = ["none", "nf4"]
# Upper limit of the time of a step with at least 1,024 tokens, and of the bytes of 8B-shaped weights.
STEP_LIMIT, BYTES_LIMIT = 1.15, 0.45


def shape_file(name: str) -> Path:
    path = ROOT / FOLDER / f"{name.lower().replace(' ', '-')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(COMMON | SHAPES[name]))
    return path


def measured(arguments, name: str, side: str, work: dict) -> dict:
    options = {"shape": shape_file(name), "device": "cpu", "dtype": "bf16", "quantization": side} | work
    options |= {"warmup": 1, "steps": arguments.steps}
    command = [arguments.random_step] + [part for key, value in options.items() for part in (f"--{key}", str(value))]
    done = subprocess.run(command, cwd=ROOT, env=environment(arguments.threads, ""), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def compared(arguments, name: str, work: dict) -> list:
    """Seconds of the fastest step, bytes of the linear layers and peak memory of both sides."""
    results = {side: [] for side in SIDES}
    for _ in range(arguments.rounds):
        for side in SIDES:
            results[side].append(measured(arguments, name, side, work))
    best = []
    for side in SIDES:
        runs = results[side]
        seconds = min(min(run["cpu_seconds"]) for run in runs)
        best.append((seconds, runs[0]["stack_bytes"], max(run["peak_rss_bytes"] for run in runs)))
    say(f"{name}, {work}: {best[0][0]:.3f} s, {best[1][0]:.3f} s")
    return best


def row(name: str, what: str, sides: list) -> str:
    (plain, plain_bytes, plain_peak), (nf4, nf4_bytes, nf4_peak) = sides
    sizes = f"{plain_bytes / MIB:,.0f} | {nf4_bytes / MIB:,.0f} | {nf4_bytes / plain_bytes:.3f}"
    peaks = f"{plain_peak / MIB:,.0f} | {nf4_peak / MIB:,.0f}"
    return f"| {name} | {what} | {plain:.2f} | {nf4:.2f} | {nf4 / plain:.2f} | {sizes} | {peaks} |"


def main() -> None:
    options = Options(__doc__, wrapper=("--random-step",))
    options.add_argument("--rounds", type=int, default=3, help="turns of each side (3)")
    options.add_argument("--steps", type=int, default=3, help="timed steps of a turn, after one that is not timed (3)")
    options.add_argument("--tokens", type=int, nargs="+", default=[256, 1024, 2048], help="tokens of steps (256 1024 2048)")
    options.add_argument("--threads", type=int, default=1, help="threads (1)")
    options.add_output("benchmarks/nf4_cpu.md")
    arguments = options.parse_args()
    page = Page("nf4", options.visible_arguments("--output"), arguments.output)
    lines, misses = [], []
    for name in SHAPES:
        for n_tokens in arguments.tokens:
            work = {"documents": 1, "length": n_tokens, "kept-blocks": 0}
            sides = compared(arguments, name, work)
            lines.append(row(name, f"step of {n_tokens:,} tokens", sides))
            (plain, plain_bytes, _), (nf4, nf4_bytes, _) = sides
            if n_tokens >= 1024 and nf4 > STEP_LIMIT * plain:
                misses.append(f"{name}, {n_tokens} tokens: {nf4 / plain:.2f} times the time of bf16")
            if nf4_bytes > BYTES_LIMIT * plain_bytes:
                misses.append(f"{name}: {nf4_bytes / plain_bytes:.2f} of the bytes of bf16")
        for documents, new_tokens in DECODING:
            work = {"documents": documents, "length": 16, "new-tokens": new_tokens}
            sides = compared(arguments, name, work)
            lines.append(row(name, f"{new_tokens} new tokens of {documents} prompts", sides))
    page.write([
        *page.head("Weights in NF4 compared with bf16, on the CPU", f"{arguments.threads} thread{'s'[: arguments.threads > 1]}, {arguments.rounds} turns of each side"),
        "",
        "Frozen linear layers in NF4 (`model.quantization = \"nf4\"`) and in bf16, LoRA of rank 16 on every linear layer,",
        "all activations recomputed. Times are CPU seconds of all threads. Weights are the frozen linear layers, peak is the",
        "memory of the process.",
        "",
        "| model | work | bf16 CPU s | nf4 CPU s | ratio | weights bf16 MiB | nf4 MiB | ratio | peak bf16 MiB | nf4 MiB |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        *lines,
        "",
        f"Limits: {STEP_LIMIT} times the time of bf16 from 1,024 tokens, {BYTES_LIMIT} of its weights.",
        *(["", *(f"Missed: {miss}." for miss in misses)] if misses else []),
    ])  # fmt: skip
    raise SystemExit(1 if misses else 0)


if __name__ == "__main__":
    main()
