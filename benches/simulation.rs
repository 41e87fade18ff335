use skt_hpl::testkit::simulation::arena::*;
use skt_hpl::testkit::simulation::job::*;
fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|w| w != "--bench").collect();
    let folder = std::path::Path::new("/dev/shm/simtry");
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).unwrap();
    let arena = Arena::new();
    let trace = std::fs::File::create("/tmp/simtry/trace").unwrap();
    let began = std::time::Instant::now();
    let manner =
        Manner { survives: false, eager_bytes: 256, turn_every: 8, notice_within: 50_000_000 };
    let job =
        Job { ranks: 4, words: &words, folder, seed: 7, manner, faults: &[], trace: Some(&trace) };
    let launch = launch(arena, &job);
    println!(
        "{:?} {:?} {} steps in {:?}",
        launch.ended,
        launch.calls,
        launch.steps,
        began.elapsed()
    );
}
