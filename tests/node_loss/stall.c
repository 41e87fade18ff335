/* A file system that hangs: calls that touch a path wait as long as the file that STALL names has a line with which the
 * path begins. The first call that hangs is noted in that file's name with ".seen" at its end.
 * Loaded before the C library into the processes whose file system it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int hangs(const char *path)
{
    const char *list = getenv("STALL");
    char text[4096], seen[4096];
    if (!list || !path || path[0] != '/')
        return 0;
    int fd = syscall(SYS_openat, AT_FDCWD, list, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    ssize_t length = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    text[length > 0 ? length : 0] = 0;
    for (char *next = text, *line; (line = strsep(&next, "\n"));)
        if (line[0] && strncmp(path, line, strlen(line)) == 0) {
            snprintf(seen, sizeof seen, "%s.seen", list);
            fd = syscall(SYS_openat, AT_FDCWD, seen, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
            if (fd >= 0)
                syscall(SYS_close, fd);
            return 1;
        }
    return 0;
}

static void path_waits(const char *path)
{
    struct timespec moment = {0, 20 * 1000 * 1000};
    while (hangs(path))
        nanosleep(&moment, NULL);
}

static void file_waits(int fd)
{
    char link[64], path[4096];
    if (!getenv("STALL"))
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length > 0) {
        path[length] = 0;
        path_waits(path);
    }
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define BY_PATH(type, name, arguments, path, call) \
    type name arguments { path_waits(path); return REAL(name) call; }
#define BY_FILE(type, name, arguments, call) \
    type name arguments { file_waits(fd); return REAL(name) call; }

#define OPENS(name) \
    int name(const char *path, int flags, ...) \
    { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        path_waits(path); \
        return REAL(name)(path, flags, mode); \
    }

OPENS(open)
OPENS(open64)
/* A process that starts a program waits until it is found. */
int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const words[], char *const environment[])
{
    char folders[4096], path[8192];
    snprintf(folders, sizeof folders, "%s", getenv("PATH") ? getenv("PATH") : "");
    for (char *next = folders, *folder; !strchr(file, '/') && (folder = strsep(&next, ":"));) {
        snprintf(path, sizeof path, "%s/%s", folder, file);
        path_waits(path);
    }
    return REAL(posix_spawnp)(pid, file, actions, attributes, words, environment);
}

BY_PATH(int, access, (const char *path, int mode), path, (path, mode))
BY_PATH(int, stat, (const char *path, struct stat *into), path, (path, into))
BY_PATH(int, stat64, (const char *path, struct stat64 *into), path, (path, into))
BY_PATH(int, statx, (int at, const char *path, int flags, unsigned mask, struct statx *into), path,
        (at, path, flags, mask, into))
BY_PATH(int, chmod, (const char *path, mode_t mode), path, (path, mode))
BY_PATH(int, rename, (const char *path, const char *to), path, (path, to))
BY_PATH(int, unlink, (const char *path), path, (path))
BY_PATH(int, rmdir, (const char *path), path, (path))
BY_PATH(int, mkdir, (const char *path, mode_t mode), path, (path, mode))
BY_FILE(ssize_t, read, (int fd, void *into, size_t size), (fd, into, size))
BY_FILE(ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size))
BY_FILE(ssize_t, writev, (int fd, const struct iovec *from, int count), (fd, from, count))
BY_FILE(ssize_t, pread64, (int fd, void *into, size_t size, off64_t at), (fd, into, size, at))
BY_FILE(ssize_t, pwrite64, (int fd, const void *from, size_t size, off64_t at), (fd, from, size, at))
BY_FILE(int, fsync, (int fd), (fd))
BY_FILE(int, fdatasync, (int fd), (fd))
BY_FILE(int, ftruncate64, (int fd, off64_t size), (fd, size))
