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
