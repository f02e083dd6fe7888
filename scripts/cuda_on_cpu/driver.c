/*
 * A libcuda.so.1 that simulates an H100 without a GPU: it accepts every kernel that the real driver
 * accepts, and its device memory is initially zero.
 *
 * A program on this driver compiles all its kernels, including Burn's, and launches them within the
 * limits that are checked here: blocks, threads, shared memory, pitches of copies, and the device memory
 * (FAKE_CUDA_GIB, by default 79.1 GiB). A violation is refused and printed. At exit the driver prints a
 * line to standard error with the numbers of kernels that were loaded, launched and refused, and the peak
 * memory. With FAKE_CUDA_NAMES=1 it also prints two lines per kernel: its launches with their total
 * number of threads, and the same for launches in graphs.
 *
 * A stream that is being captured executes nothing and records its work as a graph. Each launch of the
 * graph executes the work, with the memory addresses of the capture. Operations that a capture does not
 * allow are refused: waiting, allocating memory, and copying from or to the host.
 * FAKE_CUDA_NO_GRAPHS=begin refuses to begin a capture, and FAKE_CUDA_NO_GRAPHS=instantiate refuses to
 * instantiate a graph.
 *
 * With the real NVRTC, or if CUDA_ON_CPU_KERNELS is `none`, kernels compute nothing. With the simulated
 * NVRTC (nvrtc.c), each kernel is a CPU library and computes its result. The work of a stream is executed
 * as late as possible: when the program waits for it, or when another stream waits for an event after it.
 * A program that forgets to wait therefore reads the old contents. FAKE_CUDA_WAITS=0 ignores the waits
 * between streams, to prove that they matter. With FAKE_CUDA_EARLY=1, streams with a priority execute
 * their work as early as possible instead: a program whose copy stream does not wait for readers of the
 * old contents then reads the new ones.
 *
 * FAKE_CUDA_DEVICES is the number of devices, 1 by default. They share the memory of the process.
 *
 * With FAKE_CUDA_ADDRESSES=1, device memory consists only of addresses, for models that are larger than
 * the host's memory. Data that is copied to the device is read, as by a copy engine, and discarded unless
 * it is small. At exit the driver prints how many of these bytes came from locked pages, which a copy
 * engine needs, and from other pages, when the first and the last byte were copied, and when the first
 * kernel after them was launched. Data that is copied from the device is left out unless it is small.
 *
 *   gcc -O1 -shared -fPIC -o libcuda.so.1 driver.c -ldl
 */

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef int Result;
typedef void *Object;
typedef unsigned long long Address;

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_FOUND = 500 };

/* Limits of an H100. A kernel must request more shared memory than SHARED_MEMORY before it is launched. */
enum { BLOCK_THREADS = 1024, BLOCK_Z = 64, GRID_YZ = 65535, SHARED_MEMORY = 48 << 10, MOST_SHARED_MEMORY = 227 << 10 };

/* Larger uploads and copies are dropped: nothing reads them, and the host has less memory than a GPU. */
static const size_t DROPPED = (size_t)64 << 20;

/* With FAKE_CUDA_ADDRESSES, smaller uploads are kept: sizes, ids, scalars. */
static const size_t SMALL = (size_t)64 << 10;
static int has_addresses_alone;
static int n_devices = 1;

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
    const char *addresses = getenv("FAKE_CUDA_ADDRESSES");
    has_addresses_alone = addresses && !strcmp(addresses, "1");
    const char *devices = getenv("FAKE_CUDA_DEVICES");
    n_devices = devices ? atoi(devices) : 1;
}

/* Seconds since 1970. */
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static Result refuse(const char *what, size_t number) {
    __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "fake CUDA: refused: %s: %zu\n", what, number);
    return INVALID_VALUE;
}

/* The device. */

