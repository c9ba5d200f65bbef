/* Failing system calls, for LD_PRELOAD: the n-th call of one kind on files below one folder fails in one way.
 *
 * A forked child arms it with preload_arm(folder, call, fault, nth) and is then the program under attack. Unarmed, every
 * call goes through. What it does not know it passes on; it keeps no state but the one fault and its counter. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum fault { NONE, ERRNO, SHORT, TORN_KILL, KILL_BEFORE, KILL_AFTER, LOST, FLIP };

static char folder[4096];
static char armed_call[32];
static int fault, code, nth, count;

void preload_arm(const char *in, const char *call, int how, int error, int place)
{
    strncpy(folder, in, sizeof folder - 1);
    strncpy(armed_call, call, sizeof armed_call - 1);
    fault = how, code = error, nth = place, count = 0;
}

int preload_count(void)
{
    return count;
}

static int strikes_path(const char *call, const char *path)
{
    if (fault == NONE || strcmp(call, armed_call) || strncmp(path, folder, strlen(folder)))
        return 0;
    return __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST) == nth;
}

static int strikes(const char *call, int fd)
{
    char link[64], path[4096];
    if (fault == NONE || strcmp(call, armed_call))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return strikes_path(call, path);
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* How a call without data fails; 1 if the caller must return `*result`, 0 if the call is to be made. */
static int plain(int struck, long *result)
{
    if (!struck)
        return 0;
    if (fault == ERRNO) {
        errno = code;
        *result = -1;
        return 1;
    }
    if (fault == LOST) {
        *result = 0;
        return 1;
    }
    if (fault == KILL_BEFORE || fault == TORN_KILL)
        die();
    return 0;
}

static void after(int struck)
{
    if (struck && fault == KILL_AFTER)
        die();
}

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

static ssize_t broken_pwrite(int fd, const void *data, size_t length, off_t offset)
{
    __typeof__(pwrite) *real = REAL(pwrite);
    if (!strikes("pwrite", fd))
        return real(fd, data, length, offset);
    /* Halves at a multiple of 512, as O_DIRECT demands. */
    size_t half = length / 2 & ~(size_t)511;
    switch (fault) {
    case ERRNO:
        errno = code;
        return -1;
    case SHORT:
        return half ? real(fd, data, half, offset) : 0;
    case TORN_KILL:
        real(fd, data, half, offset);
        die();
    case KILL_BEFORE:
        die();
    case KILL_AFTER:
        real(fd, data, length, offset);
        die();
    case LOST:
        return length;
    case FLIP: {
        void *copy;
        if (posix_memalign(&copy, 4096, length))
            abort();
        memcpy(copy, data, length);
        ((unsigned char *)copy)[length * (nth % 7) / 7] ^= 1 << nth % 8;
        ssize_t taken = real(fd, copy, length, offset);
        free(copy);
        return taken;
    }
    }
    return real(fd, data, length, offset);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return broken_pwrite(fd, data, length, offset); }
ssize_t pwrite64(int fd, const void *data, size_t length, off_t offset) { return broken_pwrite(fd, data, length, offset); }

/* Python's pwritev passes one buffer where it is given one; more would be split here, which the journal never asks for. */
ssize_t pwritev2(int fd, const struct iovec *parts, int number, off_t offset, int flags)
{
    if (number == 1 && fault != NONE && !strcmp(armed_call, "pwrite"))
        return broken_pwrite(fd, parts[0].iov_base, parts[0].iov_len, offset);
    return REAL(pwritev2)(fd, parts, number, offset, flags);
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int number, off_t offset, int flags) { return pwritev2(fd, parts, number, offset, flags); }
ssize_t pwritev(int fd, const struct iovec *parts, int number, off_t offset)
{
    if (number == 1 && fault != NONE && !strcmp(armed_call, "pwrite"))
        return broken_pwrite(fd, parts[0].iov_base, parts[0].iov_len, offset);
    return REAL(pwritev)(fd, parts, number, offset);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int number, off_t offset) { return pwritev(fd, parts, number, offset); }

#define SIMPLE(call, name, arguments, on, values)          \
    int name arguments                                     \
    {                                                      \
        long result;                                       \
        int struck = on;                                   \
        if (plain(struck, &result))                        \
            return (int)result;                            \
        result = REAL(name) values;                        \
        after(struck);                                     \
        return (int)result;                                \
    }

SIMPLE("fsync", fsync, (int fd), strikes("fsync", fd), (fd))
SIMPLE("fdatasync", fdatasync, (int fd), strikes("fdatasync", fd), (fd))
SIMPLE("fallocate", fallocate64, (int fd, int mode, off_t at, off_t length), strikes("fallocate", fd), (fd, mode, at, length))
SIMPLE("fallocate", posix_fallocate64, (int fd, off_t at, off_t length), strikes("fallocate", fd), (fd, at, length))
SIMPLE("ftruncate", ftruncate, (int fd, off_t length), strikes("ftruncate", fd), (fd, length))
SIMPLE("ftruncate", ftruncate64, (int fd, off_t length), strikes("ftruncate", fd), (fd, length))
SIMPLE("rename", rename, (const char *from, const char *to), strikes_path("rename", from), (from, to))
SIMPLE("unlink", unlink, (const char *path), strikes_path("unlink", path), (path))

#define OPEN(name)                                         \
    int name(const char *path, int flags, ...)             \
    {                                                      \
        va_list more;                                      \
        va_start(more, flags);                             \
        int mode = va_arg(more, int);                      \
        va_end(more);                                      \
        long result;                                       \
        int struck = strikes_path("open", path);           \
        if (plain(struck, &result))                        \
            return (int)result;                            \
        result = REAL(name)(path, flags, mode);            \
        after(struck);                                     \
        return (int)result;                                \
    }

OPEN(open)
OPEN(open64)
