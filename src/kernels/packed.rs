//! Operands in the order in which a kernel reads them, and the loops around the kernel.
//!
//! *Lower blocks* (L below the diagonal block) consist of panels with as many rows as the scalar side S of the kernel's tile.
//! Element (i, p) of a panel is at `p * S + i`. *Upper blocks* (U) consist of panels with V columns, where V is the tile's
//! vector side. Element (p, j) of a panel is at `p * V + j`. A panel of an upper block has space for a multiple of S rows. The
//! padding beyond the edges is zero.
//!
//! The rank that factored a lower block packs the block once, and sends it packed, because all ranks of a run use the same
//! kernel.

use std::ops::Range;

use super::cache::{self, ask_for, copy_by_rows};
use super::micro::{self, Kernel, Slabs, Soon};
use super::operands::{Matrix, Size, Strided, Strides};
use super::vector;

/// Number of doubles in a cache line.
const LINE: usize = 8;

/// Number of elements in the largest tile.
const LARGEST_TILE: usize = 256;

/// Number of doubles in a lower block of `rows x k`.
pub fn lower_len(kernel: &Kernel, rows: usize, k: usize) -> usize {
    rows.next_multiple_of(kernel.scalar) * k
}

/// Number of doubles in an upper block of `k x cols`.
pub fn upper_len(kernel: &Kernel, k: usize, cols: usize) -> usize {
    cols.div_ceil(kernel.vector) * upper_panel_len(kernel, k)
}

/// Number of doubles in one panel of an upper block.
fn upper_panel_len(kernel: &Kernel, k: usize) -> usize {
    k.next_multiple_of(kernel.scalar) * kernel.vector
}

/// Maximum number of rows of a triangle within a panel that are solved one by one. Larger triangles are divided.
const SMALL: usize = vector::LANES;

/// Upper bound of the doubles of scratch that [`multiply_in_panel`] and [`solve_in_panel`] need in a panel of `width` columns.
pub fn scratch_len(width: usize) -> usize {
    // The scratch has all of B, whose rows and columns correspond to different columns of the panel, and some rows of A.
    width * width / 4 + SMALL * width + SLABS * width
}

/// Least extent of B, in rows and in columns, for which A is packed within a panel.
const LAID_FROM: usize = 48;

/// Number of rows of A within a panel that are packed at a time.
const SLABS: usize = 2 * micro::COMMON_UNIT;

/// Number of rows of `k` doubles, at least one, that remain in a second-level cache of `second_level` bytes while other data
/// stream through the cache. The rows may take three eighths of the cache. With 2 MiB, three eighths were better than a half and
/// than a quarter.
fn rows_that_stay(second_level: usize, k: usize) -> usize {
    (second_level * 3 / 8 / size_of::<f64>() / k.max(1)).max(1)
}

/// Maximum number of columns of L, and of rows of U, that are multiplied at a time. With more columns, a small second-level
/// cache would have space for only a few rows of L. For each group of so few rows, all of U would be read again.
const LONGEST: usize = 512;

/// Number of rows of a lower block in one task. These rows remain in the cache while U streams through the cache.
pub fn row_block(kernel: &Kernel, k: usize) -> usize {
    let panels = rows_that_stay(cache::second_level(), k.min(LONGEST)) / kernel.scalar;
    panels.clamp(1, 1024 / kernel.scalar) * kernel.scalar
}

/// Packs a column-major `rows x k` matrix in panels of `unit` rows, as a lower block or for [`Slabs`].
///
/// # Safety
/// `l` spans `k` columns, `out` has room for all panels including padding, and `l` and `out` do not overlap.
pub unsafe fn pack(unit: usize, rows: usize, k: usize, l: Matrix<*const f64>, out: *mut f64) {
    // SAFETY: ensured by the caller.
    unsafe {
        // A copy whose length is known at compile time takes a few instructions. Any other copy is a call.
        match unit {
            4 => pack_by::<4>(rows, k, l, out),
            6 => pack_by::<6>(rows, k, l, out),
            8 => pack_by::<8>(rows, k, l, out),
            12 => pack_by::<12>(rows, k, l, out),
            14 => pack_by::<14>(rows, k, l, out),
            24 => pack_by::<24>(rows, k, l, out),
            other => unreachable!("a tile has {other} rows"),
        }
    }
}

