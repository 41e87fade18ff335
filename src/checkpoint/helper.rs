//! Helper: a thread for a single task while its rank computes. A rank waits for a helper on storage only as long as the helper
//! makes progress, because hanging storage must not block the run.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::base::clock::{self, Instant};
use crate::base::cores;
use crate::base::new_thread::{self, NoThread};
use crate::base::simulated::simulator;
use crate::checkpoint::storage::writing::{Flow, Stopped};

/// Time without progress after which a helper counts as stuck. Used unless a task has another timeout.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two checks of a helper during a wait.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Task of a helper, and its progress.
pub(super) struct Task<T> {
    flow: Arc<Flow>,
    thread: Option<JoinHandle<Result<T, Stopped>>>,
    result: Option<Result<T, Stopped>>,
    /// Number of steps when progress was last seen, and the time of that check.
    seen: (u64, Instant),
    /// Time without progress after which the helper counts as stuck.
    timeout: Duration,
    pub(super) began: Instant,
    /// Virtual time at which the task ends in a simulation. The simulation does the work at once.
    over_at: Option<Instant>,
}

/// State of a helper. A worse state is smaller, so that the minimum over all ranks is the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// The helper has failed or is stuck.
    Lost,
    AtWork,
    Done,
}

/// Starts a helper thread with this name. Returns its progress and its handle.
pub(super) fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce(&Flow) -> T + Send + 'static,
) -> (Arc<Flow>, Result<JoinHandle<T>, NoThread>) {
    let flow = Arc::new(Flow::default());
    let its = flow.clone();
    let thread = new_thread::start(name, move || {
        // A new thread begins on the core of its creator, which is busy there.
        cores::go_aside();
        work(&its)
    });
    (flow, thread)
}

impl<T: Send + 'static> Task<T> {
    /// Returns a task that began at this time, without a thread and a result.
    fn new(flow: Arc<Flow>, began: Instant) -> Self {
        Self {
            flow,
            thread: None,
            result: None,
            seen: (0, began),
            timeout: TIMEOUT,
            began,
            over_at: None,
        }
    }

    pub(super) fn start(work: impl FnOnce(&Flow) -> Result<T, Stopped> + Send + 'static) -> Self {
        let now = Instant::now();
        if let Some(simulator) = simulator() {
            let mut task = Self::new(Arc::default(), now);
            task.result = Some(work(&task.flow));
            task.over_at = Some(now + simulator.task_takes());
            return task;
        }
        let (flow, thread) = start("level-two", work);
        let mut task = Self::new(flow, now);
        match thread {
            Ok(thread) => task.thread = Some(thread),
            Err(NoThread(error)) => {
                task.result = Some(Err(Stopped::Failed(format!(
                    "no helper thread could be started: {error}"
                ))));
            }
        }
        task
    }

    /// Sets the time without progress after which the helper counts as stuck.
    pub(super) fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns a task that failed before it began.
    pub(super) fn failed(why: &str) -> Self {
        let mut task = Self::new(Arc::default(), Instant::now());
        task.result = Some(Err(Stopped::Failed(why.into())));
        task
    }

    /// Checks the thread and its progress, and returns the state.
    pub(super) fn state(&mut self) -> State {
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            let ended = thread.join();
            let ended =
                ended.unwrap_or_else(|_| Err(Stopped::Failed("a helper thread panicked".into())));
            self.result = Some(ended);
        }
        let steps = self.flow.steps();
        if steps != self.seen.0 {
            self.seen = (steps, Instant::now());
        }
        match self.result.as_ref().filter(|_| !self.runs_in_simulation()) {
            Some(Ok(_)) => State::Done,
            Some(Err(_)) => State::Lost,
            None if self.seen.1.elapsed() >= self.timeout => State::Lost,
            None => State::AtWork,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(|thread| thread.is_finished()) && !self.runs_in_simulation()
    }

    /// Returns true if a simulation has done the work, but the task has not yet ended in virtual time.
    fn runs_in_simulation(&self) -> bool {
        self.over_at.is_some_and(|at| Instant::now() < at)
    }

    pub(super) fn give_up(&self) {
        self.flow.give_up();
    }

    /// Waits for a cancelled task to end, for at most `timeout`.
    pub(super) fn settle(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        while !self.is_over() && Instant::now() < until {
            clock::sleep(LOOK_EVERY);
        }
    }

    /// Waits until the task has ended or is stuck, and returns its state. During the wait, progress of the task counts as
    /// progress of the rank.
    pub(super) fn wait(&mut self) -> State {
        self.wait_and(|| {})
    }

    /// Waits like [`Self::wait`], and calls `attend` between checks.
    pub(super) fn wait_and(&mut self, attend: impl Fn()) -> State {
        self.flow.is_awaited();
        // Time without progress before the wait does not count.
        self.seen.1 = Instant::now();
        loop {
            match self.state() {
                State::AtWork => {
                    attend();
                    clock::sleep(LOOK_EVERY);
                }
                state => return state,
            }
        }
    }

    /// Returns the result of a task that has ended. For a task that is stuck, returns an error and abandons its thread.
    pub(super) fn end(mut self) -> Result<T, Stopped> {
        self.state();
        let over = self.is_over();
        self.result
            .take()
            .filter(|_| over)
            .unwrap_or_else(|| Err(Stopped::Failed(self.stands_still())))
    }

    /// Error text of a stuck task.
    pub(super) fn stands_still(&self) -> String {
        format!("no progress on storage for {} s", self.timeout.as_secs())
    }
}

