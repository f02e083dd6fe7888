#!/usr/bin/env python3
"""Runs the GPU tests and the training benchmark and writes one page of tables; started by scripts/gpu/run, standard library only.

Every step is a separate process with a time limit. A failed step becomes a row with its problem, and the others still
run; the exit status is 1 if any failed. Each result is printed and added to the page immediately, and stored in
FOLDER/results.json: the next call with the same settings continues with the rest, so that a machine that is available
for minutes at a time (--seconds) eventually produces the whole page. Both sides of the benchmark train the same shapes
with random weights on the same number of tokens, alternating in each round. GPU memory is nvidia-smi's figure, sampled
during the run, minus the use before it: both sides' memory pools count.
"""

import argparse
import datetime
import functools
import json
import os
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ROOT / "scripts/gpu/shapes"
GIB = 1 << 30
# In the order that makes best use of a short time on the machine.
PARTS = ["large", "bench", "parity", "tests"]
# Steps of models that are large for their GPU: shape, documents and tokens of each, how the linear layers are stored and
# where, blocks whose activations are kept, and whether peft runs the same step.
LARGE = [
    ("llama-3-8b", 2, 4096, "nf4", "resident", "auto", True),
    ("llama-3-8b", 2, 4096, "nf4", "resident", "0", True),
    ("llama-3-8b", 1, 2048, "nf4", "resident", "0", True),
    ("llama-3-70b", 1, 4096, "nf4", "resident", "0", True),
    ("llama-3-70b", 2, 4096, "nf4", "resident", "0", False),
    ("llama-3-70b", 1, 2048, "nf4", "host", "0", False),
    ("llama-3-70b", 1, 4096, "nf4", "host", "offload", False),
    ("llama-3-8b", 1, 16384, "none", "host", "0", False),
    ("llama-3-8b", 1, 65536, "none", "resident", "offload", False),
]
# The modules of tests/ that compute on the device; tests/layering/gpu.rs checks the list. The others only read files
# and give the same result on every machine.
TEST_MODULES = [
    "parity",
    "generation",
    "from_elsewhere",
    "generate",
    "runs",
    "retriever",
    "retriever_texts",
    "agents",
    "suites",
    "starting_points",
    "structure",
    "calls",
    "saved_predictions",
    "template_inputs",
    "terminal",
    "several_files",
    "graphs",
    "tool_suites",
    "toolqa",
    "toolqa_sets",
    "flat",
    "formats",
    "commands",
    "exports",
    "exit_codes",
    "model_families",
    "repeated_settings",
    "planned_memory",
    "planning",
    "presets",
    "prompts",
    "profiles",
    "bad_evaluations",
    "servers",
    "comparisons",
    "bad_input",
    "not_files",
    "bad_models",
    "signals",
    "pipelines",
    "goat_executors",
    "hub",
    "faults",
    "first_hour",
    "row_files",
    "quantised",
]
PARITY_TEST = "bf16_losses_of_twenty_steps_stay_near_f32_losses"
# Maximum difference between a bf16 loss and the f32 loss, in percent. The test itself allows more for a single step,
# because it also covers processors, where the loss of one well-fitted batch may differ more.
PARITY_PERCENT = 2.0
TESTS_HEAD = ["| tests | passed | failed | seconds | |", "|---|--:|--:|--:|---|"]
BENCH_HEAD = [
    "| shape | side | type | blocks | tokens/s, median | s per step, median (minimum to maximum) | peak GPU memory, GiB | loss, first and last |",
    "|---|---|---|---|--:|--:|--:|--:|",
]


