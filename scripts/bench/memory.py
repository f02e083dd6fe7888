#!/usr/bin/env python3
"""Runs `tooltune plan --probe` at growing batch sizes and writes benchmarks/memory.md; standard library only."""

import datetime
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "configs/quickstart.toml"
# hidden_size, num_hidden_layers of SmolLM2-135M; the input of each block is kept, in f32.
SAVED_BYTES_PER_TOKEN = 576 * 30 * 4
MIB = 1 << 20


def probe(tooltune: str, batch_size: int) -> dict:
    command = [tooltune, "plan", CONFIG, "--probe", "--format", "json",
               "--set", f"train.per_device_train_batch_size={batch_size}"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return json.loads(output)["probe"]


def main() -> int:
    probes = {size: probe(sys.argv[1], size) for size in (2, 4, 8, 16)}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    lines = [
        "# Memory of a training step",
        "",
        f"Written by `scripts/bench/memory`: the longest micro-batch of `{CONFIG}` at four batch sizes, one real step each "
        "(SmolLM2-135M, f32, dropout .05).",
        f"Commit {commit}, {datetime.date.today().isoformat()}.",
        "",
        "| batch | tokens | before the step, MiB | peak, MiB | growth, MiB | of which saved block inputs | the rest, KiB a token |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    before = None
    for size, row in probes.items():
        growth = saved = rest = "-"
        if before is not None:
            tokens = row["n_tokens"] - before["n_tokens"]
            grown = row["peak_rss_bytes"] - before["peak_rss_bytes"]
            growth = f"{grown / MIB:.0f}"
            saved = f"{tokens * SAVED_BYTES_PER_TOKEN / MIB:.0f}"
            rest = f"{(grown / tokens - SAVED_BYTES_PER_TOKEN) / 1024:.0f}"
        lines.append(f"| {size} | {row['n_tokens']} | {row['rss_before_step_bytes'] / MIB:.0f} "
                     f"| {row['peak_rss_bytes'] / MIB:.0f} | {growth} | {saved} | {rest} |")
        before = row
    lines += ["", "The rest is one block's activations and their gradients, which live only while that block is differentiated.", ""]
    target = ROOT / "benchmarks" / "memory.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
