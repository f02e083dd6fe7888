#!/usr/bin/env python3
"""Runs the GPU tests and the training benchmark and writes one page of tables; started by scripts/gpu/run, standard library only.

Every step is a process of its own with a time limit. A step that fails is a row that says so, and the others run all the same;
the exit status is 1 if any failed. Both sides of the benchmark train the same shapes with random weights on the same number of
tokens, one after the other in each round. GPU memory is what nvidia-smi reports, sampled during the run, less what was used
before it: the pools of both sides count.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shlex
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
PARTS = ["tests", "bench", "parity"]
# The modules of tests/ that compute on the device; tests/layering/gpu.rs holds the list to them. The others read files only
# and are the same on every machine.
TEST_MODULES = [
    "parity",
    "generation",
    "runs",
    "retriever",
    "agents",
    "suites",
    "graphs",
    "tool_suites",
    "flat",
    "commands",
    "exports",
    "planning",
    "bad_evaluations",
    "comparisons",
    "bad_input",
]
PARITY_TEST = "bf16_losses_of_twenty_steps_stay_near_those_of_f32"
# How far a loss in bf16 may be from that in f32, in percent. The test itself bounds a single step more loosely, because it also
# holds for processors: there one batch that is learned well may differ by more.
PARITY_PERCENT = 2.0


def say(text: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", flush=True)


def output_of(command: list) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class MemoryWatch(threading.Thread):
    """The largest use of GPU memory while it runs, less the use before it."""

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


class Step:
    """A process that has ended: how, after how long, with what output and how much GPU memory."""

    def __init__(self, arguments, command: list, extra: dict):
        self.command = [str(word) for word in command]
        watch = MemoryWatch(arguments.device)
        watch.start()
        started = time.monotonic()
        try:
            done = subprocess.run(
                self.command,
                cwd=ROOT,
                env=os.environ | extra,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=arguments.limit,
            )
            self.output, self.problem = done.stdout, None
            if done.returncode != 0:
                self.problem = f"status {done.returncode}: {last_line(done.stdout)}"
        except subprocess.TimeoutExpired as expired:
            partial = expired.stdout or b""
            self.output = partial if isinstance(partial, str) else partial.decode(errors="replace")
            self.problem = f"stopped after {arguments.limit} s"
        except OSError as error:
            self.output, self.problem = "", f"{self.command[0]}: {error.strerror}"
        self.seconds = time.monotonic() - started
        self.gpu_bytes = watch.stop()


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # A panic says what happened in the line that follows its place.
    for i, line in enumerate(lines[:-1]):
        if "panicked at" in line:
            return lines[i + 1][:200]
    return lines[-1][:200] if lines else "no output"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


class Runner:
    def __init__(self, arguments):
        self.arguments = arguments
        self.folder = arguments.folder.resolve()
        self.python = os.environ.get("TOOLTUNE_PYTHON", "python3")
        self.cuda = cuda_variables(arguments.device)
        self.failures = []
        self.logs = self.folder / "logs"
        self.logs.mkdir(exist_ok=True)

    def step(self, name: str, command: list, extra: dict) -> Step:
        say(f"{name}: {shlex.join(map(str, command))}")
        step = Step(self.arguments, command, extra)
        (self.logs / f"{name.replace(' ', '-').replace('/', '-')}.log").write_text(step.output)
        say(f"  {step.problem or 'done'} after {step.seconds:.0f} s")
        if step.problem:
            self.failures.append(f"{name}: {step.problem}")
        return step

    # ------------------------------------------------------------------------------------ tests

    def test_environment(self) -> dict:
        return self.cuda | {
            "TOOLTUNE_TEST_DEVICE": self.arguments.device,
            "TOOLTUNE_TEST_ROOT": str(ROOT),
            "TOOLTUNE_TEST_PROGRAM": str(self.folder / "tooltune"),
        }

    def run_tests(self) -> list:
        lines = ["| tests | passed | failed | seconds | |", "|---|--:|--:|--:|---|"]
        threads = ["--test-threads", str(self.arguments.test_threads)]
        runs = [("kernels", "kernel-tests", [])]
        runs += [(f"integration, {m}", "integration-tests", self.names(m)) for m in self.arguments.tests]
        for name, binary, filters in runs:
            step = self.step(f"tests {name}", [self.folder / binary, *filters, *threads], self.test_environment())
            passed, failed = counts(step.output)
            if step.problem is None and passed == 0:
                step.problem = "no test ran"
                self.failures.append(f"tests {name}: {step.problem}")
            names = [line.split()[1] for line in step.output.splitlines() if line.endswith("... FAILED")]
            note = ", ".join(names) if names else step.problem or ""
            lines.append(f"| {name} | {passed} | {failed} | {step.seconds:.0f} | {cell(note)} |")
        return lines

    def names(self, module: str) -> list:
        """libtest's words for the tests of a module alone: a plain filter takes whatever holds the name, wherever it stands."""
        listed = output_of([str(self.folder / "integration-tests"), "--list"]).splitlines()
        tests = [line.removesuffix(": test") for line in listed if line.endswith(": test")]
        own = [test for test in tests if test == module or test.startswith(f"{module.rstrip(':')}::")]
        return ["--exact", *(own or [module])]

    # ------------------------------------------------------------------------------------ benchmark

    def sides(self, shape: str) -> list:
        """(side, what is kept, command, variables) of every run of a shape; torch brings libraries of its own."""
        offline = {"HF_HUB_OFFLINE": "1"}
        a = self.arguments
        path = SHAPES / f"{shape}.json"
        common = ["--shape", path, "--device", a.device, "--documents", a.documents, "--length", a.length]
        common += ["--rank", a.rank, "--warmup", a.warmup, "--steps", a.steps]
        blocks = json.loads(path.read_text())["num_hidden_layers"]
        common += ["--dtype", a.dtype]
        ours = [self.folder / "random_step", *common]
        theirs = [self.python, "-W", "ignore", ROOT / "scripts/gpu/peft_step.py", *common]
        return [
            ("tooltune", "recomputed", [*ours, "--kept-blocks", 0], self.cuda),
            ("peft", "recomputed", [*theirs, "--recompute"], offline),
            ("tooltune", "kept", [*ours, "--kept-blocks", blocks], self.cuda),
            ("peft", "kept", theirs, offline),
        ]

    def run_bench(self) -> list:
        a = self.arguments
        lines = [
            "| shape | side | type | blocks | tokens/s, median | s a step, median (least to most) | peak GPU memory, GiB | loss, first and last |",
            "|---|---|---|---|--:|--:|--:|--:|",
        ]
        for shape in a.shapes:
            runs = {}
            for number in range(1, a.rounds + 1):
                for side, blocks, command, variables in self.sides(shape):
                    step = self.step(f"{shape} {side} {blocks} round {number}", command, variables)
                    runs.setdefault((side, blocks), []).append((step, record_of(step)))
            lines += [bench_row(shape, side, blocks, steps) for (side, blocks), steps in runs.items()]
        return lines

    # ------------------------------------------------------------------------------------ parity losses

    def run_parity(self) -> list:
        name = "SmolLM2-135M, losses of the 20 parity steps, bf16 beside f32"
        listed = output_of([str(self.folder / "integration-tests"), "--list"])
        if PARITY_TEST not in listed:
            return [f"{name}: not run, these binaries hold no test `{PARITY_TEST}`."]
        if not (ROOT / "models/smollm2-135m-instruct.gguf").is_file():
            self.failures.append("parity: models/smollm2-135m-instruct.gguf is missing")
            return [f"{name}: not run, models/smollm2-135m-instruct.gguf is missing; scripts/fetch-models fetches it."]
        command = [self.folder / "integration-tests", PARITY_TEST, "--nocapture"]
        step = self.step("parity", command, self.test_environment())
        said = [line for line in step.output.splitlines() if line.startswith("parity:")]
        problem = step.problem or parity_problem(said)
        if problem and not step.problem:
            self.failures.append(f"parity: {problem}")
        return [f"{name}: {problem or f'each within {PARITY_PERCENT:g} %'}.", *(f"- {line}" for line in said)]