/// Implements [`pack`] for panels of `UNIT` rows.
///
/// # Safety
/// As for [`pack`].
unsafe fn pack_by<const UNIT: usize>(rows: usize, k: usize, l: Matrix<*const f64>, out: *mut f64) {
    /// Number of columns to prefetch ahead. The piece of a column that is packed at a time is too short for the hardware
    /// prefetcher.
    const AHEAD: usize = 4;
    // Several panels are packed at a time. The runs down a column are then long enough for the caches, and the targets are few
    // enough.
    let run = (64 / UNIT).max(1) * UNIT;
    // SAFETY: all indices stay within the ranges that the caller ensures.
    unsafe {
        for start in (0..rows).step_by(run) {
            let end = (start + run).min(rows);
            for p in 0..k {
                let column = l.at.add(p * l.ld);
                ask_for(column.wrapping_add(AHEAD * l.ld + start), run);
                let mut i = start;
                while i + UNIT <= end {
                    let to = out.add(i * k + p * UNIT);
                    std::ptr::copy_nonoverlapping(column.add(i), to, UNIT);
                    i += UNIT;
                }
                if i < end {
                    let to = out.add(i * k + p * UNIT);
                    std::ptr::copy_nonoverlapping(column.add(i), to, end - i);
                    std::ptr::write_bytes(to.add(end - i), 0, UNIT - (end - i));
                }
            }
        }
    }
}

/// Packs the unit lower triangle L1(k x k), which has strides `strides`, as a lower block.
///
/// Of a panel that ends with row i of L1, only columns up to i are written. No kernel reads the columns after i. Elements of
/// `l` on and above the diagonal have no effect.
///
/// # Safety
/// As for [`pack`].
pub unsafe fn pack_triangle(
    kernel: &Kernel,
    k: usize,
    l: *const f64,
    strides: Strides,
    out: *mut f64,
) {
    let unit = kernel.scalar;
    // SAFETY: all indices stay within the ranges that the caller ensures.
    unsafe {
        for first in (0..k).step_by(unit) {
            let rows = unit.min(k - first);
            let (from, to) = (l.add(first * strides.row), out.add(first * k));
            let columns = first + rows;
            if strides.row == 1 {
                pack(unit, rows, columns, Matrix::new(from, strides.col), to);
            } else {
                if rows < unit {
                    to.write_bytes(0, columns * unit);
                }
                copy_by_rows(from, strides.transposed(), columns, rows, Matrix::new(to, unit));
            }
        }
    }
}

/// Divides columns `from..from + len` of row `p` of an upper block into pieces, each within one panel. Calls `copy` for each
/// piece with the offset in the block, the offset in the row, and the length.
fn by_pieces(
    kernel: &Kernel,
    k: usize,
    p: usize,
    from: usize,
    len: usize,
    copy: impl FnMut(usize, usize, usize),
) {
    let panel_len = upper_panel_len(kernel, k);
    // The lengths are known at compile time, as in `pack`.
    match kernel.vector {
        4 => by_pieces_of::<4>(panel_len, p, from, len, copy),
        8 => by_pieces_of::<8>(panel_len, p, from, len, copy),
        12 => by_pieces_of::<12>(panel_len, p, from, len, copy),
        16 => by_pieces_of::<16>(panel_len, p, from, len, copy),
        24 => by_pieces_of::<24>(panel_len, p, from, len, copy),
        32 => by_pieces_of::<32>(panel_len, p, from, len, copy),
        other => unreachable!("a tile has {other} columns"),
    }
}

/// Implements [`by_pieces`] for panels of `UNIT` columns.
#[inline(always)]
fn by_pieces_of<const UNIT: usize>(
    panel_len: usize,
    p: usize,
    from: usize,
    len: usize,
    mut copy: impl FnMut(usize, usize, usize),
) {
    let (mut at, mut done) = (from / UNIT * panel_len + p * UNIT, 0);
    let within = from % UNIT;
    if within > 0 {
        done = (UNIT - within).min(len);
        copy(at + within, 0, done);
        at += panel_len;
    }
    while done + UNIT <= len {
        copy(at, done, UNIT);
        done += UNIT;
        at += panel_len;
    }
    if done < len {
        copy(at, done, len - done);
    }
}

