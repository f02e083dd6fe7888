#!/usr/bin/env python3
"""Runs tooltune and peft in turns and writes benchmarks/cpu.md; started by scripts/bench/cpu, standard library only.

Each run is a separate process that trains one epoch on the same rows and writes a JSON line per step. A round has every
run once, alternating between tooltune and peft, so that changes of the machine's load affect both; the table has
medians over rounds. With two threads the table uses wall time, with one thread CPU time, which other processes disturb
less. Peak memory is the kernel's figure for the whole process (ru_maxrss), for both sides.
"""

import json
import os
import shutil
import statistics
import sys
from pathlib import Path

from machine import MIB, ROOT, mkl_note, mkl_preload, prepared_base, run_process, say, versions
from page import Options, Page

CASES = {
    "batch": "batch of 4, padded",
    "packs": "packs of 2,048 tokens",
}
# --batches of peft_train.py -> (case, remark in the tables)
BATCHES = {
    "padded": ("batch", ""),
    "packed": ("packs", ""),
    "packed-apart": ("packs", ", documents apart"),
}
# Targets for tooltune: tokens/s relative to peft's fastest side, and memory relative to its smallest.
RATE_AIM, MEMORY_AIM = 1.5, 0.5
CONFIG = """\
[model]
model_name_or_path = "models/smollm2-135m-instruct.gguf"
{compute_dtype}

[lora]
r = 8
lora_alpha = 16
lora_dropout = 0.0
target_modules = "all-linear"

[data]
train = ["{rows}"]
format = "slot"
slot_prompt = "paper"
max_length = 2048
packing = "{packing}"

[train]
output_dir = "{run}"
num_train_epochs = 1
per_device_train_batch_size = {batch_size}
learning_rate = 1e-3
lr_scheduler_type = "constant"
seed = {seed}

[checkpoint]
save_steps = 1000000

[log]
report_to = ["jsonl"]
"""


def read_timing(path: Path, skip: int) -> dict:
    """Rates over all steps after the first `skip`, and totals over all steps."""
    try:
        steps = [json.loads(line) for line in path.read_text().splitlines()]
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror}; the training run should have written it")
    timed = steps[skip:]
    if not timed:
        raise SystemExit(f"{path}: {len(steps)} steps are too few to skip {skip}; use more --rows")
    tokens = sum(s["tokens"] for s in timed)
    return {
        "wall": tokens / sum(s["seconds"] for s in timed),
        "cpu": tokens / sum(s["cpu_seconds"] for s in timed),
        "steps": len(steps),
        "tokens": sum(s["tokens"] for s in steps),
        "trained_tokens": sum(s["trained_tokens"] for s in steps),
        "compile_seconds": steps[0].get("compile_seconds", 0.0),
    }


class Peft:
    """A peft configuration: batching, dtype, and whether it is compiled."""

    def __init__(self, batches: str, dtype: str, is_compiled: bool):
        self.batches, self.dtype, self.is_compiled = batches, dtype, is_compiled
        self.case, remark = BATCHES[batches]
        self.is_apart = batches != "packed"
        self.name = f"peft {dtype}{', compiled' * is_compiled}{remark}"

    def arguments(self) -> list:
        return ["--dtype", self.dtype, "--batches", self.batches] + ["--compile"] * self.is_compiled


