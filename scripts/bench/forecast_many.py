"""Forecasts for several GPUs and for models whose steps were not counted; part of scripts/bench/forecast.

The work of a counted step is scaled to another model of the same family and to another number of tokens. The time of
several GPUs adds what they do together: the exact sum of the gradients, the agreement on the step, and the wait for the
slowest GPU. Everything here is an assumption or follows from one.
"""

import collections
import heapq
import math
import random

import forecast_rates as rates
from forecast_rates import ATTENTION, CLASSES, ELEMENTWISE, GPUS, HEAD, LAUNCHES, LORA, PRODUCTS
from forecast_work import Shape, Work, adapter_values, gradient_columns, maps_of, read_shape, speed, works
from launches import RANK, Step, name_of

H100 = next(gpu for gpu in GPUS if gpu.name == "H100 SXM")

# ------------------------------------------------------------------------------------------ assumptions

# GB/s that a GPU sends to the others of its host: NVLink 4 has 450 in each direction.
NVLINK_GBS = 350.0
# GB/s between hosts for each GPU: a card with 400 Gb/s, nine tenths of it.
NETWORK_GBS = 45.0
# GB/s through rank 0 by TCP, both directions together.
TCP_GBS = 2.0
GPUS_PER_HOST = 8
# Microseconds until a collective of 8 or 64 GPUs begins to move data.
LATENCY_US = {8: 30.0, 64: 120.0}
# Milliseconds in which rank 0 collects the losses of a step over TCP and answers.
AGREEMENT_MS = {8: 0.2, 64: 1.1}
# Standard deviations of a GPU's step time, as shares of it.
DEVIATIONS = (0.01, 0.03)
# Bytes per trained value: a reduce-scatter of 64-bit integers, and an all-gather of f32 sums.
INTEGER_BYTES, FLOAT_BYTES = 8, 4
# Bytes per weight that a dequantisation of NF4 reads (codes, nested scales) and writes (bf16).
NF4_BYTES = (4 + 8 / 64 + 32 / (64 * 256)) / 8 + 2

# Models without counted steps: config.json of Qwen/Qwen3-1.7B, Qwen/Qwen3-8B and meta-llama/Meta-Llama-3-70B.
OTHERS = {
    "qwen3-1.7b": Shape(2048, 16, 8, 128, 151936, 28, 6144),
    "qwen3-8b": Shape(4096, 32, 8, 128, 151936, 36, 12288),
    "llama-3-70b": Shape(8192, 64, 8, 128, 128256, 80, 28672),
}
# Counted steps to which the work of others is scaled.
BASES = {"llama": Step("llama-3-8b", 2, 4096, 0.0, "kept"), "qwen3": Step("qwen3-4b", 2, 4096, 0.0, "kept"), "qwen3-0.6b": Step("qwen3-0.6b", 8, 2048, 0.0, "kept")}
# Counted steps that are compared with work scaled from a step of another length or model.
CHECKED = [
    (Step("llama-3-8b", 1, 16384, 0.0, "recomputed"), "llama"),
    (Step("llama-3.2-1b", 8, 2048, 0.0, "kept"), "llama"),
    (Step("llama-3.2-1b", 8, 2048, 0.0, "recomputed"), "llama"),
    (Step("qwen3-0.6b", 8, 2048, 0.0, "kept"), "qwen3"),
    (Step("qwen3-0.6b", 8, 2048, 0.0, "recomputed"), "qwen3"),
]

# ------------------------------------------------------------------------------------------ scaled steps


def shape_named(name: str) -> Shape:
    return OTHERS.get(name) or read_shape(name)


def base_of(step: Step, family: str = "") -> Step:
    """The counted step of a family, or of the step's own model or family, with the step's dropout and blocks."""
    base = BASES.get(family or step.shape) or BASES[step.shape.partition("-")[0]]
    return base._replace(dropout=step.dropout, blocks=step.blocks)


def passes(shape: Shape, blocks: str) -> float:
    """How often a step multiplies with a block's weights: forward, backward, and recomputed without the last one."""
    weights = [inputs * outputs for inputs, outputs in maps_of(shape)]
    return 2.0 if blocks == "kept" else 3.0 - weights[-1] / sum(weights)


