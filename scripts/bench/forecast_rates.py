"""What scripts/bench/forecast assumes of GPUs: their peaks, and what share of a peak each class of work reaches.

A share is of what a GPU sustains for seconds, so it is below the best that is published. Where a run was measured, its own shares
go here, with the page as their source.
"""

import collections

Share = collections.namedtuple("Share", "share source reason")
# Of attention, whose kernels are ours and were never timed alone, there are two: what the numbers of benchmarks/h200.md are explained
# best with, and what kernels that are built alike reach.
LOW_OF_HIGH = 22 / 61
# Peaks: dense bf16 products with sums in f32, TFLOP/s; memory, GB/s. GiB: what nvidia-smi reports.
Gpu = collections.namedtuple("Gpu", "name gib tflops gbs source products attention memory skinny")

# Classes of work, in the order of the page.
PRODUCTS, HEAD, ATTENTION, ELEMENTWISE, LORA, LAUNCHES = "products", "head", "attention", "elementwise", "LoRA", "launches"
CLASSES = [PRODUCTS, HEAD, ATTENTION, ELEMENTWISE, LORA, LAUNCHES]

MAMF = "https://github.com/stas00/ml-engineering/tree/master/compute/accelerator, maximum achievable matmul FLOPS"
WMMA = "https://github.com/waynehacking8/blackwell-tensorcore-kernels, results/bench.csv"

SKINNY = Share(
    0.5,
    "none for these shapes",
    "16 columns fill a quarter of a tile of 64, and what sums over all tokens is cut into parts that are summed again; half of what copies reach",
)

GPUS = [
    Gpu(
        "A100 80 GB SXM", 80.0, 312.0, 2039.0,
        "https://www.nvidia.com/en-us/data-center/a100/",
        Share(0.80, MAMF, "271 TFLOP/s is the best of all shapes there, .87; ours are not the best shape"),
        Share(0.13, WMMA, "the 61 TFLOP/s that a kernel of WMMA tiles through shared memory reaches on an H100, by multiprocessors and clock: 40"),
        Share(0.85, "https://github.com/calculon-ai/calculon, systems/a100_80g.json", ".90 for 100 MB and more there; ours read several arrays, some of them twice"),
        SKINNY,
    ),
    Gpu(
        "H100 SXM", 79.6, 989.4, 3350.0,
        "https://www.nvidia.com/en-us/data-center/h100/",
        Share(0.70, MAMF, "794 TFLOP/s is the best there, .80, and 762 what cuBLAS reaches at 8,192 cubed; for seconds on end the 700 W lower the clock"),
        Share(0.062, WMMA, "61 TFLOP/s by WMMA tiles through shared memory at 8,192 cubed: ours are built alike, and Hopper's peak is for wgmma alone"),
        Share(0.80, "https://github.com/NVIDIA/cuda-samples/issues/392", "2,959 GB/s of copies within a GPU there, .88; ours read several arrays, some of them twice"),
        SKINNY,
    ),
    Gpu(
        "H200", 140.4, 989.4, 4800.0,
        "https://www.nvidia.com/en-us/data-center/h200/",
        Share(0.70, MAMF, "the processor of the H100, with its power"),
        Share(0.062, WMMA, "the processor of the H100"),
        Share(0.80, "none found", "as on the H100"),
        SKINNY,
    ),
    Gpu(
        "RTX 4090", 23.99, 165.2, 1008.0,
        "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
        Share(0.85, "https://github.com/DefTruth/CUDA-Learn-Notes, hgemm", "105 to 115 of 119.5 TFLOP/s by cuBLAS on an L20 of the same architecture, .88 to .96; 450 W lower the clock"),
        Share(0.40, WMMA, "the same kernel reaches .45 of cuBLAS on a workstation's Blackwell, whose tensor cores WMMA reaches as on Ada; tiles are half as large in 99 KiB of shared memory"),
        Share(0.85, "https://github.com/krrishnarraj/clpeak/issues/106", "910 GB/s there, .90; ours read several arrays, some of them twice"),
        SKINNY,
    ),
]

# Microseconds that the GPU is idle between two kernels of a stream: two of almost nothing take 1.1 to 1.3
# (https://github.com/pytorch/pytorch/issues/161104), of which the next one hides a part.
GAP_US = 1.0
# Microseconds of the host for a launch: 10 to 16 on two cores of a Zen 5 with a driver that does nothing (benchmarks/h200.md), and
# what the driver adds.
HOST_US = 15.0
# Microseconds for a thread that reads a number of main memory, adds to it and writes it, before it reads the next one: about 480
# cycles of reading (https://arxiv.org/abs/2402.13499, global memory), and an index before them.
LATENCY_US = 0.4
# What CUDA's context takes beside the pool: benchmarks/h200.md.
CONTEXT_GIB = 0.5

# The H200 of benchmarks/h200.md, before products were cuBLASLt's: TFLOP/s of Burn's products and of attention, with which the
# forecast is nearest to its three numbers; and of products, if attention were as fast as kernels that are built alike.
BURN_TFLOPS, FITTED_ATTENTION_TFLOPS = 158.0, 22.0
BURN_TFLOPS_BESIDE_HIGH = 76.0
