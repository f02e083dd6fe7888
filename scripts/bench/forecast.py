"""Implementation of scripts/bench/forecast: tokens/s and memory of training steps on GPUs, from counted launches and
rates.

The sizes of a step's products give their floating-point operations and bytes; `KERNELS` in forecast_work.py has the
bytes per thread of each other kernel. The time of a class of work is its operations or its bytes at the GPU's rates,
whichever takes longer; forecast_rates.py has the rates.
"""

import argparse
import re
import sys
from pathlib import Path

import forecast_evaluation
import forecast_many
import forecast_rates as rates
from forecast_rates import ATTENTION, CLASSES, ELEMENTWISE, GPUS, HEAD, LORA, PRODUCTS
from forecast_work import ATTENTION_PASSES, Shape, attention_flops, kernel_of, kind_of, maps_of, passes_of, product_of, product_work, read_shape, speed, total, works
from launches import RANK, TABLE, name_of, read_table, Step
from machine import ROOT, commit

OUTPUT = ROOT / "benchmarks/forecast.md"
# Launches of the program that was measured on the H200.
OF_MEASURED = TABLE.with_name("launches_measured.json")
# The row whose arithmetic is shown.
SHOWN_GPU = next(gpu for gpu in GPUS if gpu.name == "H100 SXM")
SHOWN = Step("llama-3-8b", 2, 4096, 0.05, "kept")
# Steps on the page: shape, documents, tokens per document.
ROWS = [("llama-3-8b", 2, 4096), ("llama-3-8b", 1, 16384), ("llama-3.2-1b", 8, 2048), ("qwen3-4b", 2, 4096), ("qwen3-0.6b", 8, 2048)]
MEASURED = ROOT / "benchmarks/h200.md"

# ------------------------------------------------------------------------------------------ the page


def gib_cell(gib: float) -> str:
    return f"{gib + rates.CONTEXT_GIB:.1f}"


def memory_of(table: dict, step: Step) -> float:
    """GiB of the pool with dropout; without it, a little less."""
    return table[name_of(step._replace(dropout=0.05))][1]