/// Copies `len` elements from `src` to row `p` of an upper block, from column `from` on.
///
/// # Safety
/// `u` is an upper block with these columns, `src` has `len` elements, and `u` and `src` do not overlap.
pub unsafe fn put_row(
    kernel: &Kernel,
    u: *mut f64,
    k: usize,
    p: usize,
    from: usize,
    len: usize,
    src: *const f64,
) {
    // SAFETY: within the panel and the source.
    by_pieces(kernel, k, p, from, len, |at, done, run| unsafe {
        std::ptr::copy_nonoverlapping(src.add(done), u.add(at), run)
    });
}

/// Copies `len` elements of row `p` of an upper block, from column `from` on, to `dst`.
///
/// # Safety
/// As for [`put_row`].
pub unsafe fn get_row(
    kernel: &Kernel,
    u: *const f64,
    k: usize,
    p: usize,
    from: usize,
    len: usize,
    dst: *mut f64,
) {
    // SAFETY: within the panel and the target.
    by_pieces(kernel, k, p, from, len, |at, done, run| unsafe {
        std::ptr::copy_nonoverlapping(u.add(at), dst.add(done), run)
    });
}

/// Sets the padding of an upper block of `k x cols` to zero, so that a kernel may read the padding.
///
/// # Safety
/// `u` has [`upper_len`] doubles.
pub unsafe fn clear_edges(kernel: &Kernel, u: *mut f64, k: usize, cols: usize) {
    let (unit, panel_len) = (kernel.vector, upper_panel_len(kernel, k));
    let panels = cols.div_ceil(unit);
    // SAFETY: within the block.
    unsafe {
        for panel in 0..panels {
            std::ptr::write_bytes(u.add(panel * panel_len + k * unit), 0, panel_len - k * unit);
        }
        let used = cols % unit;
        if used != 0 {
            for p in 0..k {
                let row = u.add((panels - 1) * panel_len + p * unit);
                std::ptr::write_bytes(row.add(used), 0, unit - used);
            }
        }
    }
}

/// Computes U := L1^-1 U for panels `panels` of an upper block, with L1 packed by [`pack_triangle`].
///
/// # Safety
/// The processor runs the kernel, `l1` and `u` are blocks in these layouts, and no other thread touches the panels `panels`.
pub unsafe fn solve_upper(
    kernel: &Kernel,
    k: usize,
    l1: *const f64,
    u: *mut f64,
    panels: Range<usize>,
) {
    let (v, s) = (kernel.vector, kernel.scalar);
    let panel_len = upper_panel_len(kernel, k);
    // SAFETY: within the blocks; a panel has space for a multiple of S rows.
    unsafe {
        for panel in panels {
            let u = u.add(panel * panel_len);
            for i in (0..k).step_by(s) {
                // U(i..i+S, :) -= L1(i..i+S, 0..i) U(0..i, :), then the triangle on the diagonal.
                let l = l1.add(i * k);
                let tile = u.add(i * v);
                (kernel.tile)(i, u, l, tile, v, Soon { tile, vector: tile, lines: 0 });
                (kernel.triangle)(s.min(k - i), l.add(i * s), tile);
            }
        }
    }
}

/// Computes C(rows x cols) -= L U for row-major C, with rows `rows` of the lower block and columns `cols` of the upper block.
/// Both ranges begin at the start of a panel. `c` begins at row 0 and column 0 of the blocks.
///
/// # Safety
/// The processor runs the kernel, the blocks are valid, and no other thread touches these rows and columns of C.
pub unsafe fn multiply(
    kernel: &Kernel,
    k: usize,
    l: *const f64,
    rows: Range<usize>,
    u: *const f64,
    cols: Range<usize>,
    c: Matrix<*mut f64>,
) {
    for first in (0..k).step_by(LONGEST) {
        let piece = first..k.min(first + LONGEST);
        // SAFETY: ensured by the caller.
        unsafe { multiply_piece(kernel, k, piece, l, rows.clone(), u, cols.clone(), c) }
    }
}

