#!/usr/bin/env python3
"""Decodes with tooltune, transformers and llama.cpp in turns and writes benchmarks/generate_cpu.md; started by scripts/bench/generate.

Every side is a process that keeps its model and completes the same prompts, greedily, by the same number of tokens: no token ends
a row. Prompts have equal lengths, so that transformers neither pads nor masks. A rate is the tokens after the first of each row
over the time since that first; the time before is the prefill's. The first tokens of all sides in f32 must be the same. With two
threads wall time counts, with one thread CPU time, which other processes disturb less. llama.cpp takes part with `--llama-cpp`.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

from machine import (
    ROOT, Worker, mkl_note, mkl_preload, package_versions, prepared_base, report_head, run_process, say, shown_arguments, versions
)

DTYPES = ["f32", "bf16"]
WAYS = {"eager": "transformers {dtype}", "compiled": "transformers {dtype}, static cache, compiled"}
# Types of llama.cpp's weights, and the type of tooltune's sides that each stands beside.
LLAMA_CPP = {"f32": "f32", "bf16": "bf16", "f16": "bf16"}
# What tooltune is to reach: its best decoding rate over transformers' best.
AIMS = {1: 2.0, 16: 1.5}


class Side(NamedTuple):
    name: str
    program: str  # tooltune, transformers or llama.cpp
    dtype: str  # of tooltune's side that it is compared with
    stored: str  # the type of the weights
    way: str = ""  # how transformers generates


class Bench:
    """The processes of all sides, and what they answered."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.dir = Path("runs/bench-generate")
        (ROOT / self.dir).mkdir(parents=True, exist_ok=True)
        self.preload = mkl_preload(ROOT / self.dir)
        self.base = prepared_base(arguments.python)
        self.prompts = self.dir / "prompts.json"
        self.peer = [arguments.python, "-W", "ignore", "scripts/bench/generate_peer.py", "--prompts", self.prompts]
        make = self.peer + ["--gguf", arguments.model, "--make-prompts", str(arguments.prompt_tokens)]
        run_process(make, 1, "", ROOT / self.dir / "prompts.log")
        self.answers = {}  # (threads, batch, side) -> [answer]
        self.missing = {}  # (threads, batch, side) -> reason
        self.compile_seconds = {}
        self.agreement = {}  # (threads, batch, side) -> tokens of each row that are tooltune's, from the start on
        if arguments.llama_cpp:
            self.make_ggufs()

    def make_ggufs(self) -> None:
        for dtype in LLAMA_CPP:
            if not (ROOT / self.gguf(dtype)).exists():
                say(f"writing the weights as {dtype} for llama.cpp")
                make = [self.arguments.llama_cpp_python, "scripts/dequantised_gguf.py", self.arguments.model, self.gguf(dtype)]
                run_process(make + ["--dtype", dtype], 1, "", ROOT / self.dir / "gguf.log")

    def gguf(self, dtype: str) -> Path:
        return self.dir / f"llama-cpp-{dtype}.gguf"

    def ways(self) -> list:
        return ["eager"] if self.arguments.eager else list(WAYS)

    def sides(self) -> list:
        sides = []
        for dtype in DTYPES:
            sides.append(Side(f"tooltune {dtype}", "tooltune", dtype, dtype))
            sides += [Side(WAYS[way].format(dtype=dtype), "transformers", dtype, dtype, way) for way in self.ways()]
            if self.arguments.llama_cpp:
                stored = [kind for kind, beside in LLAMA_CPP.items() if beside == dtype]
                sides += [Side(f"llama.cpp {kind}", "llama.cpp", dtype, kind) for kind in stored]
        return sides

    def start(self, threads: int) -> dict:
        """(program, type of its weights) -> worker."""
        workers = {}
        for _, program, _, stored, _ in self.sides():
            if (program, stored) not in workers:
                log = ROOT / self.dir / f"{program}-{stored}.log"
                preload = self.preload if program == "transformers" else ""
                workers[(program, stored)] = Worker(self.command(program, stored, threads), threads, preload, log)
        return workers

    def command(self, program: str, stored: str, threads: int) -> list:
        arguments = self.arguments
        if program == "tooltune":
            return [arguments.ours, arguments.model, stored, self.prompts]
        if program == "transformers":
            return self.peer + ["--base", self.base, "--dtype", stored, "--threads", str(threads)]
        peer = [arguments.llama_cpp_python, "-W", "ignore", "scripts/bench/generate_llama_cpp.py", "--prompts", self.prompts]
        return peer + ["--model", self.gguf(stored), "--new-tokens", str(arguments.new_tokens), "--threads", str(threads)]

    def warm_up(self, workers: dict, threads: int, batch: int) -> None:
        """Touches what is used, and compiles what is compiled; nothing of it is counted."""
        for side in self.sides():
            # A static cache has the length of the request, and so has what is compiled for it.
            new_tokens = self.arguments.new_tokens if side.way == "compiled" else 2
            started = time.monotonic()
            answer = self.ask(workers, side, batch, new_tokens)
            if "missing" in answer:
                self.missing[(threads, batch, side.name)] = answer["missing"]
                say(f"  {side.name}: {answer['missing']}")
            elif side.way == "compiled":
                self.compile_seconds[(threads, batch, side.name)] = time.monotonic() - started
                say(f"  {side.name}: compiled and run once in {time.monotonic() - started:.0f} s")

    def ask(self, workers: dict, side: Side, batch: int, new_tokens: int) -> dict:
        return workers[(side.program, side.stored)].ask(f"{batch} {new_tokens} {side.way}".strip())

    def measure(self, workers: dict, threads: int, batch: int) -> None:
        for _ in range(self.arguments.rounds):
            for side in self.sides():
                key = (threads, batch, side.name)
                if key in self.missing:
                    continue
                answer = self.ask(workers, side, batch, self.arguments.new_tokens)
                self.answers.setdefault(key, []).append(answer)
                if len(self.answers[key]) == 1 and side.stored == "f32" and side.program != "tooltune":
                    self.compare(threads, batch, side)

    def compare(self, threads: int, batch: int, side: Side) -> None:
        """In f32: stops unless tooltune begins with transformers' tokens; leaves any other side out that does not."""
        needed = min(self.arguments.agree, self.arguments.new_tokens)
        theirs = self.answers[(threads, batch, side.name)][0]["tokens"]
        ours = self.answers[(threads, batch, "tooltune f32")][0]["tokens"]
        if len(ours) != batch or any(len(row) != self.arguments.new_tokens for row in ours):
            raise SystemExit(f"tooltune made rows of {[len(row) for row in ours]} tokens, not {batch} of {self.arguments.new_tokens}")
        equal = [equal_start(a, b) for a, b in zip(ours, theirs)]
        if side.way != "eager" and min(equal) < needed:
            del self.answers[(threads, batch, side.name)]
            self.missing[(threads, batch, side.name)] = f"makes other tokens than transformers' default, after {min(equal)}"
            return
        if side.way == "compiled":
            return
        self.agreement[(threads, batch, side.name)] = equal
        for row, n_equal in enumerate(equal):
            if n_equal < needed:
                raise SystemExit(
                    f"prompt {row} of batch {batch}, {threads} thread(s), f32: token {n_equal} differs, of {needed} that must agree\n"
                    f"  tooltune      {ours[row][: n_equal + 4]}\n  transformers  {theirs[row][: n_equal + 4]}"
                )

    def run_all(self) -> None:
        for threads in self.arguments.threads:
            workers = self.start(threads)
            for batch in self.arguments.batches:
                say(f"{threads} thread(s), batch {batch}, load {os.getloadavg()[0]:.2f}")
                self.warm_up(workers, threads, batch)
                self.measure(workers, threads, batch)
            for worker in workers.values():
                worker.close()

    def rates(self, threads: int, batch: int, side: str, phase: str) -> list:
        clock = "cpu" if threads == 1 else "wall"
        n_tokens = self.arguments.prompt_tokens if phase == "prefill" else self.arguments.new_tokens - 1
        return [batch * n_tokens / max(a[phase][clock], 1e-9) for a in self.answers.get((threads, batch, side), [])]


