//! What finished runs come to: for those who submit a machine's number and those who accept a machine.
//!
//! | file | what it does |
//! |---|---|
//! | `sources` | text of files in: documents of `--json`, event logs of supervised runs, plans |
//! | `findings` | what follows from them: the best result, its parts, what was planned beside it |
//! | `form` | what a TOP500 form asks for |
//! | `text` | that, for a terminal |
//! | `charts` | drawings of time, beside those of `model::plot` |
//! | `page` | one HTML page with everything in it, and nothing fetched from elsewhere |
//!
//! `cli::report` reads the files and writes the page. Nothing here measures, and what is not known is said to be
//! not known.

pub mod charts;
pub mod findings;
pub mod form;
pub mod page;
pub mod sources;
pub mod text;
