//! Ranks that are threads of one process, for tests of saves and recovery. They send messages within groups and among all ranks.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};

use crate::checkpoint::World;
use crate::parity::GroupComm;

#[derive(Default)]
struct Mail {
    boxes: HashMap<(usize, usize), std::collections::VecDeque<Vec<u64>>>,
    dead: bool,
}

/// Messages in transit between the threads of one world or group.
#[derive(Default)]
pub struct Post {
    mail: Mutex<Mail>,
    arrived: Condvar,
}

/// Payload of the panic of a thread whose peer died. The thread ends as MPI_Abort would end a process.
pub struct PeerDied;

impl Post {
    /// Makes every thread that waits for a message, or sends one, unwind with [`PeerDied`].
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

/// Endpoint through which one thread sends and receives within its group.
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

/// Endpoint through which one thread sends and receives among all ranks.
pub struct ThreadWorld {
    all: Member,
    rank: usize,
    size: usize,
}

impl ThreadWorld {
    /// Makes an endpoint. `post` must not be the post of the groups, because their messages would mix.
    pub fn new(post: Arc<Post>, rank: usize, size: usize) -> Self {
        Self { all: Member::new(post, (0..size).collect(), rank), rank, size }
    }
}

impl World for ThreadWorld {
    fn rank(&self) -> usize {
        self.rank
    }
    fn size(&self) -> usize {
        self.size
    }
    fn barrier(&self) {
        self.allgather(&[]);
    }
    fn allgather(&self, mine: &[u8]) -> Vec<Vec<u8>> {
        let mut words = vec![mine.len() as u64];
        words.extend(mine.chunks(8).map(|c| {
            let mut word = [0; 8];
            word[..c.len()].copy_from_slice(c);
            u64::from_le_bytes(word)
        }));
        for to in 0..self.size {
            self.all.send(to, &words);
        }
        (0..self.size)
            .map(|from| {
                let words = self.all.receive(from);
                let mut bytes: Vec<u8> = words[1..].iter().flat_map(|w| w.to_le_bytes()).collect();
                bytes.truncate(words[0] as usize);
                bytes
            })
            .collect()
    }
    fn first_says(&self, value: u64) -> u64 {
        let all = self.allgather(&value.to_le_bytes());
        u64::from_le_bytes(all[0][..8].try_into().expect("eight bytes"))
    }
    fn least(&self, mine: &[u64]) -> Vec<u64> {
        let bytes: Vec<u8> = mine.iter().flat_map(|value| value.to_le_bytes()).collect();
        let all = self.allgather(&bytes);
        let word = |told: &[u8], i: usize| {
            u64::from_le_bytes(told[8 * i..][..8].try_into().expect("eight bytes"))
        };
        let least = |i| all.iter().map(|told| word(told, i)).min().expect("there are ranks");
        (0..mine.len()).map(least).collect()
    }
    fn tell(&self, bytes: &[u8], teller: usize) -> Vec<u8> {
        let mine = if teller == self.rank { bytes } else { &[] };
        self.allgather(mine).swap_remove(teller)
    }
    fn send(&self, words: &[u64], to: usize) {
        self.all.send(to, words);
    }
    fn receive(&self, words: &mut [u64], from: usize) {
        words.copy_from_slice(&self.all.receive(from));
    }
}
