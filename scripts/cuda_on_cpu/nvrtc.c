/*
 * A libnvrtc.so that compiles each kernel source into a CPU library, with module.py and g++, which the
 * simulated driver (driver.c) runs.
 *
 * CUDA_ON_CPU is the folder of this file. CUDA_ON_CPU_KERNELS is the folder for the libraries; each source
 * is compiled once. If it is `none`, nothing is compiled and kernels compute nothing.
 *
 *   gcc -O1 -shared -fPIC -o libnvrtc.so nvrtc.c
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID_INPUT = 3, COMPILATION = 6 };

struct Program {
    char *text, result[4096], log[4096];
};

int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 0; return OK; }
const char *nvrtcGetErrorString(int result) { return result ? "fake NVRTC: failed" : "no error"; }

int nvrtcCreateProgram(struct Program **program, const char *text, const char *name, int n, const char *const *headers,
                       const char *const *names) {
    *program = calloc(1, sizeof **program);
    (*program)->text = strdup(text);
    return OK;
}
int nvrtcDestroyProgram(struct Program **program) {
    free((*program)->text);
    free(*program);
    *program = NULL;
    return OK;
}

/* FNV-1a. */
static uint64_t hash(const char *text) {
    uint64_t sum = 0xcbf29ce484222325;
    for (; *text; text++)
        sum = (sum ^ (unsigned char)*text) * 0x100000001b3;
    return sum;
}

static int compiled;
__attribute__((destructor)) static void say(void) { fprintf(stderr, "fake NVRTC: %d texts compiled\n", compiled); }

int nvrtcCompileProgram(struct Program *program, int n, const char *const *options) {
    compiled++;
    const char *home = getenv("CUDA_ON_CPU"), *folder = getenv("CUDA_ON_CPU_KERNELS");
    if (folder && !strcmp(folder, "none")) {
        strcpy(program->result, "a kernel that computes nothing");
        return OK;
    }
    if (!home || !folder || *folder != '/')
        return INVALID_INPUT;
    char stem[2048], command[8192];
    snprintf(stem, sizeof stem, "%s/%016llx", folder, (unsigned long long)hash(program->text));
    snprintf(program->result, sizeof program->result, "library for the CPU: %s.so", stem);
    const char *library = strchr(program->result, '/');
    if (!access(library, R_OK))
        return OK;
    snprintf(command, sizeof command, "%s.%d.cu", stem, getpid());
    FILE *file = fopen(command, "w");
    if (!file || fputs(program->text, file) < 0 || fclose(file))
        return INVALID_INPUT;
    snprintf(command, sizeof command, "python3 '%s/module.py' '%s.%d.cu' '%s.so' > '%s.log' 2>&1", home, stem, getpid(), stem,
             stem);
    if (system(command)) {
        snprintf(program->log, sizeof program->log, "see %s.log", stem);
        fprintf(stderr, "fake NVRTC: a text does not compile, see %s.log\n", stem);
        return COMPILATION;
    }
    return OK;
}

int nvrtcGetProgramLogSize(struct Program *program, size_t *bytes) { *bytes = strlen(program->log) + 1; return OK; }
int nvrtcGetProgramLog(struct Program *program, char *log) { strcpy(log, program->log); return OK; }
int nvrtcGetPTXSize(struct Program *program, size_t *bytes) { *bytes = strlen(program->result) + 1; return OK; }
int nvrtcGetPTX(struct Program *program, char *ptx) { strcpy(ptx, program->result); return OK; }