def sizes(step: Step, shape: Shape) -> dict:
    """A number per class of work to which its time is proportional."""
    tokens = step.documents * step.length
    return {
        PRODUCTS: shape.layers * tokens * passes(shape, step.blocks) * sum(inputs * outputs for inputs, outputs in maps_of(shape)),
        HEAD: tokens * shape.vocabulary * shape.hidden,
        ATTENTION: shape.layers * tokens * step.length * shape.heads * shape.head_dim,
        # Norms and the residual stream; gate and up, and their product.
        ELEMENTWISE: shape.layers * tokens * (4 * shape.hidden + 3 * shape.intermediate),
        LORA: shape.layers * tokens * gradient_columns(shape),
    }


def scaled_works(step: Step, base: Step, table: dict, gpu) -> dict:
    """{class: Work} of a step, scaled from the counted step `base`."""
    base_shape, shape = read_shape(base.shape), shape_named(step.shape)
    counted = works(base, table[name_of(base)][0], base_shape, gpu)
    own, of_base = sizes(step, shape), sizes(base, base_shape)
    found = {}
    for kind in CLASSES:
        if kind != LAUNCHES:
            factor = own[kind] / of_base[kind]
            launches = round(counted[kind].launches * shape.layers / base_shape.layers)
            found[kind] = Work(launches, *(factor * number for number in counted[kind][1:]))
    n = sum(work.launches for work in found.values())
    busy = sum(work.ms for work in found.values())
    found[LAUNCHES] = Work(n, 0.0, 0.0, max(n * rates.GAP_US / 1e3, n * rates.HOST_US / 1e3 - busy))
    return found


def works_of(step: Step, table: dict, gpu) -> dict:
    """The counted work of a step if there is one, otherwise its scaled work."""
    if name_of(step) in table:
        return works(step, table[name_of(step)][0], read_shape(step.shape), gpu)
    return scaled_works(step, base_of(step), table, gpu)


def seconds_of(of_classes: dict) -> float:
    return sum(work.ms for work in of_classes.values()) / 1e3


def dequantised_seconds(shape: Shape, blocks: str, gpu) -> float:
    """Seconds in which a step turns NF4 codes into bf16: for the forward pass, the backward pass, and again."""
    weights = shape.layers * sum(inputs * outputs for inputs, outputs in maps_of(shape))
    return (2 if blocks == "kept" else 3) * weights * NF4_BYTES / (gpu.gbs * gpu.memory.share) / 1e9


def checks(table: dict) -> list:
    """How far scaled work is from counted work."""
    cells = []
    for step, family in CHECKED:
        counted = speed(step, works(step, table[name_of(step)][0], read_shape(step.shape), H100))
        scaled = speed(step, scaled_works(step, base_of(step, family), table, H100))
        cells.append(f"{name_of(step)}: {scaled:,.0f} scaled, {counted:,.0f} counted ({scaled / counted - 1:+.0%})")
    return [f"- {cell}" for cell in cells]


# ------------------------------------------------------------------------------------------ several GPUs


