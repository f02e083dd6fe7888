#!/usr/bin/env python3
"""Times operations of numpy or PyTorch: the other sides of scripts/bench/kernels.

Reads lines `KIND DTYPE NUMBER...` and prints a JSON line for each, as kernels/examples/bench_kernels does. If a library
has several ways to compute a result, the first request determines the fastest one, which is then measured; its name is
in the output. PyTorch's packed products are those that inductor generates for frozen weights.
"""

import argparse
import json
import sys
import time

SAMPLE_SECONDS = 2e-3
MIN_SAMPLES = 3
COLD_BYTES = 128 << 20


class Missing(Exception):
    """This library does not have the operation in this dtype."""


# ------------------------------------------------------------------------------------------ numpy


def numpy_operations() -> dict:
    import numpy

    random = numpy.random.default_rng(0)

    def floats(*shape):
        return random.standard_normal(shape, dtype=numpy.float32)

    def need_f32(dtype):
        if dtype != "f32":
            raise Missing("numpy has no bf16")

    def linear(dtype, n, inputs, outputs):
        need_f32(dtype)
        x, weight = floats(n, inputs), floats(outputs, inputs)
        return {"matmul": lambda: x @ weight.T}

    def linear_cold(dtype, n, inputs, outputs):
        need_f32(dtype)
        x, one = floats(n, inputs), floats(outputs, inputs)
        return {"matmul": in_turns(lambda w: x @ w.T, [one.copy() for _ in range(cold_copies(one.nbytes))])}

    def linear_dx(dtype, n, inputs, outputs):
        need_f32(dtype)
        dy, weight = floats(n, outputs), floats(outputs, inputs)
        return {"matmul": lambda: dy @ weight}

    def trained_dw(dtype, n, inputs, outputs):
        need_f32(dtype)
        x, dy = floats(n, inputs), floats(n, outputs)
        return {"matmul": lambda: dy.T @ x}

    return {
        "linear": linear,
        "linear_cold": linear_cold,
        "linear_dx": linear_dx,
        "trained": linear,
        "trained_dx": linear_dx,
        "trained_dw": trained_dw,
    }


# ------------------------------------------------------------------------------------------ PyTorch


