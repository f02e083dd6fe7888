#!/usr/bin/env python3
"""Decodes alternately with tooltune, transformers and llama.cpp, and writes benchmarks/generate_cpu.md; started by scripts/bench/generate.

Every side is a process that keeps its model and completes the same prompts greedily by the same number of tokens; no
token ends a row. Prompts have equal lengths, so transformers neither pads nor masks. The decode rate counts the tokens
after the first of each row over the time since that first token; the time before is prefill. The first f32 tokens of
all sides must agree. With two threads the table uses wall time, with one thread CPU time, which other processes disturb
less. `--llama-cpp` includes llama.cpp.
"""

import os
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

from machine import ROOT, Worker, mkl_note, mkl_preload, package_versions, prepared_base, run_process, say, versions
from page import Options, Page

DTYPES = ["f32", "bf16"]
WAYS = {"eager": "transformers {dtype}", "compiled": "transformers {dtype}, static cache, compiled"}
# llama.cpp's weight types, and the dtype of the tooltune side that each is compared with.
LLAMA_CPP = {"f32": "f32", "bf16": "bf16", "f16": "bf16"}
# Target for tooltune: its best decoding rate over transformers' best.
AIMS = {1: 2.0, 16: 1.5}


class Side(NamedTuple):
    name: str
    program: str  # tooltune, transformers or llama.cpp
    dtype: str  # dtype of the tooltune side that it is compared with
    stored: str  # weight type
    way: str = ""  # generation mode of transformers


class Bench:
    """The processes of all sides, and their results."""

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
        self.agreement = {}  # (threads, batch, side) -> length of each row's common prefix with tooltune's
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
        """(program, weight type) -> worker."""
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
        """Warms up every side and compiles where needed; not included in the results."""
        for side in self.sides():
            # The static cache, and hence the compiled code, has the length of the request.
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
        """In f32: stops unless tooltune's first tokens equal transformers'; skips any other side that differs."""
        needed = min(self.arguments.agree, self.arguments.new_tokens)
        theirs = self.answers[(threads, batch, side.name)][0]["tokens"]
        ours = self.answers[(threads, batch, "tooltune f32")][0]["tokens"]
        if len(ours) != batch or any(len(row) != self.arguments.new_tokens for row in ours):
            raise SystemExit(f"tooltune generated rows of {[len(row) for row in ours]} tokens, not {batch} of {self.arguments.new_tokens}")
        equal = [equal_start(a, b) for a, b in zip(ours, theirs)]
        if side.way != "eager" and min(equal) < needed:
            del self.answers[(threads, batch, side.name)]
            self.missing[(threads, batch, side.name)] = f"generates different tokens than transformers' default after {min(equal)}"
            return
        if side.way == "compiled":
            return
        self.agreement[(threads, batch, side.name)] = equal
        for row, n_equal in enumerate(equal):
            if n_equal < needed:
                raise SystemExit(
                    f"prompt {row} of batch {batch}, {threads} thread(s), f32: token {n_equal} differs; the first {needed} must agree\n"
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
            f"- {side}, {threads} thread(s), batch {batch}: {whole} of {len(equal)} rows agree in all {bench.arguments.new_tokens} tokens; "
            f"the others agree in at least the first {min(equal)}."
            if whole < len(equal)
            else f"- {side}, {threads} thread(s), batch {batch}: all {bench.arguments.new_tokens} tokens of all rows agree."
        )
    for (threads, batch, side), seconds in bench.compile_seconds.items():
        lines.append(f"- {side}, {threads} thread(s), batch {batch}: compiled and run once in {seconds:.0f} s, which is not included.")
    for (threads, batch, side), reason in bench.missing.items():
        lines.append(f"- {side}, {threads} thread(s), batch {batch}: {reason}")
    return lines


def report(bench: Bench, page: Page) -> list:
    arguments = bench.arguments
    lines = page.head("CPU decoding compared with transformers and llama.cpp", versions(arguments.python, "torch transformers"))
    llama_cpp = (
        f"llama.cpp: {package_versions(arguments.llama_cpp_python, 'llama-cpp-python')}, compiled for this processor; the rows of a "
        "batch as sequences of one context, otherwise llama.cpp's defaults, such as an f16 cache"
        if arguments.llama_cpp
        else "llama.cpp: not run; `--llama-cpp` compiles it on the first run"
    )
    lines += [
        f"- SmolLM2-135M-Instruct, greedy, prompts of {arguments.prompt_tokens} tokens, {arguments.new_tokens} new ones, none of "
        f"which ends a row; {arguments.rounds} rounds, sides alternate; cells are medians, bests in parentheses",
        f"- transformers: SDPA, {mkl_note(bench.preload)}; `generate` with its default cache, and with a static cache, "
        "torch.compile, and weights packed by inductor for more than one row",
        f"- {llama_cpp}",
        "",
        "## tooltune's best relative to the best peer",
        "",
        *summary(bench),
    ]
    for threads in arguments.threads:
        unit = "tokens per CPU second" if threads == 1 else "tokens/s, wall time"
        lines += ["", f"## {threads} thread(s), {unit}", "", *table(bench, threads)]
    return [*lines, "", "## Comparison", "", *notes(bench)]


def parse_arguments() -> tuple:
    options = Options(__doc__)
    options.add_argument("--rounds", type=int, default=3, help="repetitions of every side (3)")
    options.add_argument("--new-tokens", type=int, default=128, help="tokens of a completion (128)")
    options.add_argument("--prompt-tokens", type=int, default=200, help="tokens of a prompt (200)")
    options.add_argument("--batches", type=int, nargs="+", default=[1, 16], help="rows decoded together, at most 16 (1 16)")
    options.add_argument("--threads", type=int, nargs="+", default=[2, 1], help="thread counts (2 1)")
    options.add_argument("--agree", type=int, default=8, help="tokens of each row that must agree in f32 (8)")
    options.add_argument("--llama-cpp", action="store_true", help="include llama.cpp; the first run takes half an hour to compile it")
    options.add_argument("--eager", action="store_true", help="skip transformers' compiled side")
    options.add_argument("--model", type=Path, default=Path("models/smollm2-135m-instruct.gguf"), help="GGUF of SmolLM2")
    options.add_output("benchmarks/generate_cpu.md")
    options.add_hidden("--python", default=sys.executable)
    options.add_hidden("--llama-cpp-python")
    options.add_hidden("--ours", default="target/release/examples/generate")
    arguments = options.parse_args()
    if arguments.new_tokens < 2:
        options.error("--new-tokens must be at least 2: the first token of a row belongs to the prefill")
    if arguments.llama_cpp and not arguments.llama_cpp_python:
        options.error("--llama-cpp needs the Python that scripts/bench/generate prepares; run that script")
    return arguments, Page("generate", options.visible_arguments(), arguments.output)


def main():
    arguments, page = parse_arguments()
    os.chdir(ROOT)
    bench = Bench(arguments)
    bench.run_all()
    page.write(report(bench, page))


if __name__ == "__main__":
    main()
