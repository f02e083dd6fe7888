"""The side of scripts/bench/forecast: tokens/s and memory of training steps on GPUs, from counted launches and rates.

A step's products are known by their sizes, so their floating-point operations and bytes are; each other kernel reads and writes so
many bytes a thread, which stand in `KERNELS`. A class of work takes its operations at the rate of its GPU, or its bytes, whichever
takes longer; forecast_rates.py holds the rates.
"""

import argparse
import collections
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))

import forecast_rates as rates
from forecast_rates import ATTENTION, CLASSES, ELEMENTWISE, GPUS, HEAD, LAUNCHES, LORA, PRODUCTS
from launches import RANK, TABLE, Step, name_of, read_table, shape_of
from machine import ROOT, commit

OUTPUT = ROOT / "benchmarks/forecast.md"
# What the program launched that was measured on the H200.
OF_MEASURED = TABLE.with_name("launches_measured.json")
# The row whose arithmetic is shown.
SHOWN_GPU, SHOWN = "H100 SXM", Step("llama-3-8b", 2, 4096, 0.05, "kept")
# Steps of the page: shape, documents, tokens of each.
ROWS = [("llama-3-8b", 2, 4096), ("llama-3-8b", 1, 16384), ("llama-3.2-1b", 8, 2048), ("qwen3-4b", 2, 4096), ("qwen3-0.6b", 8, 2048)]
MEASURED = ROOT / "benchmarks/h200.md"

Work = collections.namedtuple("Work", "launches flops bytes ms")
Shape = collections.namedtuple("Shape", "hidden heads kv_heads head_dim vocabulary layers intermediate tokens", defaults=[0])
# Of a kernel: its class, bytes of main memory as a function of its threads and of the model's shape, which share of a GPU they go at, and
# elements whose dropout it draws.
Kernel = collections.namedtuple("Kernel", "kind bytes rate draws", defaults=["memory", lambda threads, shape: 0.0])


def a_thread(n: float):
    return lambda threads, shape: threads * n


def a_row(bytes_of):
    """One block of 256 threads a row."""
    return lambda threads, shape: threads / 256 * bytes_of(shape)


def maps_of(shape: Shape) -> list:
    """Inputs and outputs of the linear layers of a block."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    maps = [(shape.hidden, queries), (shape.hidden, keys), (shape.hidden, keys), (queries, shape.hidden)]
    return maps + [(shape.hidden, shape.intermediate), (shape.hidden, shape.intermediate), (shape.intermediate, shape.hidden)]


# A block of 256 threads has so many rows or columns, in steps of at least 4,096 tokens: kernels/src/lora_linear/low_rank.
LOW_ROWS, SHARE_ROWS, SHARE_COLUMNS, GRADIENT_COLUMNS = 64, 64, 128, 64


def stacks_of(shape: Shape) -> list:
    """Inputs of the stacks of a block, and the outputs of each map."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return [(shape.hidden, [queries, keys, keys]), (queries, [shape.hidden]), (shape.hidden, [shape.intermediate] * 2), (shape.intermediate, [shape.hidden])]


def input_low_rows(threads: int) -> float:
    """Rows of the four stacks of a block, one after the other: a stack's adapters are one launch."""
    return threads / 256 * LOW_ROWS


def input_low_bytes(threads: int, shape: Shape) -> float:
    return input_low_rows(threads) * 2 * sum(inputs for inputs, _ in stacks_of(shape)) / 4


def seen_elements(shape: Shape) -> float:
    """What all adapters of a block see of a row, each by its own dropout."""
    return sum(inputs * len(outputs) for inputs, outputs in stacks_of(shape))


def output_low_bytes(threads: int, shape: Shape) -> float:
    """Each map's columns by blocks of their own: of queries, keys and values, and of gate and up."""
    outputs = [width for _, outputs in stacks_of(shape) if len(outputs) > 1 for width in outputs]
    return threads / 256 * LOW_ROWS * 2 * sum(outputs) / len(outputs)


