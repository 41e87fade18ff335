/* Preloaded into ranks, for what more ranks than cores bring out.
 *
 * Open MPI, told to, offers its core to others whenever it has found nothing to do, and asks again at once: ranks that wait for
 * one that was stopped keep all cores busy, and other tests and builds wait. MPICH over UCX never offers it:
 * each message then costs a slice of the scheduler. A rank that has found nothing to do for a while sleeps a moment instead.
 *
 * MPICH's MPI_Finalize closes the connections and then waits for the launcher in a plain read. Over TCP, closing
 * one needs the peer to answer; a peer that was quicker sits in that read and never does (MPICH 4.0.2 with
 * UCX 1.13: one run in six never ended). Here it answers while it waits.
 *
 * It overrides functions that the MPI library calls; where that uses something else, it does nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A moment, longer where the wait has been long. */
static void rest(int idle) {
    struct timespec moment = {0, idle < 400 ? 20000 : 500000};
    nanosleep(&moment, 0);
}

/* Open MPI calls this after each look that found nothing. */
int sched_yield(void) {
    static __thread int idle;
    static __thread long before;
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    long now = used.tv_sec * 1000000000L + used.tv_nsec;
    /* More than a look: it has worked in between. After a rest a look takes longer, its caches being cold. */
    if (now - before > (idle > 100 ? 300000 : 30000))
        idle = 0;
    before = now;
    if (++idle <= 100)
        return syscall(SYS_sched_yield);
    rest(idle);
    return 0;
}

static void *worker_in_use;

static unsigned progress(void *worker) {
    static unsigned (*real)(void *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "ucp_worker_progress");
    return real(worker);
}

unsigned ucp_worker_progress(void *worker) {
    static int idle;
    worker_in_use = worker;
    unsigned done = progress(worker);
    if (done) {
        idle = 0;
    } else if (++idle > 200) {
        rest(idle);
    }
    return done;
}

void ucp_worker_destroy(void *worker) {
    static void (*real)(void *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "ucp_worker_destroy");
    worker_in_use = 0;
    real(worker);
}

ssize_t read(int fd, void *to, size_t most) {
    static ssize_t (*real)(int, void *, size_t);
    static int launcher = -2;
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "read");
    if (launcher == -2)
        launcher = getenv("PMI_FD") ? atoi(getenv("PMI_FD")) : -1;
    if (fd == launcher) {
        struct pollfd ready = {fd, POLLIN, 0};
        while (worker_in_use && poll(&ready, 1, 1) == 0)
            progress(worker_in_use);
    }
    return real(fd, to, most);
}
