//! What tells: the status others read, the account at the end, and what the job has printed, once.

pub mod echo;
pub mod status;
pub mod timeline;
pub mod voice;

/// A line on standard error, when there is time to write it: nobody waits for a terminal that is held up.
macro_rules! say {
    ($($words:tt)*) => {
        $crate::supervise::tell::say_on!("{}\n", format_args!($($words)*))
    };
}

/// The same without the end of the line.
macro_rules! say_on {
    ($($words:tt)*) => {{
        use $crate::supervise::tell::voice;
        voice::say(voice::Stream::Errors, format!($($words)*).into_bytes())
    }};
}

pub(super) use {say, say_on};