def speed_table(table: dict) -> list:
    lines = [
        "| model | tokens per step | dropout | blocks | memory, GiB | " + " | ".join(f"{gpu.name}, {gpu.gib:.0f} GiB" for gpu in GPUS) + " |",
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
    return [*lines, "", f"Peaks come from the data sheets, without sparsity: {sources}."]


def works_of_shown_row(table: dict) -> dict:
    """The work of the shown row by class."""
    rows, _ = table[name_of(SHOWN)]
    return works(SHOWN, rows, read_shape(SHOWN.shape), SHOWN_GPU)


def shown_work(table: dict) -> list:
    """The shown row by class of work, with its arithmetic."""
    step, shape, gpu, of_classes = SHOWN, read_shape(SHOWN.shape), SHOWN_GPU, works_of_shown_row(table)
    all_ms = sum(work.ms for work in of_classes.values())
    lines = ["| class | launches | TFLOP | GB | ms | share |", "|---|--:|--:|--:|--:|--:|"]
    for kind, work in of_classes.items():
        counts = f"{work.flops / 1e12:.1f} | {work.bytes / 1e9:.1f}"
        lines.append(f"| {kind} | {work.launches:,} | {counts} | {work.ms:.0f} | {work.ms / all_ms:.0%} |")
    tokens = step.documents * step.length
    lines.append(f"| all | | | | {all_ms:.0f} | {tokens:,} tokens / {all_ms / 1e3:.3f} s = {speed(step, of_classes):,.0f} per second |")
    product, head, attention, elementwise, lora, launches = (of_classes[kind] for kind in CLASSES)
    rate, bandwidth = gpu.tflops * gpu.products.share, gpu.gbs * gpu.memory.share
    n = launches.launches
    weights = sum(inputs * outputs for inputs, outputs in maps_of(shape))
    in_bytes = elementwise.bytes / bandwidth / 1e6
    lines += [
        "",
        f"- products: {product.flops / 1e12:.1f} TFLOP / {rate:.0f} TFLOP/s = {product.flops / rate / 1e9:.0f} ms. "
        f"Per layer 2 x {tokens:,} x {weights:,} weights forward, and the same backward, because the weights need no gradients",
        f"- head: {head.flops / 1e12:.1f} TFLOP / {rate:.0f} TFLOP/s = {head.flops / rate / 1e9:.0f} ms, for logits and the gradient of the hidden states, and the losses' bytes",
        f"- attention: {' + '.join(attention_parts(step, shape, gpu))} = {attention.ms:.0f} ms. "
        "Seven products of the scores' size per layer, half of which is computed: two forward, five backward",
        f"- elementwise: {elementwise.bytes / 1e9:.1f} GB / {bandwidth:,.0f} GB/s = {in_bytes:.0f} ms",
        f"- LoRA: {lora.bytes / 1e9:.1f} GB, or its dropout draws at {gpu.draws:g} x 10^12 per second, whichever takes longer per kernel",
        f"- launches: {n:,} x {rates.GAP_US:g} µs between kernels; the host needs {n * rates.HOST_US / 1e3:.0f} ms for them while the GPU computes; the GPU waits only if that is longer",
    ]
    return lines + ["", "Launches:", "", *kernel_lines(step, table[name_of(step)][0], shape)]


def attention_parts(step: Step, shape: Shape, gpu) -> list:
    """Both passes of a step without recomputation, as `TFLOP / TFLOP/s`."""
    parts = []
    for direction in ("forward", "backward"):
        passes = sum(n for n, own in ATTENTION_PASSES.values() if own == direction)
        flops = shape.layers * attention_flops(step, shape, passes)
        parts.append(f"{flops / 1e12:.1f} TFLOP / {gpu.tflops * getattr(gpu, direction).share:.0f} TFLOP/s")
    return parts


def kernel_lines(step: Step, rows: dict, shape: Shape) -> list:
    """All kernels of the shown row."""
    shape = shape._replace(tokens=step.documents * step.length)
    lines = ["| kernel | class | launches of the model | per further layer | TFLOP | GB |", "|---|---|--:|--:|--:|--:|"]
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
    """Notable results, with their numbers."""
    gpu = SHOWN_GPU

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
        f"- On an {SHOWN_GPU.name}, dense products take {share(PRODUCTS, SHOWN):.0%} of the step of {SHOWN.shape} with 2 x 4,096 tokens, LoRA with its dropout {share(LORA, SHOWN):.0%}, "
        f"attention {share(ATTENTION, SHOWN):.0%}, and {share(ATTENTION, long):.0%} with 1 x 16,384.",
        f"- Without dropout, that step makes {plain / base - 1:.0%} more tokens a second; with its blocks recomputed, {1 - recomputed / base:.0%} fewer. "
        f"A block that is run again leaves out its last projection's product, which nothing reads: {n_dense[1] - n_dense[0]} of a layer's {n_dense[0] // 2} dense products forward are made twice.",
        f"- Qwen3 launches {a_layer('qwen3-0.6b', 8, 2048)} kernels a layer, Llama {a_layer('llama-3-8b', 2, 4096)}: the norm of its heads is one kernel forward and one backward. "
        f"Elementwise work is {share(ELEMENTWISE, small):.0%} of a step of Qwen3-0.6B.",
    ]


def sensitivity(table: dict) -> list:
    """The shown row if one rate were a fifth lower."""
    of_classes = works_of_shown_row(table)
    base = sum(work.ms for work in of_classes.values())
    cells = []
    for kinds in ([PRODUCTS, HEAD], [ATTENTION], [ELEMENTWISE], [LORA]):
        more = sum(of_classes[kind].ms for kind in kinds) * 0.25
        cells.append(f"{' and '.join(kinds)} {1 - base / (base + more):.0%}")
    return [f"A rate one fifth lower reduces tokens/s by: {', '.join(cells)}."]


