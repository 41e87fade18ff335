//! Messages between the members of a group, as `exchange` needs them.
//!
//! The program uses an implementation over MPI. None of these calls returns an error. An implementation that cannot deliver a
//! message ends the process (MPI_Abort) or unwinds. A rank whose peer has died cannot finish a save. Recovery can use the memory
//! of such a rank in the state that the rank leaves.

/// Messages within one group. Members are numbered as in the group's member list.
pub trait GroupComm {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;

    /// Sends a buffer to one member and receives a buffer from another member at the same time. `send` and `recv` each have the
    /// buffer and the number of the member. If `send` or `recv` is `None`, nothing is sent or received.
    fn sendrecv(&self, send: Option<(&[u64], usize)>, recv: Option<(&mut [u64], usize)>) {
        self.sendrecv_while(send, recv, &mut || ());
    }

    /// Sends and receives as [`Self::sendrecv`] does, and calls `work` during the transfer. `work` must not touch the buffers.
    fn sendrecv_while(
        &self,
        send: Option<(&[u64], usize)>,
        recv: Option<(&mut [u64], usize)>,
        work: &mut dyn FnMut(),
    );

    /// Combines the buffers of all members by exclusive or. The result is in the buffer of member `root`.
    fn reduce_xor(&self, buffer: &mut [u64], root: usize);

    /// Adds the buffers of all members, read as doubles. The sums are in the buffer of member `root`.
    fn reduce_sum(&self, buffer: &mut [f64], root: usize);

    /// Returns a communicator of the same members for the helper thread of this rank. The helper can then communicate at the same
    /// time as the rank. Returns `None` if only the rank itself may communicate.
    fn for_helper(&self) -> Option<Box<dyn GroupComm + Send>>;
}
