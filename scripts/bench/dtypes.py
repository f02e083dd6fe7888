#!/usr/bin/env python3
"""The loss of the quickstart in f32 beside that in bf16, and how far PEFT's two are apart; standard library only. Started by
scripts/bench/dtypes.

Every side has the quickstart's rows, batches of 4 and learning rate. tooltune trains as the config says; PEFT has its own order
of rows, a constant learning rate and no dropout, so that its losses are beside each other alone. "f32, AVX2" is f32 with the
instructions of a smaller processor, whose sums have another order: what rounding by itself does to f32.

The curves are means of a tenth of the steps each. Their distance is the area between them as a share of the area below f32's:
a late difference counts by what it adds to the loss. Runs that are complete are taken over. Exits 1 where tooltune's distance in
bf16 is above 1 %.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from machine import ROOT, mkl_preload, prepared_base, report_head, run_process, say, shown_arguments, versions

CONFIG = "configs/quickstart.toml"
ROWS = Path("runs/quickstart-data/train.jsonl")
FOLDER = Path("runs/bench-dtypes")
BATCH = 4
LIMIT_PERCENT = 1.0
TENTHS = 10
# Name of a curve: its dtype, and the instructions where not the processor's best.
OURS = {"f32": ("f32", None), "bf16": ("bf16", None), "f32, AVX2": ("f32", "avx2")}
PEFT = {"peft f32": "f32", "peft bf16": "bf16"}
# What is compared with what.
PAIRS = [("bf16", "f32"), ("f32, AVX2", "f32"), ("peft bf16", "peft f32")]


def written(path: Path) -> list:
    """The losses of the steps that a run has made."""
    lines = (ROOT / path).read_text().splitlines() if (ROOT / path).exists() else []
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


def trained(arguments, name: str) -> list:
    """The loss of every step of tooltune, weighted as it was trained."""
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
        # A shorter run would have another schedule of the learning rate; this one is stopped in the middle.
        if arguments.steps and line.startswith(f"step {arguments.steps}/"):
            process.terminate()
    if process.wait() != 0 and not arguments.steps:
        raise SystemExit("".join(said[-20:]))
    return written(folder / "metrics.jsonl")[: arguments.steps or None]


def trained_by_peft(arguments, name: str) -> list:
    """The same of PEFT, which has no schedule and so needs no more rows than its steps."""
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
    """First and end of each tenth of so many steps."""
    size = -(-n // TENTHS)
    return [(first, min(first + size, n)) for first in range(0, n, size)]


def table_row(curves: dict, first: int, end: int) -> str:
    """Means of some steps and their differences."""
    means = {name: statistics.mean(curve[first:end]) for name, curve in curves.items()}
    cells = [f"{mean:.4f}" for mean in means.values()] + [f"{100 * (means[a] / means[b] - 1):+.2f}" for a, b in PAIRS]
    return f"| {first + 1} to {end} | " + " | ".join(cells) + " |"


def distance_percent(curve: list, reference: list) -> float:
    """The area between two curves of means of tenths as a share of the area below the second."""
    curve, reference = ([statistics.mean(c[first:end]) for first, end in tenths(len(c))] for c in (curve, reference))
    return 100 * sum(abs(a - b) for a, b in zip(curve, reference)) / sum(reference)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tooltune", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--python", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=0, help="only the first steps")
    arguments = parser.parse_args()
    arguments.taken_over = []
    os.chdir(ROOT)
    FOLDER.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    curves = {name: trained(arguments, name) for name in OURS} | {name: trained_by_peft(arguments, name) for name in PEFT}
    n = len(curves["f32"])
    if n == 0 or any(len(curve) != n for curve in curves.values()):
        raise SystemExit(f"losses: {({name: len(curve) for name, curve in curves.items()})}; remove {FOLDER} and start again")
    lines = ["| steps | " + " | ".join(curves) + " | " + " | ".join(f"{a} / {b}, %" for a, b in PAIRS) + " |"]
    lines.append("|---|" + "--:|" * (len(curves) + len(PAIRS)))
    lines += [table_row(curves, first, end) for first, end in [*tenths(n), (0, n)]]
    distances = [distance_percent(curves[a], curves[b]) for a, b in PAIRS]
    lines.append("| distance of the curves, % |" + " |" * len(curves) + " " + " | ".join(f"{d:.2f}" for d in distances) + " |")
    report = [
        "# The loss in bf16 beside that in f32",
        "",
        *report_head("scripts/bench/dtypes", shown_arguments({"--tooltune", "--python"}), load,
                     versions(arguments.python, "torch transformers peft")),
        f"- `{CONFIG}`: same rows, seed and dropout; peft: the same rows in an order of its own, no dropout, constant learning rate",
        "- means of the steps named; distance: the area between two curves of these means as a share of the area below the second "
        f"(tooltune's limit for bf16: {LIMIT_PERCENT:.0f} %)",
        f"- taken over from runs made before, by programs of other commits: {'; '.join(arguments.taken_over) or 'none'}",
        '- "f32, AVX2": other sums in f32, by `TOOLTUNE_ISA=avx2`',
        "",
        *lines,
        "",
    ]
    Path("benchmarks/dtypes.md").write_text("\n".join(report), encoding="utf-8")
    print("\n".join(report))
    return 0 if distances[0] <= LIMIT_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
