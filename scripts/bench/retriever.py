#!/usr/bin/env python3
"""Fine-tunes MiniLM alternately with tooltune and sentence-transformers and writes benchmarks/retriever.md; standard library only.

Started by scripts/bench/retriever. Each run is a separate process that trains one epoch on the same pairs. A round has
every run once, alternating between tooltune and sentence-transformers, so that changes of the machine's load affect
both; the table has medians over rounds. Peak memory is the kernel's figure for the whole process (ru_maxrss), for both
sides. With --quality, trains on BFCL's pairs and compares recall; see retriever_quality.py.
"""

import json
import os
import random
import statistics
import sys
from pathlib import Path

import retriever_quality
from machine import MIB, ROOT, mkl_note, mkl_preload, run_process, say, versions
from page import Options, Page
from retriever_sides import Runner, Training, sides

LENGTHS = {
    "full": "all texts cut at {max_length} tokens",
    "mixed": "texts of mixed length, cut at {max_length} tokens",
}
# Each word is a single vocabulary piece.
WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand part place "
    "case week company system program question work government number night point home water room mother area money story fact "
    "month lot right study book eye job word business issue side kind head house service friend father power hour game line end "
    "member law car city community name president team minute idea body information back parent face others level office door "
    "health person art war history party result change morning reason research girl guy moment air teacher force education"
).split()


def made_pairs(lengths: str, n_pairs: int, max_length: int) -> list:
    """Random words. Mixed: medians of 25 words in queries and 100 in documents, about as in BFCL's queries and functions."""
    rng = random.Random(7)

    def text(median: int, spread: float, least: int) -> str:
        n_words = max_length if lengths == "full" else max(least, round(median * rng.lognormvariate(0.0, spread)))
        return " ".join(rng.choices(WORDS, k=n_words))

    return [{"query": text(25, 0.75, 3), "document": text(100, 0.5, 12)} for _ in range(n_pairs)]


