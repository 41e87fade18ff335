/* Preloaded into ranks under MPICH, which waits without ever giving the core away: with more ranks
 * than cores each message then costs a slice of the scheduler. A rank that has found nothing to do
 * for a while sleeps a moment instead. It overrides the function of UCX that MPICH polls; where
 * MPICH uses something else, it does nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

unsigned ucp_worker_progress(void *worker) {
    static unsigned (*progress)(void *);
    static int idle;
    if (!progress)
        *(void **)&progress = dlsym(RTLD_NEXT, "ucp_worker_progress");
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
