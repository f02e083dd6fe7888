/*
 * A libcublasLt.so that computes on the CPU, with the memory and the streams of the simulated driver
 * (driver.c): d = alpha * a b + beta * c + bias in bf16 or f32, accumulated in f32.
 *
 * It refuses the same errors as the library: destroyed descriptors, layouts that are too narrow,
 * matrices outside a memory block of the device, addresses without the declared alignment, a workspace
 * that is too small, and invalid streams. At exit it prints the number of products and of different
 * shapes to standard error. With FAKE_CUDA_NAMES=1 it also prints a line per shape and type in row-major
 * order: rows x columns x inner dimension. If CUDA_ON_CPU_KERNELS is `none`, products are checked and
 * counted, but not computed.
 *
 *   gcc -O2 -shared -fPIC -o libcublasLt.so cublaslt.c -ldl
 */

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_16BF = 14, COMPUTE_32F = 68 };
enum ObjectKind { HANDLE = 0x4c54, LAYOUT, PRODUCT, PREFERENCE, DESTROYED };
enum { TRANSPOSED_A = 3, TRANSPOSED_B = 4, EPILOGUE = 7, BIAS_POINTER = 8, EPILOGUE_DEFAULT = 1, EPILOGUE_BIAS = 4 };

typedef struct {
    enum ObjectKind kind;
    int type;
    uint64_t rows, columns;
    int64_t pitch;
    int transposed[2];
    uint32_t epilogue;
    uint64_t bias;
    uint64_t workspace;
    uint32_t aligned[4];
} Object;

/* The 64 opaque bytes of an algorithm: the alignments and the workspace that it was requested for. */
typedef struct {
    uint32_t aligned[4];
    uint64_t workspace, form, unused[4];
} Algorithm;

static long products, refused, forms, checked;

static int refuse(const char *what, uint64_t number) {
    __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "fake cuBLASLt: refused: %s: %llu\n", what, (unsigned long long)number);
    return INVALID_VALUE;
}

/* Products of one size and type. */
struct Kind {
    uint64_t rows, columns, inner;
    int factors, sums, is_added, has_bias;
    long count;
    struct Kind *next;
};
static struct Kind *kinds;
static pthread_mutex_t kinds_lock = PTHREAD_MUTEX_INITIALIZER;

static void count_kind(struct Kind of) {
    pthread_mutex_lock(&kinds_lock);
    struct Kind *known = kinds;
    while (known && (known->rows != of.rows || known->columns != of.columns || known->inner != of.inner || known->factors != of.factors ||
                     known->sums != of.sums || known->is_added != of.is_added || known->has_bias != of.has_bias))
        known = known->next;
    if (!known) {
        known = malloc(sizeof *known);
        *known = of;
        known->count = 0;
        known->next = kinds;
        kinds = known;
    }
    known->count++;
    pthread_mutex_unlock(&kinds_lock);
}

__attribute__((destructor)) static void finish(void) {
    static const char *const names[] = {"f32", "bf16"};
    if (getenv("FAKE_CUDA_NAMES"))
        for (const struct Kind *kind = kinds; kind; kind = kind->next)
            fprintf(stderr, "fake cuBLASLt: %ld products of %llu x %llu x %llu, %s to %s%s%s\n", kind->count,
                    (unsigned long long)kind->rows, (unsigned long long)kind->columns, (unsigned long long)kind->inner,
                    names[kind->factors == R_16BF], names[kind->sums == R_16BF], kind->is_added ? ", added" : "",
                    kind->has_bias ? ", with bias" : "");
    if (products + refused)
        fprintf(stderr, "fake cuBLASLt: %ld products, %ld algorithms asked for, %ld checked, %ld refused\n", products, forms, checked,
                refused);
}

static int make(Object **object, enum ObjectKind kind) {
    *object = calloc(1, sizeof **object);
    (*object)->kind = kind;
    (*object)->epilogue = EPILOGUE_DEFAULT;
    for (int i = 0; i < 4; i++)
        (*object)->aligned[i] = 256;
    return OK;
}

