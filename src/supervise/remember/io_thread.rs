//! Threads for work that may have to wait for a disk.
//!
//! A file system that hangs, for example because its server is down, blocks each process that uses it for minutes. The
//! supervisor's main thread receives heartbeats, so it uses no file of the run's folder. The main thread hands the work to an
//! [`IoThread`], continues to receive, and takes the [`Answer`] later. An I/O thread does its work one by one, in order. The
//! journal and the status have their own thread, in `journal_writer`.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use crate::base::clock::{self, Instant};
use crate::base::new_thread::{self, NoThread};
use crate::supervise::machine::{Work, simulated};

/// A handle of an I/O thread. Clones are handles of the same thread.
#[derive(Clone, Debug)]
pub enum IoThread {
    Thread(Sender<Work>),
    /// The simulation's number of this thread.
    Simulated(u32),
}

/// The result of work, available once the work is done.
#[derive(Debug)]
pub struct Answer<T>(Receiver<T>);

/// Interval at which the simulation checks whether an answer has come.
const LOOK: Duration = Duration::from_millis(5);

impl IoThread {
    /// Starts a thread with the name `name`.
    pub fn new(name: &str) -> Result<Self, NoThread> {
        if let Some(machine) = simulated() {
            return Ok(Self::Simulated(machine.io_thread()));
        }
        let (orders, works) = channel::<Work>();
        // The thread is not joined: if the disk hangs, the end of the process would hang, too.
        new_thread::start(name, move || works.into_iter().for_each(|work| work()))?;
        Ok(Self::Thread(orders))
    }

    pub fn ask<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Answer<T> {
        let (work, answer) = Answer::of(work);
        match self {
            Self::Thread(orders) => drop(orders.send(work)),
            Self::Simulated(number) => {
                simulated().expect("it has begun").does_later(work, Some(*number));
            }
        }
        answer
    }
}

impl<T: Send + 'static> Answer<T> {
    fn of(work: impl FnOnce() -> T + Send + 'static) -> (Work, Self) {
        let (tell, answer) = channel();
        let work = Box::new(move || {
            // The receiver of the answer may be gone.
            let _ = tell.send(work());
        });
        (work, Self(answer))
    }

    /// Starts work on its own thread, so that it waits for no other work. If no thread can be started, the work is done before
    /// this function returns.
    pub fn in_background(work: impl FnOnce() -> T + Send + 'static) -> Self {
        let (work, answer) = Self::of(work);
        match simulated() {
            None => new_thread::start_or_here("background", work),
            Some(machine) => machine.does_later(work, None),
        }
        answer
    }

    /// Waits for the answer. Returns `None` if no answer can come any more, because the thread has ended.
    pub fn wait(self) -> Option<T> {
        self.wait_for(Duration::MAX)
    }

    /// Waits for the answer, but at most for `timeout`.
    pub fn wait_for(self, timeout: Duration) -> Option<T> {
        if simulated().is_none() {
            return self.0.recv_timeout(timeout).ok();
        }
        let began = Instant::now();
        loop {
            match self.0.try_recv() {
                Ok(answer) => return Some(answer),
                Err(TryRecvError::Empty) if began.elapsed() < timeout => clock::sleep(LOOK),
                Err(_) => return None,
            }
        }
    }
}

impl<T> Answer<T> {
    /// Returns the answer, or `None` as long as the work is not done. Panics if there will never be an answer: the run can resume
    /// after a panic, but not during an endless wait.
    pub fn here(&self) -> Option<T> {
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                panic!("an I/O thread ended before its work was done")
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
        let io_thread = IoThread::new("I/O").unwrap();
        let (go, held) = channel();
        let first = io_thread.ask(move || held.recv().unwrap());
        let second = io_thread.ask(|| 2);
        assert_eq!(wait(&Answer::in_background(|| 3)), 3, "it is held up by nobody");
        assert_eq!((first.here(), second.here()), (None, None));
        go.send(1).unwrap();
        assert_eq!((wait(&second), first.here()), (2, Some(1)));
    }
}
