//! Tests of the simulation. Where closed forms apply, their values are within the simulation's confidence interval. Another test
//! simulates a million nodes.

use proptest::prelude::*;
use skt_hpl::model::fit::RateModel;
use skt_hpl::model::memory::{Method, Scope};
use skt_hpl::model::nonstop::{Columns, Failing, Renewing, Replacement};
use skt_hpl::model::profile::{Every, Run, SaveCost, Schedule};
use skt_hpl::model::protocols::Validity;
use skt_hpl::model::reliability::{LongRun, group_overwhelmed};
use skt_hpl::model::simulate::{
    Age, Domains, End, Failures, GoingOn, Placement, Scenario, Summary, System, simulate, summarise,
};
use skt_hpl::model::{interval, protocols::Protocol};

/// Nodes that practically never fail.
const NEVER: Failures = Failures::Exponential { mtbf: 1e300 };

fn system(nodes: u64) -> System {
    System {
        nodes,
        group: 16,
        losses: 1,
        placement: Placement::Neighbours,
        domains: None,
        spares: None,
        repair: None,
        detect: 30.0,
        restart: 20.0,
        recover: 20.0,
        regenerate: 10.0,
        going_on: GoingOn::NEVER,
    }
}

fn summary(scenario: &Scenario, runs: usize) -> Summary {
    summarise(&simulate(scenario, runs, 20_261_120, 2).unwrap())
}

fn hpl(mtbf_system: f64) -> Schedule {
    let run = Run::new(2_000_000, 256, RateModel::new(1.2e15, 60_000.0).unwrap()).unwrap();
    let cost =
        SaveCost { encode: 15.0, flush: 3.0, fixed: 0.5, recover: 20.0, scope: Scope::Corner };
    Schedule::of(&run, &cost, Every::Auto { mtbf: mtbf_system }).unwrap()
}

/// For exponential failures, the closed form of the expected time of an HPL run is exact, although the trailing submatrix
/// shrinks. The runs have ten failures and more.
#[test]
fn exponential_runs_take_the_expected_time() {
    for mtbf_system in [600.0, 300.0, 150.0] {
        let nodes = 1_000_000;
        let scenario = Scenario {
            schedule: hpl(mtbf_system),
            method: Method::SelfCheckpoint,
            system: system(nodes),
            failures: Failures::Exponential { mtbf: mtbf_system * nodes as f64 },
            limit: None,
        };
        let s = summary(&scenario, 2000);
        let down = 70.0;
        let expected = scenario.schedule.expected(60.0, down, mtbf_system).unwrap();
        let wall = s.wall.unwrap();
        assert!(wall.agrees(expected, 1.6), "{mtbf_system}: {wall:?} {expected}");
        assert!(
            wall.confidence < 0.01 * wall.value,
            "the interval is narrow enough to mean something"
        );
        // Methods that seal late lose a little more, which the model includes.
        let double = Scenario { method: Method::Double, ..scenario.clone() };
        let late = scenario.schedule.expected_sealing_late(60.0, down, mtbf_system).unwrap();
        assert!(summary(&double, 2000).wall.unwrap().agrees(late, 1.6));
        assert!(late > expected);
    }
}

/// Some failures are of processes, and are recovered in place. The mean cost of a failure is then a single number, with which the
/// expected time is exact, for rare and for frequent failures.
#[test]
fn runs_that_go_on_in_place_take_the_expected_time() {
    let nodes = 1_000_000;
    for (mtbf_system, processes) in [(600.0, 0.9), (150.0, 0.6), (150.0, 1.0)] {
        let going_on = GoingOn { processes, in_place: Some(2.0), ..GoingOn::NEVER };
        let scenario = Scenario {
            schedule: hpl(mtbf_system),
            method: Method::SelfCheckpoint,
            system: System { going_on, ..system(nodes) },
            failures: Failures::Exponential { mtbf: mtbf_system * nodes as f64 },
            limit: None,
        };
        let s = summary(&scenario, 2000);
        let failing = Failing { mtbf: mtbf_system, processes };
        // Restoring takes 20 s and generating the matrix 10 s. Detection and restart take 50 s.
        let down = |restored| failing.mean_down(2.0 + restored, 50.0 + restored).unwrap();
        let expected = scenario.schedule.expected(down(10.0), down(20.0), mtbf_system).unwrap();
        assert!(s.wall.unwrap().agrees(expected, 1.6), "{mtbf_system}: {:?} {expected}", s.wall);
        let restarts = scenario.schedule.expected(60.0, 70.0, mtbf_system).unwrap();
        assert!(expected < restarts);
    }
}