/* The memory is never freed, so that a later use of the object is detected. */
static int destroy(Object *object, enum ObjectKind kind) {
    if (object->kind != kind)
        return refuse("destroyed an object of another kind", object->kind);
    object->kind = DESTROYED;
    return OK;
}

int cublasLtCreate(Object **handle) { return make(handle, HANDLE); }
int cublasLtDestroy(Object *handle) { return destroy(handle, HANDLE); }
size_t cublasLtGetVersion(void) { return 130000; }

int cublasLtMatrixLayoutCreate(Object **layout, int type, uint64_t rows, uint64_t columns, int64_t pitch) {
    make(layout, LAYOUT);
    (*layout)->type = type;
    (*layout)->rows = rows;
    (*layout)->columns = columns;
    (*layout)->pitch = pitch;
    return OK;
}
int cublasLtMatrixLayoutDestroy(Object *layout) { return destroy(layout, LAYOUT); }

int cublasLtMatmulDescCreate(Object **product, int compute, int scale) {
    make(product, PRODUCT);
    return compute == COMPUTE_32F && scale == R_32F ? OK : refuse("the type of sums", compute);
}
int cublasLtMatmulDescDestroy(Object *product) { return destroy(product, PRODUCT); }
int cublasLtMatmulDescSetAttribute(Object *product, int attribute, const void *value, size_t bytes) {
    if (product->kind != PRODUCT)
        return refuse("an attribute of no product", attribute);
    if ((attribute == TRANSPOSED_A || attribute == TRANSPOSED_B) && bytes == 4)
        memcpy(&product->transposed[attribute - TRANSPOSED_A], value, 4);
    else if (attribute == EPILOGUE && bytes == 4)
        memcpy(&product->epilogue, value, 4);
    else if (attribute == BIAS_POINTER && bytes == 8)
        memcpy(&product->bias, value, 8);
    else
        return refuse("an attribute of a product", attribute);
    return OK;
}

int cublasLtMatmulPreferenceCreate(Object **preference) { return make(preference, PREFERENCE); }
int cublasLtMatmulPreferenceDestroy(Object *preference) { return destroy(preference, PREFERENCE); }
int cublasLtMatmulPreferenceSetAttribute(Object *preference, int attribute, const void *value, size_t bytes) {
    enum { MAX_WORKSPACE_BYTES = 1, MIN_ALIGNMENT_A = 5, MIN_ALIGNMENT_D = 8 };
    if (preference->kind != PREFERENCE)
        return refuse("an attribute of no preference", attribute);
    if (attribute == MAX_WORKSPACE_BYTES && bytes == 8)
        memcpy(&preference->workspace, value, 8);
    else if (attribute >= MIN_ALIGNMENT_A && attribute <= MIN_ALIGNMENT_D && bytes == 4)
        memcpy(&preference->aligned[attribute - MIN_ALIGNMENT_A], value, 4);
    else
        return refuse("an attribute of a preference", attribute);
    return OK;
}

/* A hash of a product's sizes and types; an algorithm belongs to one of them. */
static uint64_t form_of(const Object *product, Object *const layouts[4]) {
    uint64_t sum = product->transposed[0] + 2 * product->transposed[1] + 4 * product->epilogue;
    for (int i = 0; i < 4; i++) {
        const uint64_t numbers[] = {layouts[i]->type, layouts[i]->rows, layouts[i]->columns, layouts[i]->pitch};
        for (int j = 0; j < 4; j++)
            sum = (sum ^ numbers[j]) * 0x100000001b3;
    }
    return sum;
}