def parity_problem(said: list):
    """What is wrong with the distance that the test has printed; nothing if no loss is further off than PARITY_PERCENT."""
    found = [re.search(r"at most ([0-9.]+) %", line) for line in said]
    shares = [float(match[1]) for match in found if match]
    if not shares:
        return "the test said no distance"
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
    """The line of JSON that a side prints, or nothing where it failed."""
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
    return (
        f"| {shape} | {side} | {records[0]['dtype']} | {blocks} | {records[0]['tokens'] / middle:,.0f} "
        f"| {middle:.3f} ({min(seconds):.3f} to {max(seconds):.3f}) | {memory} | {losses[0]:.3f}, {losses[-1]:.3f} |"
    )


# ------------------------------------------------------------------------------------------ the page


def cuda_variables(device: str) -> dict:
    """What scripts/gpu/environment exports; nothing where no GPU is asked for."""
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
    names = "torch transformers peft"
    code = f"import importlib.metadata as m; print(', '.join(n + ' ' + m.version(n) for n in '{names}'.split()))"
    return output_of([python, "-c", code]) or "no torch, transformers and peft"


def gpu_name(device: str) -> str:
    if not device.startswith("cuda"):
        return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, no GPU asked for"
    index = device.partition(":")[2] or "0"
    fields = "name,memory.total,driver_version,compute_cap"
    return output_of(["nvidia-smi", f"--id={index}", f"--query-gpu={fields}", "--format=csv,noheader"]) or "unknown GPU"


