//! Operands in the order in which the kernel reads them, and the loops around the kernel.
//!
//! *Lower blocks* (L below the diagonal block) come in panels of 8 rows: element (i, p) of a panel
//! is at `p * 8 + i`. *Upper blocks* (U) come in panels of 24 columns: element (p, j) of a panel is
//! at `p * 24 + j`, and a panel has room for a multiple of 8 rows. What is beyond the edges is
//! zero. A lower block is packed once, by the rank that factored it, and travels packed.

use super::micro::{self, SCALAR, VECTOR};

/// Bytes of a lower block that stay in the second-level cache while U streams past.
const CACHED_BYTES: usize = 600 * 1024;

/// Doubles of a lower block of `rows x k`.
pub fn lower_len(rows: usize, k: usize) -> usize {
    rows.div_ceil(SCALAR) * SCALAR * k
}

/// Doubles of an upper block of `k x cols`.
pub fn upper_len(k: usize, cols: usize) -> usize {
    cols.div_ceil(VECTOR) * upper_panel_len(k)
}

/// Doubles of one panel of an upper block.
pub fn upper_panel_len(k: usize) -> usize {
    k.next_multiple_of(SCALAR) * VECTOR
}

/// How many rows of a lower block one task multiplies with.
pub fn row_block(k: usize) -> usize {
    (CACHED_BYTES / 8 / k.max(1) / SCALAR).clamp(1, 128) * SCALAR
}

/// Packs L(rows x k), column-major at `l`, as a lower block.
///
/// # Safety
/// `l` spans `k` columns of `ldl`, `out` has [`lower_len`] doubles, and they do not overlap.
pub unsafe fn pack_lower(rows: usize, k: usize, (l, ldl): (*const f64, usize), out: *mut f64) {
    // Eight panels at a time: long enough runs down a column for the caches, few enough targets.
    const RUN: usize = 8 * SCALAR;
    // SAFETY: all indices stay within what the caller vouches for.
    unsafe {
        for start in (0..rows).step_by(RUN) {
            let end = (start + RUN).min(rows);
            for p in 0..k {
                let column = l.add(p * ldl);
                let mut i = start;
                while i + SCALAR <= end {
                    let to = out.add(i * k + p * SCALAR);
                    std::ptr::copy_nonoverlapping(column.add(i), to, SCALAR);
                    i += SCALAR;
                }
                if i < end {
                    let to = out.add(i * k + p * SCALAR);
                    std::ptr::copy_nonoverlapping(column.add(i), to, end - i);
                    std::ptr::write_bytes(to.add(end - i), 0, SCALAR - (end - i));
                }
            }
        }
    }
}

/// Packs the unit lower triangle L1(k x k), whose element (i, p) is at `l + i * rs + p * cs`, as a
/// lower block whose upper triangle and diagonal are not used.
///
/// # Safety
/// As for [`pack_lower`].
pub unsafe fn pack_triangle(k: usize, l: *const f64, (rs, cs): (usize, usize), out: *mut f64) {
    // SAFETY: all indices stay within what the caller vouches for.
    unsafe {
        for i in 0..k.next_multiple_of(SCALAR) {
            let (panel, row) = (i / SCALAR * SCALAR, i % SCALAR);
            for p in 0..k {
                let value = if i < k && p < i { *l.add(i * rs + p * cs) } else { 0.0 };
                *out.add(panel * k + p * SCALAR + row) = value;
            }
        }
    }
}

/// Copies part of a row into row `p` of an upper block: columns `from..from + len`, from `src` on.
///
/// # Safety
/// `u` is an upper block with those columns, `src` has `len` elements, and they do not overlap.
pub unsafe fn put_row(u: *mut f64, k: usize, p: usize, from: usize, len: usize, src: *const f64) {
    let panel_len = upper_panel_len(k);
    let mut done = 0;
    while done < len {
        let at = (from + done) % VECTOR;
        let run = (VECTOR - at).min(len - done);
        // SAFETY: within the panel and the source.
        unsafe {
            let to = u.add((from + done) / VECTOR * panel_len + p * VECTOR + at);
            std::ptr::copy_nonoverlapping(src.add(done), to, run);
        }
        done += run;
    }
}

/// The reverse of [`put_row`].
///
/// # Safety
/// As for [`put_row`].
pub unsafe fn get_row(u: *const f64, k: usize, p: usize, from: usize, len: usize, dst: *mut f64) {
    let panel_len = upper_panel_len(k);
    let mut done = 0;
    while done < len {
        let at = (from + done) % VECTOR;
        let run = (VECTOR - at).min(len - done);
        // SAFETY: within the panel and the target.
        unsafe {
            let from = u.add((from + done) / VECTOR * panel_len + p * VECTOR + at);
            std::ptr::copy_nonoverlapping(from, dst.add(done), run);
        }
        done += run;
    }
}

