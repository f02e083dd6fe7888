/*
 * A libnccl.so.2 for processes on the simulated driver (driver.c): they meet in shared memory that is
 * named by the unique id, and exchange their data there. Only the functions that tooltune calls exist.
 *
 * Work is queued on the streams of the simulated driver and executed as late as possible. The checks are
 * those that the real library leaves to its users, who then wait forever or get wrong sums: live streams
 * that are not captured, buffers inside one memory block of the device, aligned addresses, overlapping
 * buffers, work of one communicator on two streams at once, a device that two ranks use, and the same
 * operations with the same counts on all ranks in the same order. A violation is printed and refused. If
 * it is only found when the work is executed, the process ends.
 *
 * If a rank stays away for 30 s (FAKE_NCCL_PATIENCE changes the seconds), the others print which one, and
 * end. FAKE_NCCL_SLOW=1:200 makes rank 1 sleep 200 ms before each operation. FAKE_NCCL_KILL=1:9 kills rank 1
 * in the middle of operation 9, while the others wait for it. At exit the library prints the numbers of
 * operations and bytes to standard error.
 *
 *   gcc -O2 -shared -fPIC -o libnccl.so.2 nccl.c -ldl -lpthread
 */

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum { INT32 = 2, INT64 = 4, FLOAT32 = 7, SUM = 0 };
enum { MOST_RANKS = 16, PIECE = 1 << 16, ALIGNMENT = 16 };

typedef struct {
    char bytes[128];
} UniqueId;

/* An operation as a rank requests it; those of all ranks must be equal. */
struct Operation {
    uint64_t number, count;
    int kind, type, root;
};
enum { JOIN = 1, ALL_GATHER, REDUCE_SCATTER, BROADCAST, LEAVE };
static const char *const names[] = {"nothing", "ncclCommInitRank", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast", "ncclCommDestroy"};

/* The shared memory of a group, zero at first. */
struct Room {
    uint32_t n_ranks;
    struct {
        uint64_t arrivals; /* Numbers of barriers that the rank has reached. */
        uint32_t is_taken, device;
        struct Operation operation;
        char data[PIECE];
    } ranks[MOST_RANKS];
};

struct Communicator {
    uint64_t mark;
    struct Room *room;
    int n_ranks, rank;
    uint64_t barriers, operations;
    void *stream; /* Of the operations that are queued and not yet executed. */
    int queued;
    char name[64];
};
static const uint64_t LIVE = 0x6e63636c6c697665;

typedef void (*Work)(void *job);
static int (*is_stream)(void *);
static int (*is_captured)(void *);
static int (*holds)(unsigned long long, size_t);
static int (*current_device)(void);
static void (*enqueue)(void *, Work, void *);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long operations, refused, opened, closed;
static unsigned long long bytes_moved;
static _Thread_local char last_error[256];
static _Thread_local int groups;
static int slow_rank = -1, slow_ms, killed_rank = -1;
static unsigned long long killed_in;
static double patience = 30;

__attribute__((constructor)) static void start(void) {
    const char *slow = getenv("FAKE_NCCL_SLOW"), *seconds = getenv("FAKE_NCCL_PATIENCE");
    const char *kill = getenv("FAKE_NCCL_KILL");
    if (slow)
        sscanf(slow, "%d:%d", &slow_rank, &slow_ms);
    if (kill)
        sscanf(kill, "%d:%llu", &killed_rank, &killed_in);
    if (seconds)
        patience = atof(seconds);
}

__attribute__((destructor)) static void finish(void) {
    if (opened)
        fprintf(stderr, "fake NCCL: %ld operations, %llu bytes, %ld communicators, %ld left open, %ld refused\n", operations, bytes_moved,
                opened, opened - closed, refused);
}

static int refuse(int status, const char *what, long long number) {
    __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
    snprintf(last_error, sizeof last_error, "%s: %lld", what, number);
    fprintf(stderr, "fake NCCL: refused: %s\n", last_error);
    return status;
}

/* The functions of the simulated driver; the real driver has none of them. */
static int find_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!driver)
        return 0;
    is_stream = (int (*)(void *))dlsym(driver, "fake_cuda_is_stream");
    is_captured = (int (*)(void *))dlsym(driver, "fake_cuda_is_captured");
    holds = (int (*)(unsigned long long, size_t))dlsym(driver, "fake_cuda_holds");
    current_device = (int (*)(void))dlsym(driver, "fake_cuda_device");
    enqueue = (void (*)(void *, Work, void *))dlsym(driver, "fake_cuda_enqueue");
    return is_stream && is_captured && holds && current_device && enqueue;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void give_up(const struct Communicator *comm, const char *what, int rank) {
    fprintf(stderr, "fake NCCL: rank %d of %d: %s: rank %d\n", comm->rank, comm->n_ranks, what, rank);
    shm_unlink(comm->name);
    fflush(stderr);
    _exit(66);
}

