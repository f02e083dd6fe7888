#!/usr/bin/env python3
"""Runs tooltune and peft in turns and writes benchmarks/cpu.md; started by scripts/bench/cpu, standard library only.

Each run is a process of its own that trains one epoch over the same rows and writes a JSON line per step. A round holds every
run once, tooltune beside peft, so that a change of the machine's load meets both; the table has medians over rounds. With two
threads wall time counts, with one thread CPU time, which other processes disturb less. Peak memory is what the kernel reports
of the whole process (ru_maxrss), the same for both.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
CASES = {
    "batch": "batch of 4, padded",
    "packs": "packs of 2,048 tokens",
}
# name -> (case, arguments of peft_train.py, heading)
PEFT = {
    "batch/f32": ("batch", ["--dtype", "f32", "--batches", "padded"], "peft f32"),
    "batch/bf16": ("batch", ["--dtype", "bf16", "--batches", "padded"], "peft bf16"),
    "packs/f32": ("packs", ["--dtype", "f32", "--batches", "packed"], "peft f32"),
    "packs/bf16": ("packs", ["--dtype", "bf16", "--batches", "packed"], "peft bf16"),
    "packs-apart/f32": ("packs", ["--dtype", "f32", "--batches", "packed-apart"], "peft f32, documents apart"),
    "packs-apart/bf16": ("packs", ["--dtype", "bf16", "--batches", "packed-apart"], "peft bf16, documents apart"),
}
CONFIG = """\
[model]
model_name_or_path = "models/smollm2-135m-instruct.gguf"

[lora]
r = 8
lora_alpha = 16
lora_dropout = 0.0
target_modules = "all-linear"

[data]
train = ["{rows}"]
format = "slot"
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