def say(text: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", flush=True)


def output_of(command: list) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class MemoryWatch(threading.Thread):
    """Peak GPU memory while it runs, minus the use before it."""

    def __init__(self, device: str):
        super().__init__(daemon=True)
        self.index = (device.partition(":")[2] or "0") if device.startswith("cuda") else None
        self.ended = threading.Event()
        self.before = self.used()
        self.largest = self.before

    def used(self):
        if self.index is None:
            return None
        text = output_of(["nvidia-smi", f"--id={self.index}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"])
        return int(text) * (1 << 20) if text.isdigit() else None

    def run(self):
        while self.before is not None and not self.ended.wait(0.2):
            self.largest = max(self.largest, self.used() or 0)

    def stop(self):
        self.ended.set()
        self.join()
        return None if self.before is None else self.largest - self.before


class TimeIsUp(Exception):
    """The time of this call ended before a step was done."""


class Step:
    """A finished process: problem, duration, output and GPU memory."""

    def __init__(self, arguments, command: list, extra: dict, seconds: float):
        self.command = [str(word) for word in command]
        watch = MemoryWatch(arguments.device)
        watch.start()
        started = time.monotonic()
        try:
            # In its own process group: programs started by a test would otherwise keep the GPU in use.
            process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=os.environ | extra,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            self.output, self.problem, self.stopped = "", f"{self.command[0]}: {error.strerror}", False
        else:
            self.output, self.problem, self.stopped = ended(process, seconds)
        self.seconds = time.monotonic() - started
        self.gpu_bytes = watch.stop()


def ended(process: subprocess.Popen, seconds: float) -> tuple:
    """The output of a process, its problem if any, and whether it had to be stopped."""
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return output, f"stopped after {seconds:.0f} s", True
    if process.returncode != 0:
        return output, f"status {process.returncode}: {last_line(output)}", False
    return output, None, False


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # A panic's message is on the line after its location.
    for i, line in enumerate(lines[:-1]):
        if "panicked at" in line:
            return lines[i + 1][:200]
    return lines[-1][:200] if lines else "no output"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


class Results:
    """The results of the steps, stored in a file between calls with the same settings."""

    def __init__(self, file: Path, settings: dict):
        self.file = file
        self.kept = {"settings": settings, "rows": {part: {} for part in PARTS}, "failures": {}}
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if before["settings"] == settings:
            self.kept = before
            done = sum(len(rows) for rows in before["rows"].values())
            say(f"{done} results of earlier calls are reused from {file}; --fresh measures everything again")

    def rows(self, part: str) -> dict:
        return self.kept["rows"][part]

    def failures(self) -> dict:
        return self.kept["failures"]

    def keep(self, part: str, name: str, line: str, failure: str | None) -> None:
        self.rows(part)[name] = line
        self.failures().pop(name, None)
        if failure:
            self.failures()[name] = failure
        beside = self.file.with_suffix(".tmp")
        beside.write_text(json.dumps(self.kept, indent=1), encoding="utf-8")
        beside.replace(self.file)


class Runner:
    def __init__(self, arguments):
        self.arguments = arguments
        self.folder = arguments.folder.resolve()
        self.python = os.environ.get("TOOLTUNE_PYTHON", "python3")
        self.cuda = cuda_variables(arguments.device)
        self.logs = self.folder / "logs"
        self.logs.mkdir(exist_ok=True)
        self.commit = commit_of(self.folder)
        self.gpu = gpu_name(arguments.device)
        self.libraries, self.versions = found_libraries(), python_versions(self.python)
        self.end = time.monotonic() + arguments.seconds if arguments.seconds else None
        file = self.folder / "results.json"
        if arguments.fresh:
            file.unlink(missing_ok=True)
        names = ["device", "dtype", "documents", "length", "rank", "dropout", "warmup", "steps", "rounds"]
        settings = {name: getattr(arguments, name) for name in names}
        self.results = Results(file, settings | {"commit": self.commit, "gpu": self.gpu})

    def step(self, name: str, command: list, extra: dict) -> Step:
        say(f"{name}: {shlex.join(map(str, command))}")
        seconds = self.arguments.limit
        if self.end is not None:
            seconds = max(1.0, min(seconds, self.end - time.monotonic()))
        step = Step(self.arguments, command, extra, seconds)
        if step.stopped and seconds < self.arguments.limit:
            raise TimeIsUp(name)
        (self.logs / f"{name.replace(' ', '-').replace('/', '-')}.log").write_text(step.output)
        say(f"  {step.problem or 'done'} after {step.seconds:.0f} s")
        return step

    def is_left(self, part: str, name: str) -> bool:
        """Whether a step must run: no earlier call did it, or it failed and is to be retried."""
        failed = name in self.results.failures()
        if name in self.results.rows(part) and not (failed and self.arguments.retry):
            return False
        if self.end is not None and time.monotonic() >= self.end:
            raise TimeIsUp(name)
        return True

    def keep(self, part: str, name: str, line: str, failure: str | None = None) -> None:
        """Stores and prints a result, and rewrites the page."""
        self.results.keep(part, name, line, failure)
        print(line, flush=True)
        self.write_page()

    def write_page(self) -> None:
        beside = self.arguments.output.with_suffix(".tmp")
        beside.write_text(page(self), encoding="utf-8")
        beside.replace(self.arguments.output)

    # ------------------------------------------------------------------------------------ tests

    def test_environment(self) -> dict:
        return self.cuda | {
            "TOOLTUNE_TEST_DEVICE": self.arguments.device,
            "TOOLTUNE_TEST_ROOT": str(ROOT),
            "TOOLTUNE_TEST_PROGRAM": str(self.folder / "tooltune"),
        }

    def run_tests(self) -> None:
        """One process per module, because a faulting kernel breaks all later work of its process."""
        threads = ["--test-threads", str(self.arguments.test_threads)]
        binaries = [("kernels", "kernel-tests", self.modules("kernel-tests"))]
        binaries += [("integration", "integration-tests", self.arguments.tests)]
        for group, binary, modules in binaries:
            for module in modules:
                name = f"{group}, {module}"
                if not self.is_left("tests", name):
                    continue
                command = [self.folder / binary, *self.names(binary, module), *threads]
                step = self.step(f"tests {name}", command, self.test_environment())
                passed, failed = counts(step.output)
                problem = step.problem or (None if passed else "no test ran")
                names = [line.split()[1] for line in step.output.splitlines() if line.endswith("... FAILED")]
                note = ", ".join(names) if names else problem or ""
                line = f"| {name} | {passed} | {failed} | {step.seconds:.0f} | {cell(note)} |"
                self.keep("tests", name, line, problem)

    @functools.cache
    def listed(self, binary: str) -> list:
        lines = output_of([str(self.folder / binary), "--list"]).splitlines()
        return [line.removesuffix(": test") for line in lines if line.endswith(": test")]

    def modules(self, binary: str) -> list:
        """The top-level modules of a binary's tests, in order."""
        return list(dict.fromkeys(test.split("::")[0] for test in self.listed(binary)))

    def names(self, binary: str, module: str) -> list:
        """libtest arguments for the tests of one module only: a plain filter would match the name anywhere."""
        own = [test for test in self.listed(binary) if test == module or test.startswith(f"{module.rstrip(':')}::")]
        return ["--exact", *(own or [module])]

    # ------------------------------------------------------------------------------------ benchmark

    def sides(self, shape: str) -> list:
        """(side, kept blocks, command, variables) of every run of a shape; torch ships its own libraries."""
        offline = {"HF_HUB_OFFLINE": "1"}
        a = self.arguments
        path = SHAPES / f"{shape}.json"
        common = ["--shape", path, "--device", a.device, "--documents", a.documents, "--length", a.length]
        common += ["--rank", a.rank, "--warmup", a.warmup, "--steps", a.steps]
        common += ["--dtype", a.dtype, "--dropout", a.dropout]
        ours = [self.folder / "random_step", *common]
        theirs = [self.python, "-W", "ignore", ROOT / "scripts/gpu/peft_step.py", *common]
        return [
            ("tooltune", "auto", [*ours, "--kept-blocks", "auto"], self.cuda),
            ("peft", "kept", theirs, offline),
            ("tooltune", "recomputed", [*ours, "--kept-blocks", 0], self.cuda),
            ("peft", "recomputed", [*theirs, "--recompute"], offline),
        ]

    def run_bench(self) -> None:
        a = self.arguments
        for shape in a.shapes:
            sides = [(f"{shape} {side} {blocks}", side, blocks, *how) for side, blocks, *how in self.sides(shape)]
            sides = [side for side in sides if self.is_left("bench", side[0])]
            runs = {name: [] for name, *_ in sides}
            for number in range(1, a.rounds + 1):
                for name, side, blocks, command, variables in sides:
                    step = self.step(f"{name} round {number}", command, variables)
                    runs[name].append((step, record_of(step)))
                    if number == a.rounds:
                        problem = next((step.problem or "no result" for step, record in runs[name] if not record), None)
                        self.keep("bench", name, bench_row(shape, side, blocks, runs[name]), problem)

    # ------------------------------------------------------------------------------------ large models

    def run_large(self) -> None:
        a = self.arguments
        for shape, documents, length, quantization, frozen_weights, kept, has_peer in LARGE:
            if not a.device.startswith("cuda"):
                shape, length = "tiny", length // 64
            stored = {"none": a.dtype, "nf4": "nf4"}[quantization]
            what = f"{shape}, {documents} x {length}, {stored}, {frozen_weights}"
            common = ["--shape", SHAPES / f"{shape}.json", "--device", a.device, "--documents", documents, "--length", length]
            common += ["--rank", a.rank, "--warmup", a.warmup, "--steps", a.steps, "--dtype", a.dtype, "--dropout", a.dropout]
            common += ["--quantization", quantization]
            ours = [self.folder / "random_step", *common, "--frozen-weights", frozen_weights, "--kept-blocks", kept]
            theirs = [self.python, "-W", "ignore", ROOT / "scripts/gpu/peft_step.py", *common]
            sides = [("tooltune", ours, self.cuda)]
            if has_peer:
                recompute = ["--recompute"] if kept == "0" else []
                sides.append(("peft", [*theirs, *recompute], {"HF_HUB_OFFLINE": "1"}))
            for side, command, variables in sides:
                name = f"{what} {side} {kept}"
                if self.is_left("large", name):
                    step = self.step(name, command, variables)
                    record = record_of(step)
                    blocks = "recomputed" if kept == "0" else kept
                    line = bench_row(what, side, blocks, [(step, record)])
                    self.keep("large", name, line, None if record else step.problem or "no result")

    # ------------------------------------------------------------------------------------ parity losses

    def run_parity(self) -> None:
        name = "SmolLM2-135M, losses of the 20 parity steps, bf16 compared with f32"
        if not self.is_left("parity", name):
            return
        if PARITY_TEST not in " ".join(self.listed("integration-tests")):
            problem, said = f"these binaries do not contain the test `{PARITY_TEST}`", []
        elif not (ROOT / "models/smollm2-135m-instruct.gguf").is_file():
            problem, said = "models/smollm2-135m-instruct.gguf is missing; fetch it with scripts/fetch-models", []
        else:
            command = [self.folder / "integration-tests", PARITY_TEST, "--nocapture"]
            step = self.step("parity", command, self.test_environment())
            said = [line for line in step.output.splitlines() if line.startswith("parity:")]
            problem = step.problem or parity_problem(said)
        lines = [f"{name}: {problem or f'each within {PARITY_PERCENT:g} %'}.", *(f"- {line}" for line in said)]
        self.keep("parity", name, "\n".join(lines), problem)


def parity_problem(said: list):
    """The problem with the difference that the test printed; None if every loss is within PARITY_PERCENT."""
    found = [re.search(r"at most ([0-9.]+) %", line) for line in said]
    shares = [float(match[1]) for match in found if match]
    if not shares:
        return "the test printed no difference"
    return f"a loss differs by {max(shares)} %, more than {PARITY_PERCENT:g} %" if max(shares) > PARITY_PERCENT else None


def counts(text: str) -> tuple:
    """Passed and failed tests of libtest's last lines."""
    passed = failed = 0
    for line in text.splitlines():
        if line.startswith("test result:"):
            words = line.replace(";", " ").split()
            passed += int(words[words.index("passed") - 1])
            failed += int(words[words.index("failed") - 1])
    return passed, failed


def record_of(step: Step):
    """The JSON line that a side prints, or None if it failed."""
    for line in reversed(step.output.splitlines()):
        if step.problem is None and line.startswith("{"):
            return json.loads(line)
    return None


def bench_row(shape: str, side: str, blocks: str, steps: list) -> str:
    records = [record for _, record in steps if record]
    if not records:
        return f"| {shape} | {side} | | {blocks} | failed | {cell(steps[0][0].problem or 'no result')} | | |"
    seconds = [s for record in records for s in record["seconds"]]
    middle = statistics.median(seconds)
    peaks = [step.gpu_bytes for step, record in steps if record and step.gpu_bytes is not None]
    memory = f"{max(peaks) / GIB:.1f}" if peaks else "-"
    losses = records[0]["losses"]
    if blocks == "auto":
        blocks = f"auto: {records[0]['kept_blocks']} of {records[0]['blocks']} kept"
    return (
        f"| {shape} | {side} | {records[0]['dtype']} | {blocks} | {records[0]['tokens'] / middle:,.0f} "
        f"| {middle:.3f} ({min(seconds):.3f} to {max(seconds):.3f}) | {memory} | {losses[0]:.3f}, {losses[-1]:.3f} |"
    )


# ------------------------------------------------------------------------------------------ the page


def cuda_variables(device: str) -> dict:
    """The variables from scripts/gpu/environment; empty without a GPU device."""
    if not device.startswith("cuda"):
        return {}
    done = subprocess.run(["bash", "scripts/gpu/environment"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip())
    words = shlex.split(done.stdout)
    return dict(word.split("=", 1) for word in words if word != "export")


def found_libraries() -> str:
    command = ["bash", "scripts/gpu/environment", "--list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return "; ".join(" ".join(line.split()) for line in done.stdout.splitlines())


def python_versions(python: str) -> str:
    names = "torch transformers peft bitsandbytes"
    code = f"""
import importlib.metadata as m
versions = {{d.name.lower(): d.version for d in m.distributions()}}
print(', '.join(f'{{n}} {{versions.get(n, "not installed")}}' for n in '{names}'.split()))"""
    return output_of([python, "-c", code]) or f"{python} does not run"


def gpu_name(device: str) -> str:
    if not device.startswith("cuda"):
        return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, no GPU requested"
    index = device.partition(":")[2] or "0"
    fields = "name,memory.total,driver_version,compute_cap"
    return output_of(["nvidia-smi", f"--id={index}", f"--query-gpu={fields}", "--format=csv,noheader"]) or "unknown GPU"


def burn_version() -> str:
    lock = (ROOT / "Cargo.lock").read_text()
    return lock.split('name = "burn"\nversion = "')[1].split('"')[0]


def commit_of(folder: Path) -> str:
    commit = folder / "commit"
    return commit.read_text().strip() if commit.is_file() else "unknown"


def page(runner: Runner) -> str:
    a = runner.arguments
    rows, failures = runner.results.rows, runner.results.failures()
    tokens = f"{a.documents} x {a.length}"
    lines = [
        "# GPU training compared with peft",
        "",
        f"Written by `scripts/gpu/run FOLDER {shlex.join(a.shown)}`".rstrip(" `") + "`; do not edit.",
        "",
        f"- {datetime.date.today().isoformat()}, commit {runner.commit}",
        f"- {runner.gpu} (name, memory, driver, compute capability)",
        f"- {runner.libraries}",
        f"- burn {burn_version()}; {runner.versions}, Python {platform.python_version()}",
        "",
    ]
    if rows("bench"):
        lines += [
            "## Training steps",
            "",
            f"Random weights, LoRA r {a.rank} on all linear layers, dropout {a.dropout}, {tokens} tokens a step, all supervised; "
            f"{a.warmup} steps before {a.steps} timed ones, rounds: {a.rounds}.",
            "Blocks kept: all activations live until the backward pass; recomputed: only block inputs do; auto: "
            "as many blocks are kept as the free memory of the GPU allows, as in a run.",
            "peft: SDPA, fused AdamW, bf16 base weights with f32 adapters under autocast.",
            "",
            *BENCH_HEAD,
            *rows("bench").values(),
            "",
        ]
    if rows("large"):
        lines += [
            "## Large models",
            "",
            f"As above, with {a.warmup} steps before {a.steps} timed ones; documents x tokens, how linear layers are stored and where. "
            "nf4 is QLoRA with double quantisation, on peft's side by bitsandbytes; host: in pinned host memory, copied before "
            "each use; offload: block inputs are in host memory.",
            "",
            *BENCH_HEAD,
            *rows("large").values(),
            "",
        ]
    if rows("parity"):
        lines += ["## Parity losses", "", *rows("parity").values(), ""]
    if rows("tests"):
        lines += ["## Tests", "", f"With TOOLTUNE_TEST_DEVICE={a.device}.", "", *TESTS_HEAD, *rows("tests").values(), ""]
    if failures:
        lines += ["## Failed", "", *(f"- {cell(f'{name}: {what}')}" for name, what in failures.items()), ""]
    return "\n".join(lines)


def unpack(folder: Path) -> None:
    archive = folder / "tooltune-gpu.tar.xz"
    # Identifies the unpacked archive: existing binaries may be from an earlier one.
    mark = folder / "unpacked"
    if archive.is_file():
        stamp = f"{archive.stat().st_mtime_ns} {archive.stat().st_size}"
        if not mark.is_file() or mark.read_text() != stamp:
            say(f"unpacking {archive}")
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
            mark.write_text(stamp)
    for name in ["tooltune", "random_step", "integration-tests", "kernel-tests"]:
        if not (folder / name).is_file():
            raise SystemExit(f"gpu/run: {folder / name} is missing; build it, or tooltune-gpu.tar.xz, with scripts/gpu/build")


def main():
    parser = argparse.ArgumentParser(
        prog="scripts/gpu/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="output folder of scripts/gpu/build")
    parser.add_argument("--only", choices=PARTS, action="append", help="run only this part (default: all)")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/h200.md", help="page to write (benchmarks/h200.md)")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:INDEX, or cpu to try this script out (cuda)")
    parser.add_argument("--tests", nargs="*", default=TEST_MODULES, help=f"modules of the integration tests ({' '.join(TEST_MODULES)})")
    parser.add_argument("--test-threads", type=int, default=4, help="parallel tests (4)")
    parser.add_argument("--shapes", nargs="*", default=["llama-3.2-1b", "llama-3-8b"], help="files of scripts/gpu/shapes")
    parser.add_argument("--dtype", default="bf16", choices=["f32", "bf16"], help="dtype of the frozen weights and activations (bf16)")
    parser.add_argument("--documents", type=int, default=2, help="documents per step (2)")
    parser.add_argument("--length", type=int, default=4096, help="tokens per document (4096)")
    parser.add_argument("--rank", type=int, default=16, help="rank of the adapters (16)")
    parser.add_argument("--dropout", type=float, default=0.05, help="dropout of the adapters (0.05)")
    parser.add_argument("--warmup", type=int, default=2, help="untimed steps at the start (2)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps (5)")
    parser.add_argument("--rounds", type=int, default=1, help="repetitions of every run (1)")
    parser.add_argument("--limit", type=int, default=900, help="seconds after which a process is stopped (900)")
    parser.add_argument("--seconds", type=int, help="time limit of this call in seconds; the next one continues")
    parser.add_argument("--retry", action="store_true", help="retry steps that failed in earlier calls")
    parser.add_argument("--fresh", action="store_true", help="discard the results of earlier calls in FOLDER")
    arguments = parser.parse_args()
    arguments.shown = sys.argv[2:] if sys.argv[1:2] == [str(arguments.folder)] else []
    unpack(arguments.folder)
    runner = Runner(arguments)
    command = [runner.folder / "tooltune", "doctor", "--device", arguments.device]
    doctor = runner.step("doctor", command, runner.cuda)
    print(doctor.output)
    if doctor.problem is not None:
        raise SystemExit(1)
    run = {"large": runner.run_large, "tests": runner.run_tests, "bench": runner.run_bench, "parity": runner.run_parity}
    left = None
    try:
        for part in arguments.only or PARTS:
            run[part]()
    except TimeIsUp as step:
        left = f"{step} and later steps: the {arguments.seconds} s are over; run the same command to continue"
    runner.write_page()
    print(arguments.output.read_text(encoding="utf-8"))
    say(f"{arguments.output} written")
    if left:
        say(f"NOT RUN {left}")
    for name, failure in runner.results.failures().items():
        say(f"FAILED {name}: {failure}")
    raise SystemExit(1 if left or runner.results.failures() else 0)


if __name__ == "__main__":
    main()
