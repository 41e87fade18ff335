/* A stand-in for libcuda, libcublas and libnvrtc: computes on the processor, at once, what the program asks a device for.
 *
 * Refuses addresses that are neither memory of the device nor pinned. An event passes when it is asked for the second time.
 * CUDA_FAILS="FUNCTION NUMBER STATUS" makes one call fail: that of this number, from 1 on. CUDA_DEVICES sets the number of devices.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define INVALID 1
#define NOT_READY 600

/* Returns the status of this call of `name`: 0, or what the variable says. */
static int status_of(const char *name, int *calls)
{
    char wanted[64];
    int number, status;
    const char *fails = getenv("CUDA_FAILS");
    *calls += 1;
    return fails && sscanf(fails, "%63s %d %d", wanted, &number, &status) == 3 && !strcmp(wanted, name) && number == *calls
        ? status : 0;
}
#define BEGIN(name) do { static int calls; int status = status_of(name, &calls); if (status) return status; } while (0)

struct range { uintptr_t at; size_t bytes; int on_device; struct range *next; };
static struct range *ranges;

static void add(void *at, size_t bytes, int on_device)
{
    struct range *range = malloc(sizeof *range);
    *range = (struct range){(uintptr_t)at, bytes, on_device, ranges};
    ranges = range;
}
static int take(void *at, int on_device)
{
    for (struct range **link = &ranges; *link; link = &(*link)->next) {
        struct range *range = *link;
        if (range->at == (uintptr_t)at && range->on_device == on_device) {
            *link = range->next;
            free(range);
            return 0;
        }
    }
    return INVALID;
}
/* Whether `rows` rows of `width` bytes, `pitch` bytes apart, are known memory; of the device, if `on_device`. */
static int known(const void *at, size_t rows, size_t width, size_t pitch, int on_device)
{
    uintptr_t begin = (uintptr_t)at, end = begin + (rows - 1) * pitch + width;
    for (struct range *range = ranges; range; range = range->next)
        if ((range->on_device || !on_device) && range->at <= begin && end <= range->at + range->bytes)
            return 1;
    return 0;
}

/* The driver. */
static char context, stream;
int cuInit(unsigned flags) { BEGIN("cuInit"); return flags; }
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuGetErrorName(int status, const char **name) { *name = status == 214 ? "CUDA_ERROR_ECC_UNCORRECTABLE" : "CUDA_ERROR"; return 0; }
int cuGetErrorString(int status, const char **text) { (void)status; *text = "a stand-in's error"; return 0; }
int cuDeviceGetCount(int *count)
{
    BEGIN("cuDeviceGetCount");
    const char *devices = getenv("CUDA_DEVICES");
    *count = devices ? atoi(devices) : 2;
    return 0;
}
int cuDeviceGet(int *device, int number) { BEGIN("cuDeviceGet"); *device = number; return 0; }
int cuDeviceGetName(char *name, int len, int device) { snprintf(name, len, "Stand-in %d", device); return 0; }
int cuDeviceGetPCIBusId(char *name, int len, int device) { snprintf(name, len, "0000:%02d:00.0", device); return 0; }
int cuDeviceGetAttribute(int *value, int which, int device)
{
    BEGIN("cuDeviceGetAttribute");
    (void)device;
    *value = which == 75 ? 9 : which == 76 ? 0 : 1;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **made, int device) { BEGIN("cuDevicePrimaryCtxRetain"); (void)device; *made = &context; return 0; }