/// Simulated runs with checksum columns take the expected time and begin from scratch as often as expected. They have a failure
/// in every second run, up to ten failures in one run. Losses of idle ranks cost some seconds in the simulation and nothing in
/// the formula.
#[test]
fn runs_with_checksums_take_the_expected_time() {
    // In the last case, further failures often happen during replacements.
    for (mtbf, processes, q, sums, replace) in [
        (20_000.0, 0.9, 7, 1, 1.0),
        (5_000.0, 0.5, 3, 1, 1.0),
        (3_000.0, 1.0, 1, 1, 1.0),
        (2_000.0, 0.95, 31, 1, 1.0),
        (3_000.0, 0.9, 7, 2, 1.0),
        (2_500.0, 1.0, 2, 4, 1.0),
        (3_000.0, 0.95, 127, 3, 600.0),
    ] {
        let (columns, renewing) = (Columns { q, sums }, Renewing::NEVER);
        let run = Replacement { columns, work: 10_000.0, replace, from_scratch: 60.0, renewing };
        takes_the_expected_time(&run, Failing { mtbf, processes }, 4 * columns.all(), None);
    }
}

/// Simulated runs that rebuild checksums take the expected time. Rebuilding takes a second, or so long that further failures
/// happen meanwhile. Cases differ in the numbers of process rows and of spare ranks. When too few ranks are left for a checksum
/// column, the formula ignores losses of idle ranks.
#[test]
fn runs_with_new_checksums_take_the_expected_time() {
    for (mtbf, processes, q, sums, rows, waiting, each) in [
        (3_000.0, 1.0, 7, 1, 4, 1, 1.0),
        (2_000.0, 0.95, 3, 1, 1, 4, 300.0),
        (1_500.0, 1.0, 5, 2, 3, 0, 20.0),
        (2_500.0, 0.9, 15, 2, 8, 3, 600.0),
        (2_500.0, 1.0, 31, 3, 16, 2, 60.0),
    ] {
        let (columns, renewing) = (Columns { q, sums }, Renewing { rows, waiting, each });
        let run =
            Replacement { columns, work: 10_000.0, replace: 1.0, from_scratch: 60.0, renewing };
        let nodes = rows * columns.all() + waiting;
        let s = takes_the_expected_time(&run, Failing { mtbf, processes }, nodes, Some(each));
        assert!(s.renewed > 0.1, "{s:?}");
    }
}

/// Compares the formula of `run` with a simulation on `nodes` nodes with one rank each. `renew` is the time of rebuilding
/// checksums. Returns the summary of the simulation.
fn takes_the_expected_time(
    run: &Replacement,
    failing: Failing,
    nodes: u64,
    renew: Option<f64>,
) -> Summary {
    let scenario = Scenario {
        schedule: Schedule::periodic(run.work, run.work, 0.0, 0.0).unwrap(),
        method: Method::Abft,
        system: System {
            going_on: GoingOn {
                processes: failing.processes,
                in_place: Some(run.replace),
                columns: Some(run.columns),
                spare_ranks: renew.map(|_| run.renewing.waiting),
                renew,
            },
            ..system(nodes)
        },
        failures: Failures::Exponential { mtbf: failing.mtbf * nodes as f64 },
        limit: Some(1e9),
    };
    let s = summary(&scenario, 4000);
    let expected = run.expected(failing).unwrap();
    assert!(s.wall.unwrap().agrees(expected, 1.6), "{failing:?} {run:?}: {:?} {expected}", s.wall);
    // The number of attempts until one ends is geometric: (1 - S)/S of them fail.
    let ends = run.finishes(failing).unwrap();
    let vain = (1.0 - ends) / ends;
    assert!(
        (s.from_scratch - vain).abs() < 0.15 * vain + 0.01,
        "{run:?}: {} {ends}",
        s.from_scratch
    );
    s
}

