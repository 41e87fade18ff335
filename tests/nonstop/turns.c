/* Preloaded into ranks: ends those of which two threads are at a time in the calls below, which a run spends its time in, and has
 * some of them take longer, so that threads that do not wait for each other surely meet there. With GARBLE, what is agreed on is
 * an address like the one that the library puts there. For Open MPI, whose handles are pointers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void linger(long milliseconds)
{
    struct timespec time = {0, milliseconds * 1000000};
    nanosleep(&time, 0);
}

static int inside;

static void enter(void)
{
    static const char words[] = "two threads are in the MPI library at a time\n";
    if (__atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST)) {
        if (write(2, words, sizeof words - 1) < 0)
            _exit(1);
        abort();
    }
}

static int leave(int result)
{
    __atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
    return result;
}

/* The library's own function of that name. */
#define REAL(name)                                                                                                                \
    static __typeof__(name) *real;                                                                                                \
    if (!real)                                                                                                                    \
        *(void **)&real = dlsym(RTLD_NEXT, #name);                                                                                \
    enter()

int MPIX_Comm_agree(void *comm, int *flag)
{
    REAL(MPIX_Comm_agree);
    linger(60);
    int result = leave(real(comm, flag));
    if (getenv("GARBLE"))
        *flag = ((int)(long)flag & ~15) | 8;
    return result;
}

int MPIX_Comm_revoke(void *comm)
{
    REAL(MPIX_Comm_revoke);
    return leave(real(comm));
}

int MPI_Iprobe(int from, int tag, void *comm, int *there, void *status)
{
    REAL(MPI_Iprobe);
    if (comm == dlsym(RTLD_DEFAULT, "ompi_mpi_comm_self"))
        linger(20);
    return leave(real(from, tag, comm, there, status));
}

int MPI_Request_get_status(void *request, int *there, void *status)
{
    REAL(MPI_Request_get_status);
    return leave(real(request, there, status));
}

int MPI_Isend(const void *data, int count, void *type, int to, int tag, void *comm, void **request)
{
    REAL(MPI_Isend);
    return leave(real(data, count, type, to, tag, comm, request));
}

int MPI_Irecv(void *data, int count, void *type, int from, int tag, void *comm, void **request)
{
    REAL(MPI_Irecv);
    return leave(real(data, count, type, from, tag, comm, request));
}

int MPI_Waitall(int count, void **requests, void *statuses)
{
    REAL(MPI_Waitall);
    return leave(real(count, requests, statuses));
}

int MPI_Allreduce(const void *own, void *all, int count, void *type, void *op, void *comm)
{
    REAL(MPI_Allreduce);
    return leave(real(own, all, count, type, op, comm));
}
