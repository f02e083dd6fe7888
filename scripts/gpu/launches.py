"""Counts the launches of training steps and generated tokens, by kernel and per layer, on a driver without a GPU; part of
scripts/check-cuda-launches.

A step of a model is counted with two and with three blocks, each as the difference between a run of two steps and a run
of one. The third block's contribution is a layer; a whole model is two blocks plus the remaining layers. Kernels are
counted by name with the threads of their launches, cuBLASLt products by sizes and types. scripts/gpu/launches.json has
the expected counts.
"""

import argparse
import collections
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ROOT / "scripts/gpu/shapes"
TABLE = ROOT / "scripts/gpu/launches.json"
RANK = 16

# Shape, documents and tokens per document, and dropout: the steps of benchmarks/forecast.md.
BATCHES = [
    ("llama-3-8b", 2, 4096, [0.05, 0.0]),
    ("qwen3-0.6b", 8, 2048, [0.05, 0.0]),
    ("llama-3.2-1b", 8, 2048, [0.05, 0.0]),
    ("llama-3.2-1b", 2, 4096, [0.05]),
    ("llama-3-8b", 1, 16384, [0.05, 0.0]),
    ("qwen3-4b", 2, 4096, [0.05, 0.0]),
]
# Micro-batches of configs/goat-llama3-8b.toml and configs/slot-llama3.2-1b.toml (scripts/bench/forecast_evaluation.py).
RECIPE_BATCHES = [("llama-3-8b", 2, 310), ("llama-3.2-1b", 2, 290)]
# Evaluations: shape, sequences generated together, tokens per prompt.
GENERATIONS = [("qwen3-0.6b", 8, 240), ("llama-3-8b", 50, 280), ("llama-3.2-1b", 64, 246)]
# The evaluations counted without --all; the other evaluations launch the same kernels.
FEW_GENERATIONS = GENERATIONS[:1]
# Tokens per sequence: the first comes from its prompt, the second is recorded, and all later ones are alike.
NEW_TOKENS = 11
# Steps counted without --all: they include the kernels of every step, and their models are small.
FEW = ["llama-3.2-1b, 2 x 4096, dropout 0.05, kept", "llama-3.2-1b, 2 x 4096, dropout 0.05, recomputed", "qwen3-0.6b, 8 x 2048, dropout 0, kept"]

# Launches by the host, of a kernel or of a graph; does not include cuBLASLt products that the host enqueues.
HOST_CALLS = "host calls"

Step = collections.namedtuple("Step", "shape documents length dropout blocks")
Generation = collections.namedtuple("Generation", "shape documents length part")
# One kernel or kind of product: launches and threads of a model with two blocks, and the increment per further block.
Row = collections.namedtuple("Row", "launches threads layer_launches layer_threads")


class Failure(Exception):
    pass


def name_of(step) -> str:
    if isinstance(step, Generation):
        return f"{step.shape}, {step.documents} x {step.length}, {step.part}"
    return f"{step.shape}, {step.documents} x {step.length}, dropout {step.dropout:g}, {step.blocks}"


def all_steps() -> list:
    shown = [Step(*batch, dropout, blocks) for *batch, dropouts in BATCHES for dropout in dropouts for blocks in ("kept", "recomputed")]
    return shown + [Step(*batch, 0.05, "kept") for batch in RECIPE_BATCHES]


def shape_of(name: str) -> dict:
    return json.loads((SHAPES / f"{name}.json").read_text())


# ------------------------------------------------------------------------------------------ runs