/* Waits until all ranks have arrived here. */
static void meet(struct Communicator *comm, const char *where) {
    struct Room *room = comm->room;
    uint64_t own = ++comm->barriers;
    __atomic_store_n(&room->ranks[comm->rank].arrivals, own, __ATOMIC_RELEASE);
    double began = now();
    for (int rank = 0; rank < comm->n_ranks; rank++)
        for (long spins = 0; __atomic_load_n(&room->ranks[rank].arrivals, __ATOMIC_ACQUIRE) < own; spins++) {
            if (spins < 200)
                continue;
            usleep(spins < 2000 ? 20 : 1000);
            if (now() - began > patience) {
                char text[128];
                snprintf(text, sizeof text, "%s: this rank stayed away for %.0f s", where, patience);
                give_up(comm, text, rank);
            }
        }
}

/* Announces an operation and compares it with those of the other ranks. */
static void agree(struct Communicator *comm, struct Operation operation) {
    struct Room *room = comm->room;
    room->ranks[comm->rank].operation = operation;
    meet(comm, names[operation.kind]);
    for (int rank = 0; rank < comm->n_ranks; rank++) {
        const struct Operation *other = &room->ranks[rank].operation;
        if (other->number != operation.number || other->kind != operation.kind || other->count != operation.count ||
            other->type != operation.type || other->root != operation.root) {
            char text[256];
            snprintf(text, sizeof text, "operation %llu is %s of %llu elements of type %d, but the other rank has %llu, %s of %llu of type %d",
                     (unsigned long long)operation.number, names[operation.kind], (unsigned long long)operation.count, operation.type,
                     (unsigned long long)other->number, names[other->kind], (unsigned long long)other->count, other->type);
            give_up(comm, text, rank);
        }
    }
}

int ncclGetVersion(int *version) { *version = 22703; return OK; }
const char *ncclGetErrorString(int status) {
    return status == OK ? "no error" : status == SYSTEM_ERROR ? "unhandled system error" : status == INVALID_USAGE ? "invalid usage" : "invalid argument";
}
const char *ncclGetLastError(struct Communicator *comm) { return last_error; }

int ncclGetUniqueId(UniqueId *id) {
    int file = open("/dev/urandom", O_RDONLY);
    ssize_t n = read(file, id->bytes, sizeof id->bytes);
    close(file);
    return n == sizeof id->bytes ? OK : SYSTEM_ERROR;
}