struct Found {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

int cublasLtMatmulAlgoGetHeuristic(Object *handle, Object *product, Object *a, Object *b, Object *c, Object *d, Object *preference,
                                   int n, struct Found *found, int *count) {
    if (handle->kind != HANDLE || product->kind != PRODUCT || preference->kind != PREFERENCE)
        return refuse("a question without handle, product or preference", 0);
    __atomic_add_fetch(&forms, 1, __ATOMIC_RELAXED);
    memset(found, 0, sizeof *found);
    memcpy(found->algorithm.aligned, preference->aligned, sizeof preference->aligned);
    found->algorithm.workspace = found->workspace = preference->workspace;
    found->algorithm.form = form_of(product, (Object *[]){a, b, c, d});
    *count = 1;
    return OK;
}

/* Accepts a stored algorithm only for the product that it was found for, or never if FAKE_CUBLASLT_TAKES is 0. */
int cublasLtMatmulAlgoCheck(Object *handle, Object *product, Object *a, Object *b, Object *c, Object *d, const Algorithm *algorithm,
                            struct Found *found) {
    Object *const layouts[4] = {a, b, c, d};
    if (handle->kind != HANDLE || product->kind != PRODUCT)
        return refuse("a check without handle or product", 0);
    for (int i = 0; i < 4; i++)
        if (layouts[i]->kind != LAYOUT)
            return refuse("a check without its layouts", i);
    __atomic_add_fetch(&checked, 1, __ATOMIC_RELAXED);
    const char *takes = getenv("FAKE_CUBLASLT_TAKES");
    if (algorithm->form != form_of(product, layouts) || (takes && !strcmp(takes, "0")))
        return NOT_SUPPORTED;
    memset(found, 0, sizeof *found);
    found->algorithm = *algorithm;
    found->workspace = algorithm->workspace;
    return OK;
}

static float read_number(const void *from, uint64_t at, int type) {
    if (type == R_32F)
        return ((const float *)from)[at];
    const uint32_t bits = (uint32_t)((const uint16_t *)from)[at] << 16;
    float number;
    memcpy(&number, &bits, 4);
    return number;
}

static void write_number(void *to, uint64_t at, int type, float number) {
    uint32_t bits;
    memcpy(&bits, &number, 4);
    if (type == R_32F)
        ((float *)to)[at] = number;
    else
        ((uint16_t *)to)[at] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static int computes_nothing(void) {
    const char *kernels = getenv("CUDA_ON_CPU_KERNELS");
    return kernels && !strcmp(kernels, "none");
}

struct Job {
    struct Kind kind;
    Object product, layouts[4];
    float alpha, beta;
    void *places[4];
};

static void compute(void *of) {
    struct Job *job = of;
    const Object *a = &job->layouts[0], *b = &job->layouts[1], *c = &job->layouts[2], *d = &job->layouts[3];
    const int *transposed = job->product.transposed;
    const uint64_t inner = transposed[0] ? a->rows : a->columns;
    for (uint64_t j = 0; j < d->columns; j++)
        for (uint64_t i = 0; i < d->rows; i++) {
            float sum = 0;
            for (uint64_t k = 0; k < inner; k++)
                sum += read_number(job->places[0], transposed[0] ? i * a->pitch + k : k * a->pitch + i, a->type) *
                       read_number(job->places[1], transposed[1] ? k * b->pitch + j : j * b->pitch + k, b->type);
            sum *= job->alpha;
            if (job->beta)
                sum += job->beta * read_number(job->places[2], j * c->pitch + i, c->type);
            if (job->product.epilogue == EPILOGUE_BIAS)
                sum += read_number((void *)(uintptr_t)job->product.bias, i, d->type);
            write_number(job->places[3], j * d->pitch + i, d->type, sum);
        }
}

/* A product in a graph is counted each time that the graph is launched. */
static void compute_captured(void *of) {
    const struct Job *job = of;
    __atomic_add_fetch(&products, 1, __ATOMIC_RELAXED);
    count_kind(job->kind);
    if (!computes_nothing())
        compute(of);
}

int cublasLtMatmul(Object *handle, Object *product, const float *alpha, const void *A, Object *a, const void *B, Object *b,
                   const float *beta, const void *C, Object *c, void *D, Object *d, const Algorithm *algorithm, void *workspace,
                   size_t room, void *stream) {
    static int (*holds)(unsigned long long, size_t), (*is_stream)(void *), (*is_captured)(void *);
    static void (*enqueue)(void *, void (*)(void *), void *);
    if (!enqueue) {
        void *cuda = dlopen("libcuda.so", RTLD_NOW | RTLD_NOLOAD);
        cuda = cuda ? cuda : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        if (!cuda || !(holds = (int (*)(unsigned long long, size_t))dlsym(cuda, "fake_cuda_holds")))
            return refuse("a product without the driver beside this library", 0);
        is_stream = (int (*)(void *))dlsym(cuda, "fake_cuda_is_stream");
        is_captured = (int (*)(void *))dlsym(cuda, "fake_cuda_is_captured");
        enqueue = (void (*)(void *, void (*)(void *), void *))dlsym(cuda, "fake_cuda_enqueue");
    }
    if (handle->kind != HANDLE || product->kind != PRODUCT)
        return refuse("a product without its descriptors", 0);
    if (!is_stream(stream))
        return refuse("a stream that is none", (uintptr_t)stream);
    Object *const layouts[4] = {a, b, c, d};
    const void *const places[4] = {A, B, C, D};
    for (int i = 0; i < 4; i++) {
        const Object *layout = layouts[i];
        if (layout->kind != LAYOUT || (layout->type != R_32F && layout->type != R_16BF))
            return refuse("a layout", i);
        if ((uint64_t)layout->pitch < layout->rows || !layout->rows || !layout->columns)
            return refuse("a layout that is too narrow", i);
        const size_t bytes = layout->type == R_32F ? 4 : 2;
        if (!holds((uintptr_t)places[i], bytes * ((layout->columns - 1) * layout->pitch + layout->rows)))
            return refuse("a matrix beyond the memory of the device", i);
        if ((uintptr_t)places[i] % algorithm->aligned[i])
            return refuse("a matrix that is not aligned as was promised", i);
    }
    if (room < algorithm->workspace || !holds((uintptr_t)workspace, room) || (uintptr_t)workspace % 256)
        return refuse("a workspace that is too small", room);
    if (algorithm->form != form_of(product, layouts))
        return refuse("an algorithm of another product", algorithm->form);
    const uint64_t m = product->transposed[0] ? a->columns : a->rows, inner = product->transposed[0] ? a->rows : a->columns;
    const uint64_t n = product->transposed[1] ? b->rows : b->columns, other = product->transposed[1] ? b->columns : b->rows;
    if (inner != other || m != d->rows || n != d->columns || c->rows != m || c->columns != n)
        return refuse("sizes that do not fit", inner);
    if (a->type != b->type || c->type != d->type || (d->type != R_32F && d->type != a->type))
        return refuse("types that no algorithm has", d->type);
    if (product->epilogue == EPILOGUE_BIAS) {
        if (!holds(product->bias, m * (d->type == R_32F ? 4 : 2)))
            return refuse("a bias beyond the memory of the device", m);
    } else if (product->epilogue != EPILOGUE_DEFAULT) {
        return refuse("an epilogue", product->epilogue);
    }
    const struct Kind kind = {n, m, inner, a->type, d->type, *beta != 0, product->epilogue == EPILOGUE_BIAS};
    const int captured = is_captured(stream);
    if (!captured) {
        __atomic_add_fetch(&products, 1, __ATOMIC_RELAXED);
        count_kind(kind);
        if (computes_nothing())
            return OK;
    }
    struct Job *job = malloc(sizeof *job);
    *job = (struct Job){kind, *product, {*a, *b, *c, *d}, *alpha, *beta, {(void *)A, (void *)B, (void *)C, D}};
    enqueue(stream, captured ? compute_captured : compute, job);
    return OK;
}