def equal_start(a: list, b: list) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


# ------------------------------------------------------------------------------------------ the report


def median(rates: list):
    return statistics.median(rates) if rates else None


def cell(rates: list) -> str:
    if not rates:
        return "–"
    digits = 0 if max(rates) >= 100 else 1
    return f"{statistics.median(rates):,.{digits}f} ({max(rates):,.{digits}f})"


def best_of(bench: Bench, threads: int, batch: int, phase: str, program: str, dtype: str = ""):
    """The highest median among the sides of a program, of one dtype or of all."""
    names = [side.name for side in bench.sides() if side.program == program and dtype in ("", side.dtype)]
    medians = [m for m in (median(bench.rates(threads, batch, name, phase)) for name in names) if m]
    return max(medians, default=None)


def ratio(ours, theirs) -> str:
    return f"{ours / theirs:.2f}" if ours and theirs else "–"


def table(bench: Bench, threads: int) -> list:
    lines = ["| batch | side | decode | tooltune / side | prefill | tooltune / side |", "|--:|---|--:|--:|--:|--:|"]
    for batch in bench.arguments.batches:
        for side in bench.sides():
            cells = []
            for phase in ("decode", "prefill"):
                rates = bench.rates(threads, batch, side.name, phase)
                ours = best_of(bench, threads, batch, phase, "tooltune", side.dtype)
                cells += [cell(rates), "" if side.program == "tooltune" else ratio(ours, median(rates))]
            lines.append(f"| {batch} | {side.name} | {' | '.join(cells)} |")
        if not bench.arguments.llama_cpp:
            lines.append(f"| {batch} | llama.cpp | not run | – | not run | – |")
    return lines


