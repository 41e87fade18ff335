/* Preloaded into ranks under MPICH over UCX, for two things that more ranks than cores bring out.
 *
 * MPICH waits without ever giving the core away: each message then costs a slice of the scheduler. A
 * rank that has found nothing to do for a while sleeps a moment instead.
 *
 * MPI_Finalize closes the connections and then waits for the launcher in a plain read. Over TCP, closing
 * one needs the peer to answer; a peer that was quicker sits in that read and never does (MPICH 4.0.2 with
 * UCX 1.13: one run in six never ended). Here it answers while it waits.
 *
 * It overrides functions of UCX that MPICH calls; where MPICH uses something else, it does nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

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
        struct timespec moment = {0, 20000};
        idle = 100;
        nanosleep(&moment, 0);
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
