/* Makes one file call of a program fail, end short, or be its last: for scripts/faults.
 *
 * Loaded with LD_PRELOAD, it counts the calls that change files below FAULT_PREFIX, an absolute path,
 * and those that read there too where FAULT_READS is set. At call FAULT_N it does what FAULT_MODE
 * says:
 *   fail       the call fails with FAULT_ERR, and every other call works
 *   persist    that call and all later ones fail
 *   short      a write takes half of its bytes
 *   kill       the process is killed before the call
 *   killafter  the process is killed behind the call, behind half of it where that is a write
 *   term       the process is sent SIGTERM before the call
 * FAULT_LOG names a file that gets a line for each call counted: its number, its kind, its path.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WORKS, FAILS, DIES, SHORT };

static atomic_long counted;
static long at = -1;
static int error_number = ENOSPC;
static int counts_reads;
static const char *mode = "fail";
static const char *prefix;
static const char *log_path;
static char folder[4096];

__attribute__((constructor)) static void begin(void) {
    const char *text;
    if ((text = getenv("FAULT_N"))) at = atol(text);
    if ((text = getenv("FAULT_ERR"))) error_number = atoi(text);
    if ((text = getenv("FAULT_MODE"))) mode = text;
    counts_reads = getenv("FAULT_READS") != NULL;
    prefix = getenv("FAULT_PREFIX");
    log_path = getenv("FAULT_LOG");
    if (!getcwd(folder, sizeof folder)) folder[0] = 0;
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static void tell(long number, const char *kind, const char *path) {
    char line[9000];
    int length, file;
    if (!log_path) return;
    file = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (file < 0) return;
    length = snprintf(line, sizeof line, "%ld %s %s\n", number, kind, path);
    syscall(SYS_write, file, line, length);
    syscall(SYS_close, file);
}

/* What is to become of a call on an absolute path. */
static int fate(const char *kind, const char *path) {
    long number;
    int persists = !strcmp(mode, "persist");
    if (!prefix || !strstr(path, prefix)) return WORKS;
    number = ++counted;
    if (at < 0) tell(number, kind, path);
    if (at < 0 || (number != at && !(persists && number > at))) return WORKS;
    if (number == at) tell(number, kind, path);
    if (!strcmp(mode, "kill")) die();
    if (!strcmp(mode, "killafter")) return DIES;
    if (!strcmp(mode, "term")) { raise(SIGTERM); return WORKS; }
    if (!strcmp(mode, "short")) return SHORT;
    return FAILS;
}

static const char *of_fd(int fd, char *path, size_t size) {
    char link[64];
    ssize_t length;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = syscall(SYS_readlink, link, path, size - 1);
    path[length < 0 ? 0 : length] = 0;
    return path;
}

/* The absolute path of NAME below the folder DIR. */
static const char *of_name(int dir, const char *name, char *path, size_t size) {
    char above[4096];
    if (name[0] == '/') snprintf(path, size, "%s", name);
    else if (dir == AT_FDCWD) snprintf(path, size, "%s/%s", folder, name);
    else snprintf(path, size, "%s/%s", of_fd(dir, above, sizeof above), name);
    return path;
}

#define NEXT(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

/* Freeing space and syncing find a broken disk, never a full one. */
static int no_space_is_io(void) { return error_number == ENOSPC ? EIO : error_number; }

#define ON_FD(kind, fd, code, call)                                   \
    char path_[4096];                                                 \
    int fate_ = fate(kind, of_fd(fd, path_, sizeof path_));           \
    if (fate_ == FAILS) { errno = (code); return -1; }                \
    typeof(call) result_ = (call);                                    \
    if (fate_ == DIES) die();                                         \
    return result_

#define ON_NAME(kind, dir, name, code, call)                          \
    char path_[8300];                                                 \
    int fate_ = fate(kind, of_name(dir, name, path_, sizeof path_));  \
    if (fate_ == FAILS) { errno = (code); return -1; }                \
    typeof(call) result_ = (call);                                    \
    if (fate_ == DIES) die();                                         \
    return result_

ssize_t write(int fd, const void *bytes, size_t n) {
    char path[4096];
    int found = fd > 2 ? fate("write", of_fd(fd, path, sizeof path)) : WORKS;
    if (found == FAILS) { errno = error_number; return -1; }
    if (found == SHORT && n > 1) return NEXT(write)(fd, bytes, n / 2);
    if (found == DIES) { NEXT(write)(fd, bytes, n > 1 ? n / 2 : n); die(); }
    return NEXT(write)(fd, bytes, n);
}

ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t offset) {
    char path[4096];
    int found = fate("write", of_fd(fd, path, sizeof path));
    if (found == FAILS) { errno = error_number; return -1; }
    if (found == SHORT && n > 1) return NEXT(pwrite64)(fd, bytes, n / 2, offset);
    if (found == DIES) { NEXT(pwrite64)(fd, bytes, n > 1 ? n / 2 : n, offset); die(); }
    return NEXT(pwrite64)(fd, bytes, n, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int n) {
    ON_FD("write", fd, error_number, NEXT(writev)(fd, parts, n));
}

ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t n, unsigned flags) {
    ON_FD("copy", to, error_number, NEXT(copy_file_range)(from, from_at, to, to_at, n, flags));
}