int cuCtxSetCurrent(void *set) { BEGIN("cuCtxSetCurrent"); return set == &context ? 0 : INVALID; }
int cuMemAlloc_v2(void **at, size_t bytes)
{
    BEGIN("cuMemAlloc");
    *at = malloc(bytes);
    add(*at, bytes, 1);
    return 0;
}
int cuMemFree_v2(void *at) { BEGIN("cuMemFree"); int status = take(at, 1); if (!status) free(at); return status; }
int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    BEGIN("cuMemHostRegister");
    add(at, bytes, 0);
    return flags == 3 ? 0 : INVALID;
}
int cuMemHostUnregister(void *at) { BEGIN("cuMemHostUnregister"); return take(at, 0); }
int cuMemcpyAsync(void *to, void *from, size_t bytes, void *in)
{
    BEGIN("cuMemcpyAsync");
    if (in != &stream || !known(to, 1, bytes, bytes, 0) || !known(from, 1, bytes, bytes, 0))
        return INVALID;
    memcpy(to, from, bytes);
    return 0;
}
struct side { size_t x, y; unsigned kind; const void *host; void *device; void *array; size_t pitch; };
struct copy { struct side from, to; size_t width, height; };
int cuMemcpy2DAsync_v2(const struct copy *copy, void *in)
{
    BEGIN("cuMemcpy2DAsync");
    const struct side *from = &copy->from, *to = &copy->to;
    if (in != &stream || from->kind != 4 || to->kind != 4 || from->pitch < copy->width || to->pitch < copy->width
        || !known(to->device, copy->height, copy->width, to->pitch, 0)
        || !known(from->device, copy->height, copy->width, from->pitch, 0))
        return INVALID;
    for (size_t row = 0; row < copy->height; row++)
        memcpy((char *)to->device + row * to->pitch, (char *)from->device + row * from->pitch, copy->width);
    return 0;
}
int cuStreamCreateWithPriority(void **made, unsigned flags, int priority)
{
    BEGIN("cuStreamCreateWithPriority");
    *made = &stream;
    return flags == 1 && priority <= 0 ? 0 : INVALID;
}
int cuStreamWaitEvent(void *in, void *event, unsigned flags) { BEGIN("cuStreamWaitEvent"); return in == &stream && event && !flags ? 0 : INVALID; }
int cuEventCreate(int **made, unsigned flags) { BEGIN("cuEventCreate"); *made = calloc(1, sizeof **made); return flags == 2 ? 0 : INVALID; }
int cuEventRecord(int *event, void *in) { BEGIN("cuEventRecord"); *event = 1; return in == &stream ? 0 : INVALID; }
int cuEventQuery(int *event) { BEGIN("cuEventQuery"); return (*event)-- > 0 ? NOT_READY : 0; }
int cuEventSynchronize(int *event) { BEGIN("cuEventSynchronize"); *event = 0; return 0; }
/* The module is the source, since the compiler below leaves it as it is. */
static const char *module;
int cuModuleLoadData(void **made, const void *code) { BEGIN("cuModuleLoadData"); *made = &module; module = strdup(code); return 0; }
int cuModuleGetFunction(void **found, void *in, const char *name)
{
    char declared[64];
    BEGIN("cuModuleGetFunction");
    snprintf(declared, sizeof declared, "__global__ void %s(", name);
    *found = strdup(name);
    return in == &module && strstr(module, declared) ? 0 : 500;
}
struct rows { unsigned from[480], to[480]; };
static int copy_rows(const double *from, size_t from_ld, double *to, size_t to_ld, size_t cols, const struct rows *rows, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        const double *source = from + rows->from[i] * from_ld;
        double *destination = to + rows->to[i] * to_ld;
        if (!known(source, 1, cols * 8, 0, 0) || !known(destination, 1, cols * 8, 0, 0))
            return 700;
        memcpy(destination, source, cols * 8);
    }
    return 0;
}
static int transpose(const double *from, size_t from_ld, double *to, size_t to_ld, size_t rows, size_t cols)
{
    if (!known(from, rows, cols * 8, from_ld * 8, 1) || !known(to, cols, rows * 8, to_ld * 8, 1))
        return 700;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            to[j * to_ld + i] = from[i * from_ld + j];
    return 0;
}
struct step {
    double *w;
    size_t ld, first, end, width;
    long long place;
    const double *row;
    long long divided;
    double pivot;
    long long j;
    size_t start;
    long long right;
    const double *factors;
    size_t count;
};
static int is_larger(double best, double next)
{
    return next > best || (best != best && next >= 0) || (best == -1 && next != next);
}
/* One block does the whole step. */
static int step(const struct step *s, double *best)
{
    double *column = s->w + s->j * (long long)s->ld;
    if (!known(s->w + s->first, s->width, (s->end - s->first) * 8, s->ld * 8, 1) || !known(best, 1, 16, 0, 1)
        || (s->place >= 0 && !known(s->row, 1, s->width * 8, 0, 0)) || (s->count && !known(s->factors, 1, s->count * 8, 0, 0)))
        return 700;
    best[0] = -1;
    if (s->place >= (long long)s->first && s->place < (long long)s->end)
        for (size_t t = 0; t < s->width; t++)
            s->w[t * s->ld + s->place] = s->row[t];
    for (size_t r = s->first; r < s->end; r++) {
        if (s->divided >= 0)
            s->w[s->divided * s->ld + r] /= s->pivot;
        if (s->j < 0)
            continue;
        for (size_t t = 0; t < s->count; t++)
            if (s->right)
                column[t * s->ld + r] -= s->factors[t] * column[r - s->ld];
            else
                column[r] -= s->factors[t] * s->w[(s->start + t) * s->ld + r];
        double magnitude = column[r] < 0 ? -column[r] : column[r];
        if (is_larger(best[0], magnitude)) {
            best[0] = magnitude;
            best[1] = r;
        }
    }
    return 0;
}
static int found(const struct step *s, const double *best, size_t current, double *result)
{
    if (!known(result, 1, (2 + 2 * s->width) * 8, 0, 0) || s->j < 0)
        return 700;
    result[0] = best[0];
    result[1] = best[1];
    for (size_t t = 0; t < s->width; t++) {
        result[2 + t] = s->w[t * s->ld + (size_t)best[1]];
        result[2 + s->width + t] = s->w[t * s->ld + current];
    }
    return 0;
}
#define A(type, i) (*(type *)arguments[i])
int cuLaunchKernel(const char *name, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned down, unsigned deep,
    unsigned shared, void *in, void **arguments, void **extra)
{
    BEGIN("cuLaunchKernel");
    if (in != &stream || !x || !y || y > 65535 || z != 1 || threads * down > 1024 || !threads || deep != 1 || shared || extra)
        return INVALID;
    if (!strcmp(name, "copy_rows") && y <= 480)
        return copy_rows(A(double *, 0), A(size_t, 1), A(double *, 2), A(size_t, 3), A(size_t, 4), arguments[5], y);
    if (!strcmp(name, "transpose") && threads == 32 && down == 8)
        return transpose(A(double *, 0), A(size_t, 1), A(double *, 2), A(size_t, 3), A(size_t, 4), A(size_t, 5));
    if (!strcmp(name, "step") && threads == 256 && x <= 256)
        return step(arguments[0], A(double *, 1));
    if (!strcmp(name, "found") && threads == 256 && x == 1)
        return found(arguments[0], A(double *, 1), A(size_t, 3), A(double *, 4));
    return INVALID;
}

