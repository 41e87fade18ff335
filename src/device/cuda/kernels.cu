// Kernels of skt-hpl. NVRTC compiles them for the device when a run starts. Matrices are stored by rows.

// Numbers of rows to copy: in the source and in the destination. As many as fit in the arguments of a launch.
struct Rows {
    unsigned from[480];
    unsigned to[480];
};

// Copies the first `cols` columns of a row for each block of the grid's second dimension.
extern "C" __global__ void copy_rows(const double *from, size_t from_ld, double *to, size_t to_ld, size_t cols, const Rows rows)
{
    const double *source = from + rows.from[blockIdx.y] * from_ld;
    double *destination = to + rows.to[blockIdx.y] * to_ld;
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t col = (size_t)blockIdx.x * blockDim.x + threadIdx.x; col < cols; col += step)
        destination[col] = source[col];
}

// Copies a matrix of `rows` x `cols` to its transpose, in tiles of 32 x 32 by blocks of 32 x 8 threads.
extern "C" __global__ void transpose(const double *from, size_t from_ld, double *to, size_t to_ld, size_t rows, size_t cols)
{
    __shared__ double tile[32][33];
    const size_t row = (size_t)blockIdx.y * 32, col = (size_t)blockIdx.x * 32;
    for (size_t i = threadIdx.y; i < 32; i += 8)
        if (row + i < rows && col + threadIdx.x < cols)
            tile[i][threadIdx.x] = from[(row + i) * from_ld + col + threadIdx.x];
    __syncthreads();
    for (size_t j = threadIdx.y; j < 32; j += 8)
        if (col + j < cols && row + threadIdx.x < rows)
            to[(col + j) * to_ld + row + threadIdx.x] = tile[threadIdx.x][j];
}

// A step of a panel's factorisation, in the rows from `first` to `end` of the work array W, which is stored by columns.
struct Step {
    double *w;
    size_t ld, first, end, width;
    // Row to write, and its elements; column to divide by its pivot. -1: none.
    long long place;
    const double *row;
    long long divided;
    double pivot;
    // Column to update and search, -1: none; first of the columns that update it, or whether column j - 1 updates the columns from
    // j on; factors.
    long long j;
    size_t start;
    long long right;
    const double *factors;
    size_t count;
};

// Whether the second of two elements is the larger one: the first row among equal ones, and NaN only before a block without rows.
__device__ bool is_larger(double best, size_t row, double next, size_t next_row)
{
    return next > best || (next == best && next_row < row) || (isnan(best) && next >= 0) || (best == -1 && isnan(next));
}

// Leaves the largest of 256 elements at the first place.
__device__ void choose(double *magnitudes, size_t *rows)
{
    for (unsigned half = 128; half > 0; half /= 2) {
        __syncthreads();
        const unsigned me = threadIdx.x, other = me + half;
        if (me < half && is_larger(magnitudes[me], rows[me], magnitudes[other], rows[other])) {
            magnitudes[me] = magnitudes[other];
            rows[me] = rows[other];
        }
    }
    __syncthreads();
}

// Does the step. Each block of 256 threads has its own rows, and writes its largest element and that element's row to `best`.
extern "C" __global__ void step(const Step s, double *best)
{
    __shared__ double factors[256], magnitudes[256];
    __shared__ size_t rows[256];
    const size_t share = (s.end - s.first + gridDim.x - 1) / gridDim.x;
    const size_t begin = s.first + blockIdx.x * share, end = begin + share < s.end ? begin + share : s.end;
    if (s.place >= (long long)begin && s.place < (long long)end)
        for (size_t t = threadIdx.x; t < s.width; t += 256)
            s.w[t * s.ld + s.place] = s.row[t];
    __syncthreads();
    // From here on, each thread has its own rows.
    if (s.divided >= 0)
        for (size_t r = begin + threadIdx.x; r < end; r += 256)
            s.w[s.divided * s.ld + r] /= s.pivot;
    if (s.j < 0)
        return;
    double *column = s.w + s.j * s.ld;
    for (size_t at = 0; at < s.count; at += 256) {
        const size_t few = s.count - at < 256 ? s.count - at : 256;
        __syncthreads();
        if (threadIdx.x < few)
            factors[threadIdx.x] = s.factors[at + threadIdx.x];
        __syncthreads();
        for (size_t r = begin + threadIdx.x; r < end; r += 256) {
            if (s.right) {
                const double x = column[r - s.ld];
                for (size_t t = 0; t < few; t++)
                    column[(at + t) * s.ld + r] -= factors[t] * x;
            } else {
                double y = column[r];
                for (size_t t = 0; t < few; t++)
                    y -= factors[t] * s.w[(s.start + at + t) * s.ld + r];
                column[r] = y;
            }
        }
    }
    double magnitude = -1;
    size_t row = 0;
    for (size_t r = begin + threadIdx.x; r < end; r += 256)
        if (is_larger(magnitude, row, fabs(column[r]), r)) {
            magnitude = fabs(column[r]);
            row = r;
        }
    magnitudes[threadIdx.x] = magnitude;
    rows[threadIdx.x] = row;
    choose(magnitudes, rows);
    if (threadIdx.x == 0) {
        best[2 * blockIdx.x] = magnitudes[0];
        best[2 * blockIdx.x + 1] = rows[0];
    }
}

// Chooses the largest element that the blocks of `step` have found. Writes magnitude and row, the elements of this row, and those of
// row `current`. One block of 256 threads, for up to 256 blocks.
extern "C" __global__ void found(const Step s, const double *best, size_t blocks, size_t current, double *result)
{
    __shared__ double magnitudes[256];
    __shared__ size_t rows[256];
    const bool mine = threadIdx.x < blocks;
    magnitudes[threadIdx.x] = mine ? best[2 * threadIdx.x] : -1;
    rows[threadIdx.x] = mine ? (size_t)best[2 * threadIdx.x + 1] : (size_t)-1;
    choose(magnitudes, rows);
    const size_t row = rows[0];
    for (size_t t = threadIdx.x; t < s.width; t += 256) {
        result[2 + t] = s.w[t * s.ld + row];
        result[2 + s.width + t] = s.w[t * s.ld + current];
    }
    if (threadIdx.x == 0) {
        result[0] = magnitudes[0];
        result[1] = row;
    }
}
