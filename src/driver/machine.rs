//! Collection of the machine's description on rank 0.
//!
//! The first rank of each node describes the node. These ranks form a binomial tree. Descriptions are sent up the tree, and
//! joined at each rank. A joined description has one entry for each kind of node, with the hosts of this kind. Only rank 0 has
//! the complete description.

use super::node_facts;
use crate::comm::Comm;
use crate::device::Device;
use crate::report::machine::Machine;

const TAG: i32 = 90;

/// Returns the description of the machine on rank 0, and an incomplete description on other ranks. Collective call.
pub fn gather(comm: &Comm, node: &Comm, device: Option<&dyn Device>) -> Machine {
    let mut machine = Machine::default();
    let colour = (node.rank() == 0).then_some(0);
    // Rank 0 is the first rank of its node, and therefore the first of these leaders.
    let Some(leaders) = comm.split(colour, comm.rank()) else { return machine };
    machine.kinds.push(node_facts::here(node.size(), device));
    let (me, mut step) = (leaders.rank(), 1);
    while step < leaders.size() {
        if me & step != 0 {
            let text = serde_json::to_vec(&machine).expect("plain values have a JSON form");
            leaders.send(&[text.len() as u64], me - step, TAG);
            leaders.send(&text, me - step, TAG);
            break;
        }
        if me + step < leaders.size() {
            let mut len = [0u64];
            leaders.recv(&mut len, me + step, TAG);
            let mut text = vec![0u8; len[0] as usize];
            leaders.recv(&mut text, me + step, TAG);
            machine.join(serde_json::from_slice(&text).expect("JSON of another rank is readable"));
        }
        step *= 2;
    }
    machine.sort();
    machine
}
