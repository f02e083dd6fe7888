"""The two sides of scripts/bench/retriever: starts each on a file of pairs and reads its results."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from machine import ROOT, run_process

MODEL = Path("models/all-minilm-l6-v2")
CONFIG = """\
device = "cpu"

[retriever]
model_name_or_path = "{model}"
train = ["{pairs}"]
learning_rate = {learning_rate}
per_device_train_batch_size = {batch_size}
max_seq_length = {max_length}
num_train_epochs = 1
compute_dtype = "{dtype}"
{schedule}
[train]
output_dir = "{run}"
"""
# Settings of a learning rate that rises over a tenth of the steps and then falls to 0.
SCHEDULE = """\
lr_scheduler_type = "linear"
warmup_ratio = 0.1
"""


@dataclass(frozen=True)
class Training:
    """Training settings of both sides; `warmup` 0 means a constant rate. sentence-transformers saves its encoder only if `is_saved`."""

    pairs: Path
    batch_size: int
    max_length: int
    learning_rate: float
    warmup: int = 0
    is_saved: bool = False


@dataclass(frozen=True)
class Side:
    """tooltune or sentence-transformers, compiled or not, in one dtype."""

    is_ours: bool
    dtype: str
    is_compiled: bool = False

    @property
    def name(self) -> str:
        return f"{'tooltune' if self.is_ours else 'sentence-transformers'} {self.dtype}{', compiled' * self.is_compiled}"

    @property
    def stem(self) -> str:
        return f"{'ours' if self.is_ours else 'peer'}-{self.dtype}{'-compiled' * self.is_compiled}"


def sides(peer_only: bool, eager: bool, dtypes=("f32", "bf16")) -> list:
    ours = [] if peer_only else [Side(True, dtype) for dtype in dtypes]
    return ours + [Side(False, dtype, way) for dtype in dtypes for way in ([False] if eager else [False, True])]


def read_steps(timing: Path) -> list:
    try:
        return [json.loads(line) for line in timing.read_text().splitlines()]
    except OSError as error:
        raise SystemExit(f"{timing}: {error.strerror}; the training run should have written it")


def our_steps(run: Path) -> list:
    """`seconds`, `cpu_seconds` and `tokens` of each step of a tooltune run; the only code that reads its files."""
    steps = read_steps(run / "timing.jsonl")
    return [{"seconds": step["retriever_seconds"], "cpu_seconds": step["cpu_seconds"], "tokens": step["tokens"]} for step in steps]


class Runner:
    """Starts a side in a separate process."""

    def __init__(self, folder: Path, python: str, tooltune: str, preload: str):
        self.folder, self.python, self.tooltune, self.preload = folder, python, tooltune, preload

    def peer(self, arguments: list, threads: int, preload: str, log: Path) -> int:
        command = [self.python, "-W", "ignore", "scripts/bench/retriever_peer.py", "--threads", str(threads), *arguments]
        return run_process(command, threads, preload, log)

    def train(self, side: Side, training: Training, threads: int, stem: str) -> tuple:
        """(steps, peak RSS in bytes, folder of the trained encoder)."""
        return (self.train_ours if side.is_ours else self.train_peer)(side, training, threads, f"{stem}-{side.stem}")

    def train_ours(self, side: Side, training: Training, threads: int, stem: str) -> tuple:
        run = self.folder / stem
        shutil.rmtree(ROOT / run, ignore_errors=True)
        config = ROOT / self.folder / f"{stem}.toml"
        schedule = SCHEDULE if training.warmup else 'lr_scheduler_type = "constant"\n'
        values = vars(training) | {"model": MODEL, "dtype": side.dtype, "schedule": schedule, "run": run}
        config.write_text(CONFIG.format(**values))
        peak = run_process([self.tooltune, "train", config], threads, "", ROOT / self.folder / f"{stem}.log")
        exported = self.folder / f"{stem}-exported"
        if training.is_saved:
            shutil.rmtree(ROOT / exported, ignore_errors=True)
            command = [self.tooltune, "export", run, "--to", "sentence-transformers", "--output", exported]
            run_process([*command, "--checkpoint", "last"], threads, "", ROOT / self.folder / f"{stem}-export.log")
        return our_steps(ROOT / run), peak, exported

    def train_peer(self, side: Side, training: Training, threads: int, stem: str) -> tuple:
        timing, saved = self.folder / f"{stem}.jsonl", self.folder / stem
        arguments = ["--model", MODEL, "--pairs", training.pairs, "--timing", timing]
        arguments += ["--save", saved] if training.is_saved else []
        arguments += ["--dtype", side.dtype] + ["--compile"] * side.is_compiled
        arguments += ["--batch-size", str(training.batch_size), "--max-length", str(training.max_length)]
        arguments += ["--learning-rate", str(training.learning_rate), "--warmup", str(training.warmup)]
        peak = self.peer(arguments, threads, self.preload, ROOT / self.folder / f"{stem}.log")
        return read_steps(ROOT / timing), peak, saved

    def evaluate(self, encoder: Path, data: Path, max_length: int, threads: int) -> dict:
        """Recall of an encoder, always computed by sentence-transformers in f32."""
        log = ROOT / self.folder / "evaluate.log"
        arguments = ["--model", encoder, "--evaluate", data, "--max-length", str(max_length)]
        self.peer(arguments, threads, self.preload, log)
        return json.loads(log.read_text().splitlines()[-1])
