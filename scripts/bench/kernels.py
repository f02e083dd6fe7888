#!/usr/bin/env python3
"""Compares tooltune's operations with numpy's and PyTorch's and writes benchmarks/kernels_cpu.md; started by scripts/bench/kernels.

Each side is a process that keeps the inputs of one operation. A round measures all of them in turn, so that changes of
the machine's load affect all; the tables have medians and bests over rounds. With two threads they use wall time, with
one thread CPU time, which other processes disturb less. The processor's peak rates are measured in the same rounds, by
loops of multiply-adds and copies: an operation's limit is its arithmetic or its memory traffic at those rates,
whichever takes longer.
"""

import os
import statistics
import sys
from dataclasses import dataclass

from machine import MIB, ROOT, Worker, mkl_note, mkl_preload, say, versions
from page import Options, Page

# Arrays of 1024 × 576 and 1024 × 1536 elements, of half a typical L3 cache, and larger than all caches.
ARRAYS = [1024 * 576 * 4, 1024 * 1536 * 4, 16 * MIB, 256 * MIB]
PEAKS = ["peak f32", "peak bf16", *(f"{loop} f32 {size}" for loop in ("copy", "read") for size in ARRAYS)]
# Measuring time of such a loop, as a share of a side's measuring time.
PEAK_SHARE = 0.5
ELEMENTWISE = "Element-wise"
# Operations that a logistic function counts as: a power of two by a polynomial, its scaling, and a reciprocal.
LOGISTIC = 14
BYTES = {"f32": 4, "bf16": 2}
OURS, NUMPY, TORCH, PACKED = "tooltune", "numpy", "torch", "torch, packed"

# Targets for tooltune: the share of the limit and the rate relative to PyTorch for products with at least this number
# of multiply-adds; and the share of the limit for all other operations.
PRODUCT_AIM, PRODUCT_RATIO_AIM, PRODUCT_SIZE = 0.7, 1.0, 1024 * 576 * 1536
OTHER_AIM = 0.6


@dataclass
class Case:
    """An operation at a shape; the request is completed by a dtype."""

    group: str
    label: str
    kind: str
    numbers: tuple
    flops: float
    # Elements read and written in the dtype, and further bytes independent of the dtype.
    values: float
    fixed_bytes: float = 0
    memory: str = "copy"
    dtypes: tuple = ("f32", "bf16")
    sides: tuple = (OURS, TORCH)

    def request(self, dtype: str, side: str) -> str:
        kind = f"{self.kind}_packed" if side == PACKED else self.kind
        return " ".join([kind, dtype, *map(str, self.numbers)])

    def bytes(self, dtype: str) -> float:
        return self.values * BYTES[dtype] + self.fixed_bytes

    def loops(self, dtype: str) -> list:
        """The loops whose rates limit the operation: multiply-adds, of which the faster one is used, and memory traffic."""
        # Without bf16 instructions, or with slow ones, bf16 products can use f32 arithmetic. Elementwise arithmetic is
        # f32 for every dtype.
        names = ("f32",) if self.group == ELEMENTWISE else dict.fromkeys((dtype, "f32"))
        arithmetic = [f"peak {name}" for name in names]
        # The loop that moves at least this number of bytes; a cold operation is one of many such arrays.
        moved = 2 if self.memory == "copy" else 1
        needed = float("inf") if self.kind.endswith("_cold") else self.bytes(dtype)
        array = next((size for size in ARRAYS if moved * size >= needed), ARRAYS[-1])
        return [*arithmetic, f"{self.memory} f32 {array}"]

    def limit_seconds(self, dtype: str, rates: dict) -> float:
        """The time of the arithmetic or of the memory traffic, each at the rate of its loop, whichever is longer."""
        *arithmetic, memory = self.loops(dtype)
        flops = max(rates[loop] for loop in arithmetic if loop in rates)
        return max(self.flops / flops, self.bytes(dtype) / rates[memory])

    def is_large_product(self) -> bool:
        return self.group == "Frozen products" and self.flops / 2 >= PRODUCT_SIZE


def product(group: str, heading: str, kind: str, n: int, inputs: int, outputs: int, **other) -> Case:
    values = n * inputs + inputs * outputs + n * outputs
    label = f"{heading}, {n} × {inputs} × {outputs}"
    sides = (OURS, NUMPY, TORCH, PACKED) if kind.startswith("linear") else (OURS, NUMPY, TORCH)
    return Case(group, label, kind, (n, inputs, outputs), 2 * n * inputs * outputs, values, sides=sides, **other)


