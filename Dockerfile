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

# This image has NVRTC, cuBLASLt, cuDNN and NCCL. The second package holds the CUDA headers, because
# kernels are compiled when they first run.
FROM nvidia/cuda:13.0.1-cudnn-runtime-ubuntu24.04
RUN apt-get update \
    && apt-get install -y --no-install-recommends libstdc++6 cuda-cudart-dev-13-0 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /source/target/release/tooltune /usr/local/bin/tooltune
WORKDIR /work
ENTRYPOINT ["tooltune"]
