"""GPU work of a counted step: its products, kernels and launches with their operations and bytes, at the rates of
forecast_rates.py. Part of scripts/bench/forecast.
"""

import collections
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))

import forecast_rates as rates
from forecast_rates import ATTENTION, CLASSES, ELEMENTWISE, HEAD, LAUNCHES, LORA, PRODUCTS
from launches import RANK, TABLE, Step, shape_of

Work = collections.namedtuple("Work", "launches flops bytes ms")
Shape = collections.namedtuple("Shape", "hidden heads kv_heads head_dim vocabulary layers intermediate tokens", defaults=[0])
# A kernel: its class, main-memory bytes as a function of its threads and the model's shape, the share of a GPU's rate
# that it reaches, and the elements whose dropout it draws.
Kernel = collections.namedtuple("Kernel", "kind bytes rate draws", defaults=["memory", lambda threads, shape: 0.0])


def a_thread(n: float):
    return lambda threads, shape: threads * n


def a_row(bytes_of):
    """One block of 256 threads per row."""
    return lambda threads, shape: threads / 256 * bytes_of(shape)


def maps_of(shape: Shape) -> list:
    """Inputs and outputs of a layer's linear maps."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    maps = [(shape.hidden, queries), (shape.hidden, keys), (shape.hidden, keys), (queries, shape.hidden)]
    return maps + [(shape.hidden, shape.intermediate), (shape.hidden, shape.intermediate), (shape.intermediate, shape.hidden)]


# Rows or columns per block of 256 threads: kernels/src/lora_linear/low_rank.
SHARE_ROWS, SHARE_COLUMNS, GRADIENT_COLUMNS = 64, 128, 64


def low_rows(shape: Shape) -> int:
    """Rows per block of 256 threads for low-rank values."""
    return 64 if shape.tokens >= 4096 else 16


def stacks_of(shape: Shape) -> list:
    """Inputs of a layer's stacks, and the outputs of each map."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return [(shape.hidden, [queries, keys, keys]), (queries, [shape.hidden]), (shape.hidden, [shape.intermediate] * 2), (shape.intermediate, [shape.hidden])]


def input_low_rows(threads: int, shape: Shape) -> float:
    """Rows of a layer's four stacks in total: a stack's adapters are one launch."""
    return threads / 256 * low_rows(shape)


def input_low_bytes(threads: int, shape: Shape) -> float:
    return input_low_rows(threads, shape) * 2 * sum(inputs for inputs, _ in stacks_of(shape)) / 4


def seen_elements(shape: Shape) -> float:
    """Input elements per row of all adapters of a layer, each with its own dropout."""
    return sum(inputs * len(outputs) for inputs, outputs in stacks_of(shape))


def output_low_bytes(threads: int, shape: Shape) -> float:
    """Each map has its own blocks for its columns: queries, keys and values, and gate and up."""
    outputs = [width for _, outputs in stacks_of(shape) if len(outputs) > 1 for width in outputs]
    return threads / 256 * low_rows(shape) * 2 * sum(outputs) / len(outputs)


def wide_share_bytes(threads: int, shape: Shape) -> float:
    """Bytes written for outputs of stacks without a residual: queries, keys and values, and gate and up; a map narrower
    than the widest leaves some blocks idle."""
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
    """The adapters' inputs and the gradients of their outputs, each read once."""
    return threads / 256 * GRADIENT_COLUMNS * 2 * shape.tokens


def gradient_draws(threads: int, shape: Shape) -> float:
    return threads / 256 * GRADIENT_COLUMNS * shape.tokens * seen_elements(shape) / gradient_columns(shape)


def dropped_bytes(threads: int, shape: Shape) -> float:
    """For the maps' inputs, forward and backward, and for input gradients: read and written, four vectors per thread.

    Gradients of inputs that maps share are added in place, which reads them once more: two for queries, keys and
    values, one for gate and up.
    """
    width = sum(inputs for inputs, _ in maps_of(shape))
    return threads * 4 * 16 * (2 + shape.hidden / width)


def head_norm_bytes(threads: int, shape: Shape) -> float:
    """The row of queries, keys and values, read and written; backward also the gradient of queries and keys. 32 threads
    process a head, or the values."""
    normed = shape.heads + shape.kv_heads
    row = 2 * shape.head_dim * (2 * (normed + shape.kv_heads) + normed / 2)
    return threads / 32 / (normed + 1) * row


def adapter_values(shape: Shape) -> int:
    """Parameters of the adapters on all linear layers."""
    return shape.layers * RANK * sum(inputs + outputs for inputs, outputs in maps_of(shape))


