# Sourced by scripts that run programs with CUDA on a machine without a GPU.

# Builds the simulated libcuda and libcublasLt in the folder $1.
build_driver() {
    local fakes
    fakes=$(dirname "${BASH_SOURCE[0]}")
    mkdir -p "$1"
    gcc -O1 -shared -fPIC -o "$1/libcuda.so.1" "$fakes/driver.c" -ldl
    ln -s libcuda.so.1 "$1/libcuda.so"
    gcc -O2 -shared -fPIC -o "$1/libcublasLt.so" "$fakes/cublaslt.c" -ldl
}

# Builds the simulated libnccl in the folder $1.
build_nccl() {
    gcc -O2 -shared -fPIC -o "$1/libnccl.so.2" "$(dirname "${BASH_SOURCE[0]}")/nccl.c" -ldl -lpthread
}

# Builds the simulated libnvrtc in the folder $1, and in $1/cuda a toolkit with empty headers, which
# cuda.h replaces.
build_compiler() {
    mkdir -p "$1/cuda/include/crt"
    gcc -O1 -shared -fPIC -o "$1/libnvrtc.so" "$(dirname "${BASH_SOURCE[0]}")/nvrtc.c"
    touch "$1"/cuda/include/{cuda_fp16.h,cuda_bf16.h,mma.h,crt/mma.h}
}

# Builds the program that the arguments of `cargo rustc` select, with CUDA, and writes to the file $1
# a script that runs it.
#
# LLVM, which the CUDA backend can use to compile, is neither fetched nor linked, because nothing
# calls it: a library defines the missing symbols, and calling one aborts. There are no line tables,
# which would make the build four times as large. Flags for the last crate only keep the build of the
# other crates reusable.
build_program() {
    local runner=$1 built
    shift
    built=$(DOCS_RS=1 CARGO_PROFILE_DEV_DEBUG=false CARGO_INCREMENTAL=0 cargo rustc --features cuda "$@" \
        --message-format json-render-diagnostics -- -Clink-arg=-Wl,--unresolved-symbols=ignore-all | python3 -c '
import json, sys
messages = map(json.loads, sys.stdin)
print([message["executable"] for message in messages if message.get("executable")][-1])')
    nm -D --undefined-only "$built" | awk '$2 !~ /@/ && $1 == "U" { print "void " $2 "(void) { __builtin_trap(); }" }' |
        gcc -w -O1 -shared -fPIC -fno-builtin -x c -o "$runner.so" -
    printf '#!/bin/sh\nLD_PRELOAD=%q exec %q "$@"\n' "$runner.so" "$built" >"$runner"
    chmod +x "$runner"
}

# Prints the folder for kernels that the simulated NVRTC compiles. It stays, so that each is compiled
# once; another compiler has another folder.
kernel_libraries() {
    local fakes sum folder
    fakes=$(dirname "${BASH_SOURCE[0]}")
    sum=$(cat "$fakes/cuda.h" "$fakes/module.py" | sha256sum | cut -c 1-16)
    folder=${CARGO_TARGET_DIR:-target}/kernels_on_cpu/$sum
    mkdir -p "$folder"
    (cd "$folder" && pwd)
}