Result cuInit(unsigned flags) { return OK; }
Result cuDriverGetVersion(int *version) { *version = 13000; return OK; }
Result cuDeviceGetCount(int *count) { *count = n_devices; return OK; }
Result cuDeviceGet(int *device, int index) { *device = index; return index >= 0 && index < n_devices ? OK : INVALID_DEVICE; }
Result cuDeviceGetName(char *name, int bytes, int device) { snprintf(name, bytes, "no GPU, as an H100"); return OK; }
Result cuDeviceGetPCIBusId(char *name, int bytes, int device) { snprintf(name, bytes, "0000:%02x:00.0", device); return OK; }
Result cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = limit; return OK; }
Result cuMemGetInfo_v2(size_t *free, size_t *total) { *free = limit - held; *total = limit; return OK; }

/* NVRTC requests an undocumented table of the driver; without an error code it would read a null pointer. */
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

/* Contexts: the primary one of device i is i + 1. */

static _Thread_local uintptr_t current;

Result cuDevicePrimaryCtxRetain(Object *context, int device) { *context = (Object)(uintptr_t)(device + 1); return OK; }
Result cuDevicePrimaryCtxRelease_v2(int device) { return OK; }
Result cuCtxSetCurrent(Object context) { current = (uintptr_t)context; return OK; }
Result cuCtxGetCurrent(Object *context) { *context = (Object)current; return OK; }

/* Called by the other simulated libraries: the device of the calling thread, or -1. */
int fake_cuda_device(void) { return (int)current - 1; }

Result cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return OK; }

/* Streams: queued work that is executed when its result is needed. */

typedef void (*Work)(void *job);
struct Kernel;
static Result refuse_captured(const char *what);

struct Task {
    Work run; /* NULL if the task is only counted. */
    Work release; /* Frees the job after its last execution. */
    void *job;
    struct Event *event; /* The event to wait for, if there is no work. */
    struct Kernel *kernel; /* The launched kernel; `threads` is the number of its threads. */
    long threads;
    struct Task *next;
};
/* Captured work; the graph and its instance are the same object. */
struct Graph {
    struct Task *first, *last;
    size_t nodes;
    int holders;
};
struct Stream {
    struct Task *first, *last;
    long queued, done;
    int is_running;
    int is_early; /* Whether work is executed when it is queued. */
    struct Graph *captured; /* The graph, while the stream is being captured. */
    struct Stream *next;
};
/* A position in a stream: the event is reached when all work before it is done. */
struct Event {
    struct Stream *stream;
    long place;
};

static pthread_mutex_t queue_lock;
static struct Stream *streams;
static int forgets_waits;

__attribute__((constructor)) static void start_queues(void) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&queue_lock, &kind);
    const char *waits = getenv("FAKE_CUDA_WAITS");
    forgets_waits = waits && !strcmp(waits, "0");
}

static void catch_up(struct Stream *stream, long place) {
    pthread_mutex_lock(&queue_lock);
    while (stream->done < place && stream->first && !stream->is_running) {
        struct Task *task = stream->first;
        stream->first = task->next;
        if (!stream->first)
            stream->last = NULL;
        stream->is_running = 1;
        if (task->event) {
            catch_up(task->event->stream, task->event->place);
            free(task->event);
        } else {
            task->run(task->job);
            if (task->release)
                task->release(task->job);
        }
        stream->is_running = 0;
        stream->done++;
        free(task);
    }
    pthread_mutex_unlock(&queue_lock);
}

static void append(struct Stream *stream, struct Task task) {
    pthread_mutex_lock(&queue_lock);
    struct Task *last = malloc(sizeof *last);
    *last = task;
    last->next = NULL;
    struct Graph *graph = stream->captured;
    if (graph) {
        if (graph->last)
            graph->last->next = last;
        else
            graph->first = last;
        graph->last = last;
        graph->nodes++;
        pthread_mutex_unlock(&queue_lock);
        return;
    }
    if (stream->last)
        stream->last->next = last;
    else
        stream->first = last;
    stream->last = last;
    stream->queued++;
    if (stream->is_early)
        catch_up(stream, stream->queued);
    pthread_mutex_unlock(&queue_lock);
}

/* Also called by the other simulated libraries: whether the stream was created here. */
int fake_cuda_is_stream(Object stream) {
    int found = 0;
    pthread_mutex_lock(&queue_lock);
    for (struct Stream *known = streams; known; known = known->next)
        found |= known == stream;
    pthread_mutex_unlock(&queue_lock);
    return found;
}

