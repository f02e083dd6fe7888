"""Runs every CUDA kernel source of a directory on the CPU and compares with f64: `check.py DIRECTORY`.

This is the only test of the bf16 variants and the tensor-core kernels without a GPU: Vulkan's software device runs the
same kernels in f32, without both.
"""

import math
import sys

import torch

from emulate import Kernel, load

# Tolerance in the Euclidean norm. A bf16 has eight significant bits, so rounding the result alone costs up to 2e-3;
# tensor cores also use rounded weights and score gradients.
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 5e-3}

# Kernels that kernels/tests/cube compare with the CPU, on Vulkan and CUDA, and that are not run here.
IN_CUBE = ("append_", "attend_to_run", "best_tokens", "join_runs", "norm_spans", "take_rows", "walk_chunks")

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Checks:
    """The kernels of a directory, those that have not run yet, and the comparisons."""

    def __init__(self, directory):
        self.files = load(directory)
        self.waiting = set(self.files)

    def kernel(self, name):
        self.waiting.discard(name)
        return Kernel(self.files[name])

    def near(self, name, ours, expected, tolerance=None):
        tolerance = tolerance or TOLERANCES[ours.dtype]
        expected = expected.double()
        off = ((ours.double() - expected).norm() / expected.norm()).item()
        print(f"{name:72}{off:10.1e}")
        assert off < tolerance, f"{name}: {off} is above {tolerance}"


def vectors(n):
    """Blocks of 256 threads for n elements of work."""
    return (math.ceil(n / 256), 1)


