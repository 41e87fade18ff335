//! How the members of a group talk, as the executor needs it; and a group of threads for tests.
//!
//! The program gives an implementation over MPI. None of these calls returns an error: an
//! implementation that cannot deliver ends the process (MPI_Abort) or unwinds, because a rank whose
//! peer is gone cannot finish a save anyway, and what it leaves in memory is a state the recovery knows.

/// Messages within one group, members numbered as in the group's member list.
pub trait GroupComm {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;

    /// Sends to one member and receives from another, either of which may be absent, at once.
    fn sendrecv(&self, send: Option<(&[u64], usize)>, recv: Option<(&mut [u64], usize)>);

    /// As [`Self::sendrecv`], and does `work`, which touches neither buffer, while they are under way.
    fn sendrecv_while(
        &self,
        send: Option<(&[u64], usize)>,
        recv: Option<(&mut [u64], usize)>,
        work: &mut dyn FnMut(),
    ) {
        work();
        self.sendrecv(send, recv);
    }

    /// Leaves in the root's buffer the exclusive or of all members' buffers.
    fn reduce_xor(&self, buffer: &mut [u64], root: usize);

    /// Leaves in the root's buffer the sum of all members' buffers, read as doubles.
    fn reduce_sum(&self, buffer: &mut [f64], root: usize);

    /// The same members, for this rank's helper to talk to the others' while the rank itself does not: a thread beside it.
    /// None where only the rank may talk.
    fn for_helper(&self) -> Option<Box<dyn GroupComm + Send>>;
}

/// Members as threads of one process: what tests and examples run on.
pub mod threads {
    use std::collections::HashMap;
    use std::sync::{Arc, Condvar, Mutex};

    use super::GroupComm;

    #[derive(Default)]
    struct Mail {
        boxes: HashMap<(usize, usize), std::collections::VecDeque<Vec<u64>>>,
        dead: bool,
    }

    /// What the threads of one world share.
    #[derive(Default)]
    pub struct Post {
        mail: Mutex<Mail>,
        arrived: Condvar,
    }

    /// Carried by the panic of a thread whose peer died: it ends as MPI_Abort would end it.
    pub struct PeerDied;

    impl Post {
        /// Makes every thread that waits or talks unwind with [`PeerDied`].
        pub fn kill(&self) {
            self.mail.lock().unwrap_or_else(|e| e.into_inner()).dead = true;
            self.arrived.notify_all();
        }

        fn send(&self, from: usize, to: usize, words: &[u64]) {
            let mut mail = self.mail.lock().unwrap_or_else(|e| e.into_inner());
            if mail.dead {
                drop(mail);
                std::panic::resume_unwind(Box::new(PeerDied));
            }
            mail.boxes.entry((from, to)).or_default().push_back(words.to_vec());
            self.arrived.notify_all();
        }

        fn receive(&self, from: usize, to: usize) -> Vec<u64> {
            let mut mail = self.mail.lock().unwrap_or_else(|e| e.into_inner());
            loop {
                if mail.dead {
                    drop(mail);
                    std::panic::resume_unwind(Box::new(PeerDied));
                }
                if let Some(words) = mail.boxes.get_mut(&(from, to)).and_then(|b| b.pop_front()) {
                    return words;
                }
                mail = self.arrived.wait(mail).unwrap_or_else(|e| e.into_inner());
            }
        }
    }

    /// One thread's end of a group.
    #[derive(Clone)]
    pub struct Member {
        post: Arc<Post>,
        rank: usize,
        /// World numbers of the members; messages of different groups never share a sender and
        /// receiver, since a thread is in one group.
        members: Vec<usize>,
    }

    impl Member {
        pub fn new(post: Arc<Post>, members: Vec<usize>, rank: usize) -> Self {
            Self { post, rank, members }
        }

        pub fn send(&self, to: usize, words: &[u64]) {
            self.post.send(self.members[self.rank], self.members[to], words);
        }

        pub fn receive(&self, from: usize) -> Vec<u64> {
            self.post.receive(self.members[from], self.members[self.rank])
        }

        fn reduce(&self, buffer: &mut [u64], root: usize, add: impl Fn(u64, u64) -> u64) {
            if self.rank != root {
                return self.send(root, buffer);
            }
            for from in (0..self.members.len()).filter(|&f| f != root) {
                for (mine, theirs) in buffer.iter_mut().zip(self.receive(from)) {
                    *mine = add(*mine, theirs);
                }
            }
        }
    }

    impl GroupComm for Member {
        fn rank(&self) -> usize {
            self.rank
        }
        fn size(&self) -> usize {
            self.members.len()
        }
        fn sendrecv(&self, send: Option<(&[u64], usize)>, recv: Option<(&mut [u64], usize)>) {
            if let Some((words, to)) = send {
                self.send(to, words);
            }
            if let Some((words, from)) = recv {
                words.copy_from_slice(&self.receive(from));
            }
        }
        fn reduce_xor(&self, buffer: &mut [u64], root: usize) {
            self.reduce(buffer, root, |a, b| a ^ b);
        }
        fn reduce_sum(&self, buffer: &mut [f64], root: usize) {
            let mut words: Vec<u64> = buffer.iter().map(|x| x.to_bits()).collect();
            self.reduce(&mut words, root, |a, b| (f64::from_bits(a) + f64::from_bits(b)).to_bits());
            for (x, word) in buffer.iter_mut().zip(words) {
                *x = f64::from_bits(word);
            }
        }
        fn for_helper(&self) -> Option<Box<dyn GroupComm + Send>> {
            Some(Box::new(self.clone()))
        }
    }
}