/* Queues work on a stream; the job is freed after its execution. */
void fake_cuda_enqueue(Object stream, Work run, void *job) {
    if (!stream) { /* The default stream, which waits for all other streams. */
        run(job);
        free(job);
        return;
    }
    append(stream, (struct Task){.run = run, .release = free, .job = job});
}

int fake_cuda_is_captured(Object stream) { return stream && ((struct Stream *)stream)->captured; }

static int is_any_captured(void) {
    int found = 0;
    pthread_mutex_lock(&queue_lock);
    for (struct Stream *stream = streams; stream; stream = stream->next)
        found |= stream->captured != NULL;
    pthread_mutex_unlock(&queue_lock);
    return found;
}

static void catch_up_all(void) {
    pthread_mutex_lock(&queue_lock);
    for (struct Stream *stream = streams; stream; stream = stream->next)
        catch_up(stream, stream->queued);
    pthread_mutex_unlock(&queue_lock);
}

/* Refuses an operation that no thread may run during a capture, because CubeCL captures in global mode. */
static Result refuse_captured(const char *what) {
    fprintf(stderr, "fake CUDA: while a stream is captured: ");
    return refuse(what, 0);
}

Result cuCtxSynchronize(void) {
    if (is_any_captured())
        return refuse_captured("to wait for the device");
    catch_up_all();
    return OK;
}

Result cuStreamCreate(Object *stream, unsigned flags) {
    struct Stream *made = calloc(1, sizeof *made);
    pthread_mutex_lock(&queue_lock);
    made->next = streams;
    streams = made;
    pthread_mutex_unlock(&queue_lock);
    *stream = made;
    return OK;
}
Result cuStreamCreateWithPriority(Object *stream, unsigned flags, int priority) {
    const char *early = getenv("FAKE_CUDA_EARLY");
    cuStreamCreate(stream, flags);
    ((struct Stream *)*stream)->is_early = early && !strcmp(early, "1");
    return OK;
}
Result cuStreamSynchronize(Object stream) {
    if (stream ? fake_cuda_is_captured(stream) : is_any_captured())
        return refuse_captured("to wait for it");
    if (stream)
        catch_up(stream, ((struct Stream *)stream)->queued);
    else
        catch_up_all();
    return OK;
}
Result cuStreamQuery(Object stream) { return cuStreamSynchronize(stream); }
Result cuStreamDestroy_v2(Object stream) { return cuStreamSynchronize(stream); }

Result cuEventCreate(Object *event, unsigned flags) { *event = calloc(1, sizeof(struct Event)); return OK; }
Result cuEventRecord(Object event, Object stream) {
    struct Stream *of = stream;
    if (fake_cuda_is_captured(stream))
        return refuse_captured("to record an event of it");
    if (of)
        *(struct Event *)event = (struct Event){of, of->queued};
    return OK;
}
Result cuEventSynchronize(Object event) {
    struct Event *of = event;
    if (of->stream)
        catch_up(of->stream, of->place);
    return OK;
}
Result cuEventQuery(Object event) { return cuEventSynchronize(event); }
Result cuStreamWaitEvent(Object stream, Object event, unsigned flags) {
    const struct Event *of = event;
    if (!of->stream || !stream || forgets_waits)
        return OK;
    struct Event *place = malloc(sizeof *place);
    *place = *of;
    append(stream, (struct Task){.event = place});
    return OK;
}
Result cuEventElapsedTime(float *milliseconds, Object start, Object end) { *milliseconds = 1; return OK; }
Result cuEventElapsedTime_v2(float *milliseconds, Object start, Object end) { *milliseconds = 1; return OK; }
Result cuEventDestroy_v2(Object event) { free(event); return OK; }

/* Device memory: host pages that are zero until they are written. */