/* cuBLAS: the shapes that the program asks for. Matrices are stored by columns. */
static char blas;
int cublasCreate_v2(void **made) { BEGIN("cublasCreate"); *made = &blas; return 0; }
int cublasGetVersion_v2(void *handle, int *version) { BEGIN("cublasGetVersion"); *version = 120804; return handle == &blas ? 0 : 7; }
int cublasSetStream_v2(void *handle, void *in) { BEGIN("cublasSetStream"); return handle == &blas && in == &stream ? 0 : 7; }
int cublasDgemm_v2(void *handle, int ta, int tb, int m, int n, int k, const double *alpha, const double *a, int lda,
    const double *b, int ldb, const double *beta, double *c, int ldc)
{
    BEGIN("cublasDgemm");
    if (handle != &blas || ta || *alpha != -1 || *beta != 1 || lda < m || ldb < (tb ? n : k) || ldc < m
        || !known(a, k, m * 8, lda * 8UL, 1) || !known(b, tb ? k : n, (tb ? n : k) * 8, ldb * 8UL, 1)
        || !known(c, n, m * 8, ldc * 8UL, 1))
        return 7;
    for (int j = 0; j < n; j++)
        for (int p = 0; p < k; p++)
            for (int i = 0; i < m; i++)
                c[i + j * (size_t)ldc] -= a[i + p * (size_t)lda] * (tb ? b[j + p * (size_t)ldb] : b[p + j * (size_t)ldb]);
    return 0;
}
/* B(m x n) := B T^-1 or B T^-T for a triangle T with ones on its diagonal: upper in the first case, lower in the second. */
int cublasDtrsm_v2(void *handle, int right, int upper, int transposed, int unit, int m, int n, const double *alpha,
    const double *t, int ldt, double *b, int ldb)
{
    BEGIN("cublasDtrsm");
    if (handle != &blas || !right || !unit || *alpha != 1 || upper == transposed || ldt < n || ldb < m
        || !known(t, n, n * 8, ldt * 8UL, 1) || !known(b, n, m * 8, ldb * 8UL, 1))
        return 7;
    for (int j = 0; j < n; j++)
        for (int p = 0; p < j; p++) {
            double factor = upper ? t[p + j * (size_t)ldt] : t[j + p * (size_t)ldt];
            for (int i = 0; i < m; i++)
                b[i + j * (size_t)ldb] -= factor * b[i + p * (size_t)ldb];
        }
    return 0;
}