# Keyed by the start of a kernel's name; the longest match is used. A thread moves 16 bytes at a time, eight bf16
# elements.
KERNELS = {
    # The table's row to the f32 residual stream.
    "copy_rows": Kernel(ELEMENTWISE, a_thread(4 * 2 + 4 * 4)),
    # The stream to bf16; and, with its gradient, to the stream's gradient.
    "normalize_t": Kernel(ELEMENTWISE, a_row(lambda shape: shape.hidden * (4 + 2))),
    # Also recomputes the norm and adds the residual's gradient.
    "normalize_dx": Kernel(ELEMENTWISE, a_row(lambda shape: shape.hidden * (4 + 2 + 4 + 4 + 2))),
    # A pair of vectors, read and written.
    "rotate_pairs": Kernel(ELEMENTWISE, a_thread(2 * 2 * 16)),
    # Gate and up to their product; with its gradient also to their gradients and the recomputed product.
    "gate_t": Kernel(ELEMENTWISE, a_thread(3 * 16)),
    "gate_gradient": Kernel(ELEMENTWISE, a_thread(6 * 16)),
    # Part of our attention backward pass; cuDNN includes it in its own time.
    "dot_rows": Kernel(ATTENTION, a_thread(0)),
    # Only in the measured program: without the recomputed input and the residual's gradient.
    "normalize_dx_alone": Kernel(ELEMENTWISE, a_row(lambda shape: shape.hidden * (4 + 2 + 4))),
    "gate_gradient_alone": Kernel(ELEMENTWISE, a_thread(5 * 16)),
    "drop_elements": Kernel(LORA, dropped_bytes, "dropout"),
    "lora_a_forward": Kernel(LORA, input_low_bytes, "adapters", lambda threads, shape: input_low_rows(threads, shape) * seen_elements(shape) / 4),
    "lora_b_backward_x_bf16": Kernel(LORA, output_low_bytes, "adapters"),
    # The gradient of the f32 stream, which is also written in bf16.
    "lora_b_backward_x_f32": Kernel(LORA, lambda threads, shape: threads / 256 * low_rows(shape) * shape.hidden * (4 + 2), "adapters"),
    "lora_b_forward_t_bf16_o_bf16": Kernel(LORA, wide_share_bytes, "adapters"),
    # Reads the residual and writes the sum, f32.
    "lora_b_forward_t_bf16_o_f32": Kernel(LORA, lambda threads, shape: share_elements(threads) * 8, "adapters"),
    "lora_a_backward": Kernel(LORA, lambda threads, shape: share_elements(threads) * 2, "adapters", input_share_draws),
    "lora_factor_gradients": Kernel(LORA, gradient_bytes, "adapters", gradient_draws),
    "norm_spans": Kernel(ELEMENTWISE, head_norm_bytes),
    # Logits read twice, and their gradients written.
    "row_losses": Kernel(HEAD, a_row(lambda shape: shape.vocabulary * 2 * 3)),
    # AdamW over the flat buffer: four arrays read, three written; and the norm of one array.
    "adamw_step": Kernel(LORA, a_thread(7 * 16)),
    "sum_squares": Kernel(LORA, lambda threads, shape: 4 * adapter_values(shape)),
    "root_of_sum": Kernel(LORA, a_thread(0)),
    # Burn's kernels, with the elements per thread at the end of the name: casts, fills, element-wise operations on two
    # tensors, on a tensor and a scalar, on one tensor, copies of slices.
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
    # Writes keys and values of new tokens to the cache; combines the runs of a sequence's columns, about ten of which
    # are in use, to one vector.
    "append_tokens": Kernel(ELEMENTWISE, a_thread(2 * 2 * 8)),
    "join_runs": Kernel(ELEMENTWISE, a_thread(10 * 16 + 8)),
    # The argmax of the f32 logits.
    "best_tokens": Kernel(HEAD, a_row(lambda shape: shape.vocabulary * 4)),
    "shared_sum_kernel": Kernel(HEAD, a_thread(0)),
    "copy_kernel_t_bf16_n_8": Kernel(ELEMENTWISE, a_thread(2 * 16)),
    "select_kernel_t_bf16": Kernel(ELEMENTWISE, a_thread(2 * 2)),
    "select_kernel_t_f32": Kernel(ELEMENTWISE, a_thread(2 * 4)),
    # Selects the supervised rows after the last attention, and scatters their gradients back.
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
        raise SystemExit(f"forecast: {TABLE.name} has a kernel {name}, without a byte count; add it to KERNELS in scripts/bench/forecast_work.py")
    return KERNELS[max(found, key=len)]


# ------------------------------------------------------------------------------------------ work of a step


Product = collections.namedtuple("Product", "rows columns inner factor_bytes sum_bytes is_added")


def product_of(what: str) -> Product:
    """Parses `8192 x 6144 x 4096, bf16 to f32, added`."""
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
    """Operations of one layer with `passes` products of the scores' size; causal, so half of the scores."""
    tokens = step.documents * step.length
    return passes * 2.0 * tokens * step.length / 2 * shape.heads * shape.head_dim


# Our kernels that cuDNN replaces: products of the scores' size in cuDNN's kernel, and the share that they reach.
# Forward: scores and values; backward: scores, their gradient, and the gradients of keys, values and queries.
ATTENTION_PASSES = {"attend": (2, "forward"), "query_gradients": (1, "backward"), "key_gradients": (4, "backward")}


def passes_of(kernel: str):
    return next((passes for start, passes in ATTENTION_PASSES.items() if kernel.startswith(start)), None)


def total(row, layers: int) -> tuple:
    """Launches and threads of the whole model."""
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
    # The host launches while the GPU computes; the GPU only waits for the excess.
    idle = max(n * rates.GAP_US / 1e3, n * rates.HOST_US / 1e3 - busy)
    sums[LAUNCHES] = [n, 0.0, 0.0, idle]
    return {kind: Work(*numbers) for kind, numbers in sums.items()}


def speed(step: Step, of_classes: dict) -> float:
    """Tokens per second."""
    return step.documents * step.length / sum(work.ms for work in of_classes.values()) * 1e3
