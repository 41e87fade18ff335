//! Kernels for AVX-512 and for AVX2 with fused multiply-add.
//!
//! The loop of a whole tile is written in assembly, and keeps all of C in registers. Each element of S is broadcast once and used
//! for all of V. A turn of the loop does four steps of k, and prefetches data in time. With a loop in Rust, compilers spilled
//! registers, or read S from memory for each multiplication.
//!
//! Each turn prefetches one cache line and no more. A core has few buffers for lines in transit, and the lines of V and S from
//! the second-level cache use the same buffers. The lines of the next tile of C are prefetched first, then those of V's next
//! panel.
//!
//! If k is so small that the last lines of C would arrive too late, each turn prefetches a whole row of C. In this case, access
//! to C takes most of the time, and each late line costs more. The same is done if too few turns would be left to prefetch V.

use std::arch::asm;
use std::arch::x86_64::*;

use super::lanes::{self, Lanes};
use super::{InPanel, Isa, Kernel, Soon};

/// Approximate number of turns of the loop until a prefetched cache line arrives from memory, which takes some hundreds of
/// cycles.
const TO_COME: usize = 8;

struct Wide;

impl Lanes for Wide {
    type Register = __m512d;
    const LEN: usize = 8;
    #[inline(always)]
    unsafe fn load(from: *const f64) -> __m512d {
        // SAFETY: ensured by the caller.
        unsafe { _mm512_loadu_pd(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f64, value: __m512d) {
        // SAFETY: ensured by the caller.
        unsafe { _mm512_storeu_pd(to, value) }
    }
    #[inline(always)]
    unsafe fn splat(value: f64) -> __m512d {
        // SAFETY: ensured by the caller.
        unsafe { _mm512_set1_pd(value) }
    }
    #[inline(always)]
    unsafe fn subtract_product(c: __m512d, a: __m512d, b: __m512d) -> __m512d {
        // SAFETY: ensured by the caller.
        unsafe { _mm512_fnmadd_pd(a, b, c) }
    }
}

struct Middle;

impl Lanes for Middle {
    type Register = __m256d;
    const LEN: usize = 4;
    #[inline(always)]
    unsafe fn load(from: *const f64) -> __m256d {
        // SAFETY: ensured by the caller.
        unsafe { _mm256_loadu_pd(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f64, value: __m256d) {
        // SAFETY: ensured by the caller.
        unsafe { _mm256_storeu_pd(to, value) }
    }
    #[inline(always)]
    unsafe fn splat(value: f64) -> __m256d {
        // SAFETY: ensured by the caller.
        unsafe { _mm256_set1_pd(value) }
    }
    #[inline(always)]
    unsafe fn subtract_product(c: __m256d, a: __m256d, b: __m256d) -> __m256d {
        // SAFETY: ensured by the caller.
        unsafe { _mm256_fnmadd_pd(a, b, c) }
    }
}

/// Defines a kernel: its tile in assembly, and its other functions.
///
/// `$rows` has one group for each row of C. A group has the number of the row, the register for the broadcast element of S, and
/// the registers of the row. A row has one register for each register of V. `$v` numbers the registers of V. `$line` is an offset
/// in bytes within a row of C.
macro_rules! kernel {
    (
        avx512 $name:ident $text:literal, $r:literal, $h:literal,
        v $v:tt,
        c $rows:tt,
        lines $lines:tt
    ) => {
        kernel!(
            "avx512f", Wide, $r, $h, "zmm", 64,
            $name $text, Isa::Avx512, AVX512_PANEL,
            v $v,
            c $rows,
            lines $lines,
            clobber [
                out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _,
                out("zmm5") _, out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _,
                out("zmm10") _, out("zmm11") _, out("zmm12") _, out("zmm13") _, out("zmm14") _,
                out("zmm15") _, out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
                out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _, out("zmm24") _,
                out("zmm25") _, out("zmm26") _, out("zmm27") _, out("zmm28") _, out("zmm29") _,
                out("zmm30") _, out("zmm31") _,
            ]
        );
    };
    (
        avx2 $name:ident $text:literal, $r:literal, $h:literal,
        v $v:tt,
        c $rows:tt,
        lines $lines:tt
    ) => {
        kernel!(
            "avx2,fma", Middle, $r, $h, "ymm", 32,
            $name $text, Isa::Avx2, AVX2_PANEL,
            v $v,
            c $rows,
            lines $lines,
            clobber [
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _,
                out("ymm5") _, out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _,
                out("ymm10") _, out("ymm11") _, out("ymm12") _, out("ymm13") _, out("ymm14") _,
                out("ymm15") _,
            ]
        );
    };
    (
        $feature:literal, $lanes:ty, $r:literal, $h:literal, $register:literal, $bytes:literal,
        $name:ident $text:literal, $isa:expr, $panel:expr,
        v $v:tt,
        c $rows:tt,
        lines [$($line:literal)*],
        clobber [$($clobbered:tt)*]
    ) => {
        const $name: Kernel = {
            #[target_feature(enable = $feature)]
            unsafe fn tile(
                k: usize,
                v: *const f64,
                s: *const f64,
                c: *mut f64,
                ldc: usize,
                soon: Soon,
            ) {
                let turns = k / 4;
                // Number of rows of the next tile that are prefetched line by line (`by_lines`), or as a whole row in one turn
                // (`at_once`).
                let lines = [$($line),*].len();
                let left = turns.saturating_sub($h * lines);
                let in_time = left >= TO_COME.max(soon.lines);
                let (by_lines, at_once) = if in_time { ($h, 0) } else { (0, turns.min($h)) };
                // SAFETY: reads k times `vector` elements of V and k times `scalar` elements of S, and reads and writes a tile
                // of C. The caller ensures that these are valid. Prefetching an invalid address does nothing.
                unsafe {
                    asm!(
                        "mov {at}, {c}",
                        move_rows!("load", $register, $bytes, $v, $rows),
                        "test {at_once}, {at_once}",
                        "jz 8f",
                        ".p2align 5",
                        "9:",
                        $(concat!("prefetchw [{tile} + ", $line, "]"),)*
                        turn!($register, $bytes, $r, $h, $v, $rows),
                        "add {tile}, {ldc}",
                        "dec {at_once}",
                        "jnz 9b",
                        "8:",
                        "test {by_lines}, {by_lines}",
                        "jz 3f",
                        ".p2align 5",
                        "2:",
                        $(ask_and_turn!($line, $register, $bytes, $r, $h, $v, $rows),)*
                        "add {tile}, {ldc}",
                        "dec {by_lines}",
                        "jnz 2b",
                        "3:",
                        "test {turns}, {turns}",
                        "jz 5f",
                        ".p2align 5",
                        "4:",
                        "prefetcht1 [{vector}]",
                        "add {vector}, 64",
                        turn!($register, $bytes, $r, $h, $v, $rows),
                        "dec {turns}",
                        "jnz 4b",
                        "5:",
                        "test {single}, {single}",
                        "jz 7f",
                        "6:",
                        step!(0, $register, $bytes, $r, $h, $v, $rows),
                        concat!("add {v}, ", $r, "*", $bytes),
                        concat!("add {s}, 8*", $h),
                        "dec {single}",
                        "jnz 6b",
                        "7:",
                        "mov {at}, {c}",
                        move_rows!("store", $register, $bytes, $v, $rows),
                        // Values left in the upper halves of registers would slow down later code with older instructions. In
                        // code that a compiler generates, the compiler inserts this instruction itself.
                        "vzeroupper",
                        at = out(reg) _,
                        c = in(reg) c,
                        ldc = in(reg) ldc * 8,
                        v = inout(reg) v => _,
                        s = inout(reg) s => _,
                        tile = inout(reg) soon.tile => _,
                        vector = inout(reg) soon.vector => _,
                        at_once = inout(reg) at_once => _,
                        by_lines = inout(reg) by_lines => _,
                        turns = inout(reg) turns - at_once - by_lines * lines => _,
                        single = inout(reg) k % 4 => _,
                        $($clobbered)*
                        options(nostack),
                    );
                }
            }

            #[target_feature(enable = $feature)]
            unsafe fn narrow(
                width: usize,
                k: usize,
                v: *const f64,
                s: *const f64,
                c: *mut f64,
                ldc: usize,
            ) {
                // SAFETY: ensured by the caller.
                unsafe { lanes::narrow::<$lanes, $r, $h>(width, k, v, s, c, ldc) }
            }

            #[target_feature(enable = $feature)]
            unsafe fn triangle(n: usize, l: *const f64, u: *mut f64) {
                // SAFETY: ensured by the caller.
                unsafe { lanes::triangle::<$lanes, $r>(n, $h, l, u) }
            }

            Kernel {
                name: $text,
                isa: $isa,
                vector: $r * <$lanes>::LEN,
                scalar: $h,
                tile,
                narrow,
                triangle,
                panel: $panel,
            }
        };
    };
}

/// A turn of the loop of a tile: four steps of k.
macro_rules! turn {
    ($reg:literal, $bytes:literal, $r:literal, $h:literal, $v:tt, $rows:tt) => {
        concat!(
            step!(0, $reg, $bytes, $r, $h, $v, $rows),
            step!(1, $reg, $bytes, $r, $h, $v, $rows),
            step!(2, $reg, $bytes, $r, $h, $v, $rows),
            step!(3, $reg, $bytes, $r, $h, $v, $rows),
            "add {v}, 4*",
            $r,
            "*",
            $bytes,
            "\n",
            "add {s}, 4*8*",
            $h,
            "\n",
        )
    };
}

/// A turn of the loop that also prefetches the cache line at byte `$line` of a row of the next tile of C.
macro_rules! ask_and_turn {
    ($line:literal, $reg:literal, $bytes:literal, $r:literal, $h:literal, $v:tt, $rows:tt) => {
        concat!("prefetchw [{tile} + ", $line, "]\n", turn!($reg, $bytes, $r, $h, $v, $rows))
    };
}

/// Loads or stores a tile of C, row by row.
macro_rules! move_rows {
    ($what:tt, $reg:literal, $bytes:literal, $v:tt, [$($row:tt)*]) => {
        concat!($(move_row!($what, $reg, $bytes, $v, $row), "\n",)*)
    };
}

/// Loads or stores a row of C, and advances to the next row.
macro_rules! move_row {
    ("load", $reg:literal, $bytes:literal, [$($v:literal)*], ($i:literal $b:literal $($acc:literal)*)) => {
        concat!($("vmovupd ", $reg, $acc, ", [{at} + ", $bytes, "*", $v, "]\n",)* "add {at}, {ldc}")
    };
    ("store", $reg:literal, $bytes:literal, [$($v:literal)*], ($i:literal $b:literal $($acc:literal)*)) => {
        concat!($("vmovupd [{at} + ", $bytes, "*", $v, "], ", $reg, $acc, "\n",)* "add {at}, {ldc}")
    };
}

/// Step `$u` of a turn, which subtracts the product of row `$u` of V and row `$u` of S from C.
macro_rules! step {
    ($u:literal, $reg:literal, $bytes:literal, $r:literal, $h:literal, $v:tt, [$($row:tt)*]) => {
        concat!(
            load_v!($u, $reg, $bytes, $r, $v),
            $(row!($u, $reg, $h, $v, $row),)*
        )
    };
}

macro_rules! load_v {
    ($u:literal, $reg:literal, $bytes:literal, $r:literal, [$($v:literal)*]) => {
        concat!($("vmovupd ", $reg, $v, ", [{v} + (", $u, "*", $r, "+", $v, ")*", $bytes, "]\n",)*)
    };
}

macro_rules! row {
    ($u:literal, $reg:literal, $h:literal, [$($v:literal)*], ($i:literal $b:literal $($acc:literal)*)) => {
        concat!(
            "vbroadcastsd ", $reg, $b, ", qword ptr [{s} + (", $u, "*", $h, "+", $i, ")*8]\n",
            $("vfnmadd231pd ", $reg, $acc, ", ", $reg, $v, ", ", $reg, $b, "\n",)*
        )
    };
}

lanes::in_panel_function!(
    #[target_feature(enable = "avx512f")]
    in_panel_avx512, Wide, 3, [1 2 3 4 5 6 7 8]);
lanes::in_panel_function!(
    #[target_feature(enable = "avx2,fma")]
    in_panel_avx2, Middle, 2, [1 2 3 4 5 6]);

const AVX512_PANEL: InPanel = InPanel { rows: 24, cols: 8, multiply: in_panel_avx512 };
const AVX2_PANEL: InPanel = InPanel { rows: 8, cols: 6, multiply: in_panel_avx2 };

kernel!(
    avx512 AVX512_24X8 "avx512-24x8", 3, 8,
    v [0 1 2],
    c [
        (0 3 8 9 10) (1 4 11 12 13) (2 5 14 15 16) (3 6 17 18 19) (4 7 20 21 22) (5 3 23 24
        25) (6 4 26 27 28) (7 5 29 30 31)
    ],
    lines [0 64 128 184]
);

kernel!(
    avx512 AVX512_32X6 "avx512-32x6", 4, 6,
    v [0 1 2 3],
    c [
        (0 4 8 9 10 11) (1 5 12 13 14 15) (2 6 16 17 18 19) (3 7 20 21 22 23) (4 4 24 25 26
        27) (5 5 28 29 30 31)
    ],
    lines [0 64 128 192 248]
);

kernel!(
    avx512 AVX512_16X14 "avx512-16x14", 2, 14,
    v [0 1],
    c [
        (0 2 4 5) (1 3 6 7) (2 2 8 9) (3 3 10 11) (4 2 12 13) (5 3 14 15) (6 2 16 17) (7 3
        18 19) (8 2 20 21) (9 3 22 23) (10 2 24 25) (11 3 26 27) (12 2 28 29) (13 3 30 31)
    ],
    lines [0 64 120]
);

kernel!(
    avx2 AVX2_12X4 "avx2-12x4", 3, 4,
    v [0 1 2],
    c [(0 3 4 5 6) (1 3 7 8 9) (2 3 10 11 12) (3 3 13 14 15)],
    lines [0 64 88]
);

kernel!(
    avx2 AVX2_8X6 "avx2-8x6", 2, 6,
    v [0 1],
    c [(0 2 4 5) (1 3 6 7) (2 2 8 9) (3 3 10 11) (4 2 12 13) (5 3 14 15)],
    lines [0 56]
);

pub const KERNELS: &[Kernel] = &[
    AVX512_24X8,
    AVX512_32X6,
    AVX512_16X14,
    // Narrow registers are for processors that divide each wide operation in two. Within a panel, wide registers are still
    // faster.
    Kernel { name: "avx512-12x4", isa: Isa::Avx512, panel: AVX512_PANEL, ..AVX2_12X4 },
    Kernel { name: "avx512-8x6", isa: Isa::Avx512, panel: AVX512_PANEL, ..AVX2_8X6 },
    AVX2_12X4,
    AVX2_8X6,
];
