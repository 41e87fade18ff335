/* The three routines of a BLAS that are called, slow and plain, under names and with integers as BUILD says:
 *
 *   -DINTEGER=int|long   the width of an integer
 *   -DNAME(x)=...        name of a routine
 *   -DFOR_C              by C's conventions instead of Fortran's
 *   -DWRONG              the product is not right
 *   -DBACKWARDS          sums go from the last to the first: the same to a few bits
 *   -DSETTER=...         variable that sets the threads of a call, each thread's for itself, at first eight; an int, or COUNT.
 *                        A process that calls with more than one is ended
 *   -DWAYS=...           variable that sets, in addition to SETTER, in how many ways each of five loops is split, at first
 *                        three of some loop; more than none count before the threads
 *   -DHANGS              and waits for ever where its variable asks for other kernels
 *   -DOPENBLAS=...       it says that it is OpenBLAS, by routines with this suffix
 *   -DCORE=...           then, the kernels that it was built with; it takes no others
 *   -DMKL                it says that it is MKL, with code for AVX2
 *   -DBLIS               it says that it is BLIS, built for an old processor alone: it ends a process that asks for
 *                        other kernels
 *   -DPRINTS             it prints when it is loaded
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef INTEGER integer;

#ifdef SETTER
#ifndef COUNT
#define COUNT int
#endif
static __thread COUNT threads = 8;
void SETTER(COUNT count) { threads = count; }
#ifdef WAYS
static __thread long ways = 3;
void WAYS(long jc, long pc, long ic, long jr, long ir) { ways = jc > pc ? jc : pc; (void)ic, (void)jr, (void)ir; }
#else
#define ways 0
#endif
#define ALONE() do if (threads != 1 || ways > 1) abort(); while (0)
#else
#define ALONE() (void)0
#endif

#ifdef OPENBLAS
#define JOINED(name, suffix) name##suffix
#define SUFFIXED(name, suffix) JOINED(name, suffix)
const char *SUFFIXED(openblas_get_config, OPENBLAS)(void) { return "OpenBLAS 0.3.99 DYNAMIC_ARCH USE64BITINT"; }
#ifndef CORE
#define CORE "Plain"
#endif
#ifdef HANGS
__attribute__((constructor)) static void hang(void) { while (getenv("OPENBLAS_CORETYPE")) sleep(1); }
#endif
const char *SUFFIXED(openblas_get_corename, OPENBLAS)(void) { return CORE; }
#endif

#ifdef MKL
void MKL_Get_Version_String(char *buffer, int len) { snprintf(buffer, len, "Math Kernel Library Version 2099.1-Product"); }
int MKL_CBWR_Get_Auto_Branch(void) { return 10; }
#endif

#ifdef BLIS
const char *bli_info_get_version_str(void) { return "1.0"; }
void bli_init(void) { if (getenv("BLIS_ARCH_TYPE")) abort(); }
int bli_arch_query_id(void) { return 7; }
const char *bli_arch_string(int id) { return id == 7 ? "penryn" : "?"; }
#endif

#ifdef PRINTS
__attribute__((constructor)) static void print(void) {
    printf("A license is\nneeded soon");
    fflush(stdout);
    printf(", not yet");
}
#endif

static double at(const double *a, integer ld, int transposed, integer i, integer j) {
    return transposed ? a[j + i * ld] : a[i + j * ld];
}

static void multiply(int ta, int tb, integer m, integer n, integer k, double alpha, const double *a, integer lda,
                     const double *b, integer ldb, double beta, double *c, integer ldc) {
    ALONE();
    for (integer j = 0; j < n; j++)
        for (integer i = 0; i < m; i++) {
            double sum = 0;
#ifdef BACKWARDS
            for (integer p = k - 1; p >= 0; p--) sum += at(a, lda, ta, i, p) * at(b, ldb, tb, p, j);
#else
            for (integer p = 0; p < k; p++) sum += at(a, lda, ta, i, p) * at(b, ldb, tb, p, j);
#endif
#ifdef WRONG
            sum += 1;
#endif
            c[i + j * ldc] = beta * c[i + j * ldc] + alpha * sum;
        }
}

/* A unit triangle T of order m left of X, or of order n right of it; alpha is taken for 1. */
static void solve(int right, int lower, int transposed, integer m, integer n, const double *t, integer ldt, double *x,
                  integer ldx) {
    ALONE();
    integer order = right ? n : m;
    /* From the end of T that stands alone: the first row of a lower one on the left, as it is seen transposed. */
    int forward = (lower != transposed) != right;
    for (integer at_ = 0; at_ < order; at_++) {
        integer i = forward ? at_ : order - 1 - at_;
        for (integer p = forward ? 0 : i + 1; p < (forward ? i : order); p++)
            for (integer j = 0; j < (right ? m : n); j++) {
                if (right)
                    x[j + i * ldx] -= x[j + p * ldx] * at(t, ldt, transposed, p, i);
                else
                    x[i + j * ldx] -= at(t, ldt, transposed, i, p) * x[p + j * ldx];
            }
    }
}

static double product(integer n, const double *x, integer incx, const double *y, integer incy) {
    double sum = 0;
    for (integer i = 0; i < n; i++) sum += x[i * incx] * y[i * incy];
    return sum;
}

#ifdef FOR_C
void NAME(dgemm)(int order, int ta, int tb, integer m, integer n, integer k, double alpha, const double *a,
                 integer lda, const double *b, integer ldb, double beta, double *c, integer ldc) {
    if (order == 102) multiply(ta == 112, tb == 112, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void NAME(dtrsm)(int order, int side, int uplo, int trans, int diag, integer m, integer n, double alpha,
                 const double *t, integer ldt, double *x, integer ldx) {
    if (order == 102 && diag == 132 && alpha == 1) solve(side == 142, uplo == 122, trans == 112, m, n, t, ldt, x, ldx);
}
double NAME(ddot)(integer n, const double *x, integer incx, const double *y, integer incy) {
    return product(n, x, incx, y, incy);
}
#else
void NAME(dgemm)(const char *ta, const char *tb, const integer *m, const integer *n, const integer *k,
                 const double *alpha, const double *a, const integer *lda, const double *b, const integer *ldb,
                 const double *beta, double *c, const integer *ldc) {
    multiply(*ta == 'T', *tb == 'T', *m, *n, *k, *alpha, a, *lda, b, *ldb, *beta, c, *ldc);
}
void NAME(dtrsm)(const char *side, const char *uplo, const char *trans, const char *diag, const integer *m,
                 const integer *n, const double *alpha, const double *t, const integer *ldt, double *x,
                 const integer *ldx) {
    if (*diag == 'U' && *alpha == 1) solve(*side == 'R', *uplo == 'L', *trans == 'T', *m, *n, t, *ldt, x, *ldx);
}
double NAME(ddot)(const integer *n, const double *x, const integer *incx, const double *y, const integer *incy) {
    return product(*n, x, *incx, y, *incy);
}
#endif