def run(program: str, step, layers: int, steps: int, folder: Path, new_tokens: int = 0) -> tuple:
    """(launch counts, peak GiB, the program's record) of `steps` steps of a model with `layers` blocks."""
    file = folder / f"{step.shape}.json"
    file.write_text(json.dumps(shape_of(step.shape) | {"num_hidden_layers": layers}))
    command = [program, "--shape", file, "--device", "cuda", "--dtype", "bf16", "--rank", RANK, "--warmup", 0, "--steps", steps]
    command += ["--documents", step.documents, "--length", step.length]
    if isinstance(step, Generation):
        command += ["--new-tokens", new_tokens]
    else:
        command += ["--dropout", step.dropout, "--kept-blocks", layers if step.blocks == "kept" else 0]
    environment = os.environ | {"FAKE_CUDA_NAMES": "1", "FAKE_CUDA_GIB": os.environ.get("FAKE_CUDA_GIB", "1000")}
    # cuDNN's plans would not work with the simulated driver, so our attention kernels are used.
    environment |= {"TOOLTUNE_CUBLASLT": "1", "TOOLTUNE_CUDNN": "0"}
    # Records even without a gain, which would depend on this machine's speed.
    environment |= {"TOOLTUNE_CUDA_GRAPHS": "1"}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    said = done.stderr
    if done.returncode != 0:
        raise Failure(f"{name_of(step)}: random_step exited with status {done.returncode}:\n{said[-3000:]}")
    counts, memory = counts_of(said)
    if not any(name.startswith("product ") for name in counts):
        raise Failure(f"{name_of(step)}: cuBLASLt computed no product; check that the library of scripts/cuda_on_cpu is in LD_LIBRARY_PATH\n{said[-3000:]}")
    return counts, memory, json.loads(done.stdout)


def counts_of(said: str) -> tuple:
    """({name: (launches, threads)}, peak GiB) from the output of the driver and cuBLASLt."""
    counts = collections.defaultdict(lambda: [0, 0])
    # Without the hash at the end of the name, which identifies the specialisation.
    line = r"^fake CUDA: (\d+) (launches|replays), (\d+) threads of (\S+?)(?:_[0-9a-f]{8})?$"
    for launches, way, threads, name in re.findall(line, said, re.MULTILINE):
        counts[f"kernel {name}"][0] += int(launches)
        counts[f"kernel {name}"][1] += int(threads)
        if way == "launches":
            counts[HOST_CALLS][0] += int(launches)
    for launches in re.findall(r"^fake CUDA: \d+ graphs, launched (\d+) times$", said, re.MULTILINE):
        counts[HOST_CALLS][0] += int(launches)
    for products, what in re.findall(r"^fake cuBLASLt: (\d+) products of (.*)$", said, re.MULTILINE):
        counts[f"product {what}"][0] += int(products)
    found = re.search(r"^fake CUDA: \d+ kernels, \d+ launches, (\d+) refused, ([0-9.]+) GiB", said, re.MULTILINE)
    products = re.search(r"^fake cuBLASLt: .* (\d+) refused$", said, re.MULTILINE)
    if not found:
        raise Failure(f"the driver printed no totals; check that it is the one of scripts/cuda_on_cpu\n{said[-3000:]}")
    if found[1] != "0" or (products and products[1] != "0"):
        raise Failure(f"a launch, product or copy was rejected:\n{said[-3000:]}")
    return {name: tuple(count) for name, count in counts.items()}, float(found[2])


def less(more: dict, fewer: dict) -> dict:
    """The counts of `more` minus those of `fewer`."""
    difference = {}
    for name in more.keys() | fewer.keys():
        pair = [a - b for a, b in zip(more.get(name, (0, 0)), fewer.get(name, (0, 0)))]
        if any(pair):
            difference[name] = tuple(pair)
    return difference


def fewer(counts: dict, others: dict) -> dict:
    """The smaller of two counts per name."""
    return {name: min(counts[name], others[name]) for name in counts.keys() & others.keys()}


def counted(program: str, step: Step, least: dict) -> dict:
    """{name: Row} of a step, from the minimum count of each run; `least` stores the minimum of earlier calls.

    Burn writes to a buffer in place if nothing else uses it, and copies it if another thread has not yet released it:
    once in some thousand launches it makes an additional copy. That depends on the host's timing, not on the step.
    """
    with tempfile.TemporaryDirectory() as folder:
        for runs in ((layers, steps) for layers in (2, 3) for steps in (1, 2)):
            counts = run(program, step, *runs, Path(folder))[0]
            least[runs] = fewer(counts, least.get(runs, counts))
    rows = rows_of(*(less(least[layers, 2], least[layers, 1]) for layers in (2, 3)))
    # In a step, each kernel is a launch by the host.
    rows.pop(HOST_CALLS, None)
    return rows


def rows_of(two_blocks: dict, three_blocks: dict) -> dict:
    layer = less(three_blocks, two_blocks)
    names = sorted(two_blocks.keys() | layer.keys())
    return {name: Row(*two_blocks.get(name, (0, 0)), *layer.get(name, (0, 0))) for name in names}