/// Zeroes what an upper block has beyond its `k x cols`, so that the kernel may read it.
///
/// # Safety
/// `u` has [`upper_len`] doubles.
pub unsafe fn clear_edges(u: *mut f64, k: usize, cols: usize) {
    let panel_len = upper_panel_len(k);
    let panels = cols.div_ceil(VECTOR);
    // SAFETY: within the block.
    unsafe {
        for panel in 0..panels {
            std::ptr::write_bytes(u.add(panel * panel_len + k * VECTOR), 0, panel_len - k * VECTOR);
        }
        let used = cols % VECTOR;
        if used != 0 {
            for p in 0..k {
                let row = u.add((panels - 1) * panel_len + p * VECTOR);
                std::ptr::write_bytes(row.add(used), 0, VECTOR - used);
            }
        }
    }
}

/// U := L1^-1 U for panels `panels` of an upper block, with L1 packed by [`pack_triangle`].
///
/// # Safety
/// The processor is supported, `l1` and `u` are such blocks, and nobody else touches those panels.
pub unsafe fn solve_upper(k: usize, l1: *const f64, u: *mut f64, panels: std::ops::Range<usize>) {
    let panel_len = upper_panel_len(k);
    // SAFETY: within the blocks; a panel has room for a multiple of 8 rows.
    unsafe {
        for panel in panels {
            let u = u.add(panel * panel_len);
            for i in (0..k).step_by(SCALAR) {
                // U(i..i+8, :) -= L1(i..i+8, 0..i) U(0..i, :), then the triangle on the diagonal.
                let l = l1.add(i * k);
                let tile = u.add(i * VECTOR);
                if i > 0 {
                    micro::tile(i, (u, VECTOR), l, (tile, VECTOR), VECTOR, SCALAR);
                }
                if i + SCALAR <= k {
                    micro::solve_tile(l.add(i * SCALAR), tile);
                } else {
                    // The last, short triangle: its packed panel ends at row k.
                    for p in i..k {
                        for r in p + 1..k {
                            let x = *l.add(p * SCALAR + (r - i));
                            for v in 0..VECTOR {
                                let a = *u.add(p * VECTOR + v);
                                let b = u.add(r * VECTOR + v);
                                *b = (-a).mul_add(x, *b);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// C(rows x cols) -= L U, row-major C, for rows `rows` of the lower block and columns `cols` of
/// the upper block; both ranges begin at a panel. `c` points at row 0 and column 0 of the blocks.
///
/// # Safety
/// The processor is supported, the blocks are valid, and nobody else touches that part of C.
pub unsafe fn multiply(
    k: usize,
    l: *const f64,
    rows: std::ops::Range<usize>,
    u: *const f64,
    cols: std::ops::Range<usize>,
    (c, ldc): (*mut f64, usize),
) {
    debug_assert!(rows.start.is_multiple_of(SCALAR) && cols.start.is_multiple_of(VECTOR));
    let panel_len = upper_panel_len(k);
    // SAFETY: within the blocks and C as the caller vouches.
    unsafe {
        for j in cols.clone().step_by(VECTOR) {
            let width = (cols.end - j).min(VECTOR);
            // The kernel reads all 24 lanes of U, which are there, but writes `width` of C.
            let v = u.add(j / VECTOR * panel_len);
            for i in rows.clone().step_by(SCALAR) {
                let height = (rows.end - i).min(SCALAR);
                let tile = c.add(i * ldc + j);
                micro::tile(k, (v, VECTOR), l.add(i * k), (tile, ldc), width, height);
            }
        }
    }
}

/// C(rows x cols) -= A(rows x k) B(k x cols) within a panel: A and C column-major with the same
/// leading dimension, B small and given as packed columns (a lower block of B^T).
///
/// # Safety
/// The processor is supported, the ranges are valid, and C overlaps neither A nor B.
pub unsafe fn multiply_in_panel(
    (rows, cols, k): (usize, usize, usize),
    a: *const f64,
    b: *const f64,
    c: *mut f64,
    ld: usize,
) {
    // SAFETY: the kernel masks what is beyond a short edge.
    unsafe {
        for i in (0..rows).step_by(VECTOR) {
            let width = (rows - i).min(VECTOR);
            for j in (0..cols).step_by(SCALAR) {
                let height = (cols - j).min(SCALAR);
                let tile = c.add(j * ld + i);
                micro::tile(k, (a.add(i), ld), b.add(j * k), (tile, ld), width, height);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small integers, so that every order of summation gives the same, exact result.
    fn numbers(seed: usize, len: usize) -> Vec<f64> {
        (0..len).map(|i| ((i * 7919 + seed * 104729) % 17) as f64 - 8.0).collect()
    }

    #[test]
    fn multiplies_every_shape_of_edge() {
        if !micro::supported() {
            return;
        }
        for &rows in &[0usize, 1, 7, 8, 9, 24, 31] {
            for &cols in &[0usize, 1, 23, 24, 25, 55] {
                for &k in &[1usize, 2, 7, 8, 9, 33] {
                    let (ldl, ldc) = (rows + 3, cols + 5);
                    let l = numbers(1, ldl * k);
                    let u = numbers(2, k * cols);
                    let c = numbers(3, rows * ldc + ldc);
                    let mut lower = vec![f64::NAN; lower_len(rows, k)];
                    let mut upper = vec![f64::NAN; upper_len(k, cols)];
                    let mut out = c.clone();
                    // SAFETY: buffers of the documented sizes.
                    unsafe {
                        pack_lower(rows, k, (l.as_ptr(), ldl), lower.as_mut_ptr());
                        clear_edges(upper.as_mut_ptr(), k, cols);
                        for p in 0..k {
                            // In two pieces, so that a row need not begin at a panel.
                            let cut = cols / 3;
                            let row = u[p * cols..].as_ptr();
                            put_row(upper.as_mut_ptr(), k, p, 0, cut, row);
                            put_row(upper.as_mut_ptr(), k, p, cut, cols - cut, row.add(cut));
                        }
                        multiply(
                            k,
                            lower.as_ptr(),
                            0..rows,
                            upper.as_ptr(),
                            0..cols,
                            (out.as_mut_ptr(), ldc),
                        );
                    }
                    for i in 0..rows {
                        for j in 0..ldc {
                            let mut want = c[i * ldc + j];
                            if j < cols {
                                want -=
                                    (0..k).map(|p| l[p * ldl + i] * u[p * cols + j]).sum::<f64>();
                            }
                            assert_eq!(out[i * ldc + j], want, "{rows}x{cols}x{k} at {i},{j}");
                        }
                    }
                    assert_eq!(out[rows * ldc..], c[rows * ldc..], "nothing beyond is touched");
                }
            }
        }
    }

    #[test]
    fn solves_triangles_of_every_order() {
        if !micro::supported() {
            return;
        }
        for k in 1..40usize {
            for cols in [1usize, 24, 30] {
                let l = numbers(5, k * k);
                let x = numbers(6, k * cols);
                let mut upper = vec![f64::NAN; upper_len(k, cols)];
                let mut l1 = vec![f64::NAN; lower_len(k, k)];
                // b = L x, with integers small enough to stay exact only for small k: scale down.
                let l: Vec<f64> = l.iter().map(|v| v / 256.0).collect();
                // SAFETY: buffers of the documented sizes.
                unsafe {
                    pack_triangle(k, l.as_ptr(), (k, 1), l1.as_mut_ptr());
                    clear_edges(upper.as_mut_ptr(), k, cols);
                    for i in 0..k {
                        let row: Vec<f64> = (0..cols)
                            .map(|j| {
                                x[i * cols + j]
                                    + (0..i).map(|p| l[i * k + p] * x[p * cols + j]).sum::<f64>()
                            })
                            .collect();
                        put_row(upper.as_mut_ptr(), k, i, 0, cols, row.as_ptr());
                    }
                    solve_upper(k, l1.as_ptr(), upper.as_mut_ptr(), 0..cols.div_ceil(VECTOR));
                    for i in 0..k {
                        let mut row = vec![0.0; cols];
                        get_row(upper.as_ptr(), k, i, 0, cols, row.as_mut_ptr());
                        for j in 0..cols {
                            let error = (row[j] - x[i * cols + j]).abs();
                            assert!(error < 1e-9, "order {k}: {error} at {i},{j}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn multiplies_within_a_panel() {
        if !micro::supported() {
            return;
        }
        for &(rows, cols, k) in &[(1, 1, 1), (23, 3, 4), (24, 8, 8), (61, 13, 5)] {
            let ld = rows + 7;
            let a = numbers(1, ld * k);
            let b = numbers(2, k * cols);
            let c = numbers(3, ld * cols);
            let mut packed = vec![f64::NAN; lower_len(cols, k)];
            let mut out = c.clone();
            // SAFETY: buffers of the documented sizes; B row-major is B^T column-major.
            unsafe {
                pack_lower(cols, k, (b.as_ptr(), cols), packed.as_mut_ptr());
                multiply_in_panel(
                    (rows, cols, k),
                    a.as_ptr(),
                    packed.as_ptr(),
                    out.as_mut_ptr(),
                    ld,
                );
            }
            for j in 0..cols {
                for i in 0..ld {
                    let mut want = c[j * ld + i];
                    if i < rows {
                        want -= (0..k).map(|p| a[p * ld + i] * b[p * cols + j]).sum::<f64>();
                    }
                    assert_eq!(out[j * ld + i], want);
                }
            }
        }
    }
}
