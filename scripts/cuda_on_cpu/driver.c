/*
 * A libcuda.so.1 that has no GPU: it answers as an H100, takes every kernel that the driver would
 * take, computes nothing, and gives zeros for memory.
 *
 * A program on it compiles its kernels, Burn's too, with the real NVRTC and launches them within the
 * limits that are checked here: blocks, threads, shared memory, pitches of copies, and the memory of
 * the device, FAKE_CUDA_GIB or 79.1 GiB. What is against them is refused and said. At its end a line
 * on the error output says how many kernels were loaded and launched, what was refused, and the most
 * memory that was held.
 *
 *   gcc -O1 -shared -fPIC -o libcuda.so.1 driver.c
 */

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef int Result;
typedef void *Object;
typedef unsigned long long Address;

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_FOUND = 500 };

/* What an H100 allows; a kernel asks for more shared memory than SHARED_MEMORY before it may have it. */
enum { BLOCK_THREADS = 1024, BLOCK_Z = 64, GRID_YZ = 65535, SHARED_MEMORY = 48 << 10, MOST_SHARED_MEMORY = 227 << 10 };

/* Larger uploads and copies are dropped: nothing reads them, and the host has less memory than a GPU. */
static const size_t DROPPED = (size_t)64 << 20;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t limit, held, most;
static long modules, launches, refused;

struct Block {
    Address first;
    size_t bytes;
};
static struct Block *blocks;
static size_t n_blocks, room;

__attribute__((constructor)) static void start(void) {
    const char *gib = getenv("FAKE_CUDA_GIB");
    limit = (size_t)((gib ? atof(gib) : 79.1) * ((size_t)1 << 30));
}

__attribute__((destructor)) static void finish(void) {
    if (modules > 0)
        fprintf(stderr, "fake CUDA: %ld kernels, %ld launches, %ld refused, %.2f GiB of memory at most\n", modules, launches,
                refused, (double)most / ((size_t)1 << 30));
}

static Result refuse(const char *what, size_t number) {
    __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "fake CUDA: refused: %s: %zu\n", what, number);
    return INVALID_VALUE;
}

/* The device. */

Result cuInit(unsigned flags) { return OK; }
Result cuDriverGetVersion(int *version) { *version = 13000; return OK; }
Result cuDeviceGetCount(int *count) { *count = 1; return OK; }
Result cuDeviceGet(int *device, int index) { *device = index; return index ? INVALID_DEVICE : OK; }
Result cuDeviceGetName(char *name, int bytes, int device) { snprintf(name, bytes, "no GPU, as an H100"); return OK; }
Result cuDeviceGetPCIBusId(char *name, int bytes, int device) { snprintf(name, bytes, "0000:00:00.0"); return OK; }
Result cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = limit; return OK; }
Result cuMemGetInfo_v2(size_t *free, size_t *total) { *free = limit - held; *total = limit; return OK; }

/* NVRTC looks for a secret table of the driver; without an answer it would read a null pointer. */
Result cuGetExportTable(const void **table, const void *id) { return NOT_FOUND; }

Result cuDeviceGetAttribute(int *value, int attribute, int device) {
    static const struct {
        int attribute, value;
    } known[] = {
        {1, BLOCK_THREADS},  {2, 1024},     {3, 1024},       {4, BLOCK_Z}, {5, INT32_MAX},
        {6, GRID_YZ},        {7, GRID_YZ},  {8, SHARED_MEMORY},
        {10, 32},      /* threads of a warp */
        {16, 132},     /* multiprocessors */
        {75, 9},       {76, 0},             /* compute capability */
        {81, 228 << 10}, {97, MOST_SHARED_MEMORY},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].attribute == attribute) {
            *value = known[i].value;
            return OK;
        }
    *value = 0;
    return OK;
}

/* Contexts, streams and events: everything is done as soon as it is asked for. */

Result cuDevicePrimaryCtxRetain(Object *context, int device) { *context = (Object)1; return OK; }
Result cuDevicePrimaryCtxRelease_v2(int device) { return OK; }
Result cuCtxSetCurrent(Object context) { return OK; }
Result cuCtxGetCurrent(Object *context) { *context = (Object)1; return OK; }
Result cuCtxSynchronize(void) { return OK; }
Result cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return OK; }
Result cuStreamCreate(Object *stream, unsigned flags) { *stream = malloc(1); return OK; }
Result cuStreamCreateWithPriority(Object *stream, unsigned flags, int priority) { return cuStreamCreate(stream, flags); }
Result cuStreamSynchronize(Object stream) { return OK; }
Result cuStreamQuery(Object stream) { return OK; }
Result cuStreamWaitEvent(Object stream, Object event, unsigned flags) { return OK; }
Result cuStreamDestroy_v2(Object stream) { free(stream); return OK; }
Result cuEventCreate(Object *event, unsigned flags) { *event = malloc(1); return OK; }
Result cuEventRecord(Object event, Object stream) { return OK; }
Result cuEventSynchronize(Object event) { return OK; }
Result cuEventQuery(Object event) { return OK; }
Result cuEventElapsedTime(float *milliseconds, Object start, Object end) { *milliseconds = 1; return OK; }
Result cuEventElapsedTime_v2(float *milliseconds, Object start, Object end) { *milliseconds = 1; return OK; }
Result cuEventDestroy_v2(Object event) { free(event); return OK; }