def sum_parts(values: int, world: int) -> list:
    """(what, bytes per GPU, GB/s) of the sum's transfers: within hosts, then between hosts an eighth per GPU."""
    local, hosts = min(world, GPUS_PER_HOST), max(1, world // GPUS_PER_HOST)
    bytes_per_value = INTEGER_BYTES + FLOAT_BYTES
    parts = [("NVLink", (local - 1) / local * bytes_per_value * values, NVLINK_GBS)]
    if hosts > 1:
        parts.append(("network", (hosts - 1) / hosts * bytes_per_value * values / local, NETWORK_GBS))
    return parts


def sum_seconds(values: int, world: int) -> float:
    moved = sum(n_bytes / gbs / 1e9 for _, n_bytes, gbs in sum_parts(values, world))
    # Two collectives.
    return moved + 2 * LATENCY_US[world] / 1e6


def slowest(world: int, deviation: float) -> float:
    """Expected maximum of `world` independent normal times with mean 1: 1 + deviation * the integral of 1 - F^n - (1 - F)^n
    over the positive half line."""

    def above(x):
        share = 0.5 * (1 + math.erf(x / math.sqrt(2)))
        return 1 - share**world - (1 - share) ** world

    step = 1e-3
    return 1 + deviation * step * sum(above(i * step) for i in range(10_000))


def together(seconds: float, values: int, world: int, deviation: float) -> float:
    """Seconds of a step of `world` GPUs, each of which computes for `seconds`."""
    return seconds * slowest(world, deviation) + sum_seconds(values, world) + AGREEMENT_MS[world] / 1e3


def scaling(table: dict) -> list:
    lines = [
        "| model | frozen weights | a GPU's micro-batch | GPUs | alone, ms | sum, ms | agreement, ms | slowest GPU | efficiency, 1% / 3% | tokens/s, 1% / 3% |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for step, quantised in ((Step("llama-3-8b", 2, 4096, 0.0, "kept"), False), (Step("llama-3-8b", 2, 4096, 0.0, "recomputed"), False), (Step("llama-3-70b", 1, 4096, 0.0, "recomputed"), True)):
        shape = shape_named(step.shape)
        alone = seconds_of(works_of(step, table, H100)) + (dequantised_seconds(shape, step.blocks, H100) if quantised else 0.0)
        values = adapter_values(shape)
        for world in (8, 64):
            times = [together(alone, values, world, deviation) for deviation in DEVIATIONS]
            tokens = world * step.documents * step.length
            lines.append(
                f"| {step.shape}, {step.blocks} | {'nf4' if quantised else 'bf16'} | {step.documents} x {step.length:,} | {world} | {alone * 1e3:.0f} | {sum_seconds(values, world) * 1e3:.1f} | "
                f"{AGREEMENT_MS[world]:g} | {' / '.join(f'{slowest(world, deviation):.3f}' for deviation in DEVIATIONS)} | "
                f"{' / '.join(f'{alone / time:.3f}' for time in times)} | {' / '.join(f'{tokens / time:,.0f}' for time in times)} |"
            )
    return lines


def shown_sum(table: dict) -> list:
    """The arithmetic of one row, and of the sum over TCP."""
    shape = read_shape("llama-3-8b")
    values = adapter_values(shape)
    alone = seconds_of(works_of(BASES["llama"], table, H100))
    parts = [f"{n_bytes / 1e6:,.0f} MB / {gbs:g} GB/s ({what})" for what, n_bytes, gbs in sum_parts(values, 64)]
    tcp = 2 * INTEGER_BYTES * values * 7 / TCP_GBS / 1e9
    return [
        f"- Sum of llama-3-8b on 64 GPUs: {values:,} values of {INTEGER_BYTES} + {FLOAT_BYTES} bytes; {' + '.join(parts)} + 2 x {LATENCY_US[64]:g} µs = {sum_seconds(values, 64) * 1e3:.1f} ms.",
        f"- The slowest of 64 with a deviation of 3%: {slowest(64, 0.03):.3f} x {alone * 1e3:.0f} ms.",
        f"- **Without NCCL, gradients go through rank 0 by TCP**: 7 x {2 * INTEGER_BYTES} x {values:,} bytes / {TCP_GBS:g} GB/s = {tcp:.2f} s for 8 ranks, "
        f"an efficiency of {alone / (alone + tcp):.2f} with micro-batches of {alone * 1e3:.0f} ms. Accumulate {math.ceil(tcp / alone * 9)} micro-batches per rank to reach .9.",
    ]


# ------------------------------------------------------------------------------------------ waiting


def dealt(costs: list, world: int) -> float:
    """The most work of a rank if the most expensive micro-batch goes to the rank with the least work so far."""
    ranks = [0.0] * world
    for cost in sorted(costs, reverse=True):
        heapq.heapreplace(ranks, ranks[0] + cost)
    return max(ranks)


def micro_batch(generator: random.Random, packed: bool) -> float:
    """Tokens of a micro-batch: packs are nearly full; eight rows are as long as they are."""
    if packed:
        return min(1.0, generator.gauss(0.985, 0.012))
    return sum(generator.lognormvariate(6.3, 0.7) for _ in range(8))


def busy_table() -> list:
    lines = ["| micro-batches | ranks | one per rank | four per rank |", "|---|--:|--:|--:|"]
    generator = random.Random(7)
    for packed in (True, False):
        for world in (8, 64):
            cells = []
            for each in (1, 4):
                work = capacity = 0.0
                for _ in range(200):
                    costs = [micro_batch(generator, packed) for _ in range(world * each)]
                    work, capacity = work + sum(costs), capacity + world * dealt(costs, world)
                cells.append(f"{work / capacity:.2f}")
            lines.append(f"| {'packed' if packed else 'eight rows as they come'} | {world} | " + " | ".join(cells) + " |")
    return lines


# ------------------------------------------------------------------------------------------ published figures

SUROGATE = "https://github.com/invergent-ai/surogate/blob/524fb776007222cfc306b5f067e8430643cf2339/docs/reference/benchmarks.md"
AUTOMODEL = "https://github.com/NVIDIA-NeMo/Automodel/blob/36044ad3d139363fb6c73c24af2e7c6b65ec52f6/docs/performance-summary.mdx"
BRIDGE = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/067f987df03b8355b03192d88d70f1709fedf51a/docs/performance-summary-archive.md"

# A published figure: who, its source, its conditions, tokens/s per GPU, our step, GPUs, and whether we need NF4.
Published = collections.namedtuple("Published", "who source conditions tokens step world quantised", defaults=[1, False])

PUBLISHED = [
    Published("Surogate", SUROGATE, "bf16", 53_900, Step("qwen3-0.6b", 2, 2048, 0.0, "recomputed")),
    Published("Surogate", SUROGATE, "bf16", 32_800, Step("qwen3-1.7b", 2, 2048, 0.0, "recomputed")),
    Published("Surogate", SUROGATE, "bf16", 15_900, Step("qwen3-4b", 2, 2048, 0.0, "recomputed")),
    Published("Surogate", SUROGATE, "FP8", 17_000, Step("qwen3-4b", 2, 2048, 0.0, "recomputed")),
    Published("Surogate", SUROGATE, "bf16", 10_200, Step("qwen3-8b", 2, 2048, 0.0, "recomputed")),
    Published("Surogate", SUROGATE, "FP8", 11_600, Step("qwen3-8b", 2, 2048, 0.0, "recomputed")),
    Published("NeMo AutoModel", AUTOMODEL, "bf16, 1 GPU, 16 micro-batches per step", 12_473, Step("llama-3-8b", 2, 4096, 0.05, "kept")),
    Published("NeMo AutoModel", AUTOMODEL, "bf16, TP 2, FSDP 4, 4 micro-batches per step", 1_092, Step("llama-3-70b", 2, 4096, 0.0, "recomputed"), 8, True),
    Published("Megatron-Bridge", BRIDGE, "FP8, TP 2, PP 4", 2_643, Step("llama-3-70b", 1, 4096, 0.0, "recomputed"), 8, True),
]


def published_table(table: dict) -> list:
    lines = [
        "| published by | model | conditions | GPUs | published, tokens/s per GPU | our forecast, bf16 products | forecast / published | with blocks kept |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in PUBLISHED:
        own = f"{per_gpu(row, table):,.0f}"
        kept = row._replace(step=row.step._replace(blocks="kept"))
        other = f"{per_gpu(kept, table):,.0f}" if row.step.blocks != "kept" and not row.quantised else ""
        lines.append(
            f"| [{row.who}]({row.source}) | {row.step.shape}, {row.step.documents} x {row.step.length:,}, {row.step.blocks} | {row.conditions} | {row.world} | {row.tokens:,} | {own}{' (nf4)' if row.quantised else ''} | "
            f"{per_gpu(row, table) / row.tokens:.2f} | {other} |"
        )
    return lines


def parts_ms(row: Published, table: dict) -> dict:
    """Milliseconds of a micro-batch and what the GPUs do together, by part."""
    shape = shape_named(row.step.shape)
    of_classes = works_of(row.step, table, H100)
    parts = {kind: work.ms for kind, work in of_classes.items()}
    if row.quantised:
        parts["nf4"] = 1e3 * dequantised_seconds(shape, row.step.blocks, H100)
    if row.world > 1:
        alone = sum(parts.values()) / 1e3
        parts["together"] = 1e3 * (together(alone, adapter_values(shape), row.world, DEVIATIONS[0]) - alone)
    return parts


def per_gpu(row: Published, table: dict) -> float:
    return row.step.documents * row.step.length / sum(parts_ms(row, table).values()) * 1e3


def published_arithmetic(table: dict) -> list:
    kinds = [*CLASSES, "nf4", "together"]
    lines = ["| model | products, TFLOP | " + " | ".join(f"{kind}, ms" for kind in kinds) + " | tokens / s |", "|---|--:|" + "--:|" * (len(kinds) + 1)]
    seen = set()
    for row in PUBLISHED:
        if row.step in seen:
            continue
        seen.add(row.step)
        parts = parts_ms(row, table)
        flops = works_of(row.step, table, H100)[PRODUCTS].flops
        tokens = row.step.documents * row.step.length
        cells = [f"{parts[kind]:.1f}" if kind in parts else "" for kind in kinds]
        lines.append(f"| {row.step.shape}, {row.step.blocks} | {flops / 1e12:.1f} | " + " | ".join(cells) + f" | {tokens:,} / {sum(parts.values()) / 1e3:.4f} = {per_gpu(row, table):,.0f} |")
    return lines


def section(table: dict) -> list:
    """The lines of the page."""
    return [
        "## Eight and 64 GPUs",
        "",
        "**A forecast: no run on several GPUs was measured.** H100 SXM, one micro-batch per GPU and step, packed, without dropout. Every GPU has all frozen weights.",
        f"Assumed: {NVLINK_GBS:g} GB/s per GPU by NVLink within a host of {GPUS_PER_HOST}, {NETWORK_GBS:g} GB/s per GPU between hosts (400 Gb/s cards, nine tenths of them), "
        f"{LATENCY_US[8]:g} and {LATENCY_US[64]:g} µs of latency per collective, {AGREEMENT_MS[8]:g} and {AGREEMENT_MS[64]:g} ms for the agreement on a step, "
        "and step times that vary independently by 1% or 3% (standard deviation of a normal distribution), so that all wait for the slowest GPU.",
        "",
        *scaling(table),
        "",
        *shown_sum(table),
        "- With one 25 Gb/s card per host instead, the sum of llama-3-8b takes "
        f"{(INTEGER_BYTES + FLOAT_BYTES) * adapter_values(read_shape('llama-3-8b')) / (25 / 8 * 0.9) / 1e6:.0f} ms: accumulate four micro-batches per GPU.",
        "",
        "Share of the time that ranks compute while the slowest one does, simulated with log-normal row lengths (mean about 700 tokens); micro-batches are distributed by cost. "
        "`tooltune plan --ranks N` computes it for your rows:",
        "",
        *busy_table(),
        "",
        "## Published figures of other programs",
        "",
        "**Our column is a forecast, theirs were measured by their authors.** All with LoRA r 16 on all linear layers on H100 GPUs and full sequences: Surogate packed, 2 x 2,048, 4 micro-batches per step, without dropout; "
        "NeMo AutoModel 2 x 4,096 (8B with dropout 0.1, forecast with 0.05); Megatron-Bridge 1 x 4,096, 32 sequences per step; its rank and modules are not published there. "
        "Surogate recomputes activations by default, NeMo AutoModel only those of 70B. tooltune has no FP8, so its bf16 forecast is next to their FP8 figure. "
        "70B needs `model.quantization = \"nf4\"` on 80 GB.",
        "",
        *published_table(table),
        "",
        f"The arithmetic: work at the H100's rates, as in the tables above. Steps that were not counted are scaled from a counted step of the same family: products, head and attention by their operations, "
        f"elementwise work and LoRA by widths and tokens, launches by layers. NF4 adds {NF4_BYTES:.2f} bytes per weight and pass. \"Together\" is the sum, the agreement and a deviation of 1%; several micro-batches per step make it smaller.",
        "",
        *published_arithmetic(table),
        "",
        "Scaled and counted work of other steps, tokens/s on an H100 SXM:",
        "",
        *checks(table),
    ]