ssize_t sendfile64(int to, int from, off64_t *offset, size_t n) {
    ON_FD("copy", to, error_number, NEXT(sendfile64)(to, from, offset, n));
}

int fsync(int fd) { ON_FD("fsync", fd, no_space_is_io(), NEXT(fsync)(fd)); }
int fdatasync(int fd) { ON_FD("fsync", fd, no_space_is_io(), NEXT(fdatasync)(fd)); }
int syncfs(int fd) { ON_FD("fsync", fd, no_space_is_io(), NEXT(syncfs)(fd)); }
int ftruncate64(int fd, off64_t n) { ON_FD("truncate", fd, error_number, NEXT(ftruncate64)(fd, n)); }
int ftruncate(int fd, off_t n) { ON_FD("truncate", fd, error_number, NEXT(ftruncate)(fd, n)); }
int fallocate64(int fd, int how, off64_t begin, off64_t n) {
    ON_FD("allocate", fd, error_number, NEXT(fallocate64)(fd, how, begin, n));
}
int fallocate(int fd, int how, off_t begin, off_t n) {
    ON_FD("allocate", fd, error_number, NEXT(fallocate)(fd, how, begin, n));
}

/* The new name counts; it lies beside the old one. */
int rename(const char *old, const char *new) {
    ON_NAME("rename", AT_FDCWD, new, error_number, NEXT(rename)(old, new));
}
int renameat(int from, const char *old, int to, const char *new) {
    ON_NAME("rename", to, new, error_number, NEXT(renameat)(from, old, to, new));
}
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    ON_NAME("rename", to, new, error_number, NEXT(renameat2)(from, old, to, new, flags));
}
int link(const char *old, const char *new) {
    ON_NAME("link", AT_FDCWD, new, error_number, NEXT(link)(old, new));
}
int linkat(int from, const char *old, int to, const char *new, int flags) {
    ON_NAME("link", to, new, error_number, NEXT(linkat)(from, old, to, new, flags));
}
int symlink(const char *old, const char *new) {
    ON_NAME("link", AT_FDCWD, new, error_number, NEXT(symlink)(old, new));
}
int mkdir(const char *name, mode_t how) {
    ON_NAME("mkdir", AT_FDCWD, name, error_number, NEXT(mkdir)(name, how));
}
int mkdirat(int dir, const char *name, mode_t how) {
    ON_NAME("mkdir", dir, name, error_number, NEXT(mkdirat)(dir, name, how));
}
int unlink(const char *name) { ON_NAME("unlink", AT_FDCWD, name, no_space_is_io(), NEXT(unlink)(name)); }
int rmdir(const char *name) { ON_NAME("unlink", AT_FDCWD, name, no_space_is_io(), NEXT(rmdir)(name)); }
int unlinkat(int dir, const char *name, int flags) {
    ON_NAME("unlink", dir, name, no_space_is_io(), NEXT(unlinkat)(dir, name, flags));
}

#define OPENS(dir, name, call)                                                     \
    mode_t how = 0;                                                                \
    int changes = flags & (O_CREAT | O_TRUNC);                                     \
    if (flags & (O_CREAT | __O_TMPFILE)) {                                         \
        va_list more;                                                              \
        va_start(more, flags);                                                     \
        how = va_arg(more, int);                                                   \
        va_end(more);                                                              \
    }                                                                              \
    if (!changes && !counts_reads) return call;                                    \
    ON_NAME(changes ? "open" : "openread", dir, name, changes ? error_number : EIO, call)

int open(const char *name, int flags, ...) { OPENS(AT_FDCWD, name, NEXT(open)(name, flags, how)); }
int open64(const char *name, int flags, ...) { OPENS(AT_FDCWD, name, NEXT(open64)(name, flags, how)); }
int openat(int dir, const char *name, int flags, ...) { OPENS(dir, name, NEXT(openat)(dir, name, flags, how)); }
int openat64(int dir, const char *name, int flags, ...) { OPENS(dir, name, NEXT(openat64)(dir, name, flags, how)); }

ssize_t read(int fd, void *bytes, size_t n) {
    if (fd <= 2 || !counts_reads) return NEXT(read)(fd, bytes, n);
    ON_FD("read", fd, EIO, NEXT(read)(fd, bytes, n));
}
ssize_t pread64(int fd, void *bytes, size_t n, off64_t offset) {
    if (!counts_reads) return NEXT(pread64)(fd, bytes, n, offset);
    ON_FD("read", fd, EIO, NEXT(pread64)(fd, bytes, n, offset));
}