def frozen_products() -> list:
    """Shapes tokens × in × out: k, v and q stacked, gate and up stacked, the head at supervised positions."""
    shapes = [(1024, 576, 576), (1024, 576, 960), (1024, 576, 1536), (1024, 576, 3072), (1024, 1536, 576), (160, 576, 49152)]
    both = [("x Wᵀ", "linear"), ("dy W", "linear_dx")]
    return [product("Frozen products", heading, kind, *shape) for shape in shapes for heading, kind in both]


def decode_products() -> list:
    """W is read from memory instead of a cache: a token reads every weight once."""
    shapes = [(1, 576, 1536), (1, 576, 3072), (16, 576, 1536), (16, 1536, 576), (1, 576, 49152), (16, 576, 49152)]
    return [product("Decoding", "x Wᵀ", "linear_cold", *shape, memory="read") for shape in shapes]


def trained_products() -> list:
    """Products of a sentence encoder: its weights change every step, so they are not packed in advance."""
    shapes = [(4096, 384, 384), (4096, 384, 1536), (4096, 1536, 384)]
    directions = [("x Wᵀ", "trained"), ("dy W", "trained_dx"), ("dyᵀ x", "trained_dw")]
    return [
        product("Trained products", heading, kind, *shape, dtypes=("f32",)) for shape in shapes for heading, kind in directions
    ]


def adapter_products() -> list:
    """A is 8 × in, B is out × 8, with a frozen layer: the low-rank products are added in the same pass."""
    group, cases = "Adapters", []
    for n, inputs, outputs in [(1024, 576, 576), (1024, 576, 1536), (1024, 576, 3072), (1024, 1536, 576)]:
        # x Wᵀ and dy W; six products with a factor.
        flops = 4 * n * inputs * outputs + 6 * n * 8 * (inputs + outputs)
        values = 3 * n * (inputs + outputs) + 2 * inputs * outputs
        label = f"layer and adapter, both ways, {n} × {inputs} × {outputs}"
        cases.append(Case(group, label, "adapted_both", (n, inputs, outputs, 8), flops, values))
    return cases


def elementwise() -> list:
    """Forward: inputs and outputs once. Both ways: also the inputs again, the upstream gradient, and the gradients."""
    group, n, d, f, h, c = ELEMENTWISE, 1024, 576, 1536, 12, 64
    row, wide, heads = n * d, n * f, n * h * c
    p = 2_442_240
    return [
        # The input residual stream and its gradient are f32 for every result dtype.
        Case(group, f"rms_norm {n} × {d}", "rms_norm", (n, d), 4 * row, row, 4 * row),
        Case(group, f"rms_norm {n} × {d}, both ways", "rms_norm_both", (n, d), 12 * row, 2 * row, 12 * row),
        Case(group, f"rope {n} × {h} × {c}", "rope", (n, h, c), 3 * heads, 2 * heads),
        Case(group, f"rope {n} × {h} × {c}, both ways", "rope_both", (n, h, c), 6 * heads, 4 * heads),
        Case(group, f"swiglu {n} × {f}", "swiglu", (n, f), (LOGISTIC + 2) * wide, 3 * wide),
        Case(group, f"swiglu {n} × {f}, both ways", "swiglu_both", (n, f), (2 * LOGISTIC + 10) * wide, 8 * wide),
        Case(group, f"AdamW, {p:,} parameters", "adamw", (p,), 0, 7 * p, dtypes=("f32",)),
    ]


