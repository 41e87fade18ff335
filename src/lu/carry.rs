//! Sums that go along a process row: each rank adds its share to a piece of them and hands it on, until it is where it is to be.
//! While one piece is at hand the next one comes.

use crate::base::pulse;
use crate::comm::Comm;

/// Doubles of one piece at most, or those of one row.
pub const LONGEST: usize = 64 << 10;
const TAG: i32 = 5;

/// What goes in one message, as one rank has to do with it.
pub struct Piece<T> {
    pub what: T,
    pub doubles: usize,
    /// The rank that hands it over; None: it begins here, with zeros.
    pub from: Option<usize>,
    /// The rank that it is handed to; None: it ends here.
    pub to: Option<usize>,
}

/// All ranks that pieces go by, together; what two of them have in common comes in the same order at both. `at_hand` adds to a
/// piece, or keeps it.
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
        pulse::beat();
    }
}
