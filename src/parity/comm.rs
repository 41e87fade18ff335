//! Messages between the members of a group, as `exchange` needs them.
//!
//! The program uses an implementation over MPI. None of these calls returns an error. An implementation that cannot deliver a
//! message ends the process (MPI_Abort) or unwinds. A rank whose peer has died cannot finish a save. Recovery can use the memory
//! of such a rank in the state that the rank leaves.

/// Messages within one group. Members are numbered as in the group's member list.
pub trait GroupComm {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;

    /// Sends `send` to one member and receives `recv` from another member at the same time. Either is a buffer and a member, or
    /// None.
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

    /// Returns a communicator of the same members for the helper thread of this rank. The helper can then communicate at the same
    /// time as the rank. None if only the rank itself may communicate.
    fn for_helper(&self) -> Option<Box<dyn GroupComm + Send>>;
}