/// Eq. 5 of the unified model, the waste as a function of the period T, is of first order. At T = mu_p / 100, where mu_p is the
/// MTBF of the machine, it is within the simulation's confidence interval. At T = mu_p it is a fifth too high, since a period
/// often has more than one failure.
#[test]
fn the_first_order_waste_holds_while_periods_are_short() {
    let c = 2.0;
    let simulated = |mu: f64, t: f64| {
        let scenario = Scenario {
            schedule: Schedule::periodic(400.0 * (t - c), t - c, c, 0.0).unwrap(),
            method: Method::Disk,
            system: System {
                detect: 0.0,
                restart: 0.0,
                recover: 0.0,
                regenerate: 0.0,
                ..system(1024)
            },
            failures: Failures::Exponential { mtbf: mu * 1024.0 },
            limit: None,
        };
        summary(&scenario, 1000).waste.unwrap()
    };
    let eq5 = |mu: f64, t: f64| c / t + t / 2.0 / mu;
    // Waste to all orders: a period takes mu (e^(T/mu) - 1) on average.
    let exact = |mu: f64, t: f64| 1.0 - (t - c) / (mu * (t / mu).exp_m1());
    for (mu, holds) in [(20_000.0, true), (2_000.0, true), (600.0, false), (200.0, false)] {
        let (waste, first, all) = (simulated(mu, 200.0), eq5(mu, 200.0), exact(mu, 200.0));
        assert!(waste.agrees(all, 1.6), "{mu} {waste:?} {all}");
        if holds {
            assert!((first / waste.value - 1.0).abs() < 0.03, "{mu} {waste:?} {first}");
        } else {
            assert!(!waste.agrees(first, 3.0) && first > waste.value, "{mu} {waste:?} {first}");
        }
    }
    assert!(simulated(20_000.0, 200.0).agrees(eq5(20_000.0, 200.0), 1.6));
    // Young's period, which minimises eq. 5, is still near the true optimum at T = mu_p / 10.
    let mu = 400.0;
    let best = Protocol::coordinated(c, 0.0, 0.0, 0.0)
        .optimum(mu, Validity::Unbounded)
        .unwrap()
        .period
        .unwrap();
    let optimal = interval::optimal(c, mu).unwrap() + c;
    assert!((best / optimal - 1.0).abs() < 0.05, "{best} {optimal}");
}

/// Fig. 12 of the self-checkpoint paper: 39 % of the runs with a single checkpoint fail, and none with method self.
#[test]
fn figure_12_simulated() {
    let setting = LongRun::figure_12(360_000.0);
    let schedule =
        Schedule::periodic(setting.run_s, setting.interval_s, setting.save_s, 0.0).unwrap();
    let scenario = |method| Scenario {
        schedule: schedule.clone(),
        method,
        system: System {
            detect: 0.0,
            restart: 0.0,
            recover: setting.recover_s,
            ..system(setting.total)
        },
        failures: Failures::Exponential { mtbf: setting.mtbf_system * setting.total as f64 },
        limit: None,
    };
    let single = summary(&scenario(Method::Single), 4000);
    let closed = setting.success_single().unwrap();
    assert!(
        single.finished.low <= closed + 0.002 && closed <= single.finished.high + 0.002,
        "{:?} {closed}",
        single.finished
    );
    assert!((single.finished.value - 0.61).abs() < 0.03);
    assert!(single.group_lost == 0 && single.lost_while_saving > 1000);
    assert!(summary(&scenario(Method::SelfCheckpoint), 4000).finished.low > 0.99);
}