def wide_share_bytes(threads: int, shape: Shape) -> float:
    """Outputs of stacks without a residual, written: of queries, keys and values, and of gate and up; a map that is narrower than the
    widest leaves some blocks idle."""
    stacks = [outputs for _, outputs in stacks_of(shape) if len(outputs) > 1]
    blocks = sum(len(outputs) * -(-max(outputs) // SHARE_COLUMNS) for outputs in stacks)
    return threads / 256 / blocks * SHARE_ROWS * 2 * sum(map(sum, stacks))


def share_elements(threads: int) -> float:
    return threads / 256 * SHARE_ROWS * SHARE_COLUMNS


def input_share_draws(threads: int, shape: Shape) -> float:
    return share_elements(threads) * seen_elements(shape) / sum(inputs for inputs, _ in stacks_of(shape))


def gradient_columns(shape: Shape) -> float:
    return sum(inputs + sum(outputs) for inputs, outputs in stacks_of(shape))


def gradient_bytes(threads: int, shape: Shape) -> float:
    """What adapters have read, and the gradients of their outputs, once each."""
    return threads / 256 * GRADIENT_COLUMNS * 2 * shape.tokens


def gradient_draws(threads: int, shape: Shape) -> float:
    return threads / 256 * GRADIENT_COLUMNS * shape.tokens * seen_elements(shape) / gradient_columns(shape)


def dropped_bytes(threads: int, shape: Shape) -> float:
    """Of what maps read, forward and backward, and of gradients of it: read and written, four vectors a thread.

    Gradients of inputs that maps share are added in place, which reads once more: two of queries, keys and values, one of gate and up.
    """
    width = sum(inputs for inputs, _ in maps_of(shape))
    return threads * 4 * 16 * (2 + shape.hidden / width)


def head_norm_bytes(threads: int, shape: Shape) -> float:
    """The row of queries, keys and values read and written; backward, of queries and keys, their gradient too. 32 threads have a head,
    and values."""
    normed = shape.heads + shape.kv_heads
    row = 2 * shape.head_dim * (2 * (normed + shape.kv_heads) + normed / 2)
    return threads / 32 / (normed + 1) * row


def adapter_values(shape: Shape) -> int:
    """Values of the adapters on all linear layers."""
    return shape.layers * RANK * sum(inputs + outputs for inputs, outputs in maps_of(shape))


# By the beginning of a kernel's name; the longest that fits counts. A thread moves 16 bytes at a time, eight numbers of bf16.
KERNELS = {
    # The table's row to the f32 stream.
    "copy_rows": Kernel(ELEMENTWISE, a_thread(4 * 2 + 4 * 4)),
    # The stream to bf16; and, with the gradient of that, to its own.
    "normalize_t": Kernel(ELEMENTWISE, a_row(lambda shape: shape.hidden * (4 + 2))),
    # With the norm again, and the residual's gradient added.
    "normalize_dx": Kernel(ELEMENTWISE, a_row(lambda shape: shape.hidden * (4 + 2 + 4 + 4 + 2))),
    # A pair of vectors, read and written.
    "rotate_pairs": Kernel(ELEMENTWISE, a_thread(2 * 2 * 16)),
    # Gate and up to their product; with its gradient to their gradients and their product again.
    "gate_t": Kernel(ELEMENTWISE, a_thread(3 * 16)),
    "gate_gradient": Kernel(ELEMENTWISE, a_thread(6 * 16)),
    # Part of our backward pass of attention: cuDNN's does it within its own time.
    "dot_rows": Kernel(ATTENTION, a_thread(0)),
    # In the measured program alone: without what was read, and the residual's share.
    "normalize_dx_alone": Kernel(ELEMENTWISE, a_row(lambda shape: shape.hidden * (4 + 2 + 4))),
    "gate_gradient_alone": Kernel(ELEMENTWISE, a_thread(5 * 16)),
    "drop_elements": Kernel(LORA, dropped_bytes, "dropout"),
    "input_lows": Kernel(LORA, input_low_bytes, "adapters", lambda threads, shape: input_low_rows(threads) * seen_elements(shape) / 4),
    "output_lows_x_bf16": Kernel(LORA, output_low_bytes, "adapters"),
    # The stream's gradient, which is written in bf16, too.
    "output_lows_x_f32": Kernel(LORA, lambda threads, shape: threads / 256 * LOW_ROWS * shape.hidden * (4 + 2), "adapters"),
    "output_shares_t_bf16_o_bf16": Kernel(LORA, wide_share_bytes, "adapters"),
    # The residual is read, and the sum written, f32.
    "output_shares_t_bf16_o_f32": Kernel(LORA, lambda threads, shape: share_elements(threads) * 8, "adapters"),
    "input_shares": Kernel(LORA, lambda threads, shape: share_elements(threads) * 2, "adapters", input_share_draws),
    "factor_gradients": Kernel(LORA, gradient_bytes, "adapters", gradient_draws),
    "norm_spans": Kernel(ELEMENTWISE, head_norm_bytes),
    # Logits read twice, and their gradients written.
    "row_losses": Kernel(HEAD, a_row(lambda shape: shape.vocabulary * 2 * 3)),
    # AdamW over the flat buffer: four arrays read, three written; and the norm of one.
    "move_on": Kernel(LORA, a_thread(7 * 16)),
    "sum_squares": Kernel(LORA, lambda threads, shape: 4 * adapter_values(shape)),
    "root_of_sum": Kernel(LORA, a_thread(0)),
    # Burn's, of so many numbers at a time as the end of the name says: casts, filling, arithmetic of two tensors and of one with a
    # number, of one alone, copies of parts.
    "cast_element_i_f32_o_bf16_n_4": Kernel(ELEMENTWISE, a_thread(4 * (4 + 2))),
    "cast_element_i_bf16_o_f32_n_8": Kernel(ELEMENTWISE, a_thread(8 * (2 + 4))),
    "full_kernel_c_bf16_n_8": Kernel(ELEMENTWISE, a_thread(16)),
    "full_kernel_c_f32_n_4": Kernel(ELEMENTWISE, a_thread(16)),
    "full_kernel_c_f32_n_1": Kernel(ELEMENTWISE, a_thread(4)),
    "kernel_binop_c_bf16_n_8": Kernel(ELEMENTWISE, a_thread(3 * 16)),
    "kernel_binop_c_f32_n_4": Kernel(ELEMENTWISE, a_thread(3 * 16)),
    "kernel_binop_c_f32_n_1": Kernel(ELEMENTWISE, a_thread(3 * 4)),
    "kernel_scalar_binop_c_bf16_n_8": Kernel(ELEMENTWISE, a_thread(2 * 16)),
    "kernel_scalar_binop_c_f32_n_4": Kernel(ELEMENTWISE, a_thread(2 * 16)),
    "kernel_scalar_binop_c_f32_n_1": Kernel(ELEMENTWISE, a_thread(2 * 4)),
    "unary_float_f_f32_n_1": Kernel(ELEMENTWISE, a_thread(2 * 4)),
    "unary_numeric_t_f32_n_4": Kernel(ELEMENTWISE, a_thread(2 * 16)),
    "slice_assign_kernel_e_bf16_n_8": Kernel(ELEMENTWISE, a_thread(2 * 16)),
    "slice_assign_kernel_e_f32_n_4": Kernel(ELEMENTWISE, a_thread(2 * 16)),
    "slice_kernel_e_bf16": Kernel(ELEMENTWISE, a_thread(2 * 2)),
    # The learned rows behind the last attention, and their gradients put back.
    "take_rows_t_bf16_n_4": Kernel(ELEMENTWISE, a_thread(2 * 4 * 2)),
    "take_rows_t_f32_n_4": Kernel(ELEMENTWISE, a_thread(2 * 4 * 4)),
}


def read_shape(name: str) -> Shape:
    config = shape_of(name)
    keys = ["hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "num_hidden_layers", "intermediate_size"]
    return Shape(*(config[key] for key in keys))


def kernel_of(name: str) -> Kernel:
    found = [prefix for prefix in KERNELS if name.startswith(prefix)]
    if not found:
        raise SystemExit(f"forecast: {TABLE.name} has a kernel {name}, of which nobody knows the bytes; add it to KERNELS in scripts/bench/forecast.py")
    return KERNELS[max(found, key=len)]


# ------------------------------------------------------------------------------------------ work of a step


Product = collections.namedtuple("Product", "rows columns inner factor_bytes sum_bytes is_added")


def product_of(what: str) -> Product:
    """Of `8192 x 6144 x 4096, bf16 to f32, added`."""
    size = {"f32": 4, "bf16": 2}
    rows, columns, inner, factors, sums, rest = re.fullmatch(r"(\d+) x (\d+) x (\d+), (\w+) to (\w+)(.*)", what).groups()
    return Product(int(rows), int(columns), int(inner), size[factors], size[sums], "added" in rest)


def kind_of(product: Product, shape: Shape) -> str:
    sizes = (product.rows, product.columns, product.inner)
    return HEAD if shape.vocabulary in sizes else LORA if min(sizes) <= 4 * RANK else PRODUCTS


def product_work(product: Product) -> tuple:
    """Floating-point operations and bytes of a product."""
    rows, columns, inner = product.rows, product.columns, product.inner
    factors = (rows * inner + inner * columns) * product.factor_bytes
    return 2.0 * rows * columns * inner, factors + rows * columns * product.sum_bytes * (2 if product.is_added else 1)


def attention_flops(step: Step, shape: Shape, passes: int) -> float:
    """Of one layer, where scores or what is like them are multiplied `passes` times: causal, half of the scores."""
    tokens = step.documents * step.length
    return passes * 2.0 * tokens * step.length / 2 * shape.heads * shape.head_dim


# The kernels of ours in whose place cuDNN computes: products of the size of scores that it makes there, and which share they go at.
# Forward scores and values; backward scores, their gradient, and the gradients of keys, values and queries.
ATTENTION_PASSES = {"attend": (2, "forward"), "query_gradients": (1, "backward"), "key_gradients": (4, "backward")}


def passes_of(kernel: str):
    return next((passes for start, passes in ATTENTION_PASSES.items() if kernel.startswith(start)), None)


def total(row, layers: int) -> tuple:
    """Launches and threads of a whole model."""
    return row.launches + (layers - 2) * row.layer_launches, row.threads + (layers - 2) * row.layer_threads


def works(step: Step, rows: dict, shape: Shape, gpu) -> dict:
    """{class: Work} of a step on a GPU."""
    rate = gpu.tflops * gpu.products.share
    bandwidth = gpu.gbs * gpu.memory.share
    shape = shape._replace(tokens=step.documents * step.length)
    sums = {kind: [0, 0.0, 0.0, 0.0] for kind in CLASSES}

    def add(kind, launches, flops, n_bytes, seconds):
        for i, number in enumerate([launches, flops, n_bytes, 1e3 * seconds]):
            sums[kind][i] += number

    for name, row in rows.items():
        launches, threads = total(row, shape.layers)
        what, _, of = name.partition(" ")
        if what == "product":
            product = product_of(of)
            kind = kind_of(product, shape)
            flops, n_bytes = (launches * n for n in product_work(product))
            speed = gpu.gbs * gpu.adapters.share if kind == LORA else bandwidth
            add(kind, launches, flops, n_bytes, max(flops / rate / 1e12, n_bytes / speed / 1e9))
        elif passes_of(of):
            passes, direction = passes_of(of)
            flops = launches * attention_flops(step, shape, passes)
            add(ATTENTION, launches, flops, 0.0, flops / (gpu.tflops * getattr(gpu, direction).share) / 1e12)
        else:
            kernel = kernel_of(of)
            n_bytes = kernel.bytes(threads, shape)
            draws = kernel.draws(threads, shape) if step.dropout > 0 else 0.0
            seconds = max(n_bytes / (gpu.gbs * getattr(gpu, kernel.rate).share) / 1e9, draws / gpu.draws / 1e12)
            add(kernel.kind, launches, 0.0, n_bytes, seconds)
    n = sum(launches for launches, *_ in sums.values())
    busy = sum(ms for *_, ms in sums.values())
    # The host launches while the GPU computes; what it needs beyond that is waited for.
    idle = max(n * rates.GAP_US / 1e3, n * rates.HOST_US / 1e3 - busy)
    sums[LAUNCHES] = [n, 0.0, 0.0, idle]
    return {kind: Work(*numbers) for kind, numbers in sums.items()}


def speed(step: Step, of_classes: dict) -> float:
    """Tokens a second."""
    return step.documents * step.length / sum(work.ms for work in of_classes.values()) * 1e3


# ------------------------------------------------------------------------------------------ the page


def gib_cell(gib: float) -> str:
    return f"{gib + rates.CONTEXT_GIB:.1f}"


def memory_of(table: dict, step: Step) -> float:
    """GiB of the pool, counted with dropout: without it, a little less."""
    return table[name_of(step._replace(dropout=0.05))][1]


def speed_table(table: dict) -> list:
    lines = [
        "| model | tokens a step | dropout | blocks | memory, GiB | " + " | ".join(f"{gpu.name}, {gpu.gib:.0f} GiB" for gpu in GPUS) + " |",
        "|---|--:|--:|---|--:|" + "--:|" * len(GPUS),
    ]
    for shape_name, documents, length in ROWS:
        shape = read_shape(shape_name)
        for dropout in (0.0, 0.05):
            for blocks in ("kept", "recomputed"):
                step = Step(shape_name, documents, length, dropout, blocks)
                rows, _ = table[name_of(step)]
                gib = memory_of(table, step)
                cells = []
                for gpu in GPUS:
                    fits = gib + rates.CONTEXT_GIB <= gpu.gib
                    cells.append(f"{speed(step, works(step, rows, shape, gpu)):,.0f}" if fits else "does not fit")
                lines.append(f"| {shape_name} | {documents} x {length:,} | {dropout:g} | {blocks} | {gib_cell(gib)} | " + " | ".join(cells) + " |")
    return lines


def share_cell(peak: float, unit: str, share: rates.Share) -> str:
    link, *place = share.source.partition(",")
    return f"{share.share:g} of {peak:,.0f} {unit}: {peak * share.share:,.0f} | {share.reason} | [source]({link}){''.join(place)}"


def rate_table() -> list:
    lines = ["| GPU | work | achieved share of the peak | why | |", "|---|---|--:|---|---|"]
    for gpu in GPUS:
        for kind, peak, unit, share in [
            ("products, head", gpu.tflops, "TFLOP/s", gpu.products),
            ("attention, forward", gpu.tflops, "TFLOP/s", gpu.forward),
            ("attention, backward", gpu.tflops, "TFLOP/s", gpu.backward),
            ("elementwise", gpu.gbs, "GB/s", gpu.memory),
            ("LoRA's dropout", gpu.gbs, "GB/s", gpu.dropout),
            ("LoRA's products", gpu.gbs, "GB/s", gpu.adapters),
        ]:
            lines.append(f"| {gpu.name} | {kind} | {share_cell(peak, unit, share)} |")
    sources = "; ".join(f"[{gpu.name}]({gpu.source})" for gpu in GPUS)
    return [*lines, "", f"Peaks are those of the data sheets, without sparsity: {sources}."]


def shown_work(table: dict) -> list:
    """One row by class, with its arithmetic."""
    step, shape = SHOWN, read_shape(SHOWN.shape)
    gpu = next(gpu for gpu in GPUS if gpu.name == SHOWN_GPU)
    rows, _ = table[name_of(step)]
    of_classes = works(step, rows, shape, gpu)
    all_ms = sum(work.ms for work in of_classes.values())
    lines = ["| class | launches | TFLOP | GB | ms | share |", "|---|--:|--:|--:|--:|--:|"]
    for kind, work in of_classes.items():
        counts = f"{work.flops / 1e12:.1f} | {work.bytes / 1e9:.1f}"
        lines.append(f"| {kind} | {work.launches:,} | {counts} | {work.ms:.0f} | {work.ms / all_ms:.0%} |")
    tokens = step.documents * step.length
    lines.append(f"| all | | | | {all_ms:.0f} | {tokens:,} tokens / {all_ms / 1e3:.3f} s = {speed(step, of_classes):,.0f} a second |")
    product, head, attention, elementwise, lora, launches = (of_classes[kind] for kind in CLASSES)
    rate, bandwidth = gpu.tflops * gpu.products.share, gpu.gbs * gpu.memory.share
    n = launches.launches
    weights = sum(inputs * outputs for inputs, outputs in maps_of(shape))
    in_bytes = elementwise.bytes / bandwidth / 1e6
    lines += [
        "",
        f"- products: {product.flops / 1e12:.1f} TFLOP / {rate:.0f} TFLOP/s = {product.flops / rate / 1e9:.0f} ms. "
        f"Of a block forward 2 x {tokens:,} x {weights:,} weights, and the same backward, where gradients of the weights are not wanted",
        f"- head: {head.flops / 1e12:.1f} TFLOP / {rate:.0f} TFLOP/s = {head.flops / rate / 1e9:.0f} ms, logits and the gradient of what they are of, and the losses' bytes",
        f"- attention: {' + '.join(attention_parts(step, shape, gpu))} = {attention.ms:.0f} ms. "
        "Seven products of the size of the scores a layer, of which half is computed: two forward, five backward",
        f"- elementwise: {elementwise.bytes / 1e9:.1f} GB / {bandwidth:,.0f} GB/s = {in_bytes:.0f} ms",
        f"- LoRA: {lora.bytes / 1e9:.1f} GB, or its draws of dropout at {gpu.draws:g} x 10^12 a second, whichever takes a kernel longer",
        f"- launches: {n:,} x {rates.GAP_US:g} µs between kernels; the host takes {n * rates.HOST_US / 1e3:.0f} ms for them while the GPU computes, and is waited for where that is more",
    ]
    return lines + ["", "What is launched:", "", *kernel_lines(step, rows, shape)]


def attention_parts(step: Step, shape: Shape, gpu) -> list:
    """Both passes of a step whose blocks are kept, as `TFLOP / TFLOP/s`."""
    parts = []
    for direction in ("forward", "backward"):
        passes = sum(n for n, own in ATTENTION_PASSES.values() if own == direction)
        flops = shape.layers * attention_flops(step, shape, passes)
        parts.append(f"{flops / 1e12:.1f} TFLOP / {gpu.tflops * getattr(gpu, direction).share:.0f} TFLOP/s")
    return parts


def kernel_lines(step: Step, rows: dict, shape: Shape) -> list:
    """Every kernel of the shown row."""
    shape = shape._replace(tokens=step.documents * step.length)
    lines = ["| what is launched | class | launches of the model | in a further block | TFLOP | GB |", "|---|---|--:|--:|--:|--:|"]
    for name, row in rows.items():
        launches, threads = total(row, shape.layers)
        what, _, of = name.partition(" ")
        if what == "product":
            kind = kind_of(product_of(of), shape)
            flops, n_bytes = product_work(product_of(of))
            counts = f"{launches * flops / 1e12:.2f} | {launches * n_bytes / 1e9:.2f}"
        elif passes_of(of):
            kind, counts = ATTENTION, f"{launches * attention_flops(step, shape, passes_of(of)[0]) / 1e12:.2f} | "
        else:
            kind, counts = kernel_of(of).kind, f" | {kernel_of(of).bytes(threads, shape) / 1e9:.2f}"
        lines.append(f"| {of} | {kind} | {launches:,} | {row.layer_launches} | {counts} |")
    return lines


def conclusions(table: dict) -> list:
    """What stands out, with its numbers."""
    gpu = next(gpu for gpu in GPUS if gpu.name == SHOWN_GPU)

    def of_step(step):
        return works(step, table[name_of(step)][0], read_shape(step.shape), gpu)

    def share(kind, step):
        of_classes = of_step(step)
        return of_classes[kind].ms / sum(work.ms for work in of_classes.values())

    def a_layer(shape_name, documents, length):
        rows, _ = table[name_of(Step(shape_name, documents, length, 0.05, "kept"))]
        return sum(row.layer_launches for name, row in rows.items() if name.startswith("kernel "))

    long, again, small = Step(SHOWN.shape, 1, 16384, 0.05, "recomputed"), SHOWN._replace(blocks="recomputed"), Step("qwen3-0.6b", 8, 2048, 0.05, "kept")
    plain, base, recomputed = (speed(step, of_step(step)) for step in (SHOWN._replace(dropout=0.0), SHOWN, again))
    of_recomputed, of_kept = (table[name_of(step)][0] for step in (again, SHOWN))
    n_dense = [
        sum(row.layer_launches for name, row in rows.items() if name.startswith("product ") and kind_of(product_of(name.partition(" ")[2]), read_shape(SHOWN.shape)) == PRODUCTS)
        for rows in (of_kept, of_recomputed)
    ]
    return [
        f"- On an {SHOWN_GPU}, dense products take {share(PRODUCTS, SHOWN):.0%} of the step of {SHOWN.shape} with 2 x 4,096 tokens, LoRA with its dropout {share(LORA, SHOWN):.0%}, "
        f"attention {share(ATTENTION, SHOWN):.0%}, and {share(ATTENTION, long):.0%} with 1 x 16,384.",
        f"- Without dropout, that step makes {plain / base - 1:.0%} more tokens a second; with its blocks recomputed, {1 - recomputed / base:.0%} fewer. "
        f"A block that is run again leaves out its last projection's product, which nobody reads: {n_dense[1] - n_dense[0]} of a layer's {n_dense[0] // 2} dense products forward are made twice.",
        f"- Qwen3 launches {a_layer('qwen3-0.6b', 8, 2048)} kernels a layer, Llama {a_layer('llama-3-8b', 2, 4096)}: the norm of its heads is one kernel forward and one backward. "
        f"Elementwise work is {share(ELEMENTWISE, small):.0%} of a step of Qwen3-0.6B.",
    ]


def sensitivity(table: dict) -> list:
    """What the shown row would be if one rate were a fifth lower."""
    step, shape = SHOWN, read_shape(SHOWN.shape)
    gpu = next(gpu for gpu in GPUS if gpu.name == SHOWN_GPU)
    rows, _ = table[name_of(step)]
    of_classes = works(step, rows, shape, gpu)
    base = sum(work.ms for work in of_classes.values())
    cells = []
    for kinds in ([PRODUCTS, HEAD], [ATTENTION], [ELEMENTWISE], [LORA]):
        more = sum(of_classes[kind].ms for kind in kinds) * 0.25
        cells.append(f"{' and '.join(kinds)} {1 - base / (base + more):.0%}")
    return [f"A rate that is a fifth lower takes off: {', '.join(cells)}."]


# ------------------------------------------------------------------------------------------ measured pages


def measured_rows(page: Path) -> list:
    """(shape, blocks, tokens/s, GiB) of tooltune in the table of a page of scripts/gpu/run."""
    found = []
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 8 and cells[1] == "tooltune" and re.fullmatch(r"[\d,]+", cells[4]):
            all_kept = re.fullmatch(r"auto: (\d+) of \1 kept", cells[3]) or cells[3] == "kept"
            if all_kept or cells[3] == "recomputed":
                found.append((cells[0], "kept" if all_kept else "recomputed", float(cells[4].replace(",", "")), float(cells[6])))
    if not found:
        raise SystemExit(f"forecast: {page} has no row of tooltune with all blocks kept or recomputed, as scripts/gpu/run writes them")
    return found


def gpu_of(page: Path):
    """The GPU that a page names."""
    text = page.read_text()
    for gpu in GPUS:
        if gpu.name.split()[0 if gpu.name.startswith(("A100", "H100", "H200")) else 1] in text.split("## ")[0]:
            return gpu
    raise SystemExit(f"forecast: {page} names none of {', '.join(gpu.name for gpu in GPUS)} before its first section")


def beside(table: dict, page: Path) -> list:
    """Measured numbers of a page of two documents of 4,096 tokens with dropout .05 beside the forecast of what was launched there."""
    gpu = gpu_of(page)
    if page.resolve() == MEASURED.resolve():
        table = read_table(OF_MEASURED)
    lines = [
        "| model | blocks | measured, tokens/s | forecast | forecast / measured | memory, measured | forecast |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for shape_name, blocks, measured, gib in measured_rows(page):
        step = Step(shape_name, 2, 4096, 0.05, blocks)
        if name_of(step) not in table:
            continue
        own = speed(step, works(step, table[name_of(step)][0], read_shape(shape_name), gpu))
        if page.resolve() == MEASURED.resolve():
            n_tokens = step.documents * step.length
            own = n_tokens / (n_tokens / own + (n_tokens - step.documents) * rates.ROW_BACK_US / 1e6)
        lines.append(f"| {shape_name} | {blocks} | {measured:,.0f} | {own:,.0f} | {own / measured:.2f} | {gib} | {gib_cell(memory_of(table, step))} |")
    return lines


def page(table: dict, measured: list) -> list:
    lines = [
        "# A forecast of training on GPUs",
        "",
        "Written by `scripts/bench/forecast`; do not edit.",
        "",
        f"**This is a forecast, of commit {commit()}: nothing in the first table was measured.**",
        "Rates of the H200 are those of kernels and steps that were measured on one ([h200.md](h200.md)); its columns say what they make of other steps. "
        "Of the other three GPUs none was at hand: their rates are published ones, and the H200's where there are none.",
        "A step's launches, its products with their sizes, and its memory are counted, on a driver without a GPU "
        "(`scripts/check-cuda-launches`, `scripts/gpu/launches.json`); the time of each is work divided by a rate. "
        "A measurement on another GPU replaces its shares in `scripts/bench/forecast_rates.py`.",
        "**Attention is counted as our kernels, because that driver has no cuDNN, and taken at cuDNN's rates**: where cuDNN is not found, or its plans do not compute, "
        "our kernels do, which are slower, and all of this is too high. Nobody has timed them alone: with them and Burn's products, an H200 made 2,207 tokens a second of Llama-3-8B.",
        "",
        "## Tokens a second, and memory",
        "",
        f"LoRA r {RANK} on all linear layers, bf16, every token learned, documents packed. Memory is what the pool takes from the driver at most, "
        f"and {rates.CONTEXT_GIB:g} GiB for CUDA's context.",
        "",
        *speed_table(table),
        "",
        *conclusions(table),
        "",
        "## Rates",
        "",
        *rate_table(),
        "",
        "Attention's rates are of heads of 128 and causal operations; heads of 64, as Llama-3.2-1B's, reach less of them. "
        f"Between two kernels the GPU is idle for {rates.GAP_US:g} µs; a launch takes the host {rates.HOST_US:g} µs.",
        "",
        f"## One row, by class: {name_of(SHOWN)}, {SHOWN_GPU}",
        "",
        *shown_work(table),
        "",
        *sensitivity(table),
        "",
        "## Beside measured numbers",
        "",
    ]
    for file in measured:
        name = file.resolve().relative_to(ROOT) if file.resolve().is_relative_to(ROOT) else file.name
        lines += [f"### {name}", ""]
        if file.resolve() == MEASURED.resolve():
            lines += [
                f"These four steps are what the H200's share of products, {gpu_of(file).products.share:g}, was chosen by, and no other share was: one number, nearest to all four. "
                "That they agree is no proof of the forecast; that kept and recomputed blocks, and two models, agree with one number is some.",
                f"The forecasts beside them are of what the measured program launched, `{OF_MEASURED.relative_to(ROOT)}`: it dropped out in kernels of their own, left low-rank products to cuBLASLt, "
                f"and put the gradients of learned rows back with kernels of Burn's, {rates.ROW_BACK_US:g} µs a row. "
                "No GPU has run the kernels that do this since; their rate is that of cuBLASLt's low-rank products, and that of the draws is the dropout's.",
                "",
            ]
        lines += [*beside(table, file), ""]
    lines += [
        "## What it leaves out",
        "",
        "- Clocks: a GPU under full load for minutes lowers them; the shares say by how much that was assumed.",
        "- Reading and collating rows, evaluation, and saving; compiling kernels in the first step.",
        "- Memory that cuDNN works in: up to half a GiB more was measured.",
        "- What stays in the L2 cache from one kernel to the next, which makes small models faster than bytes of main memory say.",
    ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench/forecast", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, nargs="+", default=[MEASURED], help="pages of scripts/gpu/run to set beside it (benchmarks/h200.md)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="page to write (benchmarks/forecast.md)")
    arguments = parser.parse_args()
    missing = [str(file) for file in arguments.measured if not file.is_file()]
    if missing:
        raise SystemExit(f"forecast: there is no {', '.join(missing)}")
    arguments.output.write_text("\n".join(page(read_table(), arguments.measured)) + "\n", encoding="utf-8")
    print(f"{arguments.output} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