def burn_version() -> str:
    lock = (ROOT / "Cargo.lock").read_text()
    return lock.split('name = "burn"\nversion = "')[1].split('"')[0]


def page(runner: Runner, parts: dict) -> str:
    a = runner.arguments
    commit = runner.folder / "commit"
    libraries, versions = found_libraries(), python_versions(runner.python)
    tokens = f"{a.documents} x {a.length}"
    lines = [
        "# Training on a GPU, beside peft",
        "",
        f"Written by `scripts/gpu/run FOLDER {shlex.join(a.shown)}`".rstrip(" `") + "`; do not edit.",
        "",
        f"- {datetime.date.today().isoformat()}, commit {commit.read_text().strip() if commit.is_file() else 'unknown'}",
        f"- {gpu_name(a.device)} (name, memory, driver, compute capability)",
        f"- {libraries}",
        f"- burn {burn_version()}; {versions}, Python {platform.python_version()}",
        "",
    ]
    if "tests" in parts:
        lines += ["## Tests", "", f"With TOOLTUNE_TEST_DEVICE={a.device}.", "", *parts["tests"], ""]
    if "bench" in parts:
        lines += [
            "## Training steps",
            "",
            f"Random weights, LoRA r {a.rank} on all linear layers, dropout 0, {tokens} tokens a step, all of them learned; "
            f"{a.warmup} steps before {a.steps} timed ones, rounds: {a.rounds}.",
            "Blocks kept: the activations of all blocks live until the backward pass; recomputed: only their inputs do.",
            "peft: SDPA, fused AdamW, bf16 base weights with f32 adapters under autocast.",
            "",
            *parts["bench"],
            "",
        ]
    if "parity" in parts:
        lines += ["## Parity losses", "", *parts["parity"], ""]
    if runner.failures:
        lines += ["## Failed", "", *(f"- {cell(failure)}" for failure in runner.failures), ""]
    return "\n".join(lines)


def unpack(folder: Path) -> None:
    archive = folder / "tooltune-gpu.tar.xz"
    if archive.is_file() and not (folder / "tooltune").is_file():
        say(f"unpacking {archive}")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    for name in ["tooltune", "random_step", "integration-tests", "kernel-tests"]:
        if not (folder / name).is_file():
            raise SystemExit(f"gpu/run: {folder / name} is missing; scripts/gpu/build makes it, and tooltune-gpu.tar.xz")


def main():
    parser = argparse.ArgumentParser(
        prog="scripts/gpu/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="what scripts/gpu/build made")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; all without this option")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/h200.md", help="page to write (benchmarks/h200.md)")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:INDEX, or cpu to try this script out (cuda)")
    parser.add_argument("--tests", nargs="*", default=TEST_MODULES, help=f"modules of the integration tests ({' '.join(TEST_MODULES)})")
    parser.add_argument("--test-threads", type=int, default=4, help="tests at a time (4)")
    parser.add_argument("--shapes", nargs="*", default=["llama-3.2-1b", "llama-3-8b"], help="files of scripts/gpu/shapes")
    parser.add_argument("--dtype", default="bf16", choices=["f32", "bf16"], help="type of the frozen weights and activations (bf16)")
    parser.add_argument("--documents", type=int, default=2, help="documents of a step (2)")
    parser.add_argument("--length", type=int, default=4096, help="tokens of each (4096)")
    parser.add_argument("--rank", type=int, default=16, help="rank of the adapters (16)")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the timed ones (2)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps (5)")
    parser.add_argument("--rounds", type=int, default=1, help="times that every run is made (1)")
    parser.add_argument("--limit", type=int, default=900, help="seconds after which a process is stopped (900)")
    arguments = parser.parse_args()
    arguments.shown = sys.argv[2:] if sys.argv[1:2] == [str(arguments.folder)] else []
    unpack(arguments.folder)
    runner = Runner(arguments)
    command = [runner.folder / "tooltune", "doctor", "--device", arguments.device]
    doctor = runner.step("doctor", command, runner.cuda)
    print(doctor.output)
    parts = {}
    if doctor.problem is None:
        for part in arguments.only or PARTS:
            parts[part] = {"tests": runner.run_tests, "bench": runner.run_bench, "parity": runner.run_parity}[part]()
            # Written after each part: a machine that is taken away leaves what was measured.
            arguments.output.write_text(page(runner, parts), encoding="utf-8")
        print(arguments.output.read_text(encoding="utf-8"))
        say(f"{arguments.output} written")
    for failure in runner.failures:
        say(f"FAILED {failure}")
    raise SystemExit(1 if runner.failures else 0)


if __name__ == "__main__":
    main()