def torch_operations(threads: int) -> dict:
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    torch.manual_seed(0)
    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16}

    def floats(dtype, *shape):
        return torch.randn(*shape, dtype=dtypes[dtype])

    def plain(function):
        """Without autograd."""

        def call():
            with torch.inference_mode():
                return function()

        return call

    def with_gradients(function, *inputs):
        """The function's value, and the gradients of all inputs from a given upstream gradient."""
        leaves = [x.requires_grad_() for x in inputs]
        upstream = torch.ones_like(function(*leaves).detach())
        return lambda: torch.autograd.grad(function(*leaves), leaves, upstream)

    def pack(weight, n):
        """A function of x that multiplies by the weight, packed for n rows."""
        if weight.dtype == torch.float32 and torch.backends.mkl.is_available():
            packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, n)
            return lambda x: torch.ops.mkl._mkl_linear(x, packed, weight, None, n)
        if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            raise Missing("oneDNN does not pack bf16 on this processor")
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, n)
        return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")

    def linear(dtype, n, inputs, outputs):
        x, weight = floats(dtype, n, inputs), floats(dtype, outputs, inputs)
        return {"F.linear": plain(lambda: F.linear(x, weight))}

    def linear_packed(dtype, n, inputs, outputs):
        x, product = floats(dtype, n, inputs), pack(floats(dtype, outputs, inputs), n)
        return {"packed": plain(lambda: product(x))}

    def linear_cold(dtype, n, inputs, outputs):
        x, one = floats(dtype, n, inputs), floats(dtype, outputs, inputs)
        weights = [one.clone() for _ in range(cold_copies(one.nbytes))]
        return {"F.linear": plain(in_turns(lambda w: F.linear(x, w), weights))}

    def linear_cold_packed(dtype, n, inputs, outputs):
        x, one = floats(dtype, n, inputs), floats(dtype, outputs, inputs)
        products = [pack(one.clone(), n) for _ in range(cold_copies(one.nbytes))]
        return {"packed": plain(in_turns(lambda product: product(x), products))}

    def linear_dx(dtype, n, inputs, outputs):
        dy, weight = floats(dtype, n, outputs), floats(dtype, outputs, inputs)
        return {"mm": plain(lambda: torch.mm(dy, weight))}

    def linear_dx_packed(dtype, n, inputs, outputs):
        dy, product = floats(dtype, n, outputs), pack(floats(dtype, inputs, outputs), n)
        return {"packed": plain(lambda: product(dy))}

    def trained_dw(dtype, n, inputs, outputs):
        x, dy = floats(dtype, n, inputs), floats(dtype, n, outputs)
        return {"mm": plain(lambda: torch.mm(dy.t(), x))}

    def adapted_both(dtype, n, inputs, outputs, rank):
        weight = floats(dtype, outputs, inputs)
        factors = floats(dtype, n, inputs), floats(dtype, rank, inputs), floats(dtype, outputs, rank)
        return {
            "eager": with_gradients(lambda x, a, b: F.linear(x, weight) + F.linear(F.linear(x, a), b) * 2.0, *factors)
        }

    def rms_norm_of(weight):
        return lambda x: F.rms_norm(x, weight.shape, weight, 1e-5)

    def rms_norm(dtype, n, d):
        x, norm = floats(dtype, n, d), rms_norm_of(floats(dtype, d))
        return {"F.rms_norm": plain(lambda: norm(x))}

    def rms_norm_both(dtype, n, d):
        return {"F.rms_norm": with_gradients(rms_norm_of(floats(dtype, d)), floats(dtype, n, d))}

    def rotation(dtype, n, c):
        cos, sin = floats(dtype, 1, n, 1, c), floats(dtype, 1, n, 1, c)

        def turn(x):
            low, high = x[..., : c // 2], x[..., c // 2 :]
            return x * cos + torch.cat((-high, low), dim=-1) * sin

        return turn

    def rope(dtype, n, h, c):
        turn, x = rotation(dtype, n, c), floats(dtype, 1, n, h, c)
        return {"transformers": plain(lambda: turn(x))}

    def rope_both(dtype, n, h, c):
        return {"transformers": with_gradients(rotation(dtype, n, c), floats(dtype, 1, n, h, c))}

    def gated(gate, up):
        return F.silu(gate) * up

    def swiglu(dtype, n, f):
        gate, up = floats(dtype, n, f), floats(dtype, n, f)
        return {"F.silu(gate) * up": plain(lambda: gated(gate, up))}

    def swiglu_both(dtype, n, f):
        return {"F.silu(gate) * up": with_gradients(gated, floats(dtype, n, f), floats(dtype, n, f))}

    def adamw(dtype, n):
        if dtype != "f32":
            raise Missing("adapters are f32")
        parameters = torch.nn.Parameter(floats(dtype, n))
        parameters.grad = floats(dtype, n)
        optimizer = torch.optim.AdamW([parameters], lr=1e-6, weight_decay=0.01, fused=True)
        return {"fused AdamW": optimizer.step}

    def attention_inputs(dtype, documents, length, h, g, c):
        """Queries, keys and values, once grouped and once with keys and values repeated per query head."""
        few = [floats(dtype, documents, heads, length, c) for heads in (h, g, g)]
        many = [few[0].clone()] + [x.repeat_interleave(h // g, dim=1) for x in few[1:]]
        return few, many

    def grouped(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def repeated(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def attention(dtype, *shape):
        few, many = attention_inputs(dtype, *shape)
        return {"SDPA, grouped": plain(lambda: grouped(*few)), "SDPA, repeated": plain(lambda: repeated(*many))}

    def attention_both(dtype, *shape):
        few, many = attention_inputs(dtype, *shape)
        return {"SDPA, grouped": with_gradients(grouped, *few), "SDPA, repeated": with_gradients(repeated, *many)}

    def attention_decode_cold(dtype, rows, columns, h, g, c):
        q, one = floats(dtype, rows, h, 1, c), floats(dtype, 2, rows, g, columns, c)
        caches = [one.clone() for _ in range(cold_copies(one.nbytes))]
        repeated = [kv.repeat_interleave(h // g, dim=2) for kv in caches[: cold_copies(one.nbytes * (h // g))]]
        return {
            "SDPA, grouped": plain(in_turns(lambda kv: F.scaled_dot_product_attention(q, *kv, enable_gqa=True), caches)),
            "SDPA, repeated": plain(in_turns(lambda kv: F.scaled_dot_product_attention(q, *kv), repeated)),
        }

    def cross_entropy_both(dtype, rows, d, vocabulary):
        head, targets = floats(dtype, vocabulary, d), torch.arange(rows) * 97 % vocabulary
        loss = lambda hidden: F.cross_entropy(F.linear(hidden, head).float(), targets)
        return {"F.cross_entropy": with_gradients(loss, floats(dtype, rows, d))}

    return {
        "linear": linear,
        "linear_packed": linear_packed,
        "linear_cold": linear_cold,
        "linear_cold_packed": linear_cold_packed,
        "linear_dx": linear_dx,
        "linear_dx_packed": linear_dx_packed,
        "trained": linear,
        "trained_dx": linear_dx,
        "trained_dw": trained_dw,
        "adapted_both": adapted_both,
        "rms_norm": rms_norm,
        "rms_norm_both": rms_norm_both,
        "rope": rope,
        "rope_both": rope_both,
        "swiglu": swiglu,
        "swiglu_both": swiglu_both,
        "adamw": adamw,
        "attention": attention,
        "attention_both": attention_both,
        "attention_decode_cold": attention_decode_cold,
        "cross_entropy_both": cross_entropy_both,
    }


# ------------------------------------------------------------------------------------------ both


def cold_copies(n_bytes: int) -> int:
    """Number of arrays of this size that together exceed every cache: used in rotation, each one is read from memory."""
    return max(2, -(-COLD_BYTES // n_bytes))


def in_turns(function, arguments: list):
    """A call that uses the next of the arguments each time."""
    position = 0

    def call():
        nonlocal position
        position = (position + 1) % len(arguments)
        return function(arguments[position])

    return call


def sample(call, calls: int) -> tuple:
    """Mean wall and CPU seconds per call over `calls`."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        call()
    return (time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls


def fastest(ways: dict) -> tuple:
    """Name and function of the fastest way, measured by three calls each after a warm-up call."""

    def seconds(name):
        ways[name]()
        return min(sample(ways[name], 1)[0] for _ in range(3))

    name = next(iter(ways)) if len(ways) == 1 else min(ways, key=seconds)
    return name, ways[name]


def measured(name: str, call, seconds: float) -> dict:
    call()
    one, _ = sample(call, 1)
    calls = min(max(1, int(SAMPLE_SECONDS / one) + 1), 1_000_000)
    start, wall, cpu = time.perf_counter(), [], []
    while len(wall) < MIN_SAMPLES or time.perf_counter() - start < seconds:
        wall_seconds, cpu_seconds = sample(call, calls)
        wall.append(wall_seconds)
        cpu.append(cpu_seconds)
    return {"wall": wall, "cpu": cpu, "way": name}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=["numpy", "torch"], required=True)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch; numpy's come from OPENBLAS_NUM_THREADS")
    parser.add_argument("--seconds", type=float, default=0.2, help="measuring time per request (0.2)")
    arguments = parser.parse_args()
    operations = numpy_operations() if arguments.library == "numpy" else torch_operations(arguments.threads)
    asked, way = None, None
    for line in sys.stdin:
        if line != asked:
            way = None  # frees the inputs of the previous operation before new ones are created
            kind, dtype, *numbers = line.split()
            asked = line
            try:
                if kind not in operations:
                    raise Missing(f"unknown operation {kind}")
                way = fastest(operations[kind](dtype, *map(int, numbers)))
            except Missing as missing:
                way = str(missing)
        answer = {"missing": way} if isinstance(way, str) else measured(*way, arguments.seconds)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