/// Groups lose a second member during a recovery as often as the refined form of eq. 16 of the self-checkpoint paper predicts.
#[test]
fn groups_are_overwhelmed_as_often_as_the_model_says() {
    let nodes = 64;
    let node_mtbf = 64.0 * 2_000.0;
    let sys = System { group: 8, ..system(nodes) };
    let window = sys.detect + sys.restart + sys.recover;
    let work = 200_000.0;
    let scenario = Scenario {
        schedule: Schedule::periodic(work, 250.0, 5.0, 0.0).unwrap(),
        method: Method::SelfCheckpoint,
        system: sys,
        failures: Failures::Exponential { mtbf: node_mtbf },
        limit: None,
    };
    let s = summary(&scenario, 4000);
    // Number of failures while the run computes: the expected time of computing divided by the MTBF.
    let expected = scenario.schedule.expected(60.0, window, 2_000.0).unwrap();
    let up = expected * (-window / 2_000.0f64).exp();
    let p = group_overwhelmed(8, 1, window, node_mtbf).unwrap();
    let survives = (-up / 2_000.0 * p).exp();
    // The formula is of first order in the window. Failures that restart the window lengthen it by window/MTBF = 3.5 %.
    let slack = 0.02;
    assert!(
        s.finished.low - slack <= survives && survives <= s.finished.high + slack,
        "{:?} {survives}",
        s.finished
    );
    assert!(s.finished.value < 0.9, "the test has something to measure");
    // If groups survive two losses, hardly any run fails.
    let two = Scenario { system: System { losses: 2, ..scenario.system.clone() }, ..scenario };
    assert!(summary(&two, 1000).finished.value > 0.99);
}

/// Weibull failures in equilibrium are as frequent as exponential ones. With a shape below 1, new nodes fail more often at first.
#[test]
fn weibull_machines() {
    let base = Scenario {
        schedule: hpl(600.0),
        method: Method::SelfCheckpoint,
        system: system(1_000_000),
        failures: Failures::Exponential { mtbf: 6e8 },
        limit: None,
    };
    let exponential = summary(&base, 400);
    let weibull = |age| {
        let failures = Failures::Weibull { mtbf: 6e8, shape: 0.7, age };
        summary(&Scenario { failures, ..base.clone() }, 400)
    };
    let stationary = weibull(Age::Stationary);
    let (a, b) = (exponential.wall.unwrap(), stationary.wall.unwrap());
    assert!((a.value - b.value).abs() <= 1.6 * (a.confidence + b.confidence), "{a:?} {b:?}");
    // On new nodes, early failures multiply the number of failures.
    assert!(weibull(Age::Same(0.0)).failures.value > 5.0 * exponential.failures.value);
}

/// Racks that fail as a whole: groups of neighbouring nodes lose several members at once, groups spread over racks survive.
#[test]
fn spreading_groups_over_racks_saves_the_run() {
    let scenario = |placement| Scenario {
        schedule: Schedule::periodic(50_000.0, 500.0, 5.0, 1.0).unwrap(),
        method: Method::SelfCheckpoint,
        system: System {
            placement,
            domains: Some(Domains { size: 32, mtbf: 32.0 * 10_000.0 }),
            ..system(1024)
        },
        failures: NEVER,
        limit: None,
    };
    let together = summary(&scenario(Placement::Neighbours), 500);
    let spread = summary(&scenario(Placement::Spread), 500);
    assert!(together.finished.value < 0.05, "{:?}", together.finished);
    assert!(spread.finished.value > 0.9, "{:?}", spread.finished);
}

