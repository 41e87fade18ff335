//! Work arrays of a factorisation. `need` computes their lengths.
//!
//! Work arrays outlive an attempt. After a failed attempt, its messages in transit are dropped, but panels that have arrived
//! stay.

use std::io;

use super::context::Context;
use super::factor::Factor;
use super::panel::Panel;
use super::swap::Swapper;
use crate::base::outcome::SplitUpdates;
use crate::base::threads::Pool;
use crate::device::Buffer;
use crate::matrix::{HugeBuffer, Storage};

/// Row exchanges that may run at the same time have different tags.
const NEAR_TAG: i32 = 2;
const FAR_TAG: i32 = 4;

/// Work arrays of a factorisation.
pub struct Work {
    pub(super) panels: Vec<Panel>,
    pub(super) factor: Factor,
    /// Row exchanges for the columns of the next panel (`near`) and, at the same time, for the remaining columns (`far`).
    /// Declared before U, which their messages use, because fields are dropped in order.
    pub(super) near: Swapper,
    pub(super) far: Swapper,
    /// U for the columns of the next panel, and U for the remaining columns.
    pub(super) ahead: Box<dyn Storage>,
    pub(super) rest: Box<dyn Storage>,
    /// Numbers of iterations with a split update so far.
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

    /// Drops the messages in transit of a failed attempt. Panels that have arrived stay.
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