/// Computes the part of [`multiply`] with columns `piece` of L and rows `piece` of U.
///
/// # Safety
/// As for [`multiply`].
#[allow(clippy::too_many_arguments)] // three matrices with their shapes
unsafe fn multiply_piece(
    kernel: &Kernel,
    k: usize,
    piece: Range<usize>,
    l: *const f64,
    rows: Range<usize>,
    u: *const f64,
    cols: Range<usize>,
    c: Matrix<*mut f64>,
) {
    let (v, s, len) = (kernel.vector, kernel.scalar, piece.len());
    debug_assert!(rows.start.is_multiple_of(s) && cols.start.is_multiple_of(v));
    let panel_len = upper_panel_len(kernel, k);
    // Each tile prefetches its share of the next panel of U.
    let share = (len * v).div_ceil(rows.len().div_ceil(s).max(1));
    let lines = share.div_ceil(LINE);
    // SAFETY: within the blocks and C, as the caller ensures.
    unsafe {
        for j in cols.clone().step_by(v) {
            let width = (cols.end - j).min(v);
            let upper = u.add(j / v * panel_len + piece.start * v);
            for i in rows.clone().step_by(s) {
                let height = (rows.end - i).min(s);
                let (lower, tile) = (l.add(i * k + piece.start * s), c.at.add(i * c.ld + j));
                if width == v && height == s {
                    let next = if i + s < rows.end {
                        tile.wrapping_add(s * c.ld)
                    } else {
                        c.at.wrapping_add(rows.start * c.ld + j + v)
                    };
                    let asks_from = (i - rows.start) / s * share;
                    let vector = upper.wrapping_add(panel_len + asks_from);
                    (kernel.tile)(
                        len,
                        upper,
                        lower,
                        tile,
                        c.ld,
                        Soon { tile: next, vector, lines },
                    );
                } else {
                    edge(kernel, len, upper, lower, Matrix::new(tile, c.ld), width, height);
                }
            }
        }
    }
}

/// Computes a tile at the edge of C, of which only `width x height` elements exist. The result is computed in a separate tile,
/// and the existing elements are copied to C. Narrow tiles are computed with [`Kernel::narrow`].
unsafe fn edge(
    kernel: &Kernel,
    k: usize,
    upper: *const f64,
    lower: *const f64,
    c: Matrix<*mut f64>,
    width: usize,
    height: usize,
) {
    let mut whole = [0.0f64; LARGEST_TILE];
    let tile = whole.as_mut_ptr();
    let v = kernel.vector;
    debug_assert!(v * kernel.scalar <= LARGEST_TILE);
    // SAFETY: the tile is as large as that of any kernel; C is valid as the caller ensures.
    unsafe {
        for row in 0..height {
            std::ptr::copy_nonoverlapping(c.at.add(row * c.ld), tile.add(row * v), width);
        }
        if width == v {
            (kernel.tile)(k, upper, lower, tile, v, Soon { tile, vector: tile, lines: 0 });
        } else {
            (kernel.narrow)(width, k, upper, lower, tile, v);
        }
        for row in 0..height {
            std::ptr::copy_nonoverlapping(tile.add(row * v), c.at.add(row * c.ld), width);
        }
    }
}

/// Computes C(m x n) -= A(m x k) B(k x n) within a panel.
///
/// A and C are column-major with the same leading dimension. `scratch` is reused between calls.
///
/// # Safety
/// The processor runs the kernel, the ranges are valid, and C overlaps neither A nor B.
pub unsafe fn multiply_in_panel(
    kernel: &Kernel,
    size: Size,
    a: *const f64,
    b: Strided,
    c: Matrix<*mut f64>,
    scratch: &mut Vec<f64>,
) {
    // A is packed if it is read many times and does not fit in the second-level cache. Columns of a panel are far apart, and no
    // hardware prefetcher follows many columns. If A fits in the cache, packing costs more than it saves.
    let Size { m, n, k } = size;
    let lays = k.min(n) >= LAID_FROM && m * k * size_of::<f64>() > cache::second_level();
    // SAFETY: ensured by the caller.
    unsafe { multiply_in_slabs(kernel, lays, size, a, b, c, scratch) }
}