def attention() -> list:
    """Half of the scores are computed; forward needs two products, backward five."""
    group, h, g, c = "Attention and loss", 9, 3, 64
    cases = []
    for documents, length in [(4, 284), (1, 2048)]:
        n, shape = documents * length, (documents, length, h, g, c)
        flops, values = 4 * h * c * documents * length * (length + 1) / 2, n * c * (2 * h + 2 * g)
        label = f"attention, {documents} × {length} tokens"
        cases.append(Case(group, label, "attention", shape, flops, values))
        cases.append(Case(group, f"{label}, both ways", "attention_both", shape, 3.5 * flops, 3 * values))
    for rows in (1, 16):
        columns, values = 328, 2 * rows * 328 * g * c
        # Between two uses of a layer's cache, a token reads all other layers and their weights.
        label = f"attention, {rows} × 1 new tokens to {columns} in memory"
        numbers = (rows, columns, h, g, c)
        cases.append(Case(group, label, "attention_decode_cold", numbers, 4 * rows * h * c * columns, values, memory="read"))
    rows, d, vocabulary = 160, 576, 49152
    label = f"head and cross entropy, both ways, {rows} × {d} × {vocabulary}"
    flops, values = 4 * rows * d * vocabulary, 2 * vocabulary * d
    cases.append(Case(group, label, "cross_entropy_both", (rows, d, vocabulary), flops, values, memory="read"))
    return cases


def all_cases() -> list:
    return frozen_products() + decode_products() + trained_products() + adapter_products() + elementwise() + attention()


# ------------------------------------------------------------------------------------------ measuring


def undisturbed(seconds: list) -> float:
    """Upper quartile of the rates: other load on the machine can only slow a loop or an operation down."""
    quarter, *_ = statistics.quantiles(seconds, n=4)
    return quarter


