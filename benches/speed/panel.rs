//! `--panel`: measures the factorisation of single panels.
//!
//! A panel of m rows and NB columns takes m NB² - NB³/3 operations. It is compared with the DGEMM of its shape, C(m x NB) -= A(m
//! x NB) B(NB x NB). It is compared too with the least number of bytes that the recursion moves between memory and the
//! second-level cache.

use std::time::Instant;

use skt_hpl::base::params::{Bcast, Fact, Form, Mapping, Rng, SplitUpdate, Swap, TestParams};
use skt_hpl::base::threads::Pool;
use skt_hpl::base::topology;
use skt_hpl::comm::World;
use skt_hpl::kernels::{Engine, Matrix, Operand, Size, active, set_library_threads};
use skt_hpl::lu::{Context, Order, time_panel};
use skt_hpl::matrix::HugeBuffer;

use crate::cases::{Case, Flags};
use crate::kernels;

/// Bytes of each of the two arrays between which memory is copied.
const COPIED: usize = 256 << 20;
/// Assumed size of the second-level cache in bytes, if the system reports none.
const SECOND_LEVEL: usize = 1 << 20;
/// Number of columns at which the recursion ends.
const NBMIN: usize = 4;

/// Prints a table with a row for each case. Rates are the best of `--repeat`.
///
/// # Errors
/// If there is not enough memory, or no engine.
pub fn run(flags: &Flags, cases: &[Case]) -> Result<(), String> {
    let world = World::init(false);
    let second_level = topology::second_level().unwrap_or(SECOND_LEVEL);
    let text = |error: std::io::Error| error.to_string();
    println!("| rows | NB | threads | kernel | ms | Gflop/s | of DGEMM | GB/s | of copying |");
    println!("|--:|--:|--:|---|--:|--:|--:|--:|--:|");
    for case in cases {
        let engine = kernels::fastest(flags.engine, case.nb, case.threads)?;
        let params = params(case);
        let context = context(&world, &params, engine, case)?;
        let mut pool = Pool::new(case.threads);
        let seconds = time_panel(context, flags.repeat, &mut pool).map_err(text)?;
        let dgemm = dgemm(case, flags.repeat).map_err(text)?;
        let copy = copy(flags.repeat, &mut pool).map_err(text)?;
        let rate = operations(case.n, case.nb) / seconds / 1e9;
        let moved = bytes(case.n, case.nb, second_level) as f64 / seconds / 1e9;
        println!(
            "| {} | {} | {} | {} | {:.1} | {rate:.1} | {:.2} | {moved:.1} | {:.2} |",
            case.n,
            case.nb,
            case.threads,
            engine.name(),
            seconds * 1e3,
            rate / dgemm,
            moved / copy,
        );
    }
    Ok(())
}

/// Returns the solver's context of a test on a grid of one rank.
pub fn context<'a>(
    world: &'a World,
    params: &'a TestParams,
    engine: Engine,
    case: &Case,
) -> Result<Context<'a>, String> {
    let order = Order { threads: case.threads, split_update: SplitUpdate::Auto };
    let context = Context::new(world.comm(), params, engine, order, Some((0, 0)));
    context.ok_or_else(|| "a grid of one rank needs one rank".into())
}

/// Returns the number of operations of a panel.
pub fn operations(rows: usize, nb: usize) -> f64 {
    let (m, nb) = (rows as f64, nb as f64);
    m * nb * nb - nb * nb * nb / 3.0
}

/// Returns the least number of bytes that are moved from or to memory while a panel is factored.
///
/// The panel is copied in and out. A part that does not fit into the second-level cache is divided in two. The left half is then
/// read, and the right half is read and written. A part that fits is read and written once.
fn bytes(rows: usize, nb: usize, second_level: usize) -> usize {
    let part = rows * nb * size_of::<f64>();
    let copies = 4 * part;
    let mut levels = 0;
    let mut width = nb;
    while width > NBMIN && rows * width * size_of::<f64>() > second_level {
        levels += 1;
        width = width.div_ceil(2);
    }
    copies + levels * part * 3 / 2 + 2 * part
}

/// Returns the rate of the library's DGEMM for matrices with the shape of a panel, in Gflop/s.
fn dgemm(case: &Case, tries: usize) -> std::io::Result<f64> {
    let (m, nb) = (case.n, case.nb);
    let buffer = |len: usize| -> std::io::Result<HugeBuffer> {
        let mut buffer = HugeBuffer::new(len)?;
        buffer.as_mut_slice().fill(0.5);
        Ok(buffer)
    };
    let (a, b, mut c) = (buffer(m * nb)?, buffer(nb * nb)?, buffer(m * nb)?);
    set_library_threads(case.threads);
    let seconds = shortest(tries + 1, || {
        let (left, right) = (Operand::plain(a.as_ptr(), m), Operand::plain(b.as_ptr(), nb));
        // SAFETY: the buffers have these sizes, and are borrowed for the call.
        unsafe {
            active().calls.gemm(
                Size::new(m, nb, nb),
                -1.0,
                left,
                right,
                Matrix::new(c.as_mut_ptr(), m),
            )
        }
    });
    Ok(2.0 * (m * nb * nb) as f64 / seconds / 1e9)
}

/// Returns the rate at which all threads together read and write memory while they copy it, in GB/s.
fn copy(tries: usize, pool: &mut Pool) -> std::io::Result<f64> {
    let (mut from, mut to) = (HugeBuffer::new(COPIED / 8)?, HugeBuffer::new(COPIED / 8)?);
    from.as_mut_slice().fill(0.5);
    to.as_mut_slice().fill(0.5);
    let (source, target) = (from.as_slice(), to.as_mut_slice());
    let each = source.len().div_ceil(pool.threads());
    let seconds = shortest(tries + 1, || {
        pool.rows(target, each, each, |part, to| {
            to.copy_from_slice(&source[part * each..][..to.len()]);
        });
    });
    Ok(2.0 * COPIED as f64 / seconds / 1e9)
}

pub fn shortest(tries: usize, mut work: impl FnMut()) -> f64 {
    let times = (0..tries).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}

/// Returns the parameters of a test whose first panel is measured: the program's own choices, as without HPL.dat.
pub fn params(case: &Case) -> TestParams {
    TestParams {
        n: case.n,
        nb: case.nb,
        p: 1,
        q: 1,
        mapping: Mapping::Row,
        depth: 1,
        bcast: Bcast::OneRingM,
        rfact: Fact::Crout,
        ndiv: 2,
        pfact: Fact::Right,
        nbmin: NBMIN,
        swap: Swap::Long,
        swap_threshold: 64,
        l1: Form::Transposed,
        u: Form::Transposed,
        equilibrate: false,
        align: 8,
        threshold: 16.0,
        rng: Rng::Hpl,
        seed: Rng::HPL_SEED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_grow_by_the_levels_that_do_not_fit() {
        let part = 1000 * 64 * 8;
        assert_eq!(bytes(1000, 64, usize::MAX), 6 * part);
        assert_eq!(bytes(1000, 64, part - 1), 6 * part + part * 3 / 2);
        assert_eq!(bytes(1000, 64, part / 2 - 1), 6 * part + 2 * (part * 3 / 2));
        assert_eq!(bytes(1000, 64, 0), bytes(1000, 64, 1), "no narrower than NBMIN");
    }

    #[test]
    fn operations_of_a_square_are_those_of_its_factorisation() {
        assert_eq!(operations(30, 30), 2.0 / 3.0 * 27000.0);
    }
}
