//! Collection of the machine's description on rank 0.
//!
//! The first rank of each node describes it. A joined description has one entry for each kind of node, with its hosts.

use super::agreement::gathered;
use super::node_facts;
use crate::comm::Comm;
use crate::report::machine::Machine;

/// Returns the machine on the first rank of each node, and an empty description elsewhere. Collective call.
pub fn gather(comm: &Comm, node: &Comm) -> Machine {
    let mut machine = Machine::default();
    let colour = (node.rank() == 0).then_some(0);
    let Some(leaders) = comm.split(colour, comm.rank()) else { return machine };
    for one in gathered(&leaders, &Machine::node(node_facts::here(node.size()))) {
        machine.join(one);
    }
    machine.sort();
    machine
}