class Bench:
    """The processes of all sides, and the measured seconds."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.dir = ROOT / "runs/bench-kernels"
        self.dir.mkdir(parents=True, exist_ok=True)
        self.preload = mkl_preload(self.dir)
        self.cases = [case for case in all_cases() if arguments.only in f"{case.group} {case.kind} {case.label}"]
        if not self.cases:
            raise SystemExit(f"--only {arguments.only!r} matches no operation; --list shows them")
        self.seconds = {}  # (threads, case label, dtype, side) -> [seconds per call]
        self.medians = {}  # the same -> the median of each round
        self.missing = {}
        self.ways = {}
        self.peaks = {}  # (threads, loop) -> a rate per measurement
        self.shares = {}  # (threads, case label, dtype) -> a share of the limit per round
        self.loops = {}  # loop -> its process, with the threads measured now

    def start(self, threads: int) -> dict:
        seconds = str(self.arguments.seconds)
        peer = [self.arguments.python, "-W", "ignore", "scripts/bench/kernels_peer.py", "--seconds", seconds]
        peer += ["--threads", str(threads), "--library"]
        workers = {
            OURS: Worker([self.arguments.ours, seconds], threads, "", self.dir / "tooltune.log"),
            NUMPY: Worker(peer + ["numpy"], threads, "", self.dir / "numpy.log"),
            TORCH: Worker(peer + ["torch"], threads, self.preload, self.dir / "torch.log"),
        }
        return workers | {PACKED: workers[TORCH]}

    @staticmethod
    def clock(threads: int) -> str:
        return "cpu" if threads == 1 else "wall"

    def peak(self, threads: int, loop: str):
        """The current rate of a loop, or None if it cannot run. Its process keeps its arrays."""
        if (threads, loop) in self.missing:
            return None
        if loop not in self.loops:
            command = [self.arguments.ours, str(PEAK_SHARE * self.arguments.seconds)]
            self.loops[loop] = Worker(command, threads, "", self.dir / "loops.log")
        answer = self.loops[loop].ask(loop)
        if "missing" in answer:
            self.missing[(threads, loop)] = answer["missing"]
            return None
        # An undisturbed loop runs at its limit; the single best CPU time could be a clock error.
        rate = answer["work"] / undisturbed(answer[self.clock(threads)])
        self.peaks.setdefault((threads, loop), []).append(rate)
        return rate

    def measure(self, workers: dict, threads: int, case: Case, dtype: str) -> None:
        for _ in range(self.arguments.rounds):
            rates = {loop: self.peak(threads, loop) for loop in case.loops(dtype)}
            rates = {loop: rate for loop, rate in rates.items() if rate}
            for side in case.sides:
                key = (threads, case.label, dtype, side)
                if key in self.missing or (side == NUMPY and dtype == "bf16"):
                    continue
                answer = workers[side].ask(case.request(dtype, side))
                if "missing" in answer:
                    self.missing[key] = answer["missing"]
                    continue
                seconds = answer[self.clock(threads)]
                median = statistics.median(seconds)
                self.seconds.setdefault(key, []).extend(seconds)
                self.medians.setdefault(key, []).append(median)
                self.ways[key] = answer.get("way")
                if side == OURS:
                    self.shares.setdefault(key[:3], []).append(case.limit_seconds(dtype, rates) / undisturbed(seconds))

    def run_all(self) -> None:
        for threads in self.arguments.threads:
            workers = self.start(threads)
            for loop in PEAKS:
                self.peak(threads, loop)
            group = None
            for case in self.cases:
                if case.group != group:
                    group = case.group
                    say(f"{threads} thread(s), {group}, load {os.getloadavg()[0]:.2f}")
                for dtype in case.dtypes:
                    self.measure(workers, threads, case, dtype)
            for worker in [workers[OURS], workers[NUMPY], workers[TORCH], *self.loops.values()]:
                worker.close()
            self.loops = {}

    def share_of_limit(self, threads: int, case: Case, dtype: str):
        shares = self.shares.get((threads, case.label, dtype))
        return statistics.median(shares) if shares else None

    def ratio(self, threads: int, case: Case, dtype: str, side: str):
        """Median over rounds of the other side's time divided by tooltune's."""
        ours, other = (self.medians.get((threads, case.label, dtype, name)) for name in (OURS, side))
        return statistics.median(b / a for a, b in zip(ours, other, strict=True)) if ours and other else None


# ------------------------------------------------------------------------------------------ the report

GROUPS = {
    "Frozen products": ("GFLOP/s", "tokens × in × out; packed: weights laid out beforehand, as inductor does when it freezes them"),
    "Decoding": ("GB/s", "tokens × in × out; each call uses another W, so that it is read from memory"),
    "Trained products": ("GFLOP/s", "tokens × in × out; packing W is part of the call"),
    "Adapters": ("GFLOP/s", "rank 8; both ways: forward and the gradients of x, A and B"),
    ELEMENTWISE: ("GB/s", f"both ways: forward and the gradients of the inputs; a logistic function counts as {LOGISTIC} operations"),
    "Attention and loss": ("GFLOP/s", "9 query heads, 3 of keys and values, 64 wide; both ways: forward and all gradients"),
}


def shown(value, digits: int = 2) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def rate_cell(bench: Bench, threads: int, case: Case, dtype: str, side: str, unit: str) -> str:
    """Median rate and best."""
    seconds = bench.seconds.get((threads, case.label, dtype, side))
    if not seconds:
        return "–"
    work = case.flops if unit == "GFLOP/s" else case.bytes(dtype)
    middle, best = (work / s * 1e-9 for s in (statistics.median(seconds), min(seconds)))
    return f"{middle:,.0f} ({best:,.0f})" if best >= 10 else f"{middle:.1f} ({best:.1f})"


def group_table(bench: Bench, threads: int, group: str, dtype: str) -> list:
    cases = [case for case in bench.cases if case.group == group and dtype in case.dtypes]
    if not cases:
        return []
    unit, note = GROUPS[group]
    sides = [s for s in (OURS, NUMPY, TORCH, PACKED) if any(s in c.sides for c in cases) and not (s == NUMPY and dtype == "bf16")]
    others = sides[1:]
    lines = ["", f"**{group}, {dtype}** ({unit}; {note})", ""]
    lines.append("| operation | " + " | ".join(sides) + " | of the limit | " + " | ".join(f"tooltune / {s}" for s in others) + " |")
    lines.append("|---|" + "--:|" * (len(sides) + 1 + len(others)))
    for case in cases:
        rates = [rate_cell(bench, threads, case, dtype, side, unit) for side in sides]
        ratios = [shown(bench.ratio(threads, case, dtype, side)) for side in others]
        share = shown(bench.share_of_limit(threads, case, dtype))
        lines.append(f"| {case.label} | " + " | ".join([*rates, share, *ratios]) + " |")
    return lines


def peak_table(bench: Bench) -> list:
    lines = ["| loop | " + " | ".join(f"{t} thread(s)" for t in bench.arguments.threads) + " |"]
    lines.append("|---|" + "--:|" * len(bench.arguments.threads))
    names = {"peak": "multiply-adds, {dtype}, GFLOP/s", "copy": "copy of {size}, GB/s", "read": "read of {size}, GB/s"}
    for request in PEAKS:
        kind, dtype, *size = request.split()
        name = names[kind].format(dtype=dtype, size=f"{int(size[0]) / MIB:.4g} MiB" if size else "")
        rates = (bench.peaks.get((threads, request)) for threads in bench.arguments.threads)
        cells = (f"{statistics.median(r) * 1e-9:,.0f} ({max(r) * 1e-9:,.0f})" if r else shown(None) for r in rates)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def below_aim(bench: Bench) -> list:
    """A line for every missed target."""
    lines = []
    for threads in bench.arguments.threads:
        for case in bench.cases:
            for dtype in case.dtypes:
                share, ratio = bench.share_of_limit(threads, case, dtype), bench.ratio(threads, case, dtype, TORCH)
                where = f"- {case.label}, {dtype}, {threads} thread(s):"
                if share is None:
                    lines.append(f"{where} not measured")
                elif case.is_large_product():
                    if share < PRODUCT_AIM:
                        lines.append(f"{where} {share:.2f} of the limit, aim {PRODUCT_AIM}")
                    if ratio is not None and ratio < PRODUCT_RATIO_AIM:
                        lines.append(f"{where} {ratio:.2f} of PyTorch, aim {PRODUCT_RATIO_AIM}")
                elif case.group in (ELEMENTWISE, "Attention and loss") and share < OTHER_AIM:
                    lines.append(f"{where} {share:.2f} of the limit, aim {OTHER_AIM}")
    return lines or ["All are met."]


def ways_note(bench: Bench) -> str:
    ways = sorted({way for way in bench.ways.values() if way and way.startswith("SDPA")})
    return f"; {' and '.join(ways)} if faster" if ways else ""


def report(bench: Bench, page: Page) -> list:
    arguments = bench.arguments
    lines = page.head("CPU operations compared with numpy and PyTorch", versions(arguments.python, "torch numpy"))
    lines += [
        f"- {arguments.rounds} rounds of {arguments.seconds} s a side and operation, sides alternate; cells are medians, bests in "
        "parentheses, and ratios medians over rounds; two threads by wall time, one thread by CPU time",
        f"- PyTorch: {mkl_note(bench.preload)}, bf16 by oneDNN{ways_note(bench)}; "
        "gradients of both sides start from a given tensor",
        "- of the limit: the time limit of an operation is the longer of its arithmetic and its memory traffic at the upper quartiles "
        "of the loops' rates. tooltune's upper quartile of the same round is compared with it, and the median over rounds is shown. "
        "An operation whose arrays fit a cache is compared with a loop whose arrays fit it",
        "",
        "## Peak rates of the processor",
        "",
        *peak_table(bench),
    ]
    for threads in arguments.threads:
        lines += ["", f"## {threads} thread(s)"]
        for group in GROUPS:
            for dtype in ("f32", "bf16"):
                lines += group_table(bench, threads, group, dtype)
    lines += [
        "",
        "## Targets that are not reached",
        "",
        f"Products of 1024 × 576 × 1536 and larger: {PRODUCT_AIM} of the limit and PyTorch's rate; attention, the loss and "
        f"element-wise operations: {OTHER_AIM} of the limit.",
        "",
        *below_aim(bench),
    ]
    return lines


def parse_arguments() -> tuple:
    options = Options(__doc__)
    options.add_argument("--rounds", type=int, default=3, help="rounds of measurements (3)")
    options.add_argument("--seconds", type=float, default=0.2, help="measuring time per side and round (0.2)")
    options.add_argument("--threads", type=int, nargs="+", default=[2, 1], help="thread counts (2 1)")
    options.add_argument("--only", default="", help="measure only operations whose group, kind or label contains this")
    options.add_argument("--list", action="store_true", help="print the operations and stop")
    options.add_output("benchmarks/kernels_cpu.md")
    options.add_hidden("--python", default=sys.executable)
    options.add_hidden("--ours", default="target/release/examples/bench_kernels")
    arguments = options.parse_args()
    return arguments, Page("kernels", options.visible_arguments(), arguments.output)


def main():
    arguments, page = parse_arguments()
    if arguments.list:
        for case in all_cases():
            print(f"{case.group}: {case.label} ({' '.join([case.kind, *map(str, case.numbers)])})")
        return
    bench = Bench(arguments)
    bench.run_all()
    page.write(report(bench, page))


if __name__ == "__main__":
    main()
