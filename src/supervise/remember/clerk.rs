//! The clerk: does what may have to wait for a disk, on a thread of its own.
//!
//! A file system that hangs (a server that is away) holds whoever touches it, for minutes. The supervisor's main thread
//! hears heartbeats, so it touches no file of the run's folder: it hands the work to the [`Clerk`], goes on hearing, and
//! takes the [`Answer`] when it is there. Works are done one after the other, in the order in which they were given. The
//! journal and the status have a thread of their own, `scribe`, which keeps what cannot be written.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use crate::base::new_thread::{self, NoThread};

type Work = Box<dyn FnOnce() + Send>;

/// Cloned, it is still the same one.
#[derive(Clone, Debug)]
pub struct Clerk(Sender<Work>);

/// What a work comes to, some time.
#[derive(Debug)]
pub struct Answer<T>(Receiver<T>);

impl Clerk {
    pub fn new() -> Result<Self, NoThread> {
        let (orders, works) = channel::<Work>();
        // It ends with the process: to wait for a disk that hangs would be to hang with it.
        new_thread::start("clerk", move || works.into_iter().for_each(|work| work()))?;
        Ok(Self(orders))
    }

    pub fn ask<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Answer<T> {
        let (tell, answer) = channel();
        let work = Box::new(move || {
            // Whoever has asked may not want to know any more.
            let _ = tell.send(work());
        });
        let _ = self.0.send(work);
        Answer(answer)
    }
}

impl<T: Send + 'static> Answer<T> {
    /// A work that is not to wait for the others. Where the system gives no thread for it, it is done before this returns.
    pub fn beside(work: impl FnOnce() -> T + Send + 'static) -> Self {
        let (tell, answer) = channel();
        new_thread::start_or_here("beside", move || {
            // Whoever has asked may not want to know any more.
            let _ = tell.send(work());
        });
        Self(answer)
    }

    /// Waits for the answer; None if there will never be one.
    pub fn wait(self) -> Option<T> {
        self.0.recv().ok()
    }
}

impl<T> Answer<T> {
    /// The answer, once it is there.
    pub fn here(&self) -> Option<T> {
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            // Better an end that can be gone on from than to wait for ever.
            Err(TryRecvError::Disconnected) => {
                panic!("a thread has ended in the middle of its work")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn wait<T>(answer: &Answer<T>) -> T {
        loop {
            match answer.here() {
                Some(answer) => return answer,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn works_are_done_in_order_and_nobody_waits_but_for_an_answer() {
        let clerk = Clerk::new().unwrap();
        let (go, held) = channel();
        let first = clerk.ask(move || held.recv().unwrap());
        let second = clerk.ask(|| 2);
        assert_eq!(wait(&Answer::beside(|| 3)), 3, "it is held up by nobody");
        assert_eq!((first.here(), second.here()), (None, None));
        go.send(1).unwrap();
        assert_eq!((wait(&second), first.here()), (2, Some(1)));
    }
}
