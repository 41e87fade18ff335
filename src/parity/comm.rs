//! Messages between the members of a group, as `exchange` needs them; and an implementation on threads for tests.
//!
//! The program uses an implementation over MPI. None of these calls returns an error. An implementation that cannot deliver a
//! message ends the process (MPI_Abort) or unwinds: a rank whose peer has died cannot finish a save anyway, and recovery knows
//! the state that it leaves in memory.

/// Messages within one group. Members are numbered as in the group's member list.
pub trait GroupComm {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;

    /// Sends to one member and receives from another at the same time. Either can be absent.
    fn sendrecv(&self, send: Option<(&[u64], usize)>, recv: Option<(&mut [u64], usize)>) {
        self.sendrecv_while(send, recv, &mut || ());
    }

    /// Does the same as [`Self::sendrecv`], and calls `work` during the transfer. `work` must not touch the buffers.
    fn sendrecv_while(
        &self,
        send: Option<(&[u64], usize)>,
        recv: Option<(&mut [u64], usize)>,
        work: &mut dyn FnMut(),
    );

    /// Combines all members' buffers by exclusive or into the root's buffer.
    fn reduce_xor(&self, buffer: &mut [u64], root: usize);

    /// Adds all members' buffers, read as doubles, into the root's buffer.
    fn reduce_sum(&self, buffer: &mut [f64], root: usize);

    /// Returns a communicator of the same members for the helper thread of this rank, which may communicate at the same time as
    /// the rank. None if only the rank may communicate.
    fn for_helper(&self) -> Option<Box<dyn GroupComm + Send>>;
}

/// Members as threads of one process, for tests and examples.
pub mod threads {
    use std::collections::HashMap;
    use std::sync::{Arc, Condvar, Mutex};

    use super::GroupComm;

    #[derive(Default)]
    struct Mail {
        boxes: HashMap<(usize, usize), std::collections::VecDeque<Vec<u64>>>,
        dead: bool,
    }

    /// State that the threads of one world share.
    #[derive(Default)]
    pub struct Post {
        mail: Mutex<Mail>,
        arrived: Condvar,
    }

    /// Payload of the panic of a thread whose peer died: the thread ends as MPI_Abort would end a process.
    pub struct PeerDied;

    impl Post {
        /// Makes every thread that waits or communicates unwind with [`PeerDied`].
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

    /// Endpoint of one thread in a group.
    #[derive(Clone)]
    pub struct Member {
        post: Arc<Post>,
        rank: usize,
        /// World numbers of the members. A thread is in one group only, so messages of different groups never share a sender and
        /// receiver.
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
        fn sendrecv_while(
            &self,
            send: Option<(&[u64], usize)>,
            recv: Option<(&mut [u64], usize)>,
            work: &mut dyn FnMut(),
        ) {
            work();
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