def at_other_rates(table: dict) -> list:
    """The shown model's steps at other rates of products and attention, and the product rate that some targets need."""
    gpu = SHOWN_GPU
    steps = [SHOWN._replace(dropout=dropout, blocks=blocks) for blocks in ("kept", "recomputed") for dropout in (0.0, 0.05)]

    def speed_at(step, products, forward, backward):
        own = [share._replace(share=rate / gpu.tflops) for share, rate in ((gpu.products, products), (gpu.forward, forward), (gpu.backward, backward))]
        other = gpu._replace(products=own[0], forward=own[1], backward=own[2])
        return speed(step, works(step, table[name_of(step)][0], read_shape(step.shape), other))

    *alone, published = rates.ALONE
    in_steps = [gpu.tflops * share.share for share in (gpu.products, gpu.forward, gpu.backward)]
    middle = [(low + high) / 2 for low, high in zip(in_steps, alone)]
    lines = [
        "| products, attention forward, backward, TFLOP/s | of | " + " | ".join(f"{step.blocks}, dropout {step.dropout:g}" for step in steps) + " |",
        "|---|---|" + "--:|" * len(steps),
    ]
    for of, values in (("the table above", in_steps), ("mean of both", middle), (f"kernels alone, published: {published}", alone)):
        cells = [f"{speed_at(step, *values):,.0f}" for step in steps]
        lines.append(f"| {', '.join(f'{value:.0f}' for value in values)} | {of} | " + " | ".join(cells) + " |")
    needed = []
    for step, wanted in ((steps[0], 16000), (steps[2], 11600)):
        rates_of_products = range(1, round(gpu.tflops) + 1)
        rate = next((rate for rate in rates_of_products if speed_at(step, rate, *in_steps[1:]) >= wanted), None)
        products = f"products of {rate} TFLOP/s" if rate else "more than the peak rate of products"
        needed.append(f"{wanted:,} tokens per second with layers {step.blocks} need {products}")
    return [*lines, "", f"Without dropout, and attention as in the first line, {'; '.join(needed)}."]


# ------------------------------------------------------------------------------------------ measured pages


def measured_rows(page: Path) -> list:
    """(shape, blocks, tokens/s, GiB) of tooltune's rows on a page of scripts/gpu/run."""
    found = []
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 8 and cells[1] == "tooltune" and re.fullmatch(r"[\d,]+", cells[4]):
            all_kept = re.fullmatch(r"auto: (\d+) of \1 kept", cells[3]) or cells[3] == "kept"
            if all_kept or cells[3] == "recomputed":
                found.append((cells[0], "kept" if all_kept else "recomputed", float(cells[4].replace(",", "")), float(cells[6])))
    if not found:
        raise SystemExit(f"forecast: {page} has no tooltune row of scripts/gpu/run with all blocks kept or recomputed")
    return found


def gpu_of(page: Path):
    """The GPU that a page names."""
    text = page.read_text()
    for gpu in GPUS:
        if gpu.name.split()[0 if gpu.name.startswith(("A100", "H100", "H200")) else 1] in text.split("## ")[0]:
            return gpu
    raise SystemExit(f"forecast: {page} names none of {', '.join(gpu.name for gpu in GPUS)} before its first section")


