//! `--device`: measures copies, DGEMM and panels of a device, and whole runs with the device.
//!
//! Each case first runs on a grid of one rank. Then this process measures copies, DGEMM and panels on the first device of the
//! node. Rates are the best of `--repeat`.

use std::io;
use std::path::Path;
use std::sync::Arc;

use skt_hpl::base::params::Device as Kind;
use skt_hpl::base::threads::Pool;
use skt_hpl::comm::World;
use skt_hpl::device::near::Ranks;
use skt_hpl::device::{self, Buffer, Device, Pinned, Stream};
use skt_hpl::kernels::{Engine, LowerBlock, Matrix, UpperBlock};
use skt_hpl::lu::time_panel;
use skt_hpl::matrix::Storage;

use crate::cases::{Case, Flags};
use crate::job::{Launcher, Who};
use crate::panel;

/// Number of doubles that are copied in each direction: 512 MiB.
const COPIED: usize = 64 << 20;

/// Measures the device, and prints the tables.
///
/// # Errors
/// If there is no device or not enough memory, or if a run fails.
pub fn run(
    kind: Kind,
    flags: &Flags,
    cases: &[Case],
    launcher: &Launcher,
    program: &Path,
) -> Result<(), String> {
    // Whole runs come before this process starts MPI, since variables that MPI sets would confuse the launcher.
    println!("| N | NB | whole run, Gflop/s |\n|--:|--:|--:|");
    for case in cases {
        for _ in 0..flags.repeat {
            let rates = launcher.run(Who::SktHpl, program, case)?;
            println!("| {} | {} | {:.1} |", case.n, case.nb, rates[0]);
        }
    }
    println!();
    let world = World::init(false);
    let device = device::open(kind, &Ranks { memories: vec![None], own: 0 }, 1)?
        .ok_or("--device none names no device")?;
    let text = |error: io::Error| error.to_string();
    println!("{}\n", device.name());
    let [there, back] = copies(&device, flags.repeat).map_err(text)?;
    println!(
        "copies of 512 MiB of pinned memory: {there:.1} GB/s to the device, {back:.1} GB/s back\n"
    );
    println!("| rows | NB | DGEMM of rows x rows, k = NB | panel, ms | Gflop/s | of DGEMM |");
    println!("|--:|--:|--:|--:|--:|--:|");
    for case in cases {
        let dgemm = dgemm(&device, case, flags.repeat).map_err(text)?;
        let mut pool = Pool::new(case.threads);
        let params = panel::params(case);
        let mut context = panel::context(&world, &params, Engine::Blas, case)?;
        context.device = Some(device.clone());
        let seconds = time_panel(context, flags.repeat, &mut pool).map_err(text)?;
        let rate = panel::operations(case.n, case.nb) / seconds / 1e9;
        println!(
            "| {} | {} | {dgemm:.0} | {:.1} | {rate:.0} | {:.3} |",
            case.n,
            case.nb,
            seconds * 1e3,
            rate / dgemm
        );
    }
    Ok(())
}

/// Returns the rates of copies to the device and back, in GB/s.
fn copies(device: &Arc<dyn Device>, tries: usize) -> io::Result<[f64; 2]> {
    let mut here = Pinned::touched(Some(device), COPIED, &mut Pool::new(1))?;
    let there = Buffer::new(device, COPIED)?;
    let ends = [here.as_mut_ptr(), there.address()];
    Ok([ends, [ends[1], ends[0]]].map(|[from, to]| {
        let (from, to) = (Matrix::new(from.cast_const(), COPIED), Matrix::new(to, COPIED));
        let seconds = panel::shortest(tries + 1, || {
            // SAFETY: both arrays have this length, and live until the copy has ended.
            unsafe { device.copy_2d(Stream::Panel, from, to, 1, COPIED) };
            device.finish(Stream::Panel);
        });
        (COPIED * 8) as f64 / seconds / 1e9
    }))
}

/// Returns the rate of an update in Gflop/s. It has as many rows and columns as the case, at most 20000.
fn dgemm(device: &Arc<dyn Device>, case: &Case, tries: usize) -> io::Result<f64> {
    let (side, k) = (case.n.min(20_000), case.nb);
    let buffer = |len| Buffer::new(device, len);
    let (l, u, c) = (buffer(side * k)?, buffer(k * side)?, buffer(side * side)?);
    for part in [&l, &u, &c] {
        fill(device, part)?;
    }
    let lower = LowerBlock { engine: Engine::Blas, rows: side, k, data: l.address() };
    let upper = UpperBlock { engine: Engine::Blas, k, cols: side, data: u.address() };
    let seconds = panel::shortest(tries + 1, || {
        let c = Matrix::new(c.address(), side);
        // SAFETY: the blocks have these sizes, and live until the multiplication has ended.
        unsafe { device.multiply(Stream::Update, lower, upper, 0..side, c) };
        device.finish(Stream::Update);
    });
    Ok(2.0 * (side * side) as f64 * k as f64 / seconds / 1e9)
}

/// Fills device memory with different nonzero numbers, since the rate of a device depends on the numbers.
fn fill(device: &Arc<dyn Device>, buffer: &Buffer) -> io::Result<()> {
    const AT_ONCE: usize = 1 << 20;
    let len = buffer.len();
    let mut here = Pinned::touched(Some(device), AT_ONCE.min(len), &mut Pool::new(1))?;
    let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
    for number in here.as_mut_slice() {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *number = (bits >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
    }
    for at in (0..len).step_by(AT_ONCE) {
        let some = AT_ONCE.min(len - at);
        let from = Matrix::new(here.as_ptr(), some);
        let to = Matrix::new(buffer.address().wrapping_add(at), some);
        // SAFETY: the copied part is within both buffers, which live until the copy has ended.
        unsafe { device.copy_2d(Stream::Panel, from, to, 1, some) };
    }
    device.finish(Stream::Panel);
    Ok(())
}