class Bench:
    """The folder of the runs, and the command of each side."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.dir = Path("runs/bench-cpu")
        self.rows = self.dir / "rows.jsonl"
        (ROOT / self.dir).mkdir(parents=True, exist_ok=True)
        self.preload = mkl_preload(ROOT / self.dir)
        self.base = prepared_base(arguments.python)
        ways = [False] if arguments.eager else [False, True]
        self.peft = [Peft(b, dtype, way) for b in BATCHES for dtype in arguments.peft_dtypes for way in ways]
        self.results = {}  # (case, name of the side, threads) -> [result]

    def prepare(self) -> None:
        arguments = self.arguments
        make_rows = [arguments.tooltune, "data", "synth", "slot", "--rows", str(arguments.rows)]
        make_rows += ["--seed", "7", "--split", "train", "--output", self.rows]
        if arguments.data:
            lines = Path(arguments.data).read_text(encoding="utf-8").splitlines()[: arguments.rows]
            (ROOT / self.rows).write_text("\n".join(lines) + "\n", encoding="utf-8")
        else:
            (ROOT / self.rows).unlink(missing_ok=True)
            run_process(make_rows, 1, "", ROOT / self.dir / "synth.log")
        imports = [arguments.python, "-W", "ignore", "-c", "import torch, transformers, peft"]
        self.import_rss = run_process(imports, 1, "", ROOT / self.dir / "imports.log")

    def ours(self) -> list:
        """(name, dtype) of our sides."""
        return [("tooltune" if dtype == "auto" else f"tooltune {dtype}", dtype) for dtype in self.arguments.dtypes]

    def keep(self, key: tuple, timing: Path, peak_rss: int) -> None:
        result = read_timing(ROOT / timing, self.arguments.skip) | {"peak_rss": peak_rss}
        self.results.setdefault(key, []).append(result)
        _, name, threads = key
        rate = f"{result['wall']:.0f} tokens/s" if threads > 1 else f"{result['cpu']:.0f} tokens/CPU-s"
        compiled = f", compiled in {result['compile_seconds']:.0f} s" if result["compile_seconds"] else ""
        say(f"  {name}, {threads} thread(s): {rate}, {peak_rss / MIB:.0f} MiB, {result['steps']} steps{compiled}")

    def run_ours(self, case: str, side: tuple, threads: int, seed: int) -> None:
        name, dtype = side
        run = self.dir / f"ours-{case}"
        shutil.rmtree(ROOT / run, ignore_errors=True)
        config = ROOT / self.dir / f"{case}.toml"
        config.write_text(
            CONFIG.format(
                compute_dtype="" if dtype == "auto" else f'compute_dtype = "{dtype}"',
                rows=self.rows,
                run=run,
                packing="none" if case == "batch" else "block-diagonal",
                batch_size=4 if case == "batch" else 1,
                seed=seed,
            )
        )
        log = ROOT / self.dir / f"ours-{case}-{dtype}.log"
        peak = run_process([self.arguments.tooltune, "train", config], threads, "", log)
        self.keep((case, name, threads), run / "timing.jsonl", peak)

    def run_peft(self, side: Peft, threads: int, seed: int) -> None:
        stem = f"peft-{side.batches}-{side.dtype}{'-compiled' * side.is_compiled}"
        timing = self.dir / f"{stem}.jsonl"
        command = [self.arguments.python, "-W", "ignore", "scripts/bench/peft_train.py", *side.arguments()]
        command += ["--base", self.base, "--rows", self.rows, "--timing", timing]
        command += ["--threads", str(threads), "--seed", str(seed)]
        peak = run_process(command, threads, self.preload, ROOT / self.dir / f"{stem}.log")
        self.keep((side.case, side.name, threads), timing, peak)

    def thread_counts(self) -> list:
        with_one = {1} if self.arguments.rounds_one_thread else set()
        return sorted({self.arguments.threads} | with_one, reverse=True)

    def run_all(self) -> None:
        rounds = {1: self.arguments.rounds_one_thread, self.arguments.threads: self.arguments.rounds}
        for number in range(1, max(rounds.values()) + 1):
            for threads in self.thread_counts():
                if number > rounds[threads]:
                    continue
                for case in CASES:
                    say(f"round {number}, {CASES[case]}, load {os.getloadavg()[0]:.2f}")
                    for side in self.ours():
                        self.run_ours(case, side, threads, number)
                    for side in self.peft:
                        if side.case == case:
                            self.run_peft(side, threads, number)


# ------------------------------------------------------------------------------------------ the report


def median(results: list, field: str) -> float:
    return statistics.median(r[field] for r in results)


def table(bench: Bench, threads: int, field: str, unit: str) -> list:
    """One row per side: median, best, and the median of each tooltune side divided by this side's."""
    ours = bench.ours()
    lines = [f"| batches | side | {unit}, median | best | " + " | ".join(f"{name} / side" for name, _ in ours) + " |"]
    lines.append("|---|---|--:|--:|" + "--:|" * len(ours))
    scale, best = (1 / MIB, min) if field == "peak_rss" else (1, max)
    for case, heading in CASES.items():
        for side in [name for name, _ in ours] + [p.name for p in bench.peft if p.case == case]:
            results = bench.results[(case, side, threads)]
            middle, top = median(results, field), best(r[field] for r in results)
            ratios = [f"{median(bench.results[(case, name, threads)], field) / middle:.2f}" for name, _ in ours]
            lines.append(f"| {heading} | {side} | {middle * scale:,.0f} | {top * scale:,.0f} | {' | '.join(ratios)} |")
    return lines


def summary(bench: Bench) -> list:
    """tooltune's fastest side compared with peft's fastest and smallest, by batches and threads."""
    lines = [
        f"| threads | batches | tooltune's fastest | peft's fastest | tokens/s, ratio (aim {RATE_AIM}) | peft's smallest "
        f"| memory, ratio (aim {MEMORY_AIM}) |",
        "|--:|---|---|---|--:|---|--:|",
    ]
    for threads in bench.thread_counts():
        field = "cpu" if threads == 1 else "wall"
        for case, heading in CASES.items():
            of = lambda name, field: median(bench.results[(case, name, threads)], field)
            ours = max((name for name, _ in bench.ours()), key=lambda name: of(name, field))
            groups = {heading: [p.name for p in bench.peft if p.case == case]}
            if case == "packs":
                groups = {f"{heading}, peft in any way": groups[heading]}
                groups[f"{heading}, documents apart"] = [p.name for p in bench.peft if p.case == case and p.is_apart]
            for group, names in groups.items():
                fastest = max(names, key=lambda name: of(name, field))
                smallest = min(names, key=lambda name: of(name, "peak_rss"))
                rate = of(ours, field) / of(fastest, field)
                memory = of(ours, "peak_rss") / of(smallest, "peak_rss")
                lines.append(f"| {threads} | {group} | {ours} | {fastest} | {rate:.2f} | {smallest} | {memory:.2f} |")
    return lines


