//! Exploration of a model's states, shared by all models.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// Explores all states of a model, until a property that must always hold is violated. Returns true if there is such a violation.
/// Panics if a model without violation does not reach a state that it lists as reachable.
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
        // A model without `sometimes` properties is a broken variant: it is expected to be caught, so its path is not printed.
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