def summary(bench: Bench) -> list:
    peers = ["transformers"] + ["llama.cpp"] * bench.arguments.llama_cpp
    lines = [
        f"| threads | batch | {' | '.join(f'decode, over {peer}' for peer in peers)} | aim over transformers "
        f"| {' | '.join(f'prefill, over {peer}' for peer in peers)} |",
        "|--:" * (3 + 2 * len(peers)) + "|",
    ]
    for threads in bench.arguments.threads:
        for batch in bench.arguments.batches:
            cells = {
                phase: [
                    ratio(*(best_of(bench, threads, batch, phase, program) for program in ("tooltune", peer))) for peer in peers
                ]
                for phase in ("decode", "prefill")
            }
            row = [threads, batch, *cells["decode"], AIMS.get(batch, "–"), *cells["prefill"]]
            lines.append(f"| {' | '.join(map(str, row))} |")
    return lines


def notes(bench: Bench) -> list:
    lines = []
    for (threads, batch, side), equal in bench.agreement.items():
        whole = sum(n == bench.arguments.new_tokens for n in equal)
        lines.append(
            f"- {side}, {threads} thread(s), batch {batch}: {whole} of {len(equal)} rows agree in all {bench.arguments.new_tokens} tokens, "
            f"the others from the start on in {min(equal)} or more."
            if whole < len(equal)
            else f"- {side}, {threads} thread(s), batch {batch}: all {bench.arguments.new_tokens} tokens of all rows agree."
        )
    for (threads, batch, side), seconds in bench.compile_seconds.items():
        lines.append(f"- {side}, {threads} thread(s), batch {batch}: compiled and run once in {seconds:.0f} s, which is not counted.")
    for (threads, batch, side), reason in bench.missing.items():
        lines.append(f"- {side}, {threads} thread(s), batch {batch}: {reason}")
    return lines


def report(bench: Bench, load_before: float) -> str:
    arguments = bench.arguments
    lines = ["# Decoding on the CPU, beside transformers and llama.cpp", ""]
    lines += report_head("scripts/bench/generate", arguments.shown, load_before, versions(arguments.python, "torch transformers"))
    llama_cpp = (
        f"llama.cpp: {package_versions(arguments.llama_cpp_python, 'llama-cpp-python')}, compiled for this processor, the rows of a "
        "batch as sequences of one context, everything else as llama.cpp chooses, such as a cache in f16"
        if arguments.llama_cpp
        else "llama.cpp: not run; `--llama-cpp` compiles it the first time"
    )
    lines += [
        f"- SmolLM2-135M-Instruct, greedy, prompts of {arguments.prompt_tokens} tokens, {arguments.new_tokens} new ones, none of "
        f"which ends a row; {arguments.rounds} rounds, sides in turns; cells are medians, bests in parentheses",
        f"- transformers: SDPA, {mkl_note(bench.preload)}; `generate` with its default cache, and with a static cache, "
        "torch.compile, and weights packed by inductor for more than one row",
        f"- {llama_cpp}",
        "",
        "## tooltune's best over the best of others",
        "",
        *summary(bench),
    ]
    for threads in arguments.threads:
        unit = "tokens per CPU second" if threads == 1 else "tokens/s, wall time"
        lines += ["", f"## {threads} thread(s), {unit}", "", *table(bench, threads)]
    lines += ["", "## What was compared", "", *notes(bench), ""]
    return "\n".join(lines)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="times that every side completes the prompts (3)")
    parser.add_argument("--new-tokens", type=int, default=128, help="tokens of a completion (128)")
    parser.add_argument("--prompt-tokens", type=int, default=200, help="tokens of a prompt (200)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16], help="rows decoded together, at most 16 (1 16)")
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1], help="numbers of threads (2 1)")
    parser.add_argument("--agree", type=int, default=8, help="tokens of each row that must agree in f32 (8)")
    parser.add_argument("--llama-cpp", action="store_true", help="llama.cpp too; the first run compiles it for half an hour")
    parser.add_argument("--eager", action="store_true", help="leave transformers' compiled side out")
    parser.add_argument("--model", type=Path, default=Path("models/smollm2-135m-instruct.gguf"), help="GGUF of SmolLM2")
    default = Path("benchmarks/generate_cpu.md")
    parser.add_argument("--output", type=Path, default=default, help=f"file to write ({default})")
    parser.add_argument("--python", default=sys.executable, help=argparse.SUPPRESS)
    parser.add_argument("--llama-cpp-python", help=argparse.SUPPRESS)
    parser.add_argument("--ours", default="target/release/examples/generate", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.new_tokens < 2:
        parser.error("--new-tokens must be at least 2: the first token of a row belongs to the prefill")
    arguments.shown = shown_arguments({"--python", "--ours", "--llama-cpp-python"})
    if arguments.llama_cpp and not arguments.llama_cpp_python:
        parser.error("--llama-cpp needs the Python that scripts/bench/generate prepares; start that")
    return arguments


def main():
    arguments = parse_arguments()
    os.chdir(ROOT)
    load_before, started = os.getloadavg()[0], time.monotonic()
    bench = Bench(arguments)
    bench.run_all()
    text = report(bench, load_before)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text, encoding="utf-8")
    print(text)
    say(f"{arguments.output} written after {(time.monotonic() - started) / 60:.0f} min")


if __name__ == "__main__":
    main()
