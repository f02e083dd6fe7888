// The part of the CUDA language that CubeCL's generated source uses, implemented on one CPU core.
//
// The threads of a block are contexts of one CPU thread. Each runs to the next barrier, in an order
// that the caller chooses, so that a missing barrier makes the result depend on the order. Every
// thread of a warp stores the whole matrix of a tensor core fragment and computes all of it, with the
// same result as a warp that shares the work.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <sys/mman.h>
#include <ucontext.h>
#include <type_traits>
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

/// The index of the running thread in its block, and the number of threads.
static unsigned current, block_threads;

static void let_others_run() { swapcontext(&contexts[current], &scheduler); }

/// The barrier that a thread waits for: of its block, or of its warp.
enum class Wait { nothing, block, warp };
static std::vector<Wait> waiting;

static void wait_for_block() {
    waiting[current] = Wait::block;
    let_others_run();
}

static void run_thread() {
    body();
    finished[current] = 1;
}

/// The value that a thread shares with its warp, and the values of all its threads at the barrier.
struct Lane {
    unsigned long long own, given[32];
    unsigned active;
};
static std::vector<Lane> lanes;

/// Resumes the threads of a warp that wait for each other; returns whether there were any.
static bool release_warp(unsigned first, unsigned end) {
    unsigned active = 0;
    for (unsigned i = first; i < end; i++)
        if (!finished[i] && waiting[i] == Wait::warp) active |= 1u << (i - first);
    for (unsigned i = first; i < end; i++) {
        if (!(active >> (i - first) & 1)) continue;
        waiting[i] = Wait::nothing;
        lanes[i].active = active;
        for (unsigned j = first; j < end; j++) lanes[i].given[j - first] = lanes[j].own;
    }
    return active != 0;
}

/// Shares a value with the warp and waits for the values of the other threads.
template <class T> static void share(T value) {
    static_assert(sizeof(T) <= 8);
    lanes[current].own = 0;
    std::memcpy(&lanes[current].own, &value, sizeof(T));
    waiting[current] = Wait::warp;
    let_others_run();
}

/// The value that a lane shared, or `otherwise` if the lane is inactive.
template <class T> static T given(unsigned lane, T otherwise) {
    if (lane < 32 && lanes[current].active >> lane & 1)
        std::memcpy(&otherwise, &lanes[current].given[lane], sizeof(T));
    return otherwise;
}

static int __clz(int a) { return a == 0 ? 32 : __builtin_clz(a); }

/// Upper half of the product of two 32-bit numbers.
static unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}

/// `atom.add.f32`: only one thread runs at a time, so a plain addition is atomic.
static float add_at(const float *place, float value) {
    const float before = *place;
    *const_cast<float *>(place) = before + value;
    return before;
}

static unsigned __activemask() { return ~0u; }
static void __syncwarp() { share(0); }
template <class T> static T __shfl_sync(unsigned, T value, unsigned lane) {
    share(value);
    return given(lane, value);
}
template <class T> static T __shfl_xor_sync(unsigned, T value, unsigned mask) {
    share(value);
    return given(current % 32 ^ mask, value);
}
template <class T> static T __shfl_up_sync(unsigned, T value, unsigned delta) {
    share(value);
    return given(current % 32 - delta, value);
}
template <class T> static T __shfl_down_sync(unsigned, T value, unsigned delta) {
    share(value);
    return given(current % 32 + delta, value);
}
static unsigned __ballot_sync(unsigned, bool value) {
    share(static_cast<unsigned>(value));
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; lane++) votes |= given(lane, 0u) << lane;
    return votes;
}
static bool __any_sync(unsigned, bool value) { return __ballot_sync(0, value) != 0; }
static bool __all_sync(unsigned, bool value) {
    const unsigned votes = __ballot_sync(0, value);
    return votes == lanes[current].active;
}

struct Launch {
    unsigned blocks[3], threads[3], shared_bytes, descending;
};