/* NVML. */
int nvmlInit_v2(void) { BEGIN("nvmlInit"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { BEGIN("nvmlDeviceGetCount"); *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **found) { BEGIN("nvmlDeviceGetHandleByIndex"); *found = (char *)&context + number; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned len) { snprintf(name, len, "Stand-in %d", (int)((char *)device - &context)); return 0; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *bytes)
{
    BEGIN("nvmlDeviceGetMemoryInfo");
    (void)device;
    bytes[0] = 1ull << 30, bytes[1] = 1ull << 29, bytes[2] = 1ull << 29;
    return 0;
}
int nvmlDeviceGetEccMode(void *device, int *now, int *later) { BEGIN("nvmlDeviceGetEccMode"); (void)device; *now = *later = 1; return 0; }
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *errors)
{
    BEGIN("nvmlDeviceGetTotalEccErrors");
    (void)device;
    *errors = 0;
    return type == 1 && counter == 0 ? 0 : 2;
}
/* Each device takes 200 W. */
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules)
{
    BEGIN("nvmlDeviceGetTotalEnergyConsumption");
    struct timespec now;
    (void)device;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *millijoules = 200000ull * now.tv_sec + now.tv_nsec / 5000;
    return 0;
}
int nvmlDeviceGetClockInfo(void *device, int which, unsigned *mhz) { BEGIN("nvmlDeviceGetClockInfo"); (void)device; *mhz = 1200; return which == 1 ? 0 : 2; }
int nvmlDeviceGetMaxClockInfo(void *device, int which, unsigned *mhz) { BEGIN("nvmlDeviceGetMaxClockInfo"); (void)device; *mhz = 1980; return which == 1 ? 0 : 2; }

/* NVRTC: the code of a program is its source. */
int nvrtcCreateProgram(char **made, const char *source, const char *name, int headers, void *a, void *b)
{
    BEGIN("nvrtcCreateProgram");
    (void)name, (void)headers, (void)a, (void)b;
    *made = strdup(source);
    return 0;
}
int nvrtcCompileProgram(char *program, int count, const char **options)
{
    BEGIN("nvrtcCompileProgram");
    return program && count == 1 && !strcmp(options[0], "--gpu-architecture=sm_90") ? 0 : 5;
}
int nvrtcGetProgramLogSize(char *program, size_t *len) { (void)program; *len = 20; return 0; }
int nvrtcGetProgramLog(char *program, char *log) { (void)program; strcpy(log, "a stand-in's\nlog"); return 0; }
int nvrtcGetCUBINSize(char *program, size_t *len) { BEGIN("nvrtcGetCUBINSize"); *len = strlen(program) + 1; return 0; }
int nvrtcGetCUBIN(char *program, char *code) { BEGIN("nvrtcGetCUBIN"); strcpy(code, program); return 0; }
int nvrtcDestroyProgram(char **program) { free(*program); return 0; }
