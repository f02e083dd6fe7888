#!/usr/bin/env python3
"""Runs examples/constrained_cost and writes benchmarks/constrained_cpu.md; started by scripts/bench/constrained.

The same prompts (synthetic SLOT rows) are gone on with by the same number of tokens, freely and held to the rows' schemas, in
turns; a step is a token of every row. `in the step` is what the constrained steps take longer, with the least and the most of the
rounds: the difference of two large numbers. `alone` is the time that masks and choices of the written tokens need by themselves, as
a share of a free step: all that a constraint adds, but with nothing else in the caches.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

from machine import ROOT, environment, report_head, say, shown_arguments

AIM = 0.05
CONFIG = """[model]
model_name_or_path = "models/smollm2-135m-instruct.gguf"
[lora]
[data]
train = ["runs/bench-constrained/train.jsonl"]
eval = ["runs/bench-constrained/dev.jsonl"]
format = "slot"
slot_prompt = "paper"
[train]
output_dir = "runs/bench-constrained/run"
"""


def measured(arguments, dtype: str, threads: int) -> list:
    command = [arguments.ours, "runs/bench-constrained/config.toml", dtype, str(arguments.new_tokens),
               str(arguments.rounds), *map(str, arguments.batches)]
    done = subprocess.run(command, cwd=ROOT, env=environment(threads, ""), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def line(dtype: str, threads: int, row: dict) -> tuple:
    steps = row["steps"]
    free, held, alone = (statistics.median(row[key]) for key in ("free", "held", "alone"))
    # Turns are compared with their neighbours: the machine changes slowly, its noise does not cancel otherwise.
    ratios = [h / f - 1 for h, f in zip(row["held"], row["free"])]
    added = statistics.median(ratios)
    share = alone / (steps + 1) / (free / steps)
    per_token = alone / ((steps + 1) * row["batch"])
    cells = [dtype, str(threads), str(row["batch"]), f"{free / steps * 1e3:.2f}", f"{held / steps * 1e3:.2f}",
             f"{added * 100:+.1f} % ({min(ratios) * 100:+.1f} to {max(ratios) * 100:+.1f})", f"{share * 100:.2f} %", f"{per_token * 1e6:.1f}"]
    return added, "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tooltune", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--ours", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--new-tokens", type=int, default=24, help="tokens of each row; the shortest answers have a few more")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--dtypes", nargs="+", default=["f32", "bf16"])
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--output", default="benchmarks/constrained_cpu.md")
    arguments = parser.parse_args()
    folder = ROOT / "runs/bench-constrained"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(CONFIG)
    for split in ("train", "dev"):
        command = [arguments.tooltune, "data", "synth", "slot", "--split", split, "--rows", str(max(arguments.batches)),
                   "--output", str(folder / f"{split}.jsonl")]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    load = os.getloadavg()[0]
    lines, missed = [], []
    for threads in arguments.threads:
        for dtype in arguments.dtypes:
            say(f"{threads} thread(s), {dtype}")
            for row in measured(arguments, dtype, threads):
                added, text = line(dtype, threads, row)
                lines.append(text)
                if added > AIM:
                    missed.append(f"- {dtype}, {threads} thread(s), batch {row['batch']}: {added * 100:.1f} %")
    shown = shown_arguments({"--tooltune", "--ours"})
    report = [
        "# What a constraint adds to decoding",
        "",
        *report_head("scripts/bench/constrained", shown, load, "SmolLM2-135M-Instruct, schemas of synthetic SLOT rows"),
        f"- {arguments.rounds} rounds of {arguments.new_tokens} tokens a row, free and constrained in turns; medians, of the ratio "
        "by rounds",
        "",
        "| type | threads | batch | free step, ms | constrained step, ms | in the step | alone | a token's constraint, µs |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        *lines,
        "",
        f"Aim: at most {AIM * 100:.0f} % of a step.",
        *(["", "Not reached:", "", *missed] if missed else []),
        "",
    ]
    (ROOT / arguments.output).write_text("\n".join(report), encoding="utf-8")
    print("\n".join(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