static Result give(Address *address, size_t bytes) {
    Result result = OUT_OF_MEMORY;
    if (is_any_captured())
        return refuse_captured("to take memory");
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
    if (is_any_captured())
        return refuse_captured("to give memory back");
    catch_up_all();
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

/* Called by the other simulated libraries: whether the bytes are within one memory block. */
int fake_cuda_holds(Address first, size_t bytes) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_blocks && !found; i++)
        found = first >= blocks[i].first && first + bytes <= blocks[i].first + blocks[i].bytes;
    pthread_mutex_unlock(&lock);
    return found;
}

Result cuMemAlloc_v2(Address *address, size_t bytes) { return give(address, bytes); }
Result cuMemAllocAsync(Address *address, size_t bytes, Object stream) { return give(address, bytes); }
Result cuMemFree_v2(Address address) { return take(address); }
Result cuMemFreeAsync(Address address, Object stream) { return take(address); }

/* Host memory with locked pages. */
struct Locked {
    const char *first;
    size_t bytes;
    struct Locked *next;
};
static struct Locked *locked;

Result cuMemAllocHost_v2(Object *first, size_t bytes) {
    bytes = (bytes + 4095) / 4096 * 4096;
    *first = aligned_alloc(4096, bytes);
    if (!*first)
        return OUT_OF_MEMORY;
    struct Locked *more = malloc(sizeof *more);
    pthread_mutex_lock(&lock);
    *more = (struct Locked){*first, bytes, locked};
    locked = more;
    pthread_mutex_unlock(&lock);
    return OK;
}
Result cuMemHostAlloc(Object *first, size_t bytes, unsigned flags) { return cuMemAllocHost_v2(first, bytes); }
Result cuMemFreeHost(Object first) {
    pthread_mutex_lock(&lock);
    for (struct Locked **place = &locked; *place; place = &(*place)->next)
        if ((*place)->first == first) {
            struct Locked *gone = *place;
            *place = gone->next;
            free(gone);
            break;
        }
    pthread_mutex_unlock(&lock);
    free(first);
    return OK;
}

/* Statistics of the data that was read and discarded. */
static struct {
    size_t from_locked, from_others;
    double first, last, seconds, launch_behind;
    uint64_t sum;
} forgotten;

/* Whether host memory has locked pages. */
static int is_locked_memory(const char *from, size_t bytes) {
    int is_locked = 0;
    pthread_mutex_lock(&lock);
    for (struct Locked *known = locked; known && !is_locked; known = known->next)
        is_locked = from >= known->first && from + bytes <= known->first + known->bytes;
    pthread_mutex_unlock(&lock);
    return is_locked;
}

static void read_and_forget(const char *from, size_t bytes) {
    const int is_locked = is_locked_memory(from, bytes);
    double started = now();
    uint64_t sum = 0;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word;
        memcpy(&word, from + i, 8);
        sum ^= word;
    }
    pthread_mutex_lock(&lock);
    *(is_locked ? &forgotten.from_locked : &forgotten.from_others) += bytes;
    forgotten.first = forgotten.first ? forgotten.first : started;
    forgotten.last = now();
    forgotten.seconds += forgotten.last - started;
    forgotten.launch_behind = 0;
    forgotten.sum ^= sum;
    pthread_mutex_unlock(&lock);
}

/* A copy or fill. Data from pageable host memory is read when the copy is requested, data from locked
 * pages when it is executed. */
struct Copy {
    void *to;
    const void *from;
    size_t bytes;
    int value;
    char host[];
};

static void run_copy(void *job) {
    const struct Copy *copy = job;
    if (copy->from)
        memcpy(copy->to, copy->from, copy->bytes);
    else
        memset(copy->to, copy->value, copy->bytes);
}

