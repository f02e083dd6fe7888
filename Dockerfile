# tooltune for GPU nodes:  docker build -t tooltune .
#   docker run --gpus all -v "$PWD:/work" tooltune doctor --device cuda
#   docker run --gpus all -v "$PWD:/work" tooltune train my.toml
FROM rust:1.95-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3 python3-pip zlib1g-dev libzstd-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN scripts/setup-llvm \
    && cargo build --release --locked --features cuda -p tooltune \
    && strip target/release/tooltune

# This image has NVRTC, cuBLASLt, cuDNN and NCCL. Kernels are compiled when they first run, from the CUDA
# headers in the packages below. The image is not built if the program does not find one of them.
FROM nvidia/cuda:13.0.1-cudnn-runtime-ubuntu24.04
RUN apt-get update \
    && apt-get install -y --no-install-recommends libstdc++6 cuda-cudart-dev-13-0 cuda-crt-13-0 cuda-cccl-13-0 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /source/target/release/tooltune /usr/local/bin/tooltune
RUN tooltune doctor \
    && for subject in NVRTC "CUDA headers" kernels cuBLASLt cuDNN NCCL; do \
        tooltune doctor | grep -q "^ *ok  *$subject " || { echo "not found: $subject" >&2; exit 1; }; \
    done
WORKDIR /work
ENTRYPOINT ["tooltune"]