/// Runs every thread of every block. Returns false if some threads of a block end while others wait.
///
/// A thread runs until it waits. A warp continues when none of its threads can still reach the warp's
/// barrier, and the block continues when none of its threads can still reach the block's barrier.
static bool launch(const Launch &launch, std::function<void()> thread) {
    constexpr size_t stack_bytes = 1 << 20;
    const unsigned threads = launch.threads[0] * launch.threads[1] * launch.threads[2];
    body = std::move(thread);
    gridDim = {launch.blocks[0], launch.blocks[1], launch.blocks[2]};
    blockDim = {launch.threads[0], launch.threads[1], launch.threads[2]};
    block_threads = threads;
    contexts.resize(threads);
    finished.resize(threads);
    waiting.resize(threads);
    lanes.resize(threads);
    // The pages of a stack are allocated when a thread first writes them.
    const size_t bytes = stack_bytes * threads;
    char *stacks = static_cast<char *>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    const size_t shared_bytes = (launch.shared_bytes + 128) / 128 * 128;
    shared_memory = static_cast<char *>(std::aligned_alloc(128, shared_bytes));
    bool converged = true;
    const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
    for (unsigned block = 0; block < blocks && converged; block++) {
        blockIdx = {block % gridDim.x, block / gridDim.x % gridDim.y, block / gridDim.x / gridDim.y};
        // Memory that is read before it is written contains NaN.
        std::memset(shared_memory, 0xff, shared_bytes);
        for (unsigned i = 0; i < threads; i++) {
            finished[i] = 0;
            waiting[i] = Wait::nothing;
            getcontext(&contexts[i]);
            contexts[i].uc_stack.ss_sp = stacks + stack_bytes * i;
            contexts[i].uc_stack.ss_size = stack_bytes;
            contexts[i].uc_link = &scheduler;
            makecontext(&contexts[i], run_thread, 0);
        }
        for (unsigned ended = 0; converged && ended < threads;) {
            for (unsigned i = 0; i < threads; i++) {
                current = launch.descending ? threads - 1 - i : i;
                threadIdx = {current % blockDim.x, current / blockDim.x % blockDim.y,
                             current / blockDim.x / blockDim.y};
                if (!finished[current] && waiting[current] == Wait::nothing)
                    swapcontext(&scheduler, &contexts[current]);
            }
            bool warps_wait = false;
            for (unsigned first = 0; first < threads; first += 32)
                warps_wait |= release_warp(first, std::min(first + 32, threads));
            if (warps_wait) continue;
            ended = 0;
            for (unsigned i = 0; i < threads; i++) ended += finished[i], waiting[i] = Wait::nothing;
            converged = ended == 0 || ended == threads;
        }
    }
    std::free(shared_memory);
    munmap(stacks, bytes);
    return converged;
}

/// The upper half of an f32, rounded to nearest, ties to even.
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

/// A 16-bit float, rounded to nearest, ties to even.
struct __half {
    unsigned short bits;

    __half() = default;

    __half(float value) {
        unsigned whole;
        std::memcpy(&whole, &value, 4);
        const unsigned sign = whole >> 16 & 0x8000;
        unsigned size = whole & 0x7fffffff;
        if (size > 0x7f800000) { // NaN
            size = 0x7fff;
        } else if (size >= 0x477ff000) { // rounds to infinity
            size = 0x7c00;
        } else if (size < 0x38800000) { // multiples of 2^-24, which are the precision of 0.5
            const float sum = std::fabs(value) + 0.5f;
            std::memcpy(&size, &sum, 4);
            size -= 0x3f000000;
        } else {
            size = (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13;
        }
        bits = sign | size;
    }

    operator float() const {
        const unsigned exponent = bits >> 10 & 31, rest = bits & 1023;
        if (exponent == 0) return (bits & 0x8000 ? -1.0f : 1.0f) * rest * 0x1p-24f;
        const unsigned size = (exponent == 31 ? 0x7f800000 : exponent + 112 << 23) | rest << 13;
        const unsigned whole = (bits & 0x8000u) << 16 | size;
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

/// Checks the alignment that the hardware requires of a fragment in memory.
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

// Functions of the generated source whose names would clash with the headers above.
namespace text {

using std::exp;
using std::log;
using std::sqrt;

template <class T> T min(T a, T b) { return b < a ? b : a; }
inline float max(float a, float b) { return std::fmax(a, b); }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }

} // namespace text