static Result copy(Object stream, void *to, const void *from, size_t bytes, int is_of_host) {
    if (is_of_host && fake_cuda_is_captured(stream))
        return refuse_captured("to copy from the host");
    is_of_host = is_of_host && !is_locked_memory(from, bytes);
    struct Copy *copy = malloc(sizeof *copy + (is_of_host ? bytes : 0));
    *copy = (struct Copy){to, is_of_host ? copy->host : from, bytes};
    if (is_of_host)
        memcpy(copy->host, from, bytes);
    fake_cuda_enqueue(stream, run_copy, copy);
    return OK;
}

Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, Object stream) {
    if (has_addresses_alone && bytes >= SMALL) {
        read_and_forget(from, bytes);
        return OK;
    }
    return bytes < DROPPED ? copy(stream, (void *)(uintptr_t)to, from, bytes, 1) : OK;
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Object stream) {
    if (has_addresses_alone && bytes >= SMALL)
        return OK;
    return bytes < DROPPED ? copy(stream, (void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, 0) : OK;
}
Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, Object stream) {
    if (fake_cuda_is_captured(stream))
        return refuse_captured("to copy to the host");
    if (has_addresses_alone && bytes >= SMALL)
        return OK;
    return copy(stream, to, (void *)(uintptr_t)from, bytes, 0);
}
Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes, Object stream) {
    if (bytes >= (has_addresses_alone ? SMALL : DROPPED) && (!value || has_addresses_alone))
        return OK;
    struct Copy *copy = malloc(sizeof *copy);
    *copy = (struct Copy){(void *)(uintptr_t)to, NULL, bytes, value};
    fake_cuda_enqueue(stream, run_copy, copy);
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
    enum { HOST = 1 };
    if (job->width > job->from.pitch || job->width > job->to.pitch)
        return refuse("a row of a copy is longer than its pitch", job->width);
    if (has_addresses_alone && job->width * job->height >= SMALL && job->to.type != HOST) {
        for (size_t row = 0; row < job->height && job->from.type == HOST; row++)
            read_and_forget(row_of(&job->from, row), job->width);
        return OK;
    }
    if (job->width * job->height < DROPPED || job->to.type == HOST)
        for (size_t row = 0; row < job->height; row++)
            copy(stream, row_of(&job->to, row), row_of(&job->from, row), job->width, job->from.type == HOST);
    return OK;
}

/* Kernels. */

struct Launch {
    unsigned blocks[3], threads[3], shared_bytes, descending;
};
struct Kernel {
    int shared_bytes; /* The shared memory that was requested. */
    long launches, threads;
    long replays, replayed_threads; /* Launches in graphs, and their threads. */
    char name[256];
    void *library;
    int (*run)(void **arguments, const struct Launch *launch);
    const unsigned *sizes; /* The number of arguments, then the size of each in bytes. */
    struct Kernel *next;
};
static struct Kernel *kernels;

Result cuModuleLoadData(Object *module, const void *image) {
    struct Kernel *kernel = calloc(1, sizeof *kernel);
    /* nvrtc.c returns this prefix and the path of a library for each source. */
    static const char mark[] = "library for the CPU: ";
    if (!strncmp(image, mark, sizeof mark - 1)) {
        kernel->library = dlopen((const char *)image + sizeof mark - 1, RTLD_NOW | RTLD_LOCAL);
        if (!kernel->library) {
            fprintf(stderr, "fake CUDA: %s\n", dlerror());
            return refuse("a kernel that cannot be opened", 0);
        }
        kernel->run = (int (*)(void **, const struct Launch *))dlsym(kernel->library, "run");
        kernel->sizes = dlsym(kernel->library, "argument_sizes");
    }
    pthread_mutex_lock(&lock);
    modules++;
    kernel->next = kernels;
    kernels = kernel;
    pthread_mutex_unlock(&lock);
    *module = kernel;
    return OK;
}
Result cuModuleGetFunction(Object *kernel, Object module, const char *name) {
    snprintf(((struct Kernel *)module)->name, sizeof ((struct Kernel *)module)->name, "%s", name);
    *kernel = module;
    return OK;
}
Result cuModuleUnload(Object module) { return OK; }

Result cuFuncSetAttribute(Object kernel, int attribute, int value) {
    enum { DYNAMIC_SHARED_MEMORY = 8 };
    if (attribute != DYNAMIC_SHARED_MEMORY)
        return OK;
    if (value > MOST_SHARED_MEMORY)
        return refuse("bytes of shared memory that a kernel asks for", value);
    ((struct Kernel *)kernel)->shared_bytes = value;
    return OK;
}

/* A launch with a copy of its arguments. */
struct Job {
    const struct Kernel *kernel;
    struct Launch launch;
    void **arguments;
};

