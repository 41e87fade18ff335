//! Distribution of a problem over the grid: the local matrix of each position, and the part of it that a save covers. Pure.
//!
//! From the distribution, `plan` computes buffers and `layout` computes groups. The shape of every local matrix follows from the
//! problem and the grid, so ranks need not exchange shapes.

use serde::{Deserialize, Serialize};

use crate::base::params::{Mapping, TestParams};
use crate::grid::Cyclic;
use crate::parity::Window;

/// Part of the matrix that a save covers (`--scope`). The discriminant is the scope's number in headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// The rows and columns of the trailing submatrix. No other part can have changed since the last save.
    #[default]
    Corner = 0,
    /// The columns of the trailing submatrix, with all their rows.
    Side = 1,
    /// The whole matrix at each save.
    Whole = 2,
}

impl Scope {
    pub const ALL: [Scope; 3] = [Scope::Corner, Scope::Side, Scope::Whole];
}

/// Problem and process grid, from which the local matrix of each position follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub n: usize,
    pub nb: usize,
    pub p: usize,
    pub q: usize,
    pub mapping: Mapping,
    /// Number of dedicated positions, which are numbered after the positions of the grid. Dedicated positions have only parity,
    /// and no part of the matrix.
    pub dedicated: usize,
}

/// First row and column of the trailing submatrix in a local matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corner {
    pub row: usize,
    pub col: usize,
}

impl Layout {
    /// Layout of a test, without dedicated positions.
    pub fn of(test: &TestParams) -> Self {
        let TestParams { n, nb, p, q, mapping, .. } = *test;
        Self { n, nb, p, q, mapping, dedicated: 0 }
    }

    /// Number of positions that have a part of the matrix. These positions are numbered from 0.
    pub fn working(&self) -> usize {
        self.p * self.q
    }

    pub fn positions(&self) -> usize {
        self.working() + self.dedicated
    }

    pub fn blocks(&self) -> usize {
        self.n.div_ceil(self.nb)
    }

    pub(super) fn place(&self, position: usize) -> (usize, usize) {
        match self.mapping {
            Mapping::Row => (position / self.q, position % self.q),
            Mapping::Column => (position % self.p, position / self.p),
        }
    }

    /// Numbers of local rows and local columns of [A|b] at a position. Zeros for a dedicated position.
    pub fn shape(&self, position: usize) -> (usize, usize) {
        if position >= self.working() {
            return (0, 0);
        }
        let (p, q) = self.place(position);
        (
            Cyclic::new(self.n, self.nb, self.p).count(p),
            Cyclic::new(self.n + 1, self.nb, self.q).count(q),
        )
    }

    /// First row and column of the part of a position's local matrix that a save with `scope` covers, if the previous save was at
    /// `boundary`.
    pub fn corner(&self, position: usize, boundary: usize, scope: Scope) -> Corner {
        if position >= self.working() {
            return Corner { row: 0, col: 0 };
        }
        let (p, q) = self.place(position);
        let done = (boundary * self.nb).min(self.n);
        Corner {
            row: match scope {
                Scope::Corner => Cyclic::new(self.n, self.nb, self.p).count_below(done, p),
                _ => 0,
            },
            col: match scope {
                Scope::Whole => 0,
                _ => Cyclic::new(self.n + 1, self.nb, self.q).count_below(done, q),
            },
        }
    }

    /// Numbers of rows and columns of a window that covers, at every member of a group, the part that a save copies if the
    /// previous save was at `boundary`.
    pub fn window(&self, members: &[usize], boundary: usize, scope: Scope) -> Window {
        let extent = |member: &usize| {
            let (rows, cols) = self.shape(*member);
            let corner = self.corner(*member, boundary, scope);
            (rows - corner.row, cols - corner.col)
        };
        Window {
            rows: members.iter().map(|m| extent(m).0).max().unwrap_or(0),
            width: members.iter().map(|m| extent(m).1).max().unwrap_or(0),
        }
    }

    /// Bytes that a save copies at a position, if the previous save was at `boundary`.
    pub fn bytes(&self, position: usize, boundary: usize, scope: Scope) -> usize {
        self.bytes_from(position, self.corner(position, boundary, scope))
    }

    /// Bytes of a position's local matrix from `corner` to its end.
    pub(super) fn bytes_from(&self, position: usize, corner: Corner) -> usize {
        let (rows, cols) = self.shape(position);
        (rows - corner.row) * (cols - corner.col) * 8
    }
}