def counted_generation(program: str, shape: str, documents: int, length: int, least: dict) -> dict:
    """{Generation: {name: Row}} of prompts and of a token, counted like steps in `counted`."""
    prompts = Generation(shape, documents, length, "prompts")
    with tempfile.TemporaryDirectory() as folder:
        for layers in (2, 3):
            for steps, tokens in ((1, NEW_TOKENS), (1, NEW_TOKENS + 1), (2, NEW_TOKENS)):
                counts = run(program, prompts, layers, steps, Path(folder), tokens)[0]
                least[layers, steps, tokens] = fewer(counts, least.get((layers, steps, tokens), counts))
    tokens, rest = [], []
    for layers in (2, 3):
        once = least[layers, 1, NEW_TOKENS]
        token = less(least[layers, 1, NEW_TOKENS + 1], once)
        # The first token comes from the prompts; the second runs twice, and the host launches it only the first time.
        passes = {name: (NEW_TOKENS * n, NEW_TOKENS * threads) for name, (n, threads) in token.items() if name != HOST_CALLS}
        tokens.append(token)
        rest.append(less(less(least[layers, 2, NEW_TOKENS], once), passes))
    token = prompts._replace(part="a token")
    found = {prompts: rows_of(*rest), token: rows_of(*tokens)}
    # Launches that grow with the number of tokens belong to the prompts.
    found[token] = {name: row for name, row in found[token].items() if row.launches or row.layer_launches}
    # This includes the host calls of the tokens.
    found[prompts].pop(HOST_CALLS, None)
    return found


def whole(program: str, step: Step, steps: int = 3) -> dict:
    """Launches and products per step, kernels, host seconds and peak GiB of a whole model."""
    layers = shape_of(step.shape)["num_hidden_layers"]
    with tempfile.TemporaryDirectory() as folder:
        one, _, _ = run(program, step, layers, 1, Path(folder))
        all_counts, memory, record = run(program, step, layers, 1 + steps, Path(folder))
    n = sum(launches for name, (launches, _) in less(all_counts, one).items() if name != HOST_CALLS)
    return {
        "launches": n // steps,
        "kernels": sum(name.startswith("kernel ") for name in all_counts),
        "host": statistics.median(record["seconds"][1:]),
        "memory": memory,
    }


def launches_of_model(rows: dict, layers: int) -> int:
    counted_rows = (row for name, row in rows.items() if name != HOST_CALLS)
    return sum(row.launches + (layers - 2) * row.layer_launches for row in counted_rows)


# ------------------------------------------------------------------------------------------ the table


def read_table(file: Path = TABLE) -> dict:
    """{step: ({name: Row}, GiB or None)}"""
    table = json.loads(file.read_text())
    return {step: ({name: Row(*row) for name, row in entry["rows"].items()}, entry["gib"]) for step, entry in table.items()}


def write_table(table: dict) -> None:
    """One line per kernel, so that a change is visible in a diff."""
    entries = []
    for step, (rows, gib) in table.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(list(row))}" for name, row in rows.items())
        entries.append(f'{json.dumps(step)}: {{"gib": {json.dumps(gib)}, "rows": {{\n{lines}\n}}}}')
    TABLE.write_text("{\n" + ",\n".join(entries) + "\n}\n")


def said_of(row: Row, name: str) -> str:
    threads = "" if name.startswith("product ") else f", of {row.threads:,} and {row.layer_threads:,} threads"
    return f"{row.launches} in two blocks and {row.layer_launches} in each further one{threads}"


def differences(step: str, expected: dict, found: dict) -> list:
    nothing = Row(0, 0, 0, 0)
    lines = []
    for name in sorted(expected.keys() | found.keys()):
        wanted, counted_row = expected.get(name, nothing), found.get(name, nothing)
        if wanted != counted_row:
            lines.append(f"{step}: {name}: expected {said_of(wanted, name)}; found {said_of(counted_row, name)}")
    return lines


def summary(step, rows: dict) -> str:
    layers = shape_of(step.shape)["num_hidden_layers"]
    kinds = [sum(row.layer_launches for name, row in rows.items() if name.startswith(kind)) for kind in ("kernel", "product")]
    return f"| {name_of(step)} | {kinds[0]} | {kinds[1]} | {launches_of_model(rows, layers):,} |"


# Number of counts of a step before a difference from the table is an error.
ATTEMPTS = 4


