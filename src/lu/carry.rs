//! Computes sums along a process row, in pieces. A piece is a message with some of the sums. Each rank adds its share to the
//! piece and sends the piece to the next rank. The last rank stores the piece. While a rank works on a piece, the rank receives
//! the next piece.

use crate::base::heartbeat;
use crate::comm::Comm;

/// Maximum number of doubles in a piece. Only a piece of a single row may be longer.
pub const LONGEST: usize = 64 << 10;
const TAG: i32 = 5;

/// A message with sums, as one rank of the process row receives and sends it.
pub struct Piece<T> {
    /// Description of the piece for the callback of [`carry`].
    pub what: T,
    pub doubles: usize,
    /// Rank that sends the piece. `None` if the piece starts on this rank, with zeros.
    pub from: Option<usize>,
    /// Rank that receives the piece next. `None` if the piece ends on this rank.
    pub to: Option<usize>,
}

/// Sends each of `pieces` from rank to rank of `along`. Each rank receives the piece, calls `at_hand`, and sends the piece to the
/// next rank.
///
/// All ranks that send or receive a piece call this together. Two such ranks must list their common pieces in the same order.
/// `at_hand` adds this rank's share to a piece. If the piece ends on this rank, `at_hand` stores the piece.
pub fn carry<T>(along: &Comm, pieces: &[Piece<T>], mut at_hand: impl FnMut(&T, &mut [f64])) {
    let most = pieces.iter().map(|piece| piece.doubles).max().unwrap_or(0);
    let (mut sums, mut coming) = (vec![0.0; most], vec![0.0; most]);
    if let Some(&Piece { doubles, from: Some(from), .. }) = pieces.first() {
        along.recv(&mut coming[..doubles], from, TAG);
    }
    for (i, piece) in pieces.iter().enumerate() {
        std::mem::swap(&mut sums, &mut coming);
        let sums = &mut sums[..piece.doubles];
        if piece.from.is_none() {
            sums.fill(0.0);
        }
        let next = pieces.get(i + 1).and_then(|next| Some((next, next.from?)));
        let next = next.map(|(next, from)| (&mut coming[..next.doubles], from));
        if let Some(to) = piece.to {
            at_hand(&piece.what, sums);
            along.exchange(Some((sums, to)), next, TAG);
        } else {
            along.exchange_while(None, next, TAG, || at_hand(&piece.what, sums));
        }
        heartbeat::beat();
    }
}