def rms_norm(checks, kind):
    dtype, [n, d] = TYPES[kind], [3, 1032]
    x, weight, dy = torch.randn(n, d), torch.randn(d), torch.randn(n, d).to(dtype)
    y, dx = torch.empty(n, d, dtype=dtype), torch.empty(n, d)
    scalars = {"u32": [n, d // 4], "f32": [1e-5]}
    checks.kernel(f"normalize_t_{kind}_n_4")((n, 1), [x, weight, y], **scalars)
    again, added = torch.zeros_like(y), torch.randn(n, d)
    buffers = [x, weight, dy, added, dx, again]
    checks.kernel(f"normalize_dx_t_{kind}_n_4")((n, 1), buffers, **scalars)
    assert not again.any(), "the unwanted norm must not be written"
    leaf = x.double().requires_grad_()
    expected = leaf * (leaf.square().mean(1, keepdim=True) + 1e-5).rsqrt() * weight
    expected.backward(dy.double())
    checks.near(f"rms_norm {kind}", y, expected.detach())
    checks.near(f"rms_norm {kind}, gradient", dx, leaf.grad)
    checks.kernel(f"normalize_dx_t_{kind}_n_4 with norm and sum")((n, 1), buffers, **scalars)
    checks.near(f"rms_norm {kind}, gradient and sum", dx, leaf.grad + added.double())
    assert torch.equal(again, y), "the norm again"


def embedding(checks, kind):
    dtype, [rows, width] = TYPES[kind], [11, 264]
    table, ids = torch.randn(rows, width).to(dtype), torch.tensor([3, 0, 10, 3], dtype=torch.int32)
    y = torch.empty(len(ids), width)
    kernel = checks.kernel(f"copy_rows_t_{kind}_n_4")
    kernel(vectors(y.numel() // 4), [table, ids, y], u32=[len(ids), width // 4])
    checks.near(f"embedding {kind}", y, table[ids.long()].double())


def nf4_values():
    """The values of the codes."""
    from_zero = [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]
    to_zero = [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0]
    return torch.tensor(to_zero + from_zero)


def dequantise_nf4(checks, kind, vector):
    """Two matrices, one below the other; their last nested blocks are short. All bits must be equal."""
    dtype, sizes = TYPES[kind], [16384 + 8 * 5, 64 * 3]
    table, levels = nf4_values(), torch.randn(256)
    for is_nested, form in [(True, ""), (False, " plain f16")]:
        codes, absmax, scales, spans, expected = [], [], [], [], []
        first = 0
        for size, offset in zip(sizes, torch.randn(len(sizes))):
            for start in range(0, size, 16384):
                n = min(16384, size - start)
                # The second matrix is rounded first: to f16, or to bf16 if the results are f32.
                rounds = first >= sizes[0]
                rounding = 0 if not rounds else 2 if is_nested else 1
                spans += [first + start, n, rounding]
                code, level, scale = torch.randint(16, [16384]), torch.randint(256, [256]), torch.randn(1)
                nested = levels[level] * scale + offset
                blocks = nested if is_nested else torch.randn(256)
                scales.append(torch.cat([scale, offset[None]]) if is_nested else blocks)
                values = table[code] * blocks.repeat_interleave(64)
                if rounding == 1:
                    values = values.half().float()
                if rounding == 2:
                    values = values.bfloat16().float()
                expected.append(values[:n])
                high, low = code.view(-1, 2).T
                codes.append((high << 4 | low).to(torch.uint8))
                absmax.append(level.to(torch.uint8))
            first += size
        weights = torch.full([first], 7.0).to(dtype)
        tables = torch.cat([table, levels])
        buffers = [torch.cat(codes), torch.cat(absmax), torch.cat(scales), torch.tensor(spans, dtype=torch.int32), tables, weights]
        n_blocks = len(spans) // 3
        name = f"dequantise_nf4_t_{kind}_n_{vector}{form}"
        checks.kernel(name)((n_blocks, 1), buffers, u32=[n_blocks])
        assert torch.equal(weights, torch.cat(expected).to(dtype)), f"{name}: the bits differ"
        print(f"{name:72}equal bits")


def rope(checks, kind, vector):
    dtype, [n, heads, c], turned = TYPES[kind], [7, 5, 64], 4
    x, y = torch.randn(n, heads, c).to(dtype), torch.empty(n, heads, c, dtype=dtype)
    cos, sin = torch.randn(n, 1, c // 2), torch.randn(n, 1, c // 2)
    kernel = checks.kernel(f"rotate_pairs_t_{kind}_n_{vector}")
    scalars = {"u32": [n, heads, turned, c // 2 // vector], "f32": [-1.0]}
    kernel(vectors(n * heads * c // 2 // vector), [x, cos, sin, y], **scalars)
    first, second = x.double().chunk(2, dim=2)
    expected = torch.cat([first * cos + second * sin, second * cos - first * sin], 2)
    expected[:, turned:] = x[:, turned:].double()
    checks.near(f"rope {kind}, turned back", y, expected)


def swiglu(checks, kind, vector):
    dtype, [n, f] = TYPES[kind], [5, 136]
    gate_up, dy = torch.randn(n, 2 * f).to(dtype) * 3, torch.randn(n, f).to(dtype)
    y, d_gate_up = torch.empty_like(dy), torch.empty_like(gate_up)
    grid, scalars = vectors(n * f // vector), {"u32": [n, f // vector]}
    checks.kernel(f"gate_t_{kind}_n_{vector}")(grid, [gate_up, y], **scalars)
    again = torch.zeros_like(y)
    for form, expected in [("", torch.zeros_like(y)), (" with gated", y)]:
        kernel = checks.kernel(f"gate_gradient_t_{kind}_n_{vector}{form}")
        kernel(grid, [gate_up, dy, d_gate_up, again], **scalars)
        assert torch.equal(again, expected), f"what is gated{form}"
    leaf = gate_up.double().requires_grad_()
    gate, up = leaf.chunk(2, dim=1)
    expected = torch.nn.functional.silu(gate) * up
    expected.backward(dy.double())
    checks.near(f"swiglu {kind}", y, expected.detach())
    checks.near(f"swiglu {kind}, gradient", d_gate_up, leaf.grad)


def mix(x):
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def kept_of(state, threshold, n, width):
    """1 for elements that dropout keeps, 0 for the others."""
    kept = torch.empty(n, width, dtype=torch.double)
    for row in range(n):
        row_state = mix(state ^ mix(row))
        for column in range(width):
            word = mix((row_state + column // 4) & ((1 << 64) - 1))
            draw = word >> (16 * (column % 4)) & 0xFFFF
            kept[row, column] = 0 if draw < threshold else 1
    return kept


def dropout(checks, kind, vector):
    dtype, [n, width] = TYPES[kind], [9, 136]
    state, threshold = 0xFEDCBA9876543210, 20000
    x, before = torch.randn(n, width).to(dtype), torch.randn(n, width).to(dtype)
    kept = kept_of(state, threshold, n, width)
    for size, form, added in [(vector, "", 0), (vector, " added", before.double()), (1, " single", 0)]:
        y, vectors_of_row = before.clone(), width // size
        units = math.ceil(vectors_of_row / 4)
        scalars = {"u32": [n, vectors_of_row, units, state & 0xFFFFFFFF, state >> 32, threshold]}
        checks.kernel(f"drop_elements_t_{kind}_n_{size}{form}")(vectors(n * units), [x, y], **scalars)
        checks.near(f"dropout {kind}{form}", y, added + x.double() * kept)


def low_rank(checks, form, n_parts, fragments, dropped, low_rows=64):
    """The low-rank products of a stack: rows, inputs and outputs that are not multiples of a tile, and ranks that are not multiples of a fragment."""
    n, inputs, outputs = 150, 200, [136, 72, 64][:n_parts]
    ranks, low = [8, 16 * fragments, 16 * fragments - 8][-n_parts:], 16 * fragments
    states = [0xFEDCBA9876543210 + (i << 40) for i in range(n_parts)]
    threshold, scales = (20000 if dropped else 0), [1.5, 0.5, 2.0][:n_parts]
    x, dy = torch.randn(n, inputs).bfloat16(), torch.randn(n, sum(outputs)).bfloat16()
    matrices = [(torch.randn(r, inputs).bfloat16(), torch.randn(o, r).bfloat16()) for r, o in zip(ranks, outputs)]
    factors = torch.cat([m.flatten() for pair in matrices for m in pair])
    seen = [x.double() * kept_of(s, threshold, n, inputs) if dropped else x.double() for s in states]
    firsts, places, at = [sum(outputs[:i]) for i in range(n_parts)], [], 0
    for a, b in matrices:
        places.append((at, at + a.numel()))
        at += a.numel() + b.numel()

    def parts(of_inputs):
        """Scalar arguments of each adapter, in vectors of eight elements."""
        numbers = []
        for i in range(n_parts):
            columns = (0, inputs) if of_inputs else (firsts[i], outputs[i])
            place = places[i][0 if of_inputs else 1]
            drawn = [states[i] & 0xFFFFFFFF, states[i] >> 32, threshold] if of_inputs else [0, 0, 0]
            numbers += [columns[0] // 8, columns[1] // 8, place // 8, ranks[i] // 8, *drawn]
        return numbers

    def filled(values):
        """Low-rank values in the kernels' padded layout."""
        held = torch.zeros(n, n_parts * low)
        for i, value in enumerate(values):
            held[:, i * low : i * low + ranks[i]] = value
        return held.bfloat16()

    rows, row_cubes, low_cubes, name = [n], math.ceil(n / 64), math.ceil(n / low_rows), f"low-rank {form}"
    lows = filled([(s @ a.double().T) * scale for s, (a, _), scale in zip(seen, matrices, scales)])
    split = [dy[:, f : f + o].double() for f, o in zip(firsts, outputs)]
    d_lows = filled([(d @ b.double()) * scale for d, (_, b), scale in zip(split, matrices, scales)])
    found = torch.full_like(lows, 7)
    kernel = checks.kernel(f"lora_a_forward_t_bf16_n_8 {form}")
    kernel((low_cubes, 1), [x, factors, torch.empty(0), found], u32=[*parts(True), *rows, inputs // 8], f32=scales)
    checks.near(f"{name} values", found, lows)
    for kind, size, given in [("bf16", 8, dy), ("f32", 4, dy.float() + 1e-4)]:
        copy, found = torch.zeros_like(dy), torch.full_like(lows, 7)
        kernel = checks.kernel(f"lora_b_backward_x_{kind}_t_bf16_m_{size}_n_8 {form}")
        kernel((low_cubes, n_parts), [given, factors, copy, found], u32=[*parts(False), *rows, sum(outputs) // 8], f32=scales)
        checks.near(f"{name} values of gradients in {kind}", found, d_lows)
        assert torch.equal(copy, given.bfloat16() if kind == "f32" else torch.zeros_like(dy)), "gradients in the dtype of the products"

    def own(values, i):
        return values[:, i * low : i * low + ranks[i]].double()

    added = torch.cat([own(lows, i) @ matrices[i][1].double().T for i in range(n_parts)], 1)
    scalars = {"u32": [*parts(False), *rows, sum(outputs) // 8], "f32": [1.0] * n_parts}
    grid, residual = (row_cubes, math.ceil(max(outputs) / 128), n_parts), torch.randn(n, sum(outputs))
    y = torch.full_like(dy, 7)
    checks.kernel(f"lora_b_forward_t_bf16_o_bf16_n_8_m_8_w_4 {form}")(grid, [lows, factors, torch.empty(0), y], **scalars)
    checks.near(f"{name} outputs", y, added)
    y = torch.full_like(residual, 7)
    checks.kernel(f"lora_b_forward_t_bf16_o_f32_n_8_m_4_w_4 {form}")(grid, [lows, factors, residual, y], **scalars)
    checks.near(f"{name} outputs and residual", y, added + residual.double())
    gradient = sum((own(d_lows, i) @ matrices[i][0].double()) * (kept_of(states[i], threshold, n, inputs) if dropped else 1) for i in range(n_parts))
    dx = torch.full_like(x, 7)
    kernel = checks.kernel(f"lora_a_backward_t_bf16_n_8_w_4 {form}")
    kernel((row_cubes, math.ceil(inputs / 128)), [d_lows, factors, dx], u32=[*parts(True), *rows, inputs // 8], f32=[1.0] * n_parts)
    checks.near(f"{name} gradient of what is read", dx, gradient)

    expected = torch.cat([g.flatten() for i in range(n_parts) for g in (own(d_lows, i).T @ seen[i], split[i].T @ own(lows, i))])
    found, cubes = torch.full((len(factors),), 7.0), math.ceil(inputs / 64)
    grid = (cubes + sum(math.ceil(o / 64) for o in outputs), 1)
    scalars = {"u32": [*parts(True), *parts(False), *rows, inputs // 8, sum(outputs) // 8, cubes], "f32": [1.0] * (2 * n_parts)}
    checks.kernel(f"lora_factor_gradients_t_bf16_n_8 {form}")(grid, [x, d_lows, dy, lows, found], **scalars)
    checks.near(f"{name} gradients of factors", found, expected, TOLERANCES[torch.float32])


def losses(checks, kind, vector):
    dtype, [m, v] = TYPES[kind], [4, 2056]
    logits = (torch.randn(m, v) * 5).to(dtype)
    targets = torch.tensor([0, 2055, 1000, 1001], dtype=torch.int32)
    weights, scale = torch.tensor([1.0, 0.5, 2.0, 0.25]), 0.125
    leaf = logits.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(leaf, targets.long(), reduction="none") * weights
    (expected.sum() * scale).backward()
    scalars = {"u32": [m, v // vector], "f32": [scale]}
    for form in ["losses alone", "with gradient"]:
        ours, changed = torch.empty(m), logits.clone()
        kernel = checks.kernel(f"row_losses_t_{kind}_n_{vector} {form}")
        kernel((m, 1), [changed, targets, weights, ours], **scalars)
        checks.near(f"losses {kind}, {form}", ours, expected.detach())
        if form == "losses alone":
            assert torch.equal(changed, logits)
        else:
            checks.near(f"losses {kind}, gradient", changed, leaf.grad)


def adamw(checks):
    p = 1003 * 4
    gradient, ours = torch.randn(p), torch.randn(p)
    leaf = ours.clone().requires_grad_()
    optimizer = torch.optim.AdamW([leaf], lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    m, v = torch.zeros(p), torch.zeros(p)
    kernel = checks.kernel("adamw_step_n_4")
    for step in range(1, 4):
        leaf.grad = gradient * 0.5
        optimizer.step()
        corrections = [1 - 0.9**step, 1 - 0.999**step]
        numbers = [0.5, 0.9, 0.999, 0.1, 0.001, 1e-8, 1 - 0.01 * 0.1]
        numbers += [0.01 / corrections[0], 1 / math.sqrt(corrections[1])]
        kernel(vectors(p // 4), [ours, gradient, m, v], f32=numbers, u32=[p // 4])
    checks.near("adamw, three updates", ours, leaf.detach())
    sums, root = torch.empty(3), torch.empty(1)
    checks.kernel("sum_squares_n_4")((3, 1), [gradient, sums], u32=[p // 4])
    checks.kernel("root_of_sum")((1, 1), [sums, root], u32=[3])
    checks.near("norm", root, gradient.double().norm())


def gradient_sum(checks):
    p, scale = 5000, 2.0**49
    parts = [torch.randn(p), torch.randn(p) * 1e-6, torch.randn(p) * 1e-3]
    sums, floats = torch.full((p + 1,), 7, dtype=torch.int64), torch.empty(p)
    checks.kernel("gradient_sum_clear")((1, 1), [sums], u32=[p, p + 1])
    for i, part in enumerate(parts):
        form = "further" if i else "first"
        checks.kernel(f"gradient_sum_add {form}")(vectors(p), [part, sums], u32=[p], f32=[scale])
    expected = sum((part.double() * scale).round().to(torch.int64) for part in parts)
    assert torch.equal(sums[:p], expected) and sums[p] == 0
    kernel = checks.kernel("gradient_sum_floats")
    kernel(vectors(p), [sums, floats], u32=[p], f32=[1 / scale, math.nan])
    assert torch.equal(floats, expected.float() / scale)
    parts[1][17] = 1024.0
    checks.kernel("gradient_sum_add further")(vectors(p), [parts[1], sums], u32=[p], f32=[scale])
    assert sums[p] == 1
    kernel(vectors(p), [sums, floats], u32=[p], f32=[1 / scale, math.nan])
    assert floats.isnan().all()
    # The pieces of two processes: both have half of the values, the flag and zeros.
    n = 2528
    for flag in [0, 1]:
        padded, pieces = torch.full((2 * n,), 7, dtype=torch.int64), torch.empty(2 * n)
        checks.kernel("gradient_sum_clear")((1, 1), [padded], u32=[p, 2 * n])
        assert not padded[p:].any()
        padded[:p], padded[p] = expected, flag
        for piece in range(2):
            own = torch.empty(n)
            checks.kernel("gradient_sum_piece")(vectors(n), [padded[piece * n :][:n].clone(), own], u32=[n], f32=[1 / scale])
            pieces[piece * n :][:n] = own
        checks.kernel("gradient_sum_joined")(vectors(p), [pieces, floats], u32=[p], f32=[math.nan])
        assert floats.isnan().all() if flag else torch.equal(floats, expected.float() / scale)
    part, padded = torch.randn(p), torch.full((2 * n,), 7.0)
    checks.kernel("gradient_sum_padded")(vectors(2 * n), [part, padded], u32=[p, 2 * n])
    assert torch.equal(padded[:p], part) and not padded[p:].any()


def attend(qkv, h, borders, causal):
    """Attention within documents in plain operations."""
    [n, heads, c] = qkv.shape
    g = (heads - h) // 2
    q, k, v = qkv.split([h, g, g], dim=1)
    k, v = (x.repeat_interleave(h // g, dim=1) for x in [k, v])
    parts = []
    for start, end in zip(borders, borders[1:]):
        scores = torch.einsum("qhc,khc->hqk", q[start:end], k[start:end]) / math.sqrt(c)
        if causal:
            future = torch.ones(end - start, end - start, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -math.inf)
        parts.append(torch.einsum("hqk,khc->qhc", scores.softmax(2), v[start:end]))
    parts.append(torch.zeros(n - borders[-1], h, c, dtype=qkv.dtype))
    return torch.cat(parts)


def tiles(borders, n, rows=64):
    """For each tile of rows: start and end of the document, first row, end of the rows."""
    spans = list(zip(borders, borders[1:], borders[1:]))
    spans.append((borders[-1], borders[-1], n))
    found = [
        [start, end, first, min(last, first + rows)]
        for start, end, last in spans
        for first in range(start, last, rows)
    ]
    return torch.tensor(found, dtype=torch.int32), len(found)


def attention(checks, form, dtype, heads):
    [suffix, c, causal, *rest] = form
    [h, g] = heads
    borders, n = [0, 70, 75, 140], 150
    described = f"heads of {c}{', causal' if causal else ''}{''.join(rest)}"
    qkv = (torch.randn(n, h + 2 * g, c) * 1.5).to(dtype)
    dy = torch.randn(n, h, c).to(dtype)
    leaf = qkv.double().requires_grad_()
    expected = attend(leaf, h, borders, causal)
    expected.backward(dy.double())

    blocks, count = tiles(borders, n)
    scalars = {"f32": [1 / math.sqrt(c)], "u32": [h, g]}
    out, log_sums = torch.full_like(dy, 7), torch.full((n, h), 7.0)
    kernel = checks.kernel(f"attend{suffix} {described}")
    kernel((count, h), [qkv, blocks, out, log_sums], **scalars)
    name = f"attention{suffix} {described}"
    checks.near(name, out, expected.detach())
    dots = (out.float() * dy.float()).sum(2)
    d_qkv = torch.full_like(qkv, 7)
    buffers = [qkv, dy, log_sums, dots, blocks, d_qkv]
    checks.kernel(f"query_gradients{suffix} {described}")((count, h), buffers, **scalars)
    checks.kernel(f"key_gradients{suffix} {described}")((count, g), buffers, **scalars)
    for part, found, gradient in zip(
        ["queries", "keys", "values"],
        d_qkv.split([h, g, g], dim=1),
        leaf.grad.split([h, g, g], dim=1),
    ):
        checks.near(f"{name}, gradient of {part}", found, gradient)
    padding = [out[borders[-1] :], d_qkv[borders[-1] :], log_sums[borders[-1] :]]
    assert all((rows == 0).all() for rows in padding), f"{name}: padding is not zero"


def dot_rows(checks, kind):
    dtype, [rows, c] = TYPES[kind], [300, 64]
    a, b, dots = torch.randn(rows, c).to(dtype), torch.randn(rows, c).to(dtype), torch.empty(rows)
    kernel = checks.kernel(f"dot_rows_t_{kind}_n_4")
    kernel(vectors(rows), [a, b, dots], u32=[rows, c // 4])
    checks.near(f"products of rows {kind}", dots, (a.double() * b.double()).sum(1))


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: check.py DIRECTORY")
    torch.manual_seed(17)
    checks = Checks(sys.argv[1])
    for kind, vector in [("f32", 4), ("bf16", 8)]:
        embedding(checks, kind)
        dequantise_nf4(checks, kind, vector)
        rms_norm(checks, kind)
        rope(checks, kind, vector)
        swiglu(checks, kind, vector)
        dropout(checks, kind, vector)
        losses(checks, kind, vector)
        dot_rows(checks, kind)
        for c, causal in [(64, True), (128, True), (64, False)]:
            attention(checks, (f"_t_{kind}_n_4", c, causal), TYPES[kind], [4, 2])
    adamw(checks)
    gradient_sum(checks)
    low_rank(checks, "dropout", 3, 1, True)
    low_rank(checks, "wide dropout", 3, 4, True)
    low_rank(checks, "wide plain", 2, 4, False)
    low_rank(checks, "plain", 2, 1, False)
    low_rank(checks, "few rows", 2, 1, True, low_rows=16)
    low_rank(checks, "wide, few rows", 3, 4, True, low_rows=16)
    for c, causal in [(64, True), (128, True), (64, False)]:
        for walked in [64, 32]:
            form = ("_on_cores_t_bf16_n_8", c, causal, f", {walked} rows")
            attention(checks, form, torch.bfloat16, [4, 2])
    checks.waiting = {name for name in checks.waiting if not name.startswith(IN_CUBE)}
    if checks.waiting:
        sys.exit(f"check.py: no check runs {', '.join(sorted(checks.waiting))}")
    print(f"{len(checks.files)} kernels agree")


if __name__ == "__main__":
    main()
