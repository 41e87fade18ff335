//! Work arrays of a factorisation. `need` computes their lengths.
//!
//! Work arrays outlive an attempt. Messages in transit of a failed attempt are dropped, but panels that have arrived are kept.

use std::io;

use super::context::Context;
use super::factor::Factor;
use super::panel::Panel;
use super::swap::Swapper;
use crate::base::outcome::SplitUpdates;
use crate::base::threads::Pool;
use crate::device::Buffer;
use crate::matrix::{HugeBuffer, Storage};

/// Tag of row exchanges in the columns of the next panel. A row exchange in the other columns may run at the same time, so the
/// tags differ.
const NEAR_TAG: i32 = 2;
/// Tag of row exchanges in all columns other than the columns of the next panel.
const FAR_TAG: i32 = 4;

/// Work arrays of a factorisation.
pub struct Work {
    pub(super) panels: Vec<Panel>,
    pub(super) factor: Factor,
    /// Row exchange in the columns of the next panel. Declared before `ahead`, which the messages of the exchange use, because
    /// fields are dropped in order.
    pub(super) near: Swapper,
    /// Row exchange in all columns other than the columns of the next panel, which may run at the same time as the exchange
    /// `near`. Declared before `rest`, which its messages use, because fields are dropped in order.
    pub(super) far: Swapper,
    /// Memory for U in the columns of the next panel.
    pub(super) ahead: Box<dyn Storage>,
    /// Memory for U in all columns other than the columns of the next panel.
    pub(super) rest: Box<dyn Storage>,
    /// Counts of split updates, and of row exchanges that overlapped a multiplication.
    pub split_update: SplitUpdates,
}

impl Work {
    pub fn new(context: &Context, pool: &mut Pool) -> io::Result<Self> {
        let (lengths, device) = (context.lengths(pool.threads()), context.device.as_ref());
        let panels = (0..lengths.slots).map(|_| Panel::new(&lengths, device, pool));
        Ok(Self {
            panels: panels.collect::<io::Result<_>>()?,
            factor: Factor::new(&lengths, device, pool)?,
            near: Swapper::new(device, lengths.swap_ahead, NEAR_TAG)?,
            far: Swapper::new(device, lengths.swap_rest, FAR_TAG)?,
            ahead: upper(context, lengths.ahead, pool)?,
            rest: upper(context, lengths.rest, pool)?,
            split_update: SplitUpdates::default(),
        })
    }

    /// Drops the messages in transit of a failed attempt. Panels that have arrived are kept.
    pub fn give_up_messages(&mut self) {
        self.panels.iter_mut().for_each(|panel| panel.broadcast = None);
        self.near.give_up();
        self.far.give_up();
    }

    /// Bytes of all work arrays.
    pub fn bytes(&self) -> u64 {
        let panels: u64 = self.panels.iter().map(Panel::bytes).sum();
        let upper = HugeBuffer::bytes_of(self.ahead.len()) + HugeBuffer::bytes_of(self.rest.len());
        panels + self.factor.bytes() + self.near.bytes() + self.far.bytes() + upper as u64
    }
}

/// Allocates memory for an upper block.
fn upper(context: &Context, len: usize, pool: &mut Pool) -> io::Result<Box<dyn Storage>> {
    Ok(match &context.device {
        Some(device) => Box::new(Buffer::new(device, len)?),
        None => Box::new(HugeBuffer::touched(len, pool)?),
    })
}