/// Implements [`multiply_in_panel`]. If `lays` is true, A is packed, some rows at a time.
///
/// # Safety
/// As for [`multiply_in_panel`].
unsafe fn multiply_in_slabs(
    kernel: &Kernel,
    lays: bool,
    size: Size,
    a: *const f64,
    b: Strided,
    c: Matrix<*mut f64>,
    scratch: &mut Vec<f64>,
) {
    let (Size { m: rows, n: cols, k }, Matrix { at: c, ld }) = (size, c);
    let chunk = if lays {
        SLABS
    } else {
        // So many rows of A are multiplied with all columns before the next rows follow.
        rows_that_stay(cache::second_level(), k).next_multiple_of(64)
    };
    scratch.resize(k * cols + if lays { SLABS * k } else { 0 }, 0.0);
    let (right, laid) = scratch.split_at_mut(k * cols);
    // SAFETY: within B.
    unsafe { pack_groups(kernel.panel.cols, k, cols, b, right) };
    // The first few rows are computed separately. If columns begin at a cache line, all later chunks then do so, too.
    const MANY: usize = 128;
    let head = if rows >= MANY { c.align_offset(LINE * size_of::<f64>()).min(rows) } else { 0 };
    let mut from = 0;
    while from < rows {
        let len = match from {
            0 if head > 0 => head,
            _ => (rows - from).min(chunk),
        };
        // SAFETY: rows of A from `from` on; the scratch has space for a chunk of them.
        let slabs = unsafe {
            let at = a.add(from);
            if lays {
                pack(kernel.panel.rows, len, k, Matrix::new(at, ld), laid.as_mut_ptr());
                let (slab, stride) = (kernel.panel.rows * k, kernel.panel.rows);
                Slabs { at: laid.as_ptr(), slab, stride }
            } else {
                Slabs { at, slab: kernel.panel.rows, stride: ld }
            }
        };
        for first in (0..cols).step_by(kernel.panel.cols) {
            let width = (cols - first).min(kernel.panel.cols);
            let group = right[k * first..].as_ptr();
            // SAFETY: the rows of A from `from` on, in the columns of C from `first` on.
            unsafe {
                let c = Matrix::new(c.add(first * ld + from), ld);
                (kernel.panel.multiply)(Size::new(len, width, k), slabs, group, c);
            }
        }
        from += len;
    }
}

/// Packs B(k x cols) in groups of `most` columns. Within a group, rows follow one another.
///
/// # Safety
/// B is valid.
unsafe fn pack_groups(most: usize, k: usize, cols: usize, b: Strided, packed: &mut [f64]) {
    for first in (0..cols).step_by(most) {
        let width = (cols - first).min(most);
        let group = &mut packed[k * first..][..k * width];
        for (p, row) in group.chunks_exact_mut(width).enumerate() {
            for (j, x) in row.iter_mut().enumerate() {
                // SAFETY: within B.
                *x = unsafe { *b.at.add(b.strides.to(p, first + j)) };
            }
        }
    }
}

