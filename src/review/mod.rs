//! Reports on finished runs, for submitting results and for accepting a machine.
//!
//! | file | what it does |
//! |---|---|
//! | `sources` | reads the text of files: documents of `--json`, event logs of supervised runs, plans |
//! | `findings` | conclusions from them: the best result, the parts of its time, the comparison with the plan |
//! | `form` | lines of a TOP500 form |
//! | `text` | the report for a terminal |
//! | `charts` | drawings of time, in addition to those of `model::plot` |
//! | `page` | one HTML page with everything in it, and nothing fetched from elsewhere |
//!
//! `cli::report` reads the files and writes the page. Nothing here measures, and unknown values are marked as not known.

pub mod charts;
pub mod findings;
pub mod form;
pub mod page;
pub mod sources;
pub mod text;
