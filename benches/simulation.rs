//! Simulates protected runs from seeds, as many as there is time for.

use std::time::Instant;

use skt_hpl::testkit::simulation::Stage;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str| -> Option<u64> {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1)?.parse().ok()
    };
    let trace = words.iter().position(|word| word == "--trace");
    let trace = trace.map(|at| std::fs::File::create(&words[at + 1]).unwrap());
    let mut stage = Stage::new(trace);
    let began = Instant::now();
    let (mut runs, mut launches, mut struck, mut failures) = (0, 0, 0, 0);
    let (first, last) = match number("--seed") {
        Some(seed) => (seed, seed),
        None => (number("--from").unwrap_or(0), u64::MAX),
    };
    let seconds = number("--seconds").unwrap_or(10);
    for seed in first..=last {
        if began.elapsed().as_secs() >= seconds {
            break;
        }
        runs += 1;
        match stage.run(seed) {
            Ok(report) => {
                launches += report.launches;
                struck += report.struck.len();
            }
            Err(failure) => {
                failures += 1;
                println!("---- {failure}");
                println!("smallest: {:?}", stage.smallest(seed));
                if failures >= number("--most").unwrap_or(3) {
                    break;
                }
            }
        }
    }
    println!(
        "{runs} runs, {launches} launches, {struck} struck, {failures} failures in {:?}",
        began.elapsed()
    );
    std::process::exit(i32::from(failures > 0));
}
