/* Preloaded into a process that is to lose power: logs how to undo every write, and what was synced since.
 *
 * POWERCUT_ROOT: files below this directory are observed. POWERCUT_LOG: file of the records. POWERCUT_KEEP: directory
 * for removed files. POWERCUT_FAIL_SYNC: number of calls after which fsync and fdatasync fail with EIO.
 * POWERCUT_FAIL_JOURNAL: a file; while it exists, they fail for journals (*.jnl) only.
 * POWERCUT_FULL: a file; while it exists, writes fail with ENOSPC.
 *
 * A record is a header and the overwritten content. Kinds: W a write, T a change of length, C a new file, U a removed
 * file, S a file whose content was synced, D a directory whose entries were synced. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

struct record {
    uint32_t kind, path_len;
    uint64_t ino, offset, len, old_size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static char root[PATH_MAX], keep[PATH_MAX];
static const char *full_path, *fail_path;
static long syncs_left = -1;
static unsigned long kept;

#define REAL(result, name, ...)                                                                                        \
    static result (*real_##name)(__VA_ARGS__);                                                                         \
    if (!real_##name)                                                                                                  \
    real_##name = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static int raw_open(const char *path, int flags, mode_t mode) {
    REAL(int, open64, const char *, int, ...);
    return real_open64(path, flags, mode);
}

__attribute__((constructor)) static void init(void) {
    const char *root_dir = getenv("POWERCUT_ROOT"), *log = getenv("POWERCUT_LOG"), *save = getenv("POWERCUT_KEEP");
    if (!root_dir || !log || !save)
        return;
    snprintf(root, sizeof root, "%s", root_dir);
    snprintf(keep, sizeof keep, "%s", save);
    full_path = getenv("POWERCUT_FULL");
    fail_path = getenv("POWERCUT_FAIL_JOURNAL");
    if (getenv("POWERCUT_FAIL_SYNC"))
        syncs_left = atol(getenv("POWERCUT_FAIL_SYNC"));
    log_fd = raw_open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int watched(const char *path) {
    size_t len = strlen(root);
    return log_fd >= 0 && len && strncmp(path, root, len) == 0 && (path[len] == '/' || path[len] == 0);
}

/* Returns the path of an open file, if it is observed. */
static int fd_path(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, PATH_MAX - 1);
    if (len <= 0)
        return 0;
    path[len] = 0;
    return watched(path);
}

static void put(const void *bytes, size_t len) {
    REAL(ssize_t, write, int, const void *, size_t);
    while (len > 0) {
        ssize_t done = real_write(log_fd, bytes, len);
        if (done <= 0)
            _exit(97);
        bytes = (const char *)bytes + done;
        len -= done;
    }
}

static void record(uint32_t kind, uint64_t ino, const char *path, uint64_t offset, const void *old, uint64_t len,
                 uint64_t old_size) {
    struct record header = {kind, path ? strlen(path) : 0, ino, offset, len, old_size};
    put(&header, sizeof header);
    if (path)
        put(path, header.path_len);
    if (len)
        put(old, len);
}

/* Records the content that a write or a truncation replaces; the lock is held. */
static void record_old(uint32_t kind, int fd, uint64_t offset, uint64_t len) {
    struct stat file;
    if (fstat(fd, &file) != 0)
        return;
    uint64_t size = file.st_size, old_len = offset < size ? size - offset : 0;
    if (len < old_len)
        old_len = len;
    char *old = malloc(old_len + 1);
    uint64_t got = 0;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int reader = old_len ? raw_open(link, O_RDONLY | O_CLOEXEC, 0) : -1;
    while (reader >= 0 && got < old_len) {
        ssize_t part = pread(reader, old + got, old_len - got, offset + got);
        if (part <= 0)
            break;
        got += part;
    }
    if (reader >= 0)
        close(reader);
    record(kind, file.st_ino, NULL, offset, old, got, size);
    free(old);
}

static int is_failing(const char *path) {
    size_t len = strlen(path);
    return len > 4 && strcmp(path + len - 4, ".jnl") == 0 && fail_path && access(fail_path, F_OK) == 0;
}

static int is_full(void) { return full_path && access(full_path, F_OK) == 0; }

static uint64_t position(int fd) {
    if (fcntl(fd, F_GETFL) & O_APPEND) {
        struct stat file;
        return fstat(fd, &file) == 0 ? (uint64_t)file.st_size : 0;
    }
    return lseek(fd, 0, SEEK_CUR);
}