int ncclCommInitRank(struct Communicator **made, int n_ranks, UniqueId id, int rank) {
    if (!find_driver())
        return refuse(SYSTEM_ERROR, "the simulated driver is not loaded", 0);
    if (n_ranks < 1 || n_ranks > MOST_RANKS || rank < 0 || rank >= n_ranks)
        return refuse(INVALID_ARGUMENT, "a rank that is not in the group", rank);
    if (current_device() < 0)
        return refuse(INVALID_USAGE, "no current device", 0);
    struct Communicator *comm = calloc(1, sizeof *comm);
    comm->n_ranks = n_ranks;
    comm->rank = rank;
    /* All 128 bytes count: a copy that lost some would lead to another room. */
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < sizeof id.bytes; i++)
        hash = (hash ^ (unsigned char)id.bytes[i]) * 1099511628211u;
    snprintf(comm->name, sizeof comm->name, "/fake-nccl-%016llx", (unsigned long long)hash);
    int file = shm_open(comm->name, O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct Room)))
        return refuse(SYSTEM_ERROR, "shared memory", errno);
    comm->room = mmap(NULL, sizeof(struct Room), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (comm->room == MAP_FAILED)
        return refuse(SYSTEM_ERROR, "shared memory", errno);
    struct Room *room = comm->room;
    if (__atomic_exchange_n(&room->ranks[rank].is_taken, 1, __ATOMIC_ACQ_REL))
        return refuse(INVALID_USAGE, "two processes are this rank", rank);
    room->ranks[rank].device = current_device();
    agree(comm, (struct Operation){.kind = JOIN, .count = n_ranks});
    shm_unlink(comm->name);
    for (int other = 0; other < n_ranks; other++)
        if (other != rank && room->ranks[other].device == room->ranks[rank].device)
            return refuse(INVALID_USAGE, "Duplicate GPU detected: another rank has this device", room->ranks[rank].device);
    meet(comm, names[JOIN]);
    comm->mark = LIVE;
    __atomic_add_fetch(&opened, 1, __ATOMIC_RELAXED);
    *made = comm;
    return OK;
}

int ncclCommDestroy(struct Communicator *comm) {
    if (!comm || comm->mark != LIVE)
        return refuse(INVALID_ARGUMENT, "not a communicator", 0);
    if (comm->queued)
        return refuse(INVALID_USAGE, "operations that are not finished", comm->queued);
    agree(comm, (struct Operation){.kind = LEAVE, .number = comm->operations});
    comm->mark = 0;
    __atomic_add_fetch(&closed, 1, __ATOMIC_RELAXED);
    return OK;
}

int ncclGroupStart(void) { groups++; return OK; }
int ncclGroupEnd(void) { return groups-- > 0 ? OK : refuse(INVALID_USAGE, "a group that was not started", 0); }

struct Job {
    struct Communicator *comm;
    struct Operation operation;
    const char *from;
    char *to;
};

static size_t size_of(int type) { return type == INT64 ? 8 : type == INT32 || type == FLOAT32 ? 4 : 0; }

static void add(int type, char *sum, const char *part, size_t bytes) {
    for (size_t at = 0; at < bytes; at += size_of(type)) {
        uint64_t a = 0, b = 0;
        memcpy(&a, sum + at, size_of(type));
        memcpy(&b, part + at, size_of(type));
        a += b; /* Integers only; the low bytes are those of a 32-bit sum. */
        memcpy(sum + at, &a, size_of(type));
    }
}

/* Each rank shows its bytes to the others, piece by piece, and takes what it needs of theirs. */
static void run(void *of) {
    struct Job *job = of;
    struct Communicator *comm = job->comm;
    const struct Operation operation = job->operation;
    if (comm->rank == slow_rank)
        usleep(1000 * slow_ms);
    agree(comm, operation);
    if (comm->rank == killed_rank && operation.number == killed_in)
        raise(SIGKILL);
    size_t size = operation.count * size_of(operation.type);
    /* What a rank shows to the others. */
    size_t shown = operation.kind == REDUCE_SCATTER ? size * comm->n_ranks : size;
    if (operation.kind == REDUCE_SCATTER)
        memset(job->to, 0, size);
    for (size_t at = 0; at < shown; at += PIECE) {
        size_t bytes = shown - at < PIECE ? shown - at : PIECE;
        if (operation.kind != BROADCAST || comm->rank == operation.root)
            memcpy(comm->room->ranks[comm->rank].data, job->from + at, bytes);
        meet(comm, names[operation.kind]);
        for (int rank = 0; rank < comm->n_ranks; rank++) {
            const char *data = comm->room->ranks[rank].data;
            if (operation.kind == ALL_GATHER)
                memcpy(job->to + rank * size + at, data, bytes);
            if (operation.kind == BROADCAST && rank == operation.root)
                memcpy(job->to + at, data, bytes);
            if (operation.kind == REDUCE_SCATTER) {
                /* The part of these bytes that belongs to this rank. */
                size_t first = comm->rank * size, last = first + size;
                size_t start = at > first ? at : first, end = at + bytes < last ? at + bytes : last;
                if (start < end)
                    add(operation.type, job->to + (start - first), data + (start - at), end - start);
            }
        }
        meet(comm, names[operation.kind]);
    }
    pthread_mutex_lock(&lock);
    comm->queued--;
    bytes_moved += shown;
    pthread_mutex_unlock(&lock);
}