static void run_kernel(void *of) {
    struct Job *job = of;
    if (!job->kernel->run(job->arguments, &job->launch))
        refuse("a kernel of which some threads end while others wait", 0);
}

static void release_job(void *of) {
    struct Job *job = of;
    for (unsigned i = 0; i < job->kernel->sizes[0]; i++)
        free(job->arguments[i]);
    free(job->arguments);
    free(job);
}

Result cuLaunchKernel(Object of, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                      unsigned block_z, unsigned shared, Object stream, void **arguments, void **extra) {
    struct Kernel *kernel = of;
    const size_t threads = (size_t)block_x * block_y * block_z;
    const long all_threads = threads * grid_x * grid_y * grid_z;
    const int is_captured = fake_cuda_is_captured(stream);
    if (!is_captured) {
        __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
        __atomic_add_fetch(&kernel->launches, 1, __ATOMIC_RELAXED);
        __atomic_add_fetch(&kernel->threads, all_threads, __ATOMIC_RELAXED);
    }
    if (has_addresses_alone && !forgotten.launch_behind)
        forgotten.launch_behind = now();
    if (!grid_x || !grid_y || !grid_z || !threads)
        return refuse("a launch of nothing, with so many threads", threads);
    if (threads > BLOCK_THREADS || block_z > BLOCK_Z)
        return refuse("threads of a block", threads);
    if (grid_x > INT32_MAX || grid_y > GRID_YZ || grid_z > GRID_YZ)
        return refuse("blocks along y or z", grid_y > grid_z ? grid_y : grid_z);
    if (shared > SHARED_MEMORY && (int)shared > kernel->shared_bytes)
        return refuse("bytes of shared memory that were not asked for", shared);
    if (!kernel->run) {
        if (is_captured)
            append(stream, (struct Task){.kernel = kernel, .threads = all_threads});
        return OK;
    }
    struct Job *job = malloc(sizeof *job);
    *job = (struct Job){kernel, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, 0}};
    job->arguments = calloc(kernel->sizes[0], sizeof *job->arguments);
    for (unsigned i = 0; i < kernel->sizes[0]; i++) {
        job->arguments[i] = aligned_alloc(64, (kernel->sizes[1 + i] + 63) / 64 * 64);
        memcpy(job->arguments[i], arguments[i], kernel->sizes[1 + i]);
    }
    if (!stream) {
        run_kernel(job);
        release_job(job);
        return OK;
    }
    append(stream, (struct Task){.run = run_kernel, .release = release_job, .job = job, .kernel = kernel, .threads = all_threads});
    return OK;
}

#include "driver_graphs.c"

Result cuGetErrorName(int error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_INVALID_VALUE";
    return OK;
}
Result cuGetErrorString(int error, const char **text) { return cuGetErrorName(error, text); }

__attribute__((destructor)) static void finish(void) {
    if (getenv("FAKE_CUDA_NAMES"))
        for (struct Kernel *kernel = kernels; kernel; kernel = kernel->next) {
            fprintf(stderr, "fake CUDA: %ld launches, %ld threads of %s\n", kernel->launches, kernel->threads, kernel->name);
            if (kernel->replays)
                fprintf(stderr, "fake CUDA: %ld replays, %ld threads of %s\n", kernel->replays, kernel->replayed_threads, kernel->name);
        }
    if (graphs)
        fprintf(stderr, "fake CUDA: %ld graphs, launched %ld times\n", graphs, graph_launches);
    if (has_addresses_alone)
        fprintf(stderr,
                "fake CUDA: %zu bytes from locked pages and %zu from others, read in %.3f s, first at %.3f, last at %.3f, "
                "next launch at %.3f; they are %016llx together\n",
                forgotten.from_locked, forgotten.from_others, forgotten.seconds, forgotten.first, forgotten.last,
                forgotten.launch_behind, (unsigned long long)forgotten.sum);
    if (modules > 0)
        fprintf(stderr, "fake CUDA: %ld kernels, %ld launches, %ld refused, %.2f GiB of memory at most\n", modules, launches,
                refused, (double)most / ((size_t)1 << 30));
}
