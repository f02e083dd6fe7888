/*
 * The simulated driver (driver.c), extended by the functions that cuDNN calls while it builds plans from
 * the description of a GPU: contexts, libraries, links, and the tables in which the runtime finds internal
 * functions of the driver. Nothing is launched. For each kernel that a plan loads, it prints a line to
 * standard error: `fake CUDA: cuDNN takes NAME`.
 *
 *   gcc -w -O1 -shared -fPIC -o libcuda.so.1 driver_for_cudnn.c -ldl
 */

#define cuGetExportTable cuGetExportTable_of_none
#include "driver.c"
#undef cuGetExportTable

enum { NOT_SUPPORTED = 801 };

static Object some(void) { return malloc(8); }

/* Objects that are created but never used. */
Result cuTensorMapEncodeTiled(void *map) { memset(map, 0, 128); return OK; }
Result cuTensorMapEncodeIm2col(void *map) { memset(map, 0, 128); return OK; }
Result cuLibraryLoadData(Object *library) { *library = some(); return OK; }
Result cuLibraryLoadFromFile(Object *library) { *library = some(); return OK; }
Result cuLibraryUnload(void) { return OK; }
Result cuLibraryGetKernel(Object *kernel, Object library, const char *name) {
    fprintf(stderr, "fake CUDA: cuDNN takes %s\n", name);
    *kernel = some();
    return OK;
}
Result cuKernelGetFunction(Object *function, Object kernel) { *function = kernel; return OK; }
Result cuKernelGetAttribute(int *value) { *value = 0; return OK; }
Result cuKernelSetAttribute(void) { return OK; }
Result cuLinkCreate(unsigned options, void *names, void *values, Object *state) { *state = some(); return OK; }
Result cuLinkAddData(void) { return OK; }
Result cuLinkComplete(Object state, void **image, size_t *bytes) {
    static char nothing[4096];
    *image = nothing;
    *bytes = sizeof nothing;
    return OK;
}
Result cuLinkDestroy(void) { return OK; }

/* The only context of the only device. */
Result cuCtxGetDevice(int *device) { *device = 0; return OK; }
Result cuCtxGetApiVersion(Object context, unsigned *version) { *version = 13000; return OK; }
Result cuCtxGetId(Object context, unsigned long long *id) { *id = 1; return OK; }
Result cuCtxGetLimit(size_t *value) { *value = 1024; return OK; }
/* cuDNN looks for the first versions of these by name and calls the second ones. */
Result cuCtxPushCurrent(Object context) { return OK; }
Result cuCtxPopCurrent(Object *context) { return OK; }
Result cuCtxPushCurrent_v2(Object context) { return OK; }
Result cuCtxPopCurrent_v2(Object *context) {
    if (context)
        *context = (Object)1;
    return OK;
}
Result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return OK; }
Result cuDevicePrimaryCtxSetFlags_v2(void) { return OK; }
Result cuDeviceGetUuid_v2(void *id) { memset(id, 7, 16); return OK; }
Result cuDeviceGetMemPool(Object *pool) { *pool = (Object)1; return OK; }
Result cuDeviceGetDefaultMemPool(Object *pool) { *pool = (Object)1; return OK; }
Result cuModuleGetLoadingMode(int *mode) { *mode = 2; return OK; }
Result cuStreamGetCtx(Object stream, Object *context) { *context = (Object)1; return OK; }
Result cuStreamIsCapturing(Object stream, int *is) { *is = 0; return OK; }
Result cuStreamGetCaptureInfo_v2(Object stream, int *is) { *is = 0; return OK; }
Result cuOccupancyMaxPotentialClusterSize(int *size) { *size = 8; return OK; }
Result cuLaunchKernelEx(void) { return OK; }
Result cuLaunchCooperativeKernel(void) { return OK; }

static Result unsupported(void) { return NOT_SUPPORTED; }

/* Returns the newest version of a function that is defined here. */
Result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
    static const char *suffixes[] = {"_v3", "_v2", ""};
    char versioned[128];
    void *address = strcmp(name, "cuGetProcAddress") ? NULL : (void *)cuGetProcAddress_v2;
    for (int i = 0; i < 3 && !address; i++) {
        snprintf(versioned, sizeof versioned, "%s%s", name, suffixes[i]);
        address = dlsym(RTLD_DEFAULT, versioned);
    }
    *function = address ? address : (void *)unsupported;
    if (found)
        *found = 0;
    return OK;
}
Result cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

/* Values that the runtime stores with a context. */
static struct {
    void *key, *value;
} kept[64];
static int n_kept;
static Result keep(Object context, void *key, void *value, void *destructor) {
    kept[n_kept].key = key;
    kept[n_kept++].value = value;
    return OK;
}
static Result forget(Object context, void *key) { return OK; }
static Result look_up(void **value, Object context, void *key) {
    for (int i = n_kept - 1; i >= 0; i--)
        if (kept[i].key == key) {
            *value = kept[i].value;
            return OK;
        }
    *value = NULL;
    return INVALID_VALUE;
}

static long zero(void) { return 0; }
static size_t first_room[1024], second_room[14];
static void first_hook(void **place, size_t *n) { *place = first_room; *n = 1024; }
static void second_hook(void **place, size_t *n) { *place = second_room; *n = 14; }
static Result primary(Object *context) { *context = (Object)1; return OK; }

/* Tables of functions, by the first byte of their names. NVRTC works without its table (0xda). */
Result cuGetExportTable(const void **table, const void *name) {
    static void *storage[4] = {keep, forget, look_up};
    static void *hooks[8], *runtime[16], *others[256];
    const unsigned char first = *(const unsigned char *)name;
    if (first == 0xda)
        return NOT_FOUND;
    if (!others[1]) {
        for (int i = 1; i < 256; i++)
            others[i] = zero;
        memcpy(hooks, others, sizeof hooks);
        memcpy(runtime, others, sizeof runtime);
        /* The first entry is the size of the table. */
        others[0] = (void *)sizeof others;
        hooks[0] = (void *)(7 * sizeof(void *));
        hooks[2] = first_hook;
        hooks[6] = second_hook;
        runtime[0] = (void *)(10 * sizeof(void *));
        runtime[2] = primary;
    }
    *table = first == 0xc6 ? (void *)storage : first == 0xa0 ? (void *)hooks : first == 0x6b ? (void *)runtime : (void *)others;
    return OK;
}