def beside(table: dict, page: Path) -> list:
    """Compares a page's measurements (two documents of 4,096 tokens, dropout 0.05) with the forecast for the same launches."""
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
        "# Forecast of GPU training",
        "",
        "Written by `scripts/bench/forecast`; do not edit.",
        "",
        f"**This is a forecast of commit {commit()}. Nothing in the first table was measured.**",
        "The H200's rates come from kernels and steps measured on one ([h200.md](h200.md)); its columns apply them to other steps. The other three GPUs were not available. "
        "The H100 gets the H200's shares of its peaks, which are lower than the published ones of kernels alone (below). The other two get published shares, or the H200's if there are none.",
        "A step's launches, products and memory are counted on a driver without a GPU "
        "(`scripts/check-cuda-launches`, `scripts/gpu/launches.json`). The time of each is its work divided by a rate. "
        "After a measurement on another GPU, replace its shares in `scripts/bench/forecast_rates.py`.",
        "**Attention is counted as tooltune's own kernels, because that driver has no cuDNN, but at cuDNN's rates.** Without cuDNN, or if its plans do not support a shape, "
        "the slower own kernels run and these numbers are too high. They have not been timed alone: with them and Burn's products, an H200 processed 2,207 tokens/s of Llama-3-8B.",
        "",
        "## Tokens per second, and memory",
        "",
        f"LoRA r {RANK} on all linear layers, bf16, every token supervised, documents packed. Memory is the pool's maximum plus "
        f"{rates.CONTEXT_GIB:g} GiB for CUDA's context.",
        "",
        *speed_table(table),
        "",
        *conclusions(table),
        "",
        "## Rates",
        "",
        *rate_table(),
        "",
        "Attention's rates are for heads of 128 and causal operations; heads of 64, as in Llama-3.2-1B, reach less. "
        f"Between two kernels the GPU is idle for {rates.GAP_US:g} µs; a launch takes the host {rates.HOST_US:g} µs.",
        "",
        f"## One row, by class: {name_of(SHOWN)}, {SHOWN_GPU.name}",
        "",
        *shown_work(table),
        "",
        *sensitivity(table),
        "",
        f"## Other rates: {SHOWN.shape}, {SHOWN.documents} x {SHOWN.length:,}, {SHOWN_GPU.name}",
        "",
        "The rates of a step depend on power and clock. In the measured H200 steps, products reached four fifths of their rate alone.",
        "",
        *at_other_rates(table),
        "",
        *forecast_evaluation.section(table),
        "",
        *forecast_many.section(table),
        "",
        "## Compared with measurements",
        "",
    ]
    for file in measured:
        name = file.resolve().relative_to(ROOT) if file.resolve().is_relative_to(ROOT) else file.name
        lines += [f"### {name}", ""]
        if file.resolve() == MEASURED.resolve():
            lines += [
                f"The H200's share of products, {gpu_of(file).products.share:g}, was fitted to these four steps; no other share was. Their agreement therefore does not prove the forecast. "
                "It is some evidence that one number fits kept and recomputed blocks of two models.",
                f"Their forecasts use the launches of the measured program, `{OF_MEASURED.relative_to(ROOT)}`. It had separate dropout kernels, low-rank products by cuBLASLt, "
                f"and Burn's kernels to scatter the gradients of supervised tokens, at {rates.ROW_BACK_US:g} µs per token. "
                "The newer kernels for this have not run on a GPU. Their rate is taken from cuBLASLt's low-rank products, and the rate of the draws from the dropout kernels.",
                "",
            ]
        lines += [*beside(table, file), ""]
    lines += [
        "## What the forecast leaves out",
        "",
        "- Lower clocks of a GPU under full load for minutes, beyond the assumed shares.",
        "- Reading and collating rows, and saving; compiling kernels in the first step.",
        "- cuDNN's workspace: up to half a GiB more was measured.",
        "- Data that remains in the L2 cache between kernels, which makes small models faster than memory traffic predicts.",
    ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench/forecast", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, nargs="+", default=[MEASURED], help="pages of scripts/gpu/run to compare with (benchmarks/h200.md)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="page to write (benchmarks/forecast.md)")
    arguments = parser.parse_args()
    missing = [str(file) for file in arguments.measured if not file.is_file()]
    if missing:
        raise SystemExit(f"forecast: missing {', '.join(missing)}")
    arguments.output.write_text("\n".join(page(read_table(), arguments.measured)) + "\n", encoding="utf-8")
    print(f"{arguments.output} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