/// Computes B(n x cols) := L^-1 B for a unit lower triangle L of order n.
///
/// L and B have strides `strides`, one of which is 1. `scratch` is reused between calls.
///
/// # Safety
/// The processor runs the kernel, the ranges are valid and do not overlap.
pub unsafe fn solve_in_panel(
    kernel: &Kernel,
    n: usize,
    cols: usize,
    l: *const f64,
    b: *mut f64,
    strides: Strides,
    scratch: &mut Vec<f64>,
) {
    let Strides { row: rs, col: cs } = strides;
    // SAFETY: within the ranges that the caller ensures.
    unsafe {
        if n <= SMALL && cs == 1 {
            for i in 1..n {
                let y = std::slice::from_raw_parts_mut(b.add(i * rs), cols);
                for p in 0..i {
                    let x = std::slice::from_raw_parts(b.add(p * rs), cols);
                    vector::subtract_scaled(y, *l.add(i * rs + p), x);
                }
            }
            return;
        }
        if n <= SMALL {
            let mut few = [[0.0; SMALL]; SMALL];
            for (p, column) in few[..n].iter_mut().enumerate() {
                std::ptr::copy_nonoverlapping(l.add(p * cs), column.as_mut_ptr(), n);
            }
            let b = std::slice::from_raw_parts_mut(b, (cols - 1) * cs + n);
            vector::solve_few(n, &few, b, cs);
            return;
        }
        let half = (n / 2).next_multiple_of(SMALL);
        let (below, corner) = (l.add(half * rs), l.add(half * rs + half * cs));
        let lower = b.add(half * rs);
        solve_in_panel(kernel, half, cols, l, b, strides, scratch);
        if rs == 1 {
            let (size, b) = (Size::new(n - half, cols, half), Strided { at: b, strides });
            multiply_in_panel(kernel, size, below, b, Matrix::new(lower, cs), scratch);
        } else {
            // All operands are transposed: B^T -= B^T L^T.
            let size = Size::new(cols, n - half, half);
            let below = Strided { at: below, strides: strides.transposed() };
            multiply_in_panel(kernel, size, b, below, Matrix::new(lower, rs), scratch);
        }
        solve_in_panel(kernel, n - half, cols, corner, lower, strides, scratch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::micro;

    /// Returns numbers whose sums are rounded, so that a different order of summation changes the result.
    fn numbers(seed: usize, len: usize) -> Vec<f64> {
        (0..len).map(|i| ((i * 7919 + seed * 104729) % 1009) as f64 / 7.0 - 70.0).collect()
    }

    fn alike(got: f64, want: f64, what: std::fmt::Arguments) {
        assert_eq!(got.to_bits(), want.to_bits(), "{what}: {got}, not {want}");
    }

    #[test]
    fn some_rows_stay_however_wide_they_are() {
        assert_eq!(rows_that_stay(1 << 20, 256), 192);
        assert_eq!(rows_that_stay(2 << 20, 100_000), 1);
        assert_eq!(rows_that_stay(0, 0), 1);
    }

    /// Checks that every kernel, with every division, computes a chain of fused multiply-adds in the order of p, to the last
    /// bit.
    #[test]
    fn multiplies_every_shape_of_edge() {
        for kernel in micro::runnable() {
            for &rows in &[0usize, 1, 7, 8, 15, 31] {
                for &cols in &[0usize, 1, 10, 17, 23, 24, 55] {
                    for &k in &[1usize, 2, 7, 8, 33] {
                        multiplies(kernel, rows, cols, k);
                    }
                }
            }
        }
    }

    /// Checks that a multiplication in pieces of k gives the same bits as a multiplication in one piece.
    #[test]
    fn multiplies_what_is_longer_than_a_piece() {
        for kernel in micro::runnable() {
            for k in [LONGEST, LONGEST + 1, 2 * LONGEST + 33] {
                multiplies(kernel, 31, 55, k);
            }
        }
    }

    fn multiplies(kernel: &Kernel, rows: usize, cols: usize, k: usize) {
        let (ldl, ldc) = (rows + 3, cols + 5);
        let l = numbers(1, ldl * k);
        let u = numbers(2, k * cols);
        let c = numbers(3, rows * ldc + ldc);
        let mut lower = vec![f64::NAN; lower_len(kernel, rows, k)];
        let mut upper = vec![f64::NAN; upper_len(kernel, k, cols)];
        let mut out = c.clone();
        // SAFETY: buffers of the documented sizes.
        unsafe {
            pack(kernel.scalar, rows, k, Matrix::new(l.as_ptr(), ldl), lower.as_mut_ptr());
            clear_edges(kernel, upper.as_mut_ptr(), k, cols);
            for p in 0..k {
                // A row is stored in two pieces, so that the second piece need not start at a panel.
                let cut = cols / 3;
                let row = u[p * cols..].as_ptr();
                put_row(kernel, upper.as_mut_ptr(), k, p, 0, cut, row);
                put_row(kernel, upper.as_mut_ptr(), k, p, cut, cols - cut, row.add(cut));
            }
            let (l, u) = (lower.as_ptr(), upper.as_ptr());
            // The product is computed in several pieces, as by tasks.
            let (row_cut, col_cut) = (kernel.scalar.min(rows), kernel.vector.min(cols));
            for rows in [0..row_cut, row_cut..rows] {
                for cols in [0..col_cut, col_cut..cols] {
                    if rows.is_empty() || cols.is_empty() {
                        continue;
                    }
                    let c = Matrix::new(out.as_mut_ptr(), ldc);
                    multiply(kernel, k, l, rows.clone(), u, cols, c);
                }
            }
        }
        for i in 0..rows {
            for j in 0..ldc {
                let mut want = c[i * ldc + j];
                if j < cols {
                    for p in 0..k {
                        want = (-u[p * cols + j]).mul_add(l[p * ldl + i], want);
                    }
                }
                let name = kernel.name;
                alike(out[i * ldc + j], want, format_args!("{name} {rows}x{cols}x{k} at {i},{j}"));
            }
        }
        assert_eq!(out[rows * ldc..], c[rows * ldc..], "nothing beyond is touched");
    }

    /// Checks that any part of a row is stored at the place that the head of this file describes, and that no other element
    /// changes.
    #[test]
    fn any_part_of_a_row_is_put_in_place_and_found_again() {
        for kernel in micro::all() {
            let (k, p, cols) = (3, 1, 2 * kernel.vector + 5);
            for (from, to) in (0..=cols).flat_map(|to| (0..=to).map(move |from| (from, to))) {
                let row = numbers(4, to - from);
                let mut upper = vec![f64::NAN; upper_len(kernel, k, cols)];
                let mut back = vec![f64::NAN; to - from];
                // SAFETY: buffers of the documented sizes.
                unsafe {
                    let u = upper.as_mut_ptr();
                    put_row(kernel, u, k, p, from, to - from, row.as_ptr());
                    get_row(kernel, u, k, p, from, to - from, back.as_mut_ptr());
                }
                assert_eq!(back, row, "{} {from}..{to}", kernel.name);
                for (at, x) in upper.iter().enumerate() {
                    let (panel, at) =
                        (at / upper_panel_len(kernel, k), at % upper_panel_len(kernel, k));
                    let (i, j) = (at / kernel.vector, panel * kernel.vector + at % kernel.vector);
                    match i == p && (from..to).contains(&j) {
                        true => assert_eq!(*x, row[j - from], "{} {from}..{to}", kernel.name),
                        false => assert!(x.is_nan(), "{} {from}..{to} at {i},{j}", kernel.name),
                    }
                }
            }
        }
    }

    /// Returns L^-1 B, computed by the chains of fused multiply-adds that all kernels must compute.
    fn solved(k: usize, cols: usize, l: &[f64], b: &[f64]) -> Vec<f64> {
        let mut x = b.to_vec();
        for i in 0..k {
            for j in 0..cols {
                for p in 0..i {
                    x[i * cols + j] = (-x[p * cols + j]).mul_add(l[i * k + p], x[i * cols + j]);
                }
            }
        }
        x
    }

    #[test]
    fn solves_triangles_of_every_order() {
        for kernel in micro::runnable() {
            for k in 1..40usize {
                let forms = [(k, 1), (1, k)];
                for (cols, (rs, cs)) in [1usize, 24, 30].iter().flat_map(|&c| forms.map(|f| (c, f)))
                {
                    let l: Vec<f64> = numbers(5, k * k).iter().map(|v| v / 256.0).collect();
                    let b = numbers(6, k * cols);
                    let want = solved(k, cols, &l, &b);
                    // Elements of L that are not below the diagonal have no effect.
                    let mut raw = vec![f64::NAN; k * k];
                    for i in 0..k {
                        (0..i).for_each(|p| raw[i * rs + p * cs] = l[i * k + p]);
                    }
                    let mut upper = vec![f64::NAN; upper_len(kernel, k, cols)];
                    let mut l1 = vec![f64::NAN; lower_len(kernel, k, k)];
                    let mut row = vec![0.0; cols];
                    // SAFETY: buffers of the documented sizes.
                    unsafe {
                        let strides = Strides { row: rs, col: cs };
                        pack_triangle(kernel, k, raw.as_ptr(), strides, l1.as_mut_ptr());
                        let u = upper.as_mut_ptr();
                        clear_edges(kernel, u, k, cols);
                        for i in 0..k {
                            put_row(kernel, u, k, i, 0, cols, b[i * cols..].as_ptr());
                        }
                        let panels = 0..cols.div_ceil(kernel.vector);
                        solve_upper(kernel, k, l1.as_ptr(), u, panels);
                        for i in 0..k {
                            get_row(kernel, u, k, i, 0, cols, row.as_mut_ptr());
                            for j in 0..cols {
                                let name = kernel.name;
                                let what = format_args!("{name}, order {k}, at {i},{j}");
                                alike(row[j], want[i * cols + j], what);
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn solves_within_a_panel_in_either_form() {
        for kernel in micro::runnable() {
            for (k, cols) in [(1, 3), (8, 1), (9, 5), (40, 13), (33, 30)] {
                let l: Vec<f64> = numbers(5, k * k).iter().map(|v| v / 256.0).collect();
                let b = numbers(6, k * cols);
                let want = solved(k, cols, &l, &b);
                // L and B are in one array, as in L1, stored by rows and by columns.
                let ld = k + cols;
                for (rs, cs) in [(ld, 1), (1, ld)] {
                    let mut all = vec![f64::NAN; ld * ld];
                    for i in 0..k {
                        for p in 0..i {
                            all[i * rs + p * cs] = l[i * k + p];
                        }
                        for j in 0..cols {
                            all[i * rs + (k + j) * cs] = b[i * cols + j];
                        }
                    }
                    let at = all.as_mut_ptr();
                    // SAFETY: both within the array.
                    unsafe {
                        let (b, strides) = (at.add(k * cs), Strides { row: rs, col: cs });
                        solve_in_panel(kernel, k, cols, at, b, strides, &mut Vec::new());
                    }
                    for i in 0..k {
                        for j in 0..cols {
                            let name = kernel.name;
                            let what = format_args!("{name}, order {k}, at {i},{j}, {rs} {cs}");
                            alike(all[i * rs + (k + j) * cs], want[i * cols + j], what);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn multiplies_within_a_panel() {
        for kernel in micro::runnable() {
            for &(rows, cols, k) in &[
                (1, 1, 1),
                (23, 3, 4),
                (24, 8, 8),
                (61, 13, 5),
                (101, 7, 9),
                (SLABS + 5, 30, 3),
                (2 * SLABS + 75, 9, 20),
            ] {
                let ld = rows + 7;
                let a = numbers(1, ld * k);
                let b = numbers(2, k * cols);
                let c = numbers(3, ld * cols);
                for lays in [false, true] {
                    let (mut out, mut scratch) = (c.clone(), Vec::new());
                    // SAFETY: buffers of the documented sizes; B is row-major.
                    unsafe {
                        let (b, to) =
                            (Strided::new(b.as_ptr(), cols, 1), Matrix::new(out.as_mut_ptr(), ld));
                        let (size, a) = (Size::new(rows, cols, k), a.as_ptr());
                        multiply_in_slabs(kernel, lays, size, a, b, to, &mut scratch);
                    }
                    assert!(scratch.len() <= scratch_len(k + cols));
                    for j in 0..cols {
                        for i in 0..ld {
                            let mut want = c[j * ld + i];
                            if i < rows {
                                for p in 0..k {
                                    want = (-a[p * ld + i]).mul_add(b[p * cols + j], want);
                                }
                            }
                            let name = kernel.name;
                            let what = format_args!("{name} at {i},{j}, laid out: {lays}");
                            alike(out[j * ld + i], want, what);
                        }
                    }
                }
            }
        }
    }
}
