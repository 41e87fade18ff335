/* A stand-in for libcuda, libcublas and libnvrtc: computes on the processor, at once, what the program asks a device for.
 *
 * Refuses addresses that are neither memory of the device nor pinned. An event passes when it is asked for the second time.
 * CUDA_FAILS="FUNCTION NUMBER STATUS" makes one call fail: that of this number, from 1 on. CUDA_DEVICES sets the number of devices.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
int cuStreamCreate(void **made, unsigned flags) { BEGIN("cuStreamCreate"); *made = &stream; return flags == 1 ? 0 : INVALID; }
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
int cuLaunchKernel(const char *name, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
    unsigned shared, void *in, void **arguments, void **extra)
{
    BEGIN("cuLaunchKernel");
    if (in != &stream || strcmp(name, "copy_rows") || !x || y > 480 || z != 1 || !threads || ty != 1 || tz != 1 || shared || extra)
        return INVALID;
    const double *from = *(double **)arguments[0];
    double *to = *(double **)arguments[2];
    size_t from_ld = *(size_t *)arguments[1], to_ld = *(size_t *)arguments[3], cols = *(size_t *)arguments[4];
    const struct rows *rows = arguments[5];
    for (unsigned i = 0; i < y; i++) {
        const double *source = from + rows->from[i] * from_ld;
        double *destination = to + rows->to[i] * to_ld;
        if (!known(source, 1, cols * 8, 0, 0) || !known(destination, 1, cols * 8, 0, 0))
            return 700;
        memcpy(destination, source, cols * 8);
    }
    return 0;
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
    if (handle != &blas || ta || tb || *alpha != -1 || *beta != 1 || lda < m || ldb < k || ldc < m
        || !known(a, k, m * 8, lda * 8UL, 1) || !known(b, n, k * 8, ldb * 8UL, 1) || !known(c, n, m * 8, ldc * 8UL, 1))
        return 7;
    for (int j = 0; j < n; j++)
        for (int p = 0; p < k; p++)
            for (int i = 0; i < m; i++)
                c[i + j * (size_t)ldc] -= a[i + p * (size_t)lda] * b[p + j * (size_t)ldb];
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