def check(program: str, steps: list) -> list:
    """Prints the launches of each step and returns the differences from the table."""
    table = read_table()
    print("| step | kernels per layer | products per layer | both, whole model |\n|---|--:|--:|--:|", flush=True)
    lines = []
    for step in steps:
        expected, _ = table.get(name_of(step), ({}, None))
        least = {}
        for _ in range(ATTEMPTS):
            rows = counted(program, step, least)
            found = differences(name_of(step), expected, rows)
            if not found:
                break
        print(summary(step, rows), flush=True)
        lines += found
    return lines


def check_generations(program: str, generations: list) -> list:
    """Like `check`, for generation."""
    table = read_table()
    lines = []
    for generation in generations:
        least = {}
        for _ in range(ATTEMPTS):
            of_parts = counted_generation(program, *generation, least)
            found = [line for part, rows in of_parts.items() for line in differences(name_of(part), table.get(name_of(part), ({}, None))[0], rows)]
            if not found:
                break
        for part, rows in of_parts.items():
            print(summary(part, rows), flush=True)
        lines += found
    return lines


def check_whole(program: str, shapes: list) -> list:
    """Checks whole models with two documents of 4,096 tokens: they must equal two blocks plus the remaining layers."""
    table = read_table()
    print("\n| shape | blocks | kernels | launches per step | host, s per step | memory, GiB |\n|---|---|--:|--:|--:|--:|", flush=True)
    lines = []
    for shape in shapes:
        for blocks in ("recomputed", "kept"):
            step = Step(shape, 2, 4096, 0.05, blocks)
            found = whole(program, step)
            n = found["launches"]
            print(f"| {shape} | {blocks} | {found['kernels']} | {n:,} | {found['host']:.2f} | {found['memory']:.2f} |", flush=True)
            rows, _ = table.get(name_of(step), (None, None))
            expected = n if rows is None else launches_of_model(rows, shape_of(shape)["num_hidden_layers"])
            if n != expected:
                lines.append(f"{name_of(step)}: the whole model: expected {expected} launches, found {n}")
    return lines


def write(program: str, only_generations: bool) -> None:
    """Memory is measured with dropout, which needs more; without dropout it is not recorded."""
    table = {}
    if only_generations:
        table = {step: entry for step, entry in read_table().items() if not step.endswith((", prompts", ", a token"))}
    for step in (step for step in all_steps() if name_of(step) not in table):
        rows, gib, least = {}, None, {}
        for _ in range(2):
            rows = counted(program, step, least)
        if step.dropout > 0 and (step.shape, step.documents, step.length) not in RECIPE_BATCHES:
            with tempfile.TemporaryDirectory() as folder:
                _, gib, _ = run(program, step, shape_of(step.shape)["num_hidden_layers"], 1, Path(folder))
        table[name_of(step)] = (rows, gib)
        print(f"{summary(step, rows)} {gib}", flush=True)
        write_table(table)
    for generation in GENERATIONS:
        least = {}
        for _ in range(2):
            of_parts = counted_generation(program, *generation, least)
        for part, rows in of_parts.items():
            table[name_of(part)] = (rows, None)
            print(summary(part, rows), flush=True)
        write_table(table)
    print(f"{TABLE.relative_to(ROOT)} written")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/check-cuda-launches", description=__doc__)
    parser.add_argument("program", help="random_step, on the driver of scripts/cuda_on_cpu")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--all", action="store_true", help="every step of the table; by default a subset with all kernels")
    what.add_argument("--whole", nargs="+", metavar="SHAPE", help="whole models, with their kernels and memory")
    what.add_argument("--write", action="store_true", help="rewrite the table")
    parser.add_argument("--generations", action="store_true", help="with --write: keep the steps of the table, and add missing generations")
    arguments = parser.parse_args()
    try:
        if arguments.write:
            write(arguments.program, arguments.generations)
            return 0
        if arguments.whole:
            lines = check_whole(arguments.program, arguments.whole)
        else:
            lines = check(arguments.program, [s for s in all_steps() if arguments.all or name_of(s) in FEW])
            lines += check_generations(arguments.program, GENERATIONS if arguments.all else FEW_GENERATIONS)
    except Failure as failure:
        lines = [str(failure)]
    for line in lines:
        print(f"check-cuda-launches: {line}", file=sys.stderr)
    if lines:
        table = TABLE.relative_to(ROOT)
        print(f"check-cuda-launches: if the change is intended, rewrite {table} with `scripts/check-cuda-launches --write FOLDER`", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
