//! Allocates the memory of a test on all ranks of the grid, or fails on all ranks.
//!
//! A rank that continued alone would wait forever for the ranks whose allocation failed.

use std::io;
use std::sync::Arc;

use super::context::Context;
use super::work::Work;
use crate::base::threads::Pool;
use crate::comm::Reduce;
use crate::device::{Buffer, Device};
use crate::matrix::{HugeBuffer, Local, Storage};

/// Allocates this rank's part of the matrix in the private memory of the process. All ranks of the grid call this together. Fails
/// on all ranks if the allocation fails on any rank.
pub fn own_part(context: &Context) -> io::Result<Local<HugeBuffer>> {
    part(context, "", HugeBuffer::new(context.shape.len()))
}

/// Allocates this rank's part of the matrix in the memory of `device`. All ranks of the grid call this together. Fails on all
/// ranks if the allocation fails on any rank.
pub fn part_on(device: &Arc<dyn Device>, context: &Context) -> io::Result<Local<Buffer>> {
    part(context, " of device memory", Buffer::new(device, context.shape.len()))
}

/// Returns this rank's part of the matrix, in the allocated memory `room`. Fails on all ranks if the allocation failed on any
/// rank. `whose` names the kind of memory in the message of the error.
fn part<S: Storage>(context: &Context, whose: &str, room: io::Result<S>) -> io::Result<Local<S>> {
    match (lacking(context, &room), room) {
        (0, Ok(room)) => Ok(Local::new(context.shape, room)),
        (lacking, _) => {
            let bytes = context.shape.len() as u64 * 8;
            Err(io::Error::other(format!(
                "{lacking} rank(s) could not allocate {bytes} bytes{whose} for a part of the matrix: choose a smaller N"
            )))
        }
    }
}

/// Allocates the work arrays of this rank. All ranks of the grid call this together. Fails on all ranks if the allocation fails
/// on any rank.
pub(super) fn work_arrays(context: &Context, pool: &mut Pool) -> io::Result<Work> {
    let made = Work::new(context, pool);
    let why = match (lacking(context, &made), made) {
        (0, Ok(work)) => return Ok(work),
        (lacking, Ok(_)) => format!("the allocation failed on {lacking} other rank(s)"),
        (_, Err(error)) => error.to_string(),
    };
    Err(io::Error::other(format!(
        "could not allocate the work arrays: {why}; choose a smaller N or NB"
    )))
}

/// Number of ranks of the grid whose allocation failed.
fn lacking<T>(context: &Context, got: &io::Result<T>) -> u64 {
    let mut lacking = [u64::from(got.is_err())];
    context.grid.all_reduce(&mut lacking, Reduce::Sum);
    lacking[0]
}