def token_notes(bench: Bench) -> list:
    """Lists how many tokens each side trained on, and the difference; both must be the same."""
    notes = []
    for case, heading in CASES.items():
        threads = bench.arguments.threads
        ours = bench.results[(case, bench.ours()[0][0], threads)][0]
        theirs = bench.results[(case, next(p.name for p in bench.peft if p.case == case), threads)][0]
        notes.append(
            f"- {heading}: tooltune {ours['steps']} steps, {ours['tokens']:,} tokens, {ours['trained_tokens']:,} of them "
            f"supervised; peft {theirs['steps']} steps, {theirs['tokens']:,} and {theirs['trained_tokens']:,}."
        )
    return notes


def report(bench: Bench, page: Page) -> list:
    arguments = bench.arguments
    source = arguments.data or "`tooltune data synth slot --seed 7`"
    lines = page.head("CPU training compared with peft", versions(arguments.python, "torch transformers peft"))
    lines += [
        f"- SmolLM2-135M-Instruct, LoRA r 8, alpha 16, all linear layers, dropout 0; {arguments.rows} rows from {source}",
        f"- rounds: {arguments.rounds} with {arguments.threads} threads, {arguments.rounds_one_thread} with one, sides alternate; the "
        f"first {arguments.skip} steps of a run are not timed; tokens are real tokens, padding is not counted",
        f"- peft: logits at supervised positions only, no attention mask, fused AdamW, {mkl_note(bench.preload)}; "
        "bf16 = bf16 base weights, f32 adapters; compiled: torch.compile block by block for any length, before the first step",
        "- packs: attention stays within a document in tooltune; in plain peft packs a document also attends to earlier ones, "
        'which is faster but different training; "documents apart" is equal training',
        "",
        "## tooltune compared with peft's best",
        "",
        *summary(bench),
    ]
    if arguments.threads > 1:
        lines += ["", f"## {arguments.threads} threads, wall time", "", *table(bench, arguments.threads, "wall", "tokens/s")]
    if arguments.rounds_one_thread:
        lines += ["", "## 1 thread, CPU time", "", *table(bench, 1, "cpu", "tokens/CPU-s")]
    lines += [
        "",
        f"## Peak memory, {arguments.threads} threads",
        "",
        "Memory of the whole process. For peft, importing torch, transformers and peft alone takes "
        f"{bench.import_rss / MIB:,.0f} MiB.",
        "",
        *table(bench, arguments.threads, "peak_rss", "MiB"),
        "",
        "## Training data",
        "",
        *token_notes(bench),
    ]
    return lines


def parse_arguments() -> tuple:
    options = Options(__doc__)
    options.add_argument("--rounds", type=int, default=2, help="repetitions of every run with --threads threads (2)")
    options.add_argument("--rounds-one-thread", type=int, default=1, help="repetitions of every run with one thread (1; 0 for none)")
    options.add_argument("--rows", type=int, default=32, help="training rows of a run (32: 8 steps of 4)")
    options.add_argument("--skip", type=int, default=2, help="initial steps that are not timed (2)")
    options.add_argument("--threads", type=int, default=2, help="threads of the wall-time runs (2)")
    options.add_argument("--dtypes", nargs="+", choices=["auto", "f32", "bf16"], default=["f32", "bf16"],
                        help="model.compute_dtype of tooltune's runs; auto omits the key (f32 bf16)")
    options.add_argument("--peft-dtypes", nargs="+", choices=["f32", "bf16"], default=["f32", "bf16"],
                        help="dtypes of peft's runs (f32 bf16); bf16 takes ten times as long without oneDNN support for it")
    options.add_argument("--eager", action="store_true", help="skip peft's compiled sides")
    options.add_argument("--data", help="file of SLOT rows to use instead of generated ones; its first rows are used")
    options.add_output("benchmarks/cpu.md")
    options.add_hidden("--python", default=sys.executable)
    options.add_hidden("--tooltune", default="target/release/tooltune")
    arguments = options.parse_args()
    if min(arguments.rounds, arguments.threads) < 1 or arguments.rounds_one_thread < 0:
        options.error("--rounds and --threads must be at least 1, --rounds-one-thread at least 0")
    return arguments, Page("cpu", options.visible_arguments(), arguments.output)


def main():
    arguments, page = parse_arguments()
    os.chdir(ROOT)
    bench = Bench(arguments)
    bench.prepare()
    bench.run_all()
    page.write(report(bench, page))


if __name__ == "__main__":
    main()