class Bench:
    """The folder of the runs, and the results of each side."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.dir = Path("runs/bench-retriever")
        (ROOT / self.dir).mkdir(parents=True, exist_ok=True)
        self.preload = mkl_preload(ROOT / self.dir)
        self.runner = Runner(self.dir, arguments.python, arguments.tooltune, self.preload)
        self.sides = sides(arguments.peer_only, arguments.eager, arguments.dtypes)
        self.results = {}  # (lengths, side, threads) -> [result]

    def training(self, lengths: str) -> Training:
        arguments = self.arguments
        return Training(self.dir / f"{lengths}.jsonl", arguments.batch_size, arguments.max_length, learning_rate=2e-5)

    def prepare(self) -> None:
        arguments = self.arguments
        for lengths in LENGTHS:
            rows = made_pairs(lengths, arguments.steps * arguments.batch_size, arguments.max_length)
            (ROOT / self.training(lengths).pairs).write_text("".join(json.dumps(row) + "\n" for row in rows))
        imports = [arguments.python, "-W", "ignore", "-c", "import torch, sentence_transformers"]
        self.import_rss = run_process(imports, 1, "", ROOT / self.dir / "imports.log")

    def run(self, lengths: str, side, threads: int) -> None:
        arguments = self.arguments
        steps, peak, _ = self.runner.train(side, self.training(lengths), threads, lengths)
        timed = steps[arguments.skip :]
        if len(steps) != arguments.steps:
            raise SystemExit(f"{side.name} ran {len(steps)} steps of {arguments.batch_size} pairs instead of {arguments.steps}")
        n_pairs = len(timed) * arguments.batch_size
        result = {
            "wall": n_pairs / sum(step["seconds"] for step in timed),
            "cpu": n_pairs / sum(step["cpu_seconds"] for step in timed),
            "peak_rss": peak,
            "tokens": sum(step["tokens"] for step in steps),
            "compile_seconds": steps[0].get("compile_seconds", 0.0),
        }
        self.results.setdefault((lengths, side, threads), []).append(result)
        compiled = f", compiled in {result['compile_seconds']:.0f} s" if result["compile_seconds"] else ""
        rates = f"{result['wall']:.2f} pairs/s, {result['cpu']:.2f} pairs/CPU-s"
        say(f"  {side.name}, {threads} thread(s): {rates}, {peak / MIB:.0f} MiB{compiled}")

    def rounds(self, threads: int) -> int:
        return self.arguments.rounds_one_thread if threads == 1 else self.arguments.rounds

    def thread_counts(self) -> list:
        return [n for n in sorted({self.arguments.threads, 1}, reverse=True) if self.rounds(n)]

    def run_all(self) -> None:
        for number in range(1, max(map(self.rounds, self.thread_counts())) + 1):
            for threads in self.thread_counts():
                for lengths in LENGTHS if number <= self.rounds(threads) else []:
                    say(f"round {number}, {lengths}, {threads} thread(s), load {os.getloadavg()[0]:.2f}")
                    for side in self.sides:
                        self.run(lengths, side, threads)


# ------------------------------------------------------------------------------------------ the report

# Field -> (heading, scale, digits, function for the best value).
FIELDS = {
    "wall": ("pairs/s", 1, 2, max),
    "cpu": ("pairs/CPU-s", 1, 2, max),
    "peak_rss": ("peak MiB", 1 / MIB, 0, min),
}


def median(results: list, field: str) -> float:
    return statistics.median(r[field] for r in results)


def cell(results: list, field: str) -> str:
    _, scale, digits, best = FIELDS[field]
    middle, top = median(results, field) * scale, best(r[field] for r in results) * scale
    return f"{middle:,.{digits}f} ({top:,.{digits}f})"


def table(bench: Bench, threads: int) -> list:
    """One row per side: medians, bests, and tooltune in the same dtype divided by this side."""
    headings = [heading for heading, *_ in FIELDS.values()]
    lines = ["| texts | side | " + " | tooltune / side | ".join(headings) + " | tooltune / side |"]
    lines.append("|---|---|" + "--:|--:|" * len(FIELDS))
    for lengths in LENGTHS:
        for side in bench.sides:
            theirs, cells = bench.results[(lengths, side, threads)], []
            same_type = [other for other in bench.sides if other.is_ours and other.dtype == side.dtype and not side.is_ours]
            for field in FIELDS:
                ratios = [median(bench.results[(lengths, ours, threads)], field) / median(theirs, field) for ours in same_type]
                cells += [cell(theirs, field), f"{ratios[0]:.2f}" if ratios else ""]
            lines.append(f"| {lengths} | {side.name} | {' | '.join(cells)} |")
    return lines


def summary(bench: Bench) -> list:
    """tooltune's fastest side compared with the fastest and the smallest of sentence-transformers."""
    lines = ["| threads | texts | tooltune's fastest | the peer's fastest | pairs/s, ratio | the peer's smallest | memory, ratio |"]
    lines.append("|--:|---|---|---|--:|---|--:|")
    ours, theirs = ([side for side in bench.sides if side.is_ours == which] for which in (True, False))
    for threads in bench.thread_counts() if ours else []:
        clock = "cpu" if threads == 1 else "wall"
        for lengths in LENGTHS:
            of = lambda side, field: median(bench.results[(lengths, side, threads)], field)
            our_best, their_best = (max(group, key=lambda side: of(side, clock)) for group in (ours, theirs))
            smallest = min(theirs, key=lambda side: of(side, "peak_rss"))
            rate = of(our_best, clock) / of(their_best, clock)
            memory = of(our_best, "peak_rss") / of(smallest, "peak_rss")
            names = f"{our_best.name} | {their_best.name} | {rate:.2f} | {smallest.name} | {memory:.2f}"
            lines.append(f"| {threads} | {lengths} | {names} |")
    return lines


def notes(bench: Bench) -> list:
    threads, lines = bench.thread_counts()[0], []
    for lengths in LENGTHS:
        counts = {side.name: bench.results[(lengths, side, threads)][0]["tokens"] for side in bench.sides}
        shown = f"{next(iter(counts.values())):,} on each side"
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{name} {tokens:,}" for name, tokens in counts.items())
        lines.append(f"- {lengths}: {LENGTHS[lengths].format(**vars(bench.arguments))}; tokens of a run, without padding: {shown}.")
    for (lengths, side, threads), results in bench.results.items():
        if results[0]["compile_seconds"]:
            seconds = f"{results[0]['compile_seconds']:.0f} s"
            lines.append(f"- {side.name}, {lengths}, {threads} thread(s): compiled and warmed up in {seconds}, which is not included.")
    return lines


