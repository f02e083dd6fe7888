#!/usr/bin/env python3
"""The loss of the quickstart in f32 beside that in bf16; standard library only. Started by scripts/bench/dtypes.

Runs that are complete are taken over. Exits 1 where the mean of a tenth of the run, or of all of it, differs by more than 1 %.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from machine import ROOT, report_head, say, shown_arguments

CONFIG = "configs/quickstart.toml"
LIMIT_PERCENT = 1.0
TENTHS = 10


def written(folder: Path) -> list:
    """The losses of the steps that a run has made."""
    metrics = ROOT / folder / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


def losses(arguments, dtype: str) -> list:
    """The loss of every step, weighted as it was trained."""
    folder = Path("runs/bench-dtypes") / f"{dtype}-{arguments.steps}"
    if arguments.steps and len(written(folder)) >= arguments.steps:
        return written(folder)[: arguments.steps]
    settings = [f"model.compute_dtype={dtype}", f"train.output_dir={folder}", "train.logging_steps=1", "eval.eval_strategy=no"]
    options = [part for setting in settings for part in ("--set", setting)]
    say(f"training in {dtype}")
    process = subprocess.Popen([arguments.tooltune, "train", CONFIG, *options], cwd=ROOT, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    said = []
    for line in process.stderr:
        said.append(line)
        # A shorter run would have another schedule of the learning rate; this one is stopped in the middle.
        if arguments.steps and line.startswith(f"step {arguments.steps}/"):
            process.terminate()
    if process.wait() != 0 and not arguments.steps:
        raise SystemExit("".join(said[-20:]))
    return written(folder)[: arguments.steps or None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tooltune", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=0, help="only the first steps")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    f32, bf16 = losses(arguments, "f32"), losses(arguments, "bf16")
    if len(f32) != len(bf16) or not f32:
        raise SystemExit(f"{len(f32)} and {len(bf16)} losses; remove runs/bench-dtypes and start again")
    lines = ["| steps | f32 | bf16 | difference, % |", "|---|--:|--:|--:|"]
    size = -(-len(f32) // TENTHS)
    parts = [(first, min(first + size, len(f32))) for first in range(0, len(f32), size)]
    worst = 0.0
    for first, end in [*parts, (0, len(f32))]:
        exact, rounded = statistics.mean(f32[first:end]), statistics.mean(bf16[first:end])
        difference = 100 * (rounded / exact - 1)
        worst = max(worst, abs(difference))
        lines.append(f"| {first + 1} to {end} | {exact:.4f} | {rounded:.4f} | {difference:+.2f} |")
    of_a_step = max(abs(b / a - 1) for a, b in zip(f32, bf16))
    report = [
        "# The loss in bf16 beside that in f32",
        "",
        *report_head("scripts/bench/dtypes", shown_arguments({"--tooltune"}), load, f"`{CONFIG}`: same rows, seed and dropout"),
        f"- means of the steps named; the largest difference of a mean is {worst:.2f} % (limit {LIMIT_PERCENT:.0f} %), that of a single "
        f"step {100 * of_a_step:.1f} %",
        "",
        *lines,
        "",
    ]
    (ROOT / "benchmarks/dtypes.md").write_text("\n".join(report), encoding="utf-8")
    print("\n".join(report))
    return 0 if worst <= LIMIT_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
