#!/usr/bin/env python3
"""Compares the quickstart's loss in f32 and bf16, and PEFT's two loss curves; standard library only. Started by
scripts/bench/dtypes.

Every side has the quickstart's rows, batches of 4 and learning rate. tooltune trains as configured; PEFT uses its own
row order, a constant learning rate and no dropout, so its losses are only comparable with each other. "f32, AVX2" is
f32 with the instructions of an older processor, which sum in another order: it shows the effect of rounding alone on
f32.

The curves are means over tenths of the steps. Their distance is the area between them divided by the area below the f32
curve, so a late difference counts by its share of the loss. Complete runs are reused. Exits with 1 if tooltune's bf16
distance is above 1 %.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from machine import ROOT, mkl_preload, prepared_base, run_process, say, versions
from page import Options, Page

CONFIG = "configs/quickstart.toml"
ROWS = Path("runs/quickstart-data/train.jsonl")
FOLDER = Path("runs/bench-dtypes")
BATCH = 4
LIMIT_PERCENT = 1.0
TENTHS = 10
# Name of a curve: its dtype, and the instruction set if it is not the processor's best.
OURS = {"f32": ("f32", None), "bf16": ("bf16", None), "f32, AVX2": ("f32", "avx2")}
PEFT = {"peft f32": "f32", "peft bf16": "bf16"}
# The pairs of curves to compare.
PAIRS = [("bf16", "f32"), ("f32, AVX2", "f32"), ("peft bf16", "peft f32")]


def written(path: Path) -> list:
    """The loss of each step of a run."""
    lines = (ROOT / path).read_text().splitlines() if (ROOT / path).exists() else []
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


def trained(arguments, name: str) -> list:
    """The loss of each tooltune step, with the training weights."""
    dtype, instructions = OURS[name]
    folder = FOLDER / "-".join(filter(None, [dtype, instructions, str(arguments.steps)]))
    before = written(folder / "metrics.jsonl")
    if arguments.steps and len(before) >= arguments.steps:
        arguments.taken_over.append(name)
        return before[: arguments.steps]
    settings = [f"model.compute_dtype={dtype}", f"train.output_dir={folder}", "train.logging_steps=1", "eval.eval_strategy=no",
                "data.slot_prompt=paper"]
    options = [part for setting in settings for part in ("--set", setting)]
    say(f"training in {name}")
    chosen = {"TOOLTUNE_ISA": instructions} if instructions else {}
    process = subprocess.Popen([arguments.tooltune, "train", CONFIG, *options], cwd=ROOT, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, env=os.environ | chosen)
    said = []
    for line in process.stderr:
        said.append(line)
        # A shorter run would have another learning-rate schedule, so the run is interrupted instead.
        if arguments.steps and line.startswith(f"step {arguments.steps}/"):
            process.terminate()
    if process.wait() != 0 and not arguments.steps:
        raise SystemExit("".join(said[-20:]))
    return written(folder / "metrics.jsonl")[: arguments.steps or None]


def trained_by_peft(arguments, name: str) -> list:
    """The loss of each PEFT step; without a schedule, PEFT only needs the rows of these steps."""
    timing = FOLDER / f"peft-{PEFT[name]}-{arguments.steps}.jsonl"
    rows = (ROOT / ROWS).read_text(encoding="utf-8").splitlines(keepends=True)
    rows = rows[: BATCH * arguments.steps or None]
    before = written(timing)
    if len(before) * BATCH >= len(rows):
        arguments.taken_over.append(name)
        return before
    say(f"training with {name}")
    some = FOLDER / "rows.jsonl"
    (ROOT / some).write_text("".join(rows), encoding="utf-8")
    command = [arguments.python, "-W", "ignore", "scripts/bench/peft_train.py", "--base", prepared_base(arguments.python),
               "--rows", some, "--timing", timing, "--dtype", PEFT[name], "--batch-size", str(BATCH)]
    threads = os.cpu_count()
    run_process([*command, "--threads", str(threads)], threads, mkl_preload(ROOT / FOLDER), ROOT / FOLDER / "peft.log")
    return written(timing)


def tenths(n: int) -> list:
    """Start and end of each tenth of the steps."""
    size = -(-n // TENTHS)
    return [(first, min(first + size, n)) for first in range(0, n, size)]


def table_row(curves: dict, first: int, end: int) -> str:
    """Means over a range of steps, and their differences."""
    means = {name: statistics.mean(curve[first:end]) for name, curve in curves.items()}
    cells = [f"{mean:.4f}" for mean in means.values()] + [f"{100 * (means[a] / means[b] - 1):+.2f}" for a, b in PAIRS]
    return f"| {first + 1} to {end} | " + " | ".join(cells) + " |"


def distance_percent(curve: list, reference: list) -> float:
    """Area between two curves of means over tenths, divided by the area below the second."""
    curve, reference = ([statistics.mean(c[first:end]) for first, end in tenths(len(c))] for c in (curve, reference))
    return 100 * sum(abs(a - b) for a, b in zip(curve, reference)) / sum(reference)


def main() -> int:
    options = Options(__doc__, wrapper=("--tooltune", "--python"))
    options.add_argument("--steps", type=int, default=0, help="only the first steps")
    arguments = options.parse_args()
    arguments.taken_over = []
    os.chdir(ROOT)
    FOLDER.mkdir(parents=True, exist_ok=True)
    page = Page("dtypes", options.visible_arguments(), "benchmarks/dtypes.md")
    curves = {name: trained(arguments, name) for name in OURS} | {name: trained_by_peft(arguments, name) for name in PEFT}
    n = len(curves["f32"])
    if n == 0 or any(len(curve) != n for curve in curves.values()):
        raise SystemExit(f"losses: {({name: len(curve) for name, curve in curves.items()})}; remove {FOLDER} and start again")
    lines = ["| steps | " + " | ".join(curves) + " | " + " | ".join(f"{a} / {b}, %" for a, b in PAIRS) + " |"]
    lines.append("|---|" + "--:|" * (len(curves) + len(PAIRS)))
    lines += [table_row(curves, first, end) for first, end in [*tenths(n), (0, n)]]
    distances = [distance_percent(curves[a], curves[b]) for a, b in PAIRS]
    lines.append("| distance of the curves, % |" + " |" * len(curves) + " " + " | ".join(f"{d:.2f}" for d in distances) + " |")
    page.write([
        *page.head("Loss in bf16 compared with f32", versions(arguments.python, "torch transformers peft")),
        f"- `{CONFIG}`: same rows, seed and dropout; peft: the same rows in another order, no dropout, constant learning rate",
        "- means over the named steps; distance: the area between two curves of these means, divided by the area below the second "
        f"(tooltune's limit for bf16: {LIMIT_PERCENT:.0f} %)",
        f"- reused from earlier runs of other commits: {'; '.join(arguments.taken_over) or 'none'}",
        '- "f32, AVX2": another summation order in f32, with `TOOLTUNE_ISA=avx2`',
        "",
        *lines,
    ])
    return 0 if distances[0] <= LIMIT_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