static int queue(struct Communicator *comm, void *stream, struct Operation operation, const void *from, void *to) {
    if (!comm || comm->mark != LIVE)
        return refuse(INVALID_ARGUMENT, "not a communicator", 0);
    size_t size = operation.count * size_of(operation.type);
    size_t sent = operation.kind == REDUCE_SCATTER ? size * comm->n_ranks : size;
    size_t received = operation.kind == ALL_GATHER ? size * comm->n_ranks : size;
    if (!size)
        return refuse(INVALID_ARGUMENT, "no elements, or elements of this type", operation.type);
    if (!stream || !is_stream(stream))
        return refuse(INVALID_ARGUMENT, "not a stream", 0);
    if (is_captured(stream))
        return refuse(INVALID_USAGE, "a stream that is captured", 0);
    if (!holds((uintptr_t)from, sent) || !holds((uintptr_t)to, received))
        return refuse(INVALID_ARGUMENT, "a buffer outside the device's memory, in bytes", sent);
    if ((uintptr_t)from % ALIGNMENT || (uintptr_t)to % ALIGNMENT)
        return refuse(INVALID_ARGUMENT, "an address that is not a multiple of 16", operation.kind);
    /* Tooltune passes different buffers; NCCL would also accept its own piece in place. */
    if ((const char *)from < (char *)to + received && (char *)to < (const char *)from + sent)
        return refuse(INVALID_ARGUMENT, "buffers that overlap", sent);
    if (operation.kind == REDUCE_SCATTER && operation.type == FLOAT32)
        return refuse(INVALID_ARGUMENT, "a sum of floats, which depends on their order", operation.type);
    pthread_mutex_lock(&lock);
    int is_elsewhere = comm->queued && comm->stream != stream;
    comm->stream = stream;
    if (!is_elsewhere)
        comm->queued++;
    operation.number = ++comm->operations;
    operations++;
    pthread_mutex_unlock(&lock);
    if (is_elsewhere)
        return refuse(INVALID_USAGE, "operations on two streams at once", comm->queued);
    struct Job *job = malloc(sizeof *job);
    *job = (struct Job){comm, operation, from, to};
    enqueue(stream, run, job);
    return OK;
}

int ncclAllGather(const void *from, void *to, size_t count, int type, struct Communicator *comm, void *stream) {
    return queue(comm, stream, (struct Operation){.kind = ALL_GATHER, .count = count, .type = type}, from, to);
}

int ncclReduceScatter(const void *from, void *to, size_t count, int type, int how, struct Communicator *comm, void *stream) {
    if (how != SUM)
        return refuse(INVALID_ARGUMENT, "an operation other than a sum", how);
    return queue(comm, stream, (struct Operation){.kind = REDUCE_SCATTER, .count = count, .type = type}, from, to);
}

int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, struct Communicator *comm, void *stream) {
    if (comm && (root < 0 || root >= comm->n_ranks))
        return refuse(INVALID_ARGUMENT, "a root that is not in the group", root);
    return queue(comm, stream, (struct Operation){.kind = BROADCAST, .count = count, .type = type, .root = root}, from, to);
}
