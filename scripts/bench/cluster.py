#!/usr/bin/env python3
"""Compares a run of one process with runs of several ranks on one machine; standard library only. Started by
scripts/bench/cluster.

Training: the quickstart's model and rows with four micro-batches per step, by one process with two threads and by two
ranks with one thread each, in turns; the ranks add gradients over TCP, and by MPI if there is an mpiexec. The first step
of a process is not counted. Communication: the seconds in which rank 0 waits for the other rank (`door_seconds`) or adds
gradients (`sum_seconds`). Evaluation: losses and completions by one rank and by two, each with one thread; of 72 rows,
because its time is known to a second. All runs must have the same losses.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from machine import ROOT, say
from page import Options, Page

FOLDER = Path("runs/bench-cluster")
#: Rows of an evaluation.
ROWS = 72
#: Name of a side, and its options.
SIDES = {"1 process, 2 threads": ["--threads", "2"], "2 ranks, 1 thread each": ["--ranks", "2", "--threads", "1"]}
BY_MPI = "2 ranks, 1 thread each, mpiexec"
EVALUATION = {"1 process, 1 thread": ["--threads", "1"], "2 ranks, 1 thread each": ["--ranks", "2", "--threads", "1"]}


def train(arguments, options: list, settings: list, launcher: tuple = ()) -> tuple[list, list, str]:
    """The lines of timing.jsonl and metrics.jsonl of a run, and what it printed."""
    run = ROOT / FOLDER / "run"
    shutil.rmtree(run, ignore_errors=True)
    settings = [f"train.output_dir={FOLDER}/run", f'data.train=["{FOLDER}/train.jsonl"]', f'data.eval=["{FOLDER}/dev.jsonl"]',
                "train.gradient_accumulation_steps=4", "train.logging_steps=1", "train.group_by_length=false", *settings]
    command = [*launcher, arguments.tooltune, "train", "configs/quickstart.toml", *options]
    command += [part for setting in settings for part in ("--set", setting)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    if launcher and "gradients are added by MPI" not in done.stdout:
        raise SystemExit(f"MPI does not add the gradients: {done.stdout[:1000]}")
    lines = [list(map(json.loads, (run / name).read_text().splitlines())) for name in ("timing.jsonl", "metrics.jsonl")]
    return lines[0], lines[1], done.stderr


def main() -> int:
    options = Options(__doc__, wrapper=("--tooltune", "--mpiexec"))
    options.add_argument("--rounds", type=int, default=2, help="runs of each side (2)")
    options.add_argument("--steps", type=int, default=6, help="steps of a run (6)")
    arguments = options.parse_args()
    os.chdir(ROOT)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for split, rows in [("train", "400"), ("dev", str(ROWS))]:
        subprocess.run([arguments.tooltune, "data", "synth", "slot", "--split", split, "--rows", rows, "--output",
                        f"{FOLDER}/{split}.jsonl"], check=True, capture_output=True)
    page = Page("cluster", options.visible_arguments(), "benchmarks/cluster.md")
    sides = SIDES | ({BY_MPI: ["--threads", "1"]} if arguments.mpiexec else {})
    rates, seconds, losses = {name: [] for name in sides}, {name: [] for name in EVALUATION}, set()
    waited, added = {name: 0.0 for name in sides}, {name: 0.0 for name in sides}
    step_seconds = {name: 0.0 for name in sides}
    for number in range(arguments.rounds):
        for name, side in sides.items():
            say(f"round {number + 1}: {name}")
            settings = [f"train.max_steps={arguments.steps}", "eval.eval_strategy=no"]
            launcher = (arguments.mpiexec, "-n", "2") if name == BY_MPI else ()
            timing, metrics, _ = train(arguments, side, settings, launcher)
            rates[name] += [line["tokens"] / line["seconds"] for line in timing[1:]]
            step_seconds[name] += sum(line["seconds"] for line in timing[1:])
            waited[name] += sum(line.get("door_seconds", 0) for line in timing[1:])
            added[name] += sum(line.get("sum_seconds", 0) for line in timing[1:])
            losses.add(tuple(line["loss"] for line in metrics if "loss" in line))
        for name, side in EVALUATION.items():
            say(f"round {number + 1}: evaluation, {name}")
            _, _, said = train(arguments, side, ["train.max_steps=1", "eval.eval_steps=1", "eval.max_new_tokens=96",
                                                   f"eval.max_samples={ROWS}"])
            found = re.findall(r"evaluated in (?:(\d+)min )?(\d+)s", said)
            seconds[name].append(60 * int(found[-1][0] or 0) + int(found[-1][1]))
    if len(losses) != 1:
        raise SystemExit("the losses differ between runs")
    lines = ["| training | tokens/s, median of steps | of one process | waiting, % of the steps | adding gradients, % |", "|---|--:|--:|--:|--:|"]
    one = statistics.median(next(iter(rates.values())))
    for name, values in rates.items():
        shares = [100 * part[name] / step_seconds[name] for part in (waited, added)]
        lines.append(f"| {name} | {statistics.median(values):,.0f} | {statistics.median(values) / one:.2f} | {shares[0]:.1f} | {shares[1]:.2f} |")
    lines += ["", f"| evaluation of {ROWS} rows | seconds | times as fast |", "|---|--:|--:|"]
    one = statistics.median(next(iter(seconds.values())))
    lines += [f"| {name} | {statistics.median(values):.0f} | {one / statistics.median(values):.2f} |" for name, values in seconds.items()]
    page.write([
        *page.head("Several ranks on one machine", "SmolLM2-135M-Instruct, r = 8, 4 micro-batches of 4 rows per step, dtype chosen by the processor"),
        f"- rounds: {arguments.rounds}, each of {arguments.steps} steps, in turns; the losses of all runs are equal",
        "- waiting: for the other rank's micro-batches; adding: over TCP with --ranks, by MPI under mpiexec",
        "",
        *lines,
    ])
    return 0


if __name__ == "__main__":
    sys.exit(main())