def report(bench: Bench, page: Page) -> list:
    arguments = bench.arguments
    packages = versions(arguments.python, "torch transformers sentence-transformers")
    lines = [
        *page.head("Fine-tuning a retriever on the CPU compared with sentence-transformers", packages),
        f"- all-MiniLM-L6-v2, all weights, InfoNCE with scale 20 over the batch of {arguments.batch_size} pairs, dropout 0, AdamW; "
        f"{arguments.steps} steps, the first {arguments.skip} not timed",
        f"- rounds: {arguments.rounds} with {arguments.threads} threads, {arguments.rounds_one_thread} with one, alternating sides; "
        "cells are medians, bests in parentheses",
        f"- sentence-transformers: a plain loop over MultipleNegativesRankingLoss, tokenized in advance, SDPA, fused AdamW, "
        f"{mkl_note(bench.preload)}; bf16 = autocast; compiled: torch.compile block by block",
        f"- peak memory includes the whole process; importing torch and sentence_transformers alone takes {bench.import_rss / MIB:,.0f} MiB",
    ]
    if not arguments.peer_only:
        lines += ["", "## tooltune compared with the best of sentence-transformers", "", *summary(bench)]
        lines += ["", "One-thread rows use CPU time, which other processes disturb less."]
    for threads in bench.thread_counts():
        lines += ["", f"## {threads} thread(s)", "", *table(bench, threads)]
    return [*lines, "", "## Training data", "", *notes(bench)]


def quality_report(bench: Bench, page: Page) -> list:
    arguments = bench.arguments
    packages = versions(arguments.python, "torch transformers sentence-transformers")
    compared = retriever_quality.compared(bench.runner, bench.sides, arguments.quality, bench.dir, arguments.threads)
    return [
        *page.head("Fine-tuning a retriever on BFCL's functions compared with sentence-transformers", packages),
        f"- all-MiniLM-L6-v2, all weights, InfoNCE with scale 20, one epoch in batches of {retriever_quality.BATCH_SIZE} pairs at most "
        f"{retriever_quality.MAX_LENGTH} tokens long, learning rate {retriever_quality.LEARNING_RATE:g}, dropout 0; both sides get the "
        "same pairs in the same order",
        "- test queries call functions that no training pair has; each ranks all functions; the same evaluator computes recall for both sides",
        "- CPU-s: CPU time of the training steps",
        "",
        compared,
    ]


def parse_arguments() -> tuple:
    options = Options(__doc__)
    options.add_argument("--rounds", type=int, default=2, help="repetitions of every run with --threads threads (2)")
    options.add_argument("--rounds-one-thread", type=int, default=1, help="repetitions of every run with one thread (1; 0 for none)")
    options.add_argument("--steps", type=int, default=6, help="steps per run (6)")
    options.add_argument("--skip", type=int, default=2, help="initial steps that are not timed (2)")
    options.add_argument("--batch-size", type=int, default=64, help="pairs per step (64)")
    options.add_argument("--max-length", type=int, default=128, help="maximum tokens per text (128)")
    options.add_argument("--threads", type=int, default=2, help="threads of the wall-time runs (2)")
    options.add_argument("--dtypes", nargs="+", choices=["f32", "bf16"], default=["f32", "bf16"], help="dtypes (f32 bf16)")
    options.add_argument("--eager", action="store_true", help="skip the compiled sides")
    options.add_argument("--peer-only", action="store_true", help="skip tooltune")
    options.add_argument("--quality", type=Path, metavar="BFCL_DIR", help="compare recall after training on the pairs of this folder")
    options.add_argument("--output", type=Path, help="file to write (benchmarks/retriever.md, or retriever_quality.md there)")
    options.add_hidden("--python", default=sys.executable)
    options.add_hidden("--tooltune", default="target/release/tooltune")
    arguments = options.parse_args()
    if min(arguments.rounds, arguments.threads) < 1 or arguments.rounds_one_thread < 0:
        options.error("--rounds and --threads must be at least 1, --rounds-one-thread at least 0")
    if arguments.threads == 1 and arguments.rounds_one_thread == 0:
        options.error("--threads 1 without one-thread rounds leaves nothing to run")
    if not 0 <= arguments.skip < arguments.steps:
        options.error("--skip must leave at least one of the --steps")
    if arguments.quality:
        arguments.quality = arguments.quality.resolve()
    visible = options.visible_arguments("--quality") + (["--quality", "BFCL_DIR"] if arguments.quality else [])
    name = "retriever_quality.md" if arguments.quality else "retriever.md"
    arguments.output = arguments.output or Path("benchmarks") / name
    return arguments, Page("retriever", visible, arguments.output)


def main():
    arguments, page = parse_arguments()
    os.chdir(ROOT)
    bench = Bench(arguments)
    if arguments.quality:
        page.write(quality_report(bench, page))
    else:
        bench.prepare()
        bench.run_all()
        page.write(report(bench, page))


if __name__ == "__main__":
    main()