#[test]
fn the_same_seed_gives_the_same_runs_on_any_number_of_threads() {
    let scenario = Scenario {
        schedule: hpl(600.0),
        method: Method::SelfCheckpoint,
        system: System { spares: Some(40), repair: Some(4000.0), ..system(4096) },
        failures: Failures::Weibull { mtbf: 600.0 * 4096.0, shape: 0.7, age: Age::Stationary },
        limit: Some(20_000.0),
    };
    let one = simulate(&scenario, 100, 7, 1).unwrap();
    assert_eq!(one, simulate(&scenario, 100, 7, 3).unwrap());
    assert_ne!(one, simulate(&scenario, 100, 8, 3).unwrap());
    for o in &one {
        let sum: f64 = o.time.parts().iter().map(|(_, seconds)| seconds).sum();
        assert!((sum - o.wall).abs() < 1e-6 * o.wall, "{o:?}");
        assert!(
            o.end != End::Finished
                || (o.time.useful - scenario.schedule.work()).abs() < 1e-6 * o.time.useful
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any input gives a diagnostic or sound outcomes, never a panic, NaN or an endless run.
    #[test]
    fn fuzzed_scenarios(
        ints in prop::array::uniform5(any::<u64>()), small in any::<bool>(), some in any::<u16>(),
        floats in prop::array::uniform12(prop_oneof![
            1 => any::<f64>(), 4 => (-6.0..8.0f64).prop_map(|e| 10f64.powf(e)), 1 => Just(0.0),
        ]),
        method in prop::sample::select(Method::ALL.to_vec()),
    ) {
        let on = |bit: u16| some >> bit & 1 == 1;
        let int = |i: usize, limit: u64| if small { ints[i] % limit } else { ints[i] };
        let Ok(schedule) = Schedule::periodic(floats[0], floats[1], floats[2], floats[3]) else { return Ok(()) };
        if schedule.saves() > 10_000 { return Ok(()); }
        let mtbf = floats[4];
        let failures = match some >> 8 & 3 {
            0 => NEVER,
            1 => Failures::Exponential { mtbf },
            2 => Failures::Weibull { mtbf, shape: 0.3 + (ints[4] % 30) as f64 / 10.0, age: Age::Stationary },
            _ => Failures::Weibull { mtbf, shape: floats[5], age: Age::Same(floats[6]) },
        };
        let nodes = int(0, 200);
        let scenario = Scenario {
            schedule,
            method,
            system: System {
                nodes, group: int(1, 20), losses: int(2, 4),
                placement: if on(0) { Placement::Spread } else { Placement::Neighbours },
                domains: on(1).then_some(Domains { size: int(3, 40), mtbf: floats[7] }),
                spares: on(2).then_some(ints[3] % 5), repair: on(3).then_some(floats[8]),
                detect: floats[9], restart: floats[10], recover: floats[11], regenerate: floats[9],
                going_on: GoingOn {
                    processes: if on(5) { floats[10].min(1.0) } else { 0.0 },
                    in_place: on(6).then_some(floats[11]),
                    spare_ranks: on(7).then_some(ints[2] % 3),
                    columns: (on(10) || method == Method::Abft).then_some(Columns { q: int(2, 9), sums: int(1, 5) }),
                    renew: (on(11) && method == Method::Abft).then_some(floats[10]),
                },
            },
            failures,
            limit: on(4).then_some(floats[8]),
        };
        // A run with five million failures is cut off, which takes long. The unit tests cover such runs.
        let span = scenario.limit.unwrap_or(100.0 * scenario.schedule.undisturbed());
        if span / mtbf * nodes as f64 > 1e5 || scenario.system.domains.is_some_and(|d| span / d.mtbf * nodes as f64 > 1e5) {
            prop_assert!(scenario.check().is_err() || span > 0.0);
            return Ok(());
        }
        if let Ok(outcomes) = simulate(&scenario, 2, ints[4], 1) {
            for o in &outcomes {
                let sum: f64 = o.time.parts().iter().map(|(_, seconds)| seconds).sum();
                prop_assert!(o.wall.is_finite() && (sum - o.wall).abs() <= 1e-6 * o.wall.max(1e-3), "{o:?}");
            }
            let text = serde_json::to_string(&summarise(&outcomes)).unwrap();
            prop_assert!(text.contains("finished"));
        }
    }
}

/// Returns values between `low` and `high` whose logarithms are uniformly distributed.
fn across(low: f64, high: f64) -> impl Strategy<Value = f64> {
    (low.log10()..high.log10()).prop_map(|exponent| 10f64.powf(exponent))
}

/// Generates the share of process failures and the settings of recovery in place, as far as the method has them.
fn going_on(method: Method) -> BoxedStrategy<GoingOn> {
    let share = prop_oneof![1 => Just(0.0), 3 => 0.0..1.0, 1 => Just(1.0)];
    let seconds = || across(1e-2, 1e4);
    match method {
        Method::Abft => {
            let renew = prop::option::of((prop::option::of(0..3u64), seconds()));
            (share, seconds(), (1..9u64, 1..5u64), renew)
                .prop_map(|(processes, each, (q, sums), renew)| GoingOn {
                    processes,
                    in_place: Some(each),
                    spare_ranks: renew.and_then(|(waiting, _)| waiting),
                    columns: Some(Columns { q, sums }),
                    renew: renew.map(|(_, each)| each),
                })
                .boxed()
        }
        m if m.goes_on_in_place() => {
            let in_place = prop::option::of((seconds(), prop::option::of(0..3u64)));
            (share, in_place)
                .prop_map(|(processes, in_place)| GoingOn {
                    processes,
                    in_place: in_place.map(|(each, _)| each),
                    spare_ranks: in_place.and_then(|(_, waiting)| waiting),
                    ..GoingOn::NEVER
                })
                .boxed()
        }
        _ => share.prop_map(|processes| GoingOn { processes, ..GoingOn::NEVER }).boxed(),
    }
}

/// Generates valid scenarios, with failures from hardly any to dozens in the time of a run without failures.
fn valid() -> impl Strategy<Value = Scenario> {
    let method = prop::sample::select(Method::ALL.to_vec());
    let of = move |method: Method| {
        let times = (across(1e2, 1e6), across(1.0, 300.0), across(1e-3, 10.0), across(1e-3, 10.0));
        let groups = (1..5u64, 1..17u64, 0..200u64, any::<bool>());
        let failing = (0..4u8, across(0.02, 100.0), 0.3..3.0f64, across(1e-3, 10.0));
        let domains = prop::option::of((1..40u64, across(0.05, 100.0)));
        let nodes = (domains, prop::option::of(0..5u64), prop::option::of(across(1e-3, 10.0)));
        let down = prop::array::uniform4(prop_oneof![1 => Just(0.0), 4 => across(1e-2, 1e4)]);
        let limit = prop::option::of(across(0.1, 50.0));
        (times, groups, failing, nodes, down, limit, going_on(method)).prop_map(move |drawn| {
            let ((work, parts, encode, flush), groups, failing, nodes, down, limit, going_on) =
                drawn;
            // Times that are short in proportion to the run let the run make progress.
            let every = if method.saves() { work / parts } else { work };
            let schedule = Schedule::periodic(work, every, every * encode, every * flush).unwrap();
            let time = schedule.undisturbed();
            let (losses, more, plenty, spread) = groups;
            let group = losses + more;
            let size = match going_on {
                GoingOn { columns: Some(columns), spare_ranks, .. } => {
                    (1 + plenty % 20) * columns.all() + spare_ranks.unwrap_or(0)
                }
                _ => group + plenty,
            };
            let (law, rarely, shape, age) = failing;
            let mtbf = time * rarely * size as f64;
            let failures = match law {
                0 => NEVER,
                1 => Failures::Exponential { mtbf },
                2 => Failures::Weibull { mtbf, shape, age: Age::Stationary },
                _ => Failures::Weibull { mtbf, shape, age: Age::Same(age * mtbf) },
            };
            let (domains, spares, repair) = nodes;
            let domains = domains.map(|(wide, rarely)| Domains {
                size: wide,
                mtbf: time * rarely * size.div_ceil(wide) as f64,
            });
            let [detect, restart, recover, regenerate] = down;
            let placement = if spread { Placement::Spread } else { Placement::Neighbours };
            let system = System {
                nodes: size,
                group,
                losses,
                placement,
                domains,
                spares,
                repair: repair.map(|share| share * time),
                detect,
                restart,
                recover,
                regenerate,
                going_on,
            };
            Scenario { schedule, method, system, failures, limit: limit.map(|times| times * time) }
        })
    };
    method.prop_flat_map(of)
}

/// If the deadline comes before the loss is noticed, the run counts as late. Whether a spare was left is then unknown.
#[test]
fn a_deadline_before_a_loss_is_noticed_makes_a_run_late() {
    let scenario = Scenario {
        schedule: Schedule::periodic(1000.0, 100.0, 1.0, 1.0).unwrap(),
        method: Method::SelfCheckpoint,
        system: System { spares: Some(0), detect: 1000.0, ..system(64) },
        failures: Failures::Exponential { mtbf: 64.0 },
        limit: Some(500.0),
    };
    for o in simulate(&scenario, 100, 7, 2).unwrap() {
        assert!((o.end == End::Late && o.wall == 500.0) || o.end == End::GroupLost, "{o:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Valid scenarios are simulated, and their outcomes are sound.
    #[test]
    fn valid_scenarios(scenario in valid(), seed in any::<u64>()) {
        let outcomes = simulate(&scenario, 4, seed, 1).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(outcomes.len(), 4);
        let (method, going_on) = (scenario.method, scenario.system.going_on);
        let time = scenario.schedule.undisturbed();
        let latest = scenario.limit.unwrap_or(100.0 * time);
        for o in &outcomes {
            let parts = [o.time.useful, o.time.saving, o.time.lost, o.time.detect, o.time.wait, o.time.restart, o.time.recover];
            prop_assert!(parts.iter().all(|part| part.is_finite() && *part >= -1e-9 * o.wall), "{o:?}");
            prop_assert!((parts.iter().sum::<f64>() - o.wall).abs() <= 1e-6 * o.wall, "{o:?}");
            prop_assert!(o.wall <= latest * (1.0 + 1e-9), "{latest} {o:?}");
            let work = scenario.schedule.work();
            prop_assert!(o.time.useful <= work * (1.0 + 1e-6), "{o:?}");
            prop_assert!(o.in_place <= o.recoveries && o.recoveries <= o.failures, "{o:?}");
            match o.end {
                End::Finished => {
                    prop_assert!((o.time.useful - work).abs() <= 1e-6 * work, "{o:?}");
                    prop_assert!(o.failures > 0 || (o.wall - time).abs() <= 1e-6 * time, "{o:?}");
                }
                End::Late => prop_assert!((o.wall - latest).abs() <= 1e-6 * latest, "{latest} {o:?}"),
                End::GroupLost => prop_assert!(method.in_memory() && o.failures > 0, "{o:?}"),
                End::LostWhileSaving => prop_assert!(method == Method::Single && o.failures > 0, "{o:?}"),
                End::NoSpare => prop_assert!(scenario.system.spares.is_some() && o.failures > 0, "{o:?}"),
            }
            prop_assert!(o.in_place == 0 || going_on.in_place.is_some() && going_on.processes > 0.0, "{o:?}");
            prop_assert!(o.from_scratch == 0 || method == Method::Abft, "{o:?}");
            prop_assert!(o.renewed == 0 || going_on.renew.is_some(), "{o:?}");
            if scenario.failures == NEVER && scenario.system.domains.is_none() {
                prop_assert!(o.failures == 0 && o.time.lost == 0.0 || o.end == End::Late, "{o:?}");
            }
        }
        let s = summarise(&outcomes);
        let finished = outcomes.iter().filter(|o| o.end == End::Finished).count();
        prop_assert!((s.finished.value - finished as f64 / 4.0).abs() < 1e-12, "{s:?}");
        prop_assert!(!serde_json::to_string(&s).unwrap().contains("null") || finished < 4, "{s:?}");
    }
}

/// A million nodes with an MTBF of five years run for a hundred hours. The number of failures is that of the distribution. A unit
/// test of `simulate/failures.rs` checks that a run does not draw a million random numbers.
#[test]
fn a_million_nodes() {
    let nodes = 1_000_000;
    let node_mtbf = 5.0 * 365.0 * 86_400.0;
    let mtbf = node_mtbf / nodes as f64;
    let run = Run::new(60_000_000, 512, RateModel::new(4.2e17, 1e6).unwrap()).unwrap();
    let hours = run.seconds().unwrap() / 3600.0;
    assert!((90.0..110.0).contains(&hours), "{hours}");
    let cost =
        SaveCost { encode: 10.0, flush: 1.0, fixed: 0.5, recover: 10.0, scope: Scope::Corner };
    for failures in [
        Failures::Exponential { mtbf: node_mtbf },
        Failures::Weibull { mtbf: node_mtbf, shape: 0.7, age: Age::Stationary },
    ] {
        let scenario = Scenario {
            schedule: Schedule::of(&run, &cost, Every::Auto { mtbf }).unwrap(),
            method: Method::SelfCheckpoint,
            system: System { detect: 10.0, restart: 15.0, recover: 10.0, ..system(nodes) },
            failures,
            limit: None,
        };
        let s = summary(&scenario, 200);
        // A second loss in a group of sixteen, within the 35 s of a recovery, ends one run in a hundred.
        assert!(s.finished.value > 0.95, "{:?}", s.finished);
        let expected = s.wall.unwrap().value / mtbf;
        assert!((s.failures.value / expected - 1.0).abs() < 0.03, "{:?} {expected}", s.failures);
    }
}
