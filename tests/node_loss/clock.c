/* The clock on the wall as the tests set it: so many seconds ahead as the file says that CLOCK_STEP names.
 * Loaded before the C library into the processes whose clock is set. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long ahead(void)
{
    long seconds = 0;
    const char *path = getenv("CLOCK_STEP");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file) {
        if (fscanf(file, "%ld", &seconds) != 1)
            seconds = 0;
        fclose(file);
    }
    return seconds;
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    int status = syscall(SYS_clock_gettime, id, now);
    if (status == 0 && id == CLOCK_REALTIME)
        now->tv_sec += ahead();
    return status;
}
