//! Exploration of any model.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// Explores everything, or as much as it takes to find a fault; returns whether there is one. A model without a fault must reach
/// every state that it lists as reachable.
pub fn explore<M>(model: M) -> bool
where
    M: Model + Debug + Send + Sync + 'static,
    M::State: Debug + Clone + Hash + PartialEq + Send + Sync,
    M::Action: Debug + Clone + PartialEq,
{
    let start = Instant::now();
    let (told, properties) = (format!("{model:?}"), model.properties());
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    println!("{told}: {} states in {:.1?}", checker.unique_state_count(), start.elapsed());
    let always = |expectation: &Expectation| *expectation == Expectation::Always;
    let mut claims = properties.iter().filter(|one| always(&one.expectation));
    match claims.find_map(|one| checker.discovery(one.name)) {
        // A broken model need not reach them: its fault is the result.
        Some(_) if properties.iter().all(|one| always(&one.expectation)) => true,
        Some(path) => {
            println!("{:#?}", path.into_actions());
            true
        }
        None => {
            checker.assert_properties();
            false
        }
    }
}