def say(text: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", flush=True)


def environment(threads: int, preload: str) -> dict:
    count = str(threads)
    extra = {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "RAYON_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    if preload:
        extra["LD_PRELOAD"] = preload
    return os.environ | extra


def run_process(command: list, threads: int, preload: str, log: Path) -> int:
    """Runs to the end and returns the peak RSS in bytes; on failure prints the end of the log and stops."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(threads, preload), stdout=sink, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        tail = log.read_text(errors="replace")[-2000:]
        raise SystemExit(f"{shlex.join(map(str, command))}\nended with status {process.returncode}:\n{tail}")
    unit = 1 if sys.platform == "darwin" else 1024
    return usage.ru_maxrss * unit


def read_timing(path: Path, skip: int) -> dict:
    """Rates over the steps after the first `skip`, and totals over all steps."""
    try:
        steps = [json.loads(line) for line in path.read_text().splitlines()]
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror}; the training run should have written it")
    timed = steps[skip:]
    if not timed:
        raise SystemExit(f"{path}: {len(steps)} steps are too few to leave out {skip}; use more --rows")
    tokens = sum(s["tokens"] for s in timed)
    return {
        "wall": tokens / sum(s["seconds"] for s in timed),
        "cpu": tokens / sum(s["cpu_seconds"] for s in timed),
        "steps": len(steps),
        "tokens": sum(s["tokens"] for s in steps),
        "trained_tokens": sum(s["trained_tokens"] for s in steps),
    }


class Bench:
    """The folder of the runs, and how each side is started."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.dir = Path("runs/bench-cpu")
        self.rows = self.dir / "rows.jsonl"
        self.base = self.dir / "base"
        (ROOT / self.dir).mkdir(parents=True, exist_ok=True)
        self.preload = self.build_preload()
        self.results = {}

    def build_preload(self) -> str:
        """MKL takes its AVX-512 kernels on AMD only if told that the processor is Intel's: worth a factor of two."""
        cpuinfo = Path("/proc/cpuinfo")
        if not cpuinfo.exists() or "AuthenticAMD" not in cpuinfo.read_text():
            return ""
        source, library = ROOT / self.dir / "mkl_avx512.c", ROOT / self.dir / "mkl_avx512.so"
        source.write_text("int mkl_serv_intel_cpu_true(void) { return 1; }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        return str(library)

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
        if not (ROOT / self.base / "model.safetensors").exists():
            say("converting the GGUF for transformers")
            command = [arguments.python, "-W", "ignore", "scripts/bench/peft_train.py", "--prepare", "--base", self.base]
            run_process(command, 1, "", ROOT / self.dir / "prepare.log")

        imports = [arguments.python, "-W", "ignore", "-c", "import torch, transformers, peft"]
        self.import_rss = run_process(imports, 1, "", ROOT / self.dir / "imports.log")

    def keep(self, key: tuple, timing: Path, peak_rss: int) -> None:
        result = read_timing(timing, self.arguments.skip) | {"peak_rss": peak_rss}
        self.results.setdefault(key, []).append(result)
        name, threads = key
        rate = f"{result['wall']:.0f} tokens/s" if threads > 1 else f"{result['cpu']:.0f} tokens/CPU-s"
        say(f"  {name}, {threads} thread(s): {rate}, {peak_rss / MIB:.0f} MiB, {result['steps']} steps")

    def run_ours(self, case: str, threads: int, seed: int) -> None:
        run = self.dir / f"ours-{case}"
        shutil.rmtree(ROOT / run, ignore_errors=True)
        config = ROOT / self.dir / f"{case}.toml"
        config.write_text(
            CONFIG.format(
                rows=self.rows,
                run=run,
                packing="none" if case == "batch" else "block-diagonal",
                batch_size=4 if case == "batch" else 1,
                seed=seed,
            )
        )
        log = ROOT / self.dir / f"ours-{case}.log"
        peak = run_process([self.arguments.tooltune, "train", config], threads, "", log)
        self.keep((f"{case}/tooltune", threads), ROOT / run / "timing.jsonl", peak)

    def run_peft(self, name: str, threads: int, seed: int) -> None:
        stem = "peft-" + name.replace("/", "-")
        timing = ROOT / self.dir / f"{stem}.jsonl"
        command = [self.arguments.python, "-W", "ignore", "scripts/bench/peft_train.py", *PEFT[name][1]]
        command += ["--base", self.base, "--rows", self.rows, "--timing", timing]
        command += ["--threads", str(threads), "--seed", str(seed)]
        peak = run_process(command, threads, self.preload, ROOT / self.dir / f"{stem}.log")
        self.keep((name, threads), timing, peak)

    def run_all(self) -> None:
        for number in range(1, self.arguments.rounds + 1):
            for threads in (self.arguments.threads, 1):
                for case in CASES:
                    say(f"round {number}, {CASES[case]}, load {os.getloadavg()[0]:.2f}")
                    self.run_ours(case, threads, number)
                    for name, (peft_case, _, _) in PEFT.items():
                        if peft_case == case:
                            self.run_peft(name, threads, number)


# ------------------------------------------------------------------------------------------ the report


def median(results: list, field: str) -> float:
    return statistics.median(r[field] for r in results)


def table(bench: Bench, threads: int, field: str, unit: str) -> list:
    """One row per side: median, best, and tooltune's median as a multiple of this side's."""
    lines = [f"| batches | side | {unit}, median | best | tooltune / side |", "|---|---|---|---|---|"]
    scale, digits, best = (1 / MIB, 0, min) if field == "peak_rss" else (1, 0, max)
    for case, heading in CASES.items():
        ours = bench.results[(f"{case}/tooltune", threads)]
        sides = [("tooltune", ours)]
        sides += [(h, bench.results[(n, threads)]) for n, (c, _, h) in PEFT.items() if c == case]
        for side, results in sides:
            middle = median(results, field)
            ratio = "1" if side == "tooltune" else f"{median(ours, field) / middle:.2f}"
            top = best(r[field] for r in results) * scale
            lines.append(f"| {heading} | {side} | {middle * scale:,.{digits}f} | {top:,.{digits}f} | {ratio} |")
    return lines


def output_of(command: list) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return found.group(1) if found else platform.processor() or platform.machine()


def versions(python: str) -> str:
    names = "torch transformers peft"
    code = f"import importlib.metadata as m; print(', '.join(n + ' ' + m.version(n) for n in '{names}'.split()))"
    burn = re.search(r'name = "burn"\nversion = "([^"]+)"', (ROOT / "Cargo.lock").read_text())
    return f"{output_of([python, '-c', code])}; burn {burn.group(1) if burn else '?'}, {output_of(['rustc', '--version'])}"


def token_notes(bench: Bench) -> list:
    """Both sides must have trained on the same tokens; says how many, and by how much they differ."""
    notes = []
    for case, heading in CASES.items():
        ours = bench.results[(f"{case}/tooltune", 1)][0]
        theirs = bench.results[(f"{case}/f32", 1)][0]
        notes.append(
            f"- {heading}: tooltune {ours['steps']} steps, {ours['tokens']:,} tokens, {ours['trained_tokens']:,} of them "
            f"learned; peft {theirs['steps']} steps, {theirs['tokens']:,} and {theirs['trained_tokens']:,}."
        )
    return notes


def report(bench: Bench, load_before: float) -> str:
    arguments = bench.arguments
    dirty = "" if output_of(["git", "status", "--porcelain", "--untracked-files=no"]) == "" else ", with local changes"
    commit = output_of(["git", "rev-parse", "--short=12", "HEAD"]) + dirty
    preload = "MKL's AVX-512 kernels switched on (it does not use them on AMD by itself)" if bench.preload else "stock MKL"
    source = arguments.data or "`tooltune data synth slot --seed 7`"
    lines = [
        "# Training on the CPU, beside peft",
        "",
        f"Written by `scripts/bench/cpu {shlex.join(arguments.shown)}`".rstrip(" `") + "`; do not edit.",
        "",
        f"- {datetime.date.today().isoformat()}, commit {commit}",
        f"- {cpu_name()}, {os.cpu_count()} cores; load average {load_before:.2f} before, {os.getloadavg()[0]:.2f} after",
        f"- {versions(arguments.python)}",
        f"- SmolLM2-135M-Instruct, LoRA r 8, alpha 16, all linear layers, dropout 0; {arguments.rows} rows from {source}",
        f"- rounds: {arguments.rounds}, sides in turns; the first {arguments.skip} steps of a run are not timed; "
        "tokens are real tokens, padding is not counted",
        f"- peft: logits at learned positions only, no attention mask, fused AdamW, {preload}; "
        "bf16 = bf16 base weights, f32 adapters",
        "- packs: tooltune keeps documents apart; plain peft packs let a document see those before it, which is faster and "
        "not the same training; \"documents apart\" is the same",
        "",
        f"## {arguments.threads} threads, wall time",
        "",
        *table(bench, arguments.threads, "wall", "tokens/s"),
        "",
        "## 1 thread, CPU time",
        "",
        *table(bench, 1, "cpu", "tokens/CPU-s"),
        "",
        f"## Peak memory, {arguments.threads} threads",
        "",
        "The whole process. For peft this includes what importing torch, transformers and peft takes: "
        f"{bench.import_rss / MIB:,.0f} MiB.",
        "",
        *table(bench, arguments.threads, "peak_rss", "MiB"),
        "",
        "## What was trained on",
        "",
        *token_notes(bench),
        "",
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="times that every run is made (3)")
    parser.add_argument("--rows", type=int, default=40, help="training rows of a run (40: 10 steps of 4)")
    parser.add_argument("--skip", type=int, default=2, help="steps at the beginning that are not timed (2)")
    parser.add_argument("--threads", type=int, default=2, help="threads of the wall-time runs (2)")
    parser.add_argument("--data", help="SLOT rows to take the first of, in place of generated ones")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/cpu.md"), help="file to write (benchmarks/cpu.md)")
    parser.add_argument("--python", default=sys.executable, help=argparse.SUPPRESS)
    parser.add_argument("--tooltune", default="target/release/tooltune", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    hidden = {"--python", "--tooltune"}
    arguments.shown = [a for i, a in enumerate(sys.argv[1:]) if a not in hidden and sys.argv[i] not in hidden]
    os.chdir(ROOT)
    load_before, started = os.getloadavg()[0], time.monotonic()
    bench = Bench(arguments)
    bench.prepare()
    bench.run_all()
    text = report(bench, load_before)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text, encoding="utf-8")
    print(text)
    say(f"{arguments.output} written after {(time.monotonic() - started) / 60:.0f} min")


if __name__ == "__main__":
    main()