ssize_t write(int fd, const void *bytes, size_t len) {
    REAL(ssize_t, write, int, const void *, size_t);
    char path[PATH_MAX];
    if (log_fd < 0 || fd == log_fd || !fd_path(fd, path))
        return real_write(fd, bytes, len);
    if (is_full()) {
        errno = ENOSPC;
        return -1;
    }
    pthread_mutex_lock(&lock);
    record_old('W', fd, position(fd), len);
    ssize_t done = real_write(fd, bytes, len);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t offset) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    char path[PATH_MAX];
    if (log_fd < 0 || !fd_path(fd, path))
        return real_pwrite64(fd, bytes, len, offset);
    if (is_full()) {
        errno = ENOSPC;
        return -1;
    }
    pthread_mutex_lock(&lock);
    record_old('W', fd, offset, len);
    ssize_t done = real_pwrite64(fd, bytes, len, offset);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    char path[PATH_MAX];
    if (log_fd < 0 || !fd_path(fd, path))
        return real_writev(fd, parts, count);
    if (is_full()) {
        errno = ENOSPC;
        return -1;
    }
    uint64_t len = 0;
    for (int at = 0; at < count; at++)
        len += parts[at].iov_len;
    pthread_mutex_lock(&lock);
    record_old('W', fd, position(fd), len);
    ssize_t done = real_writev(fd, parts, count);
    pthread_mutex_unlock(&lock);
    return done;
}

int ftruncate64(int fd, off64_t len) {
    REAL(int, ftruncate64, int, off64_t);
    char path[PATH_MAX];
    if (log_fd < 0 || !fd_path(fd, path))
        return real_ftruncate64(fd, len);
    pthread_mutex_lock(&lock);
    struct stat file;
    uint64_t cut = fstat(fd, &file) == 0 && file.st_size > len ? file.st_size - len : 0;
    record_old('T', fd, len, cut);
    int result = real_ftruncate64(fd, len);
    pthread_mutex_unlock(&lock);
    return result;
}

static int sync_with(int fd, int (*real)(int)) {
    char path[PATH_MAX];
    if (log_fd < 0 || !fd_path(fd, path))
        return real(fd);
    if (is_failing(path)) {
        errno = EIO;
        return -1;
    }
    pthread_mutex_lock(&lock);
    if (syncs_left >= 0 && syncs_left-- == 0) {
        syncs_left = 0;
        pthread_mutex_unlock(&lock);
        errno = EIO;
        return -1;
    }
    int result = real(fd);
    struct stat file;
    if (result == 0 && fstat(fd, &file) == 0)
        record(S_ISDIR(file.st_mode) ? 'D' : 'S', file.st_ino, path, 0, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int fsync(int fd) {
    REAL(int, fsync, int);
    return sync_with(fd, real_fsync);
}

int fdatasync(int fd) {
    REAL(int, fdatasync, int);
    return sync_with(fd, real_fdatasync);
}

static int open_recorded(const char *path, int flags, mode_t mode) {
    int is_new = log_fd >= 0 && (flags & O_CREAT) && watched(path) && access(path, F_OK) != 0;
    if (is_new && is_full()) {
        errno = ENOSPC;
        return -1;
    }
    if (!is_new)
        return raw_open(path, flags, mode);
    pthread_mutex_lock(&lock);
    int fd = raw_open(path, flags, mode);
    struct stat file;
    if (fd >= 0 && fstat(fd, &file) == 0)
        record('C', file.st_ino, path, 0, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
    return fd;
}

int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open_recorded(path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open_recorded(path, flags, mode);
}

int unlink(const char *path) {
    REAL(int, unlink, const char *);
    if (log_fd < 0 || !watched(path))
        return real_unlink(path);
    pthread_mutex_lock(&lock);
    char saved[PATH_MAX + 32];
    struct stat file;
    int known = stat(path, &file) == 0;
    snprintf(saved, sizeof saved, "%s/%d-%lu", keep, getpid(), kept++);
    int linked = link(path, saved) == 0;
    int result = real_unlink(path);
    if (result == 0 && known && linked)
        record('U', file.st_ino, path, 0, saved, strlen(saved), file.st_size);
    pthread_mutex_unlock(&lock);
    return result;
}
