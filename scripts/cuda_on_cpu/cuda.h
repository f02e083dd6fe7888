// As much of CUDA's language, for one core of a CPU, as CubeCL's texts use of it.
//
// The threads of a block are contexts of one thread: each runs to the next barrier, in an order
// that the caller chooses, so that a missing barrier shows as a result that depends on the order.
// A fragment of a tensor core is a whole matrix in every thread: what a warp does together, each of
// its threads does alone, to the same effect.

#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __grid_constant__
#define __launch_bounds__(threads)
#define __restrict__
#define __syncthreads() wait_for_block()

struct Dim {
    unsigned x, y, z;
};

static Dim threadIdx, blockIdx, gridDim, blockDim;

/// Shared memory of the running block.
static char *shared_memory;

static ucontext_t scheduler;
static std::vector<ucontext_t> contexts;
static std::vector<char> finished;
static std::function<void()> body;

static void wait_for_block() { swapcontext(&contexts[threadIdx.x], &scheduler); }

static void run_thread() {
    body();
    finished[threadIdx.x] = 1;
}

struct Launch {
    unsigned blocks_x, blocks_y, threads, shared_bytes, descending;
};

/// Runs every thread of every block. False if some threads of a block end while others wait.
static bool launch(const Launch &launch, std::function<void()> thread) {
    constexpr size_t stack_bytes = 4 << 20;
    body = std::move(thread);
    gridDim = {launch.blocks_x, launch.blocks_y, 1};
    blockDim = {launch.threads, 1, 1};
    contexts.resize(launch.threads);
    finished.resize(launch.threads);
    // Pages of a stack are taken when a thread first writes them.
    const size_t bytes = stack_bytes * launch.threads;
    char *stacks = static_cast<char *>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    const size_t shared_bytes = (launch.shared_bytes + 128) / 128 * 128;
    shared_memory = static_cast<char *>(std::aligned_alloc(128, shared_bytes));
    bool converged = true;
    for (unsigned block = 0; block < launch.blocks_x * launch.blocks_y; block++) {
        blockIdx = {block % launch.blocks_x, block / launch.blocks_x, 0};
        // What is read before it is written is NaN.
        std::memset(shared_memory, 0xff, shared_bytes);
        for (unsigned i = 0; i < launch.threads; i++) {
            finished[i] = 0;
            getcontext(&contexts[i]);
            contexts[i].uc_stack.ss_sp = stacks + stack_bytes * i;
            contexts[i].uc_stack.ss_size = stack_bytes;
            contexts[i].uc_link = &scheduler;
            makecontext(&contexts[i], run_thread, 0);
        }
        for (unsigned ended = 0; converged && ended < launch.threads;) {
            ended = 0;
            for (unsigned i = 0; i < launch.threads; i++) {
                const unsigned thread = launch.descending ? launch.threads - 1 - i : i;
                threadIdx = {thread, 0, 0};
                if (!finished[thread]) swapcontext(&scheduler, &contexts[thread]);
                ended += finished[thread];
            }
            converged = ended == 0 || ended == launch.threads;
        }
    }
    std::free(shared_memory);
    munmap(stacks, bytes);
    return converged;
}

/// Upper half of an f32, rounded to the nearest, to even where two are near.
struct __nv_bfloat16 {
    unsigned short bits;

    __nv_bfloat16() = default;

    __nv_bfloat16(float value) {
        unsigned whole;
        std::memcpy(&whole, &value, 4);
        const bool is_nan = (whole & 0x7fffffff) > 0x7f800000;
        bits = is_nan ? 0x7fff : (whole + 0x7fff + (whole >> 16 & 1)) >> 16;
    }

    operator float() const {
        const unsigned whole = static_cast<unsigned>(bits) << 16;
        float value;
        std::memcpy(&value, &whole, 4);
        return value;
    }
};

namespace nvcuda::wmma {

struct accumulator {};
struct matrix_a {};
struct matrix_b {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major };

template <class Use, int m, int n, int k, class T, class Layout = void> struct fragment {
    static_assert(m == 16 && n == 16 && k == 16);
    float values[16][16];
};

/// What the hardware asks of a fragment in memory.
template <class T> void check_place(const T *place, unsigned pitch) {
    if (reinterpret_cast<size_t>(place) % 32 != 0 || pitch * sizeof(T) % 16 != 0) {
        std::fprintf(stderr, "a fragment is not aligned\n");
        std::abort();
    }
}

template <class F> void fill_fragment(F &fragment, float value) {
    for (auto &row : fragment.values)
        for (float &x : row) x = value;
}

template <class Use, class T>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, row_major> &to, const T *from, unsigned pitch) {
    check_place(from, pitch);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) to.values[i][j] = from[i * pitch + j];
}

template <class Use, class T>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, col_major> &to, const T *from, unsigned pitch) {
    check_place(from, pitch);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) to.values[i][j] = from[j * pitch + i];
}

template <class F> void store_matrix_sync(float *to, const F &from, unsigned pitch, layout_t) {
    check_place(to, pitch);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) to[i * pitch + j] = from.values[i][j];
}

template <class D, class A, class B> void mma_sync(D &to, const A &a, const B &b, const D &c) {
    D sums = c;
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 16; j++) sums.values[i][j] += a.values[i][k] * b.values[k][j];
    to = sums;
}

} // namespace nvcuda::wmma

// The text's own names, which would clash with those of the headers above.
namespace text {

using std::exp;
using std::log;
using std::sqrt;

template <class T> T min(T a, T b) { return b < a ? b : a; }
inline float max(float a, float b) { return std::fmax(a, b); }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }

} // namespace text
