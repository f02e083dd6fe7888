"""Assumptions of scripts/bench/forecast about GPUs: peaks, and the share of a peak that each class of work reaches.

The H200's shares were measured kernel by kernel (benchmarks/h200.md), except the one for products, which was fitted to
four steps, because kernels take longer within a step, where power limits lower the clock. The other GPUs' shares are
published values, reduced for sustained load; where nothing is published, they are the H200's.
"""

import collections

Share = collections.namedtuple("Share", "share source reason")
# Peaks: dense bf16 products with f32 accumulation, TFLOP/s; memory, GB/s. GiB: as reported by nvidia-smi. Shares: of
# TFLOP/s for products and attention (causal, by cuDNN); of GB/s for elementwise work, dropout and the adapters'
# products. Draws: elements per second whose dropout is drawn, in 10^12: dropout kernels alone moved 3.3 to 4.0 TB/s on
# the H200 at 4 bytes per element, so at least 0.83 to 1.0; on other GPUs scaled by multiprocessors and clock, because
# each multiprocessor has the same number of integer units.
Gpu = collections.namedtuple("Gpu", "name gib tflops gbs source products forward backward memory dropout adapters draws")

# Classes of work, in the order of the page.
PRODUCTS, HEAD, ATTENTION, ELEMENTWISE, LORA, LAUNCHES = "products", "head", "attention", "elementwise", "LoRA", "launches"
CLASSES = [PRODUCTS, HEAD, ATTENTION, ELEMENTWISE, LORA, LAUNCHES]

MEASURED = "h200.md, where the time goes"
MAMF = "https://github.com/stas00/ml-engineering/tree/master/compute/accelerator, maximum achievable matmul FLOPS"
FA2_A100 = "https://github.com/liangan1/GPU_travel/blob/07d0469e8af6ebe7d66ed1bcbc88ff86bae025d4/performance/flash-attn/README.md"
FA2_PAPER = "https://arxiv.org/abs/2307.08691"
FA2_4090 = "https://github.com/apache/tvm/blob/bd6f95705749439fea3600bf078bccc26b780cd9/tl_doc/flash_perf.md"

SAME_PROCESSOR = "the same chip as the H200, with the same power limit"
DROPOUT = Share(0.75, MEASURED, "3.3 to 4.0 TB/s on the H200, including the random numbers")
ADAPTERS = Share(0.63, MEASURED, "2.4 to 4.1 TB/s on the H200: the 5.0 GB of a layer in 1.66 ms")

GPUS = [
    Gpu(
        "A100 80 GB SXM", 80.0, 312.0, 2039.0,
        "https://www.nvidia.com/en-us/data-center/a100/",
        Share(0.75, MAMF, "271 TFLOP/s is the best of all shapes there, .87, alone; whole steps of GPT models reached 196 to 205, .63 to .66, including everything other than products (arXiv 2307.08691, table 1)"),
        Share(0.57, FA2_A100, "FlashAttention-2, whose algorithm is cuDNN's on Ampere: 156 to 159 TFLOP/s of causal attention there, .51, at 4,096 tokens with the heads of Llama-3-8B; up to some 200, .64, by arXiv 2307.08691, figure 5 (d); between them"),
        Share(0.49, FA2_PAPER, "at best .63 backward there and .73 forward, both without a mask: .86 of the share of forward"),
        Share(0.85, "https://github.com/calculon-ai/calculon, systems/a100_80g.json", ".90 for 100 MB and more there; ours read several arrays, some of them twice"),
        DROPOUT, ADAPTERS, 0.57,
    ),
    Gpu(
        "H100 SXM", 79.6, 989.4, 3350.0,
        "https://www.nvidia.com/en-us/data-center/h100/",
        Share(0.64, MEASURED, f"{SAME_PROCESSOR}; in isolation, 794 TFLOP/s (.80) is the best published value"),
        Share(0.536, MEASURED, SAME_PROCESSOR),
        Share(0.445, MEASURED, SAME_PROCESSOR),
        Share(0.85, "https://github.com/NVIDIA/cuda-samples/issues/392", "2,959 GB/s for copies within a GPU there (.88), similar to the H200"),
        DROPOUT, ADAPTERS, 0.9,
    ),
    Gpu(
        "H200", 140.4, 989.4, 4800.0,
        "https://www.nvidia.com/en-us/data-center/h200/",
        Share(0.64, MEASURED, "770 to 815 TFLOP/s in isolation (.78 to .82); this share is fitted to the four measured steps (below), so it includes everything that makes a step slower than its separate kernels"),
        Share(0.536, MEASURED, "530 TFLOP/s"),
        Share(0.445, MEASURED, "440 TFLOP/s"),
        Share(0.85, MEASURED, "3.2 to 4.3 TB/s: the 5.7 GB of a layer in 1.37 ms, .87"),
        DROPOUT, ADAPTERS, 0.9,
    ),
    Gpu(
        "RTX 4090", 23.99, 165.2, 1008.0,
        "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
        Share(0.80, "https://github.com/DefTruth/CUDA-Learn-Notes, hgemm", "105 to 115 of 119.5 TFLOP/s (.88 to .96) by cuBLAS on an L20 of the same architecture, in isolation; less within a step, because of the 450 W limit"),
        Share(0.85, FA2_4090, "151 TFLOP/s (.92) of causal attention at 2,048 tokens there, by FlashAttention-2, which uses the same algorithm as cuDNN on Ada; less within a step"),
        Share(0.58, FA2_4090, "99 TFLOP/s there, .60"),
        Share(0.85, "https://github.com/krrishnarraj/clpeak/issues/106", "910 GB/s (.90) there; our kernels read several arrays, some of them twice"),
        DROPOUT, ADAPTERS, 1.2,
    ),
]

# Published rates of isolated kernels on an H100 or H200: TFLOP/s of products, of attention forward and backward, and
# the source.
CUDNN_H200 = "https://github.com/NVIDIA/cudnn-frontend/blob/505fcfebcc8c0b48b48f32f6d88b94eb969b3e4b/benchmark/benchmark_results.csv"
ALONE = (794, 542, 444, f"[products]({MAMF.partition(',')[0]}), [attention of 4 x 4,096 tokens, 16 heads, by cuDNN on an H200]({CUDNN_H200})")

# Microseconds that the GPU is idle between two kernels of a stream: 1.1 to 1.3 for two nearly empty ones
# (https://github.com/pytorch/pytorch/issues/161104), part of which the next kernel hides.
GAP_US = 1.0
# Host microseconds per launch: 10 to 16 on two cores of a Zen 5 with a driver that does nothing (benchmarks/h200.md),
# plus the driver's own time.
HOST_US = 15.0
# Microseconds of the shortest kernel, in addition to the gap: the inputs of a token come from main memory, with a
# latency of about 0.6 µs, and pass several barriers (https://arxiv.org/abs/2402.13499, latencies of Hopper's memory).
SHORTEST_US = 2.0
# Microseconds from the end of a token's last kernel until the host has read the chosen token, on an otherwise idle
# machine.
READ_US = 30.0
# Additional microseconds per supervised row in the program measured on the H200: two of Burn's kernels scattered the
# gradients of 8,190 rows one after the other, in 6.5 ms.
ROW_BACK_US = 0.8
# Memory of CUDA's context in addition to the pool: benchmarks/h200.md.
CONTEXT_GIB = 0.5