/* Memory: pages of the host that are zero until they are written. */

static Result give(Address *address, size_t bytes) {
    Result result = OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    void *first = held + bytes > limit
                      ? MAP_FAILED
                      : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (first != MAP_FAILED) {
        if (n_blocks == room) {
            room = room ? 2 * room : 1024;
            blocks = realloc(blocks, room * sizeof *blocks);
        }
        blocks[n_blocks++] = (struct Block){(Address)(uintptr_t)first, bytes};
        held += bytes;
        most = held > most ? held : most;
        *address = (Address)(uintptr_t)first;
        result = OK;
    } else {
        fprintf(stderr, "fake CUDA: out of memory: %zu bytes beside %zu\n", bytes, held);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static Result take(Address address) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_blocks; i++)
        if (blocks[i].first == address) {
            munmap((void *)(uintptr_t)address, blocks[i].bytes);
            held -= blocks[i].bytes;
            blocks[i] = blocks[--n_blocks];
            break;
        }
    pthread_mutex_unlock(&lock);
    return OK;
}

Result cuMemAlloc_v2(Address *address, size_t bytes) { return give(address, bytes); }
Result cuMemAllocAsync(Address *address, size_t bytes, Object stream) { return give(address, bytes); }
Result cuMemFree_v2(Address address) { return take(address); }
Result cuMemFreeAsync(Address address, Object stream) { return take(address); }

Result cuMemAllocHost_v2(Object *first, size_t bytes) {
    *first = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *first ? OK : OUT_OF_MEMORY;
}
Result cuMemHostAlloc(Object *first, size_t bytes, unsigned flags) { return cuMemAllocHost_v2(first, bytes); }
Result cuMemFreeHost(Object first) { free(first); return OK; }

static Result copy(void *to, const void *from, size_t bytes) {
    if (bytes < DROPPED)
        memcpy(to, from, bytes);
    return OK;
}

Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, Object stream) {
    return copy((void *)(uintptr_t)to, from, bytes);
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Object stream) {
    return copy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
}
Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, Object stream) {
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return OK;
}
Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes, Object stream) {
    if (value || bytes < DROPPED)
        memset((void *)(uintptr_t)to, value, bytes);
    return OK;
}

/* CUDA_MEMCPY2D. */
struct End {
    size_t x, y;
    int type;
    const void *host;
    Address device;
    Object array;
    size_t pitch;
};
struct Copy2D {
    struct End from, to;
    size_t width, height;
};

static char *row_of(const struct End *end, size_t row) {
    enum { HOST = 1 };
    char *first = end->type == HOST ? (char *)end->host : (char *)(uintptr_t)end->device;
    return first + end->x + (end->y + row) * end->pitch;
}

Result cuMemcpy2DAsync_v2(const struct Copy2D *job, Object stream) {
    if (job->width > job->from.pitch || job->width > job->to.pitch)
        return refuse("a row of a copy is longer than its pitch", job->width);
    if (job->width * job->height < DROPPED || job->to.type == 1)
        for (size_t row = 0; row < job->height; row++)
            memcpy(row_of(&job->to, row), row_of(&job->from, row), job->width);
    return OK;
}

/* Kernels. A module is the shared memory that its one kernel has asked for. */

Result cuModuleLoadData(Object *module, const void *image) {
    __atomic_add_fetch(&modules, 1, __ATOMIC_RELAXED);
    *module = calloc(1, sizeof(int));
    return OK;
}
Result cuModuleGetFunction(Object *kernel, Object module, const char *name) { *kernel = module; return OK; }
Result cuModuleUnload(Object module) { return OK; }

Result cuFuncSetAttribute(Object kernel, int attribute, int value) {
    enum { DYNAMIC_SHARED_MEMORY = 8 };
    if (attribute != DYNAMIC_SHARED_MEMORY)
        return OK;
    if (value > MOST_SHARED_MEMORY)
        return refuse("bytes of shared memory that a kernel asks for", value);
    *(int *)kernel = value;
    return OK;
}

Result cuLaunchKernel(Object kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                      unsigned block_z, unsigned shared, Object stream, void **arguments, void **extra) {
    __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
    size_t threads = (size_t)block_x * block_y * block_z;
    if (!grid_x || !grid_y || !grid_z || !threads)
        return refuse("a launch of nothing, with so many threads", threads);
    if (threads > BLOCK_THREADS || block_z > BLOCK_Z)
        return refuse("threads of a block", threads);
    if (grid_x > INT32_MAX || grid_y > GRID_YZ || grid_z > GRID_YZ)
        return refuse("blocks along y or z", grid_y > grid_z ? grid_y : grid_z);
    if (shared > SHARED_MEMORY && (int)shared > *(int *)kernel)
        return refuse("bytes of shared memory that were not asked for", shared);
    return OK;
}

Result cuGetErrorName(int error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_INVALID_VALUE";
    return OK;
}
Result cuGetErrorString(int error, const char **text) { return cuGetErrorName(error, text); }
