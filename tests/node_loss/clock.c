/* The clock on the wall as the tests set it: so many seconds ahead as the file says that CLOCK_STEP names.
 * Loaded before the C library into the processes whose clock is set; another file, with that one's name and the process's number at its
 * end, says that it has been told another time. */
#define _GNU_SOURCE
#include <fcntl.h>
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

static void tell(void)
{
    static int told;
    char path[4096];
    if (told)
        return;
    told = 1;
    snprintf(path, sizeof path, "%s.%d", getenv("CLOCK_STEP"), (int)getpid());
    close(open(path, O_CREAT | O_WRONLY, 0600));
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    int status = syscall(SYS_clock_gettime, id, now);
    if (status == 0 && id == CLOCK_REALTIME) {
        long seconds = ahead();
        now->tv_sec += seconds;
        if (seconds)
            tell();
    }
    return status;
}
