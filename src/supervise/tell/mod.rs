//! Reports of the supervisor: the status for other programs, the report at the end, and the job's output, each line once.

pub mod echo;
pub mod status;
pub mod timeline;
pub mod voice;

/// Prints a line on standard error, on another thread: a terminal that blocks does not delay the caller.
macro_rules! say {
    ($($words:tt)*) => {
        $crate::supervise::tell::say_on!("{}\n", format_args!($($words)*))
    };
}

/// Prints text without a newline, otherwise like `say!`.
macro_rules! say_on {
    ($($words:tt)*) => {{
        use $crate::supervise::tell::voice;
        voice::say(voice::Stream::Errors, format!($($words)*).into_bytes())
    }};
}

pub(super) use {say, say_on};