/// Cancels a dropped task, because its result is no longer needed.
impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.flow.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_is_awaited_as_long_as_it_moves_and_told_to_give_up() {
        let mut task = Task::start(|flow| {
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(1));
                flow.step()?;
            }
            Ok(flow.steps())
        });
        assert_eq!(task.wait(), State::Done);
        assert_eq!(task.end(), Ok(20));

        let mut task: Task<()> = Task::start(|flow| {
            loop {
                std::thread::sleep(Duration::from_millis(1));
                flow.step()?;
            }
        });
        assert_eq!(task.state(), State::AtWork);
        task.give_up();
        assert_eq!(task.wait(), State::Lost);
        assert!(task.is_over());
        assert_eq!(task.end(), Err(Stopped::GivenUp));
    }

    #[test]
    fn a_helper_is_stuck_after_a_minute_without_a_step() {
        let (step, steps) = std::sync::mpsc::channel();
        let (done, dones) = std::sync::mpsc::channel();
        let mut task = Task::start(move |flow| {
            for () in steps {
                flow.step()?;
                done.send(()).unwrap();
            }
            Ok(flow.steps())
        });
        assert_eq!(task.state(), State::AtWork);
        for _ in 0..2 {
            // The time of the last progress is set back by a minute.
            task.seen.1 = task.seen.1 - TIMEOUT;
            step.send(()).unwrap();
            dones.recv().unwrap();
            assert_eq!(task.state(), State::AtWork);
        }
        task.seen.1 = task.seen.1 - TIMEOUT;
        assert_eq!(task.state(), State::Lost);
        drop(step);
        assert_eq!(task.wait(), State::Done);
        assert_eq!(task.end(), Ok(2));
    }

    #[test]
    fn a_helper_goes_where_there_is_room_from_any_thread() {
        let _alone = crate::testkit::pinning::alone();
        assert!(cores::pin(*cores::bound_to().first().unwrap()));
        let mut task = Task::start(|_| Ok(cores::allowed()));
        cores::unpin();
        assert_eq!(task.wait(), State::Done);
        assert_eq!(task.end().as_ref(), Ok(cores::bound_to()));
    }

    #[test]
    fn a_task_that_is_not_wanted_any_more_gives_up() {
        let (tell, told) = std::sync::mpsc::channel();
        let task: Task<()> = Task::start(move |flow| {
            let ended = loop {
                std::thread::sleep(Duration::from_millis(1));
                if let Err(ended) = flow.step() {
                    break ended;
                }
            };
            tell.send(ended.clone()).unwrap();
            Err(ended)
        });
        drop(task);
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(Stopped::GivenUp));
    }
}
