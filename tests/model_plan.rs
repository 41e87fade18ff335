//! Tests of plans for random machines. The solver reads each plan without a warning, and each plan fits its machine. Plans change
//! as they should when a machine grows.

use proptest::prelude::*;
use skt_hpl::base::params::{Device, Engine, Mapping, Rng, TestParams};
use skt_hpl::base::units::{GIB, HOUR_S, YEAR_S};
use skt_hpl::checkpoint::layout::ParityLayout;
use skt_hpl::checkpoint::plan::{Buffers, Layout, Scheme};
use skt_hpl::checkpoint::protocol;
use skt_hpl::checkpoint::when::Interval;
use skt_hpl::config::dat_reader;
use skt_hpl::config::memory_need::{self, Means};
use skt_hpl::config::settings::{Overrides, Settings};
use skt_hpl::config::sources::Layers;
use skt_hpl::model::fit::{RateModel, fit, read};
use skt_hpl::model::memory::{Method, RANK_BASE_MOST, Scope, Shape, rank_memory};
use skt_hpl::model::planner::{
    Advice, Devices, Groups, Inputs, Measured, Mtbf, NamedRoom, Units, calibration_sizes,
    groups_of, plan, squarest_grid, squarest_with_checksums, squarest_with_dedicated,
};
use skt_hpl::parity::{Code, Spread};
use skt_hpl::shm::Store;
use skt_hpl::testkit::papers::available;

fn quick(nodes: u64, cores: u64, memory: f64) -> Inputs {
    Inputs { simulate: 0, ..Inputs::machine(nodes, cores, memory) }
}

/// Reads the HPL.dat of a plan as the solver does. Asserts that there is no diagnostic and exactly one test, and returns this
/// test.
fn solver_reads(advice: &Advice) -> TestParams {
    let read = dat_reader::read(advice.hpl_dat.as_bytes(), "HPL.dat", &Overrides::default());
    assert!(read.diagnostics.is_empty(), "{:?}\n{}", read.diagnostics, advice.hpl_dat);
    assert_eq!(advice.hpl_dat.lines().count(), 31);
    let mut tests = read.dat.tests(Rng::Hpl, 100);
    let test = tests.next().unwrap();
    assert!(tests.next().is_none());
    test
}

fn accepted(inputs: &Inputs, advice: &Advice) {
    let test = solver_reads(advice);
    assert_eq!(test, skt_hpl::model::planner::test_params(&advice.plan));
    let checksums = advice.plan.protection.method == Method::Abft;
    let ranks = inputs.nodes * inputs.ranks_per_node;
    assert_eq!((test.p * (test.q + usize::from(checksums))) as u64, ranks);
    assert_eq!(advice.plan.ranks, ranks);
    assert!(test.n.is_multiple_of(test.nb) || inputs.n.is_some());
    // The matrix as the solver counts it, plus protection, is within the memory budget.
    let plan = &advice.plan;
    let threads = plan.threads_per_rank as usize;
    let means = Means { engine: Engine::Auto, threads, device: Device::None };
    let bare = memory_need::rank_bytes(&test, means) as f64 - memory_need::PROCESS_BYTES as f64;
    if checksums {
        // A rank stores matrix or checksums, in the proportion Q to 1. A column of b may be stored next to the checksums.
        let ours = plan.rank.matrix + plan.rank.checksums + plan.rank.work;
        assert!((bare * (1.0 - 1e-9)..bare * 1.05 + 16e6).contains(&ours), "{ours} {bare}");
        assert!((plan.rank.matrix / plan.rank.checksums / test.q as f64 - 1.0).abs() < 1e-9);
    } else {
        let ours = plan.rank.matrix + plan.rank.work;
        assert!((ours / bare - 1.0).abs() < 1e-9, "{ours} {bare}");
    }
    assert!(plan.node_memory <= plan.node_budget && plan.node_budget < inputs.memory);
    let kept = plan.rank.matrix + plan.rank.checkpoint + plan.rank.checksums;
    let ranks = inputs.ranks_per_node as usize;
    let named = (!checksums).then_some((kept * ranks as f64) as u128);
    let checksums_columns = usize::from(checksums);
    let on = memory_need::OnNode { ranks, keepers: 0, named, checksums: checksums_columns, means };
    let room = memory_need::Room { memory: plan.node_budget as u128, huge_pages: None };
    memory_need::fits([test], |_| on, room).unwrap();
    // The solver accepts the settings without a warning, and the settings are those of the plan.
    let mut layers = Layers::default();
    layers.toml(advice.skt_toml.as_bytes(), "skt.toml");
    assert!(layers.diagnostics.is_empty(), "{:?}\n{}", layers.diagnostics, advice.skt_toml);
    let settings = Settings::from(&layers.merged);
    assert_eq!(settings.threads, Some(plan.threads_per_rank as usize));
    assert_eq!(settings.sums() > 0, checksums);
    match settings.saves() {
        Some(protection) => {
            assert!(plan.protection.method.saves());
            protection.scheme.check().unwrap();
            // With method disk, each position is saved without a group.
            let losses = if plan.protection.method.in_memory() { inputs.losses } else { 0 };
            assert_eq!(protection.scheme.losses as u64, losses);
            assert_eq!(protection.group, Some(plan.protection.group_asked as usize));
            assert_eq!(protection.scheme.scope, plan.protection.scope);
            assert_eq!(protection.scheme.layout, plan.protection.parity_layout);
            let Interval::Auto { mtbf_s } = protection.interval else { panic!("auto") };
            assert!((mtbf_s / plan.mtbf_system.max(1.0) - 1.0).abs() < 0.5);
            // The share of the matrix is that of the solver's methods, if the solver has them.
            let share = available(&protection.scheme, plan.protection.group as usize);
            let ours =
                plan.rank.matrix / (plan.rank.matrix + plan.rank.checkpoint + plan.rank.checksums);
            assert!((share / ours - 1.0).abs() < 1e-9);
        }
        None => assert!(!plan.protection.method.saves()),
    }
    for x in [
        plan.pace.seconds_bare,
        plan.pace.seconds_saved,
        plan.pace.rate_bare,
        plan.pace.rate_saved,
        plan.saving.saving,
        plan.saving.recover,
        plan.survives,
    ] {
        assert!(x.is_finite() && x >= 0.0);
    }
    if let Some(t) = plan.pace.seconds_expected {
        assert!(
            t >= plan.pace.seconds_saved * (1.0 - 1e-9)
                && plan.pace.seconds_saved >= plan.pace.seconds_bare * (1.0 - 1e-9)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_plan_is_accepted_and_fits(
        nodes in 1u64..5000, rpn in 1u64..9, cores in 1u64..200, gib in 1.0..2000.0f64,
        node_years in 0.01..20.0f64, limit_h in prop::option::of(0.05..100.0f64),
        method in prop::option::of(prop::sample::select(Method::ALL.to_vec())),
        losses in 1u64..4, group in prop::option::of(2u64..40),
    ) {
        let inputs = Inputs {
            ranks_per_node: rpn,
            mtbf: Some(Mtbf::Node(node_years * YEAR_S)),
            limit: limit_h.map(|h| h * HOUR_S),
            disk: Some(100e9),
            method, losses, group,
            ..quick(nodes, cores, gib * GIB)
        };
        match plan(&inputs) {
            Ok(advice) => {
                accepted(&inputs, &advice);
                for other in advice.alternatives.iter().filter_map(|a| a.plan.as_ref().ok()) {
                    prop_assert!(other.node_memory <= other.node_budget);
                }
                if let Some(limit) = inputs.limit {
                    prop_assert!(advice.plan.pace.seconds_expected.unwrap() <= limit);
                }
            }
            // A refusal has a message with advice.
            Err(e) => prop_assert!(e.to_string().len() > 40, "{e}"),
        }
    }

    /// A plan has the same groups as the solver. It counts at most slightly less persistent shared memory than the solver. If
    /// groups are even, the two counts differ by at most 2 %.
    #[test]
    fn groups_and_memory_are_the_solvers(
        nodes in 2u64..40, rpn in 1u64..4, gib in 4.0..40.0f64, losses in 1u64..3,
        method in prop::sample::select(vec![Method::SelfCheckpoint, Method::Double, Method::Single]),
        how in prop::sample::select(ParityLayout::ALL.to_vec()),
        group in prop::option::of(2u64..20), device_gib in prop::option::of(2.0..100.0f64),
    ) {
        prop_assume!(nodes > losses + 1);
        let group = group.filter(|&g| g <= nodes);
        let inputs = Inputs {
            ranks_per_node: rpn,
            losses,
            method: Some(method),
            layout: how,
            group,
            devices: device_gib.map(|gib| Devices { memory: gib * GIB, peak: None, link: None }),
            ..quick(nodes, 8, gib * GIB)
        };
        let Ok(advice) = plan(&inputs) else { return Ok(()) };
        let plan = advice.plan;
        let shape = plan.shape;
        let layout = Layout { n: shape.n as usize, nb: shape.nb as usize, p: shape.p as usize, q: shape.q as usize, mapping: Mapping::Row, dedicated: 0 };
        let scheme = Scheme {
            method: match method {
                Method::Double => protocol::Method::Double,
                Method::Single => protocol::Method::Single,
                _ => protocol::Method::SelfCheckpoint,
            },
            scope: Scope::Corner,
            code: if losses > 1 { Code::ReedSolomon } else { Code::Xor },
            losses: losses as usize,
            layout: plan.protection.parity_layout,
            on_device: device_gib.is_some(),
        };
        let size = Some(plan.protection.group_asked as usize);
        let layout = layout.kept_by(&scheme, size);
        prop_assert!(layout.positions() as u64 <= nodes * rpn);
        let domains: Vec<String> = (0..layout.positions() as u64).map(|r| format!("n{}", r / rpn)).collect();
        let groups = how.groups(&layout, &domains, size, scheme.losses).unwrap();
        let smallest = groups.iter().map(Vec::len).min().unwrap() as u64;
        let largest = groups.iter().map(Vec::len).max().unwrap() as u64;
        prop_assert!(smallest >= plan.protection.group && largest <= plan.protection.group_most, "{smallest}..{largest} {}..{}", plan.protection.group, plan.protection.group_most);
        let fullest = groups
            .iter()
            .flat_map(|members| members.iter().map(move |m| (members, *m)))
            .map(|(members, m)| {
                let ld = layout.shape(m).1;
                Buffers::new(&layout, members, m, ld, &scheme, 256).total_bytes()
            })
            .max()
            .unwrap() as f64;
        let ours = plan.rank.named();
        // The plan's memory is at most 0.5 % less than the solver's, for small state and digests, and near it. If groups are
        // uneven, the fullest rank may be in a larger group, with smaller parity, than was counted.
        let (under, over) = if plan.protection.group == plan.protection.group_most { (0.005, 0.02) } else { (0.005, 0.10) };
        prop_assert!(fullest <= ours * (1.0 + under), "{fullest} {ours} {shape:?}");
        prop_assert!(fullest >= ours * (1.0 - over), "{fullest} {ours} {shape:?}");
    }

    /// Any input gives a plan or a diagnostic, never a panic or NaN.
    #[test]
    fn fuzzed_inputs(
        ints in prop::array::uniform8(any::<u64>()),
        floats in prop::array::uniform10(prop_oneof![
            prop::num::f64::ANY,
            (-20.0..20.0f64).prop_map(|e| 10f64.powf(e)),
        ]),
        some in any::<u32>(), small in any::<bool>(),
    ) {
        let on = |bit: u32| some >> bit & 1 == 1;
        let int = |i: usize, limit: u64| if small { ints[i] % limit } else { ints[i] };
        let opt = |bit: u32, i: usize| on(bit).then(|| floats[i]);
        let inputs = Inputs {
            nodes: int(0, 50), ranks_per_node: int(1, 10), cores: int(2, 100),
            memory: if small { 64.0 * GIB } else { floats[0] },
            named: NamedRoom { posix: opt(24, 8), sysv: opt(25, 9) },
            devices: on(26).then(|| Devices { memory: floats[5], peak: opt(27, 2), link: opt(28, 4) }),
            reserve: opt(0, 1), peak_per_core: opt(1, 2), network: opt(2, 3), latency: opt(3, 4), copy: opt(4, 5),
            disk: opt(5, 6), mtbf: on(6).then_some(if on(7) { Mtbf::Node(floats[7]) } else { Mtbf::System(floats[7]) }),
            detect: opt(8, 8), restart: opt(9, 9), process_share: opt(17, 8).map(|s| s % 2.0), in_place: opt(18, 9), spares: on(10).then_some(ints[3]),
            limit: opt(11, 6), n: on(12).then_some(int(4, 100_000)), nb: on(13).then_some(int(5, 500)),
            grid: on(14).then_some((int(6, 8), int(7, 8))), depth: int(3, 5),
            method: on(15).then_some(Method::ALL[(ints[0] % 6) as usize]),
            scope: Scope::Corner, group: on(16).then_some(int(6, 40)), losses: int(5, 4),
            layout: ParityLayout::ALL[(ints[1] % 4) as usize],
            helpers: on(20), checksum_columns: on(19).then_some(int(1, 6)), spare_ranks: on(23).then_some(int(2, 4)), measured: None, job: None, level2: on(21).then(|| "/scratch".into()), level2_every: opt(22, 7), simulate: 0, threads: 1, seed: 1,
        };
        if let Ok(advice) = plan(&inputs) {
            let json = serde_json::to_value(&advice.plan).unwrap();
            for (key, value) in json.as_object().unwrap() {
                let optional = matches!(key.as_str(), "seconds_expected" | "rate_expected" | "interval" | "save_cost" | "failures");
                prop_assert!(optional || !value.is_null(), "{key} is not a number");
            }
        }
    }

    #[test]
    fn more_memory_and_more_time_allow_more(nodes in 2u64..300, gib in 8.0..500.0f64, hours in 0.5..40.0f64) {
        let base = Inputs { limit: Some(hours * HOUR_S), ..quick(nodes, 32, gib * GIB) };
        let n = |i: &Inputs| plan(i).map_or(0, |a| a.plan.shape.n);
        let here = n(&base);
        let larger = n(&Inputs { memory: base.memory * 1.5, ..base.clone() });
        prop_assert!(larger >= here);
        let longer = n(&Inputs { limit: Some(hours * 1.5 * HOUR_S), ..base.clone() });
        prop_assert!(longer >= here);
        let none = n(&Inputs { method: Some(Method::None), limit: None, ..base.clone() });
        let double = n(&Inputs { method: Some(Method::Double), limit: None, ..base.clone() });
        let own = n(&Inputs { limit: None, ..base });
        prop_assert!(double < own && own < none);
    }

    #[test]
    fn grids_are_the_squarest(ranks in 1u64..100_000) {
        let (p, q) = squarest_grid(ranks);
        prop_assert!(p * q == ranks && p <= q);
        prop_assert!((p + 1..=ranks.isqrt()).all(|p| ranks % p != 0));
    }

    /// Groups are even and large enough to survive the losses. No group is larger than asked for, unless smaller groups would not
    /// survive. Asking for the size that a plan has gives the same groups.
    #[test]
    fn groups_are_even_and_can_be_asked_for(
        nodes in 2u64..1000, rpn in 1u64..9, wanted in 2u64..40, losses in 1u64..4,
        layout in prop::sample::select(vec![ParityLayout::Striped, ParityLayout::Localised, ParityLayout::Grid]),
    ) {
        let grid = squarest_grid(nodes * rpn);
        let of = |wanted| groups_of(layout, grid, Units { count: nodes, ranks: rpn }, Some(wanted), losses);
        let Ok(groups) = of(wanted) else { return Ok(()) };
        let least = layout.spread().members_least(losses as usize) as u64;
        let Groups { smallest, largest, asked } = groups;
        prop_assert!(smallest <= largest && largest - smallest <= 1);
        prop_assert!(nodes < least || smallest >= least);
        // With one group more, the smallest group would be too small.
        prop_assert!(largest <= wanted || smallest < 2 * least);
        prop_assert_eq!(of(asked).unwrap(), groups);
    }
}

/// Without protection, the plan's memory of matrix and work arrays is the solver's own count, to the byte. For the process
/// itself, a plan reserves more.
#[test]
fn memory_is_counted_as_the_solver_counts() {
    let advice = plan(&quick(3, 8, 16.0 * GIB)).unwrap();
    let test = solver_reads(&advice);
    let shape = Shape {
        n: test.n as u64,
        nb: test.nb as u64,
        p: test.p as u64,
        q: test.q as u64,
        depth: test.depth as u64,
    };
    let means = Means { engine: Engine::Auto, threads: 8, device: Device::None };
    let bare = rank_memory(shape, means, Method::None, Spread::Rotated, 1, 1).unwrap();
    let solver = memory_need::rank_bytes(&test, means) - memory_need::PROCESS_BYTES;
    assert_eq!((bare.matrix + bare.work) as u128, solver);
    assert_eq!(
        RANK_BASE_MOST as u128 - memory_need::PROCESS_BYTES,
        24 << 20,
        "what is planned fits"
    );
}

/// The matrix fills the memory of the devices, if the nodes have room for two copies of it.
#[test]
fn a_plan_for_devices_counts_both_memories() {
    let devices = |memory, link| Some(Devices { memory, peak: Some(60e12), link: Some(link) });
    let inputs = Inputs {
        ranks_per_node: 8,
        devices: devices(141e9, 50e9),
        copy: Some(200e9),
        network: Some(200e9),
        mtbf: Some(Mtbf::System(HOUR_S / 6.0)),
        ..quick(16, 112, 4e12)
    };
    let advice = plan(&inputs).unwrap();
    let p = &advice.plan;
    let test = solver_reads(&advice);
    let threads = p.threads_per_rank as usize;
    let means = Means { engine: Engine::Blas, threads, device: Device::Cuda };
    let on_device = memory_need::device_bytes(&test, means) as f64;
    assert_eq!(p.rank.on_device, Some(on_device));
    assert!((0.95..=1.0).contains(&(on_device / p.device_budget.unwrap())), "{on_device}");
    assert!(p.rank.matrix / 141e9 > 0.95, "{}", p.rank.matrix);
    assert!(p.node_memory <= p.node_budget);
    assert_eq!(p.protection.method, Method::Double);
    let mut layers = Layers::default();
    layers.toml(advice.skt_toml.as_bytes(), "skt.toml");
    assert!(layers.diagnostics.is_empty(), "{:?}", layers.diagnostics);
    assert_eq!(Settings::from(&layers.merged).device, Device::Cuda);
    // Only methods that go with device memory are compared.
    assert!(advice.without_restart.is_none());
    let others = advice.alternatives.iter().map(|other| other.plan.as_ref().unwrap());
    let methods: Vec<Method> = others.map(|plan| plan.protection.method).collect();
    assert!(methods.contains(&Method::None) && methods.len() > 2, "{methods:?}");
    assert!(methods.iter().all(|m| matches!(m, Method::None | Method::Double)), "{methods:?}");
    // A slower link makes saves dearer.
    let slow = plan(&Inputs { devices: devices(141e9, 5e9), ..inputs.clone() }).unwrap().plan;
    assert!(slow.saving.save_cost.unwrap().0 > 1.5 * p.saving.save_cost.unwrap().0);
    // With less memory, the nodes limit N.
    let small = plan(&Inputs { memory: 1e12, ..inputs.clone() }).unwrap().plan;
    assert!(small.rank.on_device.unwrap() < 0.5 * p.rank.on_device.unwrap());
    let why = |inputs| plan(&inputs).unwrap_err().to_string();
    let larger = why(Inputs { n: Some(p.shape.n * 2), ..inputs.clone() });
    assert!(larger.contains("of each device's memory"), "{larger}");
    let own = why(Inputs { method: Some(Method::SelfCheckpoint), ..inputs.clone() });
    assert!(own.contains("--method double"), "{own}");
    let tiny = why(Inputs { devices: devices(1e9, 1e9), ..inputs });
    assert!(tiny.contains("driver and libraries"), "{tiny}");
}

#[test]
fn one_node_is_not_protected_and_says_so() {
    let advice = plan(&quick(1, 2, 24.0 * GIB)).unwrap();
    assert_eq!(advice.plan.protection.method, Method::None);
    assert!(advice.warnings.iter().any(|w| w.contains("a single node")));
    // 24 GiB less 5 %: about 22.8 GiB for the matrix.
    assert!((50_000..56_000).contains(&advice.plan.shape.n), "{}", advice.plan.shape.n);
    assert!(advice.warnings.iter().any(|w| w.contains("guess")), "guesses are told");
}

#[test]
fn the_plan_of_a_cluster_reads_well() {
    let inputs = Inputs {
        simulate: 500,
        mtbf: Some(Mtbf::System(5.0 * HOUR_S)),
        ..Inputs::machine(1024, 24, 64e9)
    };
    let advice = plan(&inputs).unwrap();
    let p = &advice.plan;
    assert_eq!(
        (p.protection.method, p.protection.group, p.protection.losses),
        (Method::SelfCheckpoint, 16, 1)
    );
    assert_eq!((p.shape.p, p.shape.q), (32, 32));
    // The matrix has 47 % of the usable memory.
    let share = p.rank.matrix / p.node_budget;
    assert!((0.455..0.47).contains(&share), "{share}");
    assert!(p.saving.saves > 5 && p.survives > 0.99);
    // The simulation of the same plan agrees with the expected time in closed form.
    let simulated = advice.simulated.unwrap();
    assert!(simulated.wall.unwrap().agrees(p.pace.seconds_expected.unwrap(), 1.6), "{simulated:?}");
    let double = advice.alternatives.iter().find(|a| a.what.starts_with("double")).unwrap();
    let double = double.plan.as_ref().unwrap();
    // The matrix has 1.47 times the memory.
    let gain = (p.shape.n as f64 / double.shape.n as f64).powi(2);
    assert!((gain - 1.47).abs() < 0.02, "{gain}");
    assert!(double.pace.rate_bare < p.pace.rate_bare);
}

/// 72 nodes with one rank each form a grid of 8 x (8+1). So eight of nine parts of the memory contain the matrix, and one part
/// contains checksums.
#[test]
fn a_plan_with_a_column_of_checksums() {
    let inputs = Inputs {
        method: Some(Method::Abft),
        mtbf: Some(Mtbf::System(24.0 * HOUR_S)),
        process_share: Some(1.0),
        in_place: Some(1.0),
        simulate: 2000,
        ..Inputs::machine(72, 24, 64e9)
    };
    let advice = plan(&inputs).unwrap();
    let p = &advice.plan;
    assert_eq!((p.shape.p, p.shape.q, p.ranks), (8, 8, 72));
    assert_eq!((p.saving.saves, p.protection.group, p.protection.losses), (0, 1, 0));
    let matrix = p.rank.matrix / (p.rank.matrix + p.rank.checksums);
    assert!((matrix - 8.0 / 9.0).abs() < 1e-12);
    // Without protection and with the same N, the rate is that of the whole machine. With checksums, eight ninths of the machine
    // compute, and N_half is smaller by the factor sqrt(8/9).
    let none =
        Inputs { method: Some(Method::None), n: Some(p.shape.n), simulate: 0, ..inputs.clone() };
    let none = plan(&none).unwrap().plan;
    let n = p.shape.n as f64;
    let by_hand = 8.0 / 9.0 * none.rate.r_inf * n / (n + (8.0f64 / 9.0).sqrt() * none.rate.n_half);
    assert!((p.pace.rate_bare / by_hand - 1.0).abs() < 1e-9, "{} {by_hand}", p.pace.rate_bare);
    let simulated = advice.simulated.as_ref().unwrap();
    assert!(simulated.wall.unwrap().agrees(p.pace.seconds_expected.unwrap(), 2.0), "{simulated:?}");
    // The matrix is larger than with self-checkpoint: 8/9 of the memory instead of 15/32, less the work arrays.
    let own = advice.alternatives.iter().find(|a| a.what == "self-checkpoint").unwrap();
    let own = own.plan.as_ref().unwrap();
    let gain = (n / own.shape.n as f64).powi(2);
    assert!((gain / (8.0 / 9.0 / 0.46875) - 1.0).abs() < 0.06, "{gain}");
    assert_eq!((own.shape.p, own.shape.q), (8, 9));
    // Here the ninth of the rate is worth more than the larger matrix, for any share of process failures.
    let compared = advice.without_restart.unwrap();
    assert!(compared.abft < compared.in_place && compared.in_place >= compared.restart);
    assert_eq!(compared.abft_from, None);
}

/// 80 nodes with two checksum columns form a grid of 8 x (8+2). Four of five parts of the memory contain the matrix, and fewer
/// runs begin from scratch than with one checksum column.
#[test]
fn a_plan_with_two_columns_of_checksums() {
    let with = |sums| Inputs {
        method: Some(Method::Abft),
        checksum_columns: sums,
        mtbf: Some(Mtbf::System(HOUR_S)),
        process_share: Some(1.0),
        in_place: Some(1.0),
        simulate: 2000,
        ..Inputs::machine(80, 24, 64e9)
    };
    let advice = plan(&with(Some(2))).unwrap();
    let p = &advice.plan;
    assert_eq!((p.shape.p, p.shape.q, p.ranks, p.protection.checksum_columns), (8, 8, 80, 2));
    let matrix = p.rank.matrix / (p.rank.matrix + p.rank.checksums);
    assert!((matrix - 0.8).abs() < 1e-12);
    let simulated = advice.simulated.as_ref().unwrap();
    assert!(simulated.wall.unwrap().agrees(p.pace.seconds_expected.unwrap(), 2.0), "{simulated:?}");
    // A third checksum column is listed as an alternative. The comparison has two columns.
    let more = advice.alternatives.iter().find(|a| a.what == "3 columns of checksums").unwrap();
    let more = more.plan.as_ref().unwrap();
    assert_eq!((more.shape.p, more.shape.q, more.protection.checksum_columns), (8, 7, 3));
    assert_eq!(advice.without_restart.unwrap().checksum_columns, 2);
    let one = plan(&with(None)).unwrap().plan;
    assert_eq!((one.shape.p, one.shape.q, one.protection.checksum_columns), (8, 9, 1));
    assert!(one.survives < p.survives && p.survives < more.survives);
    // The grid without checksum columns has fewer process rows than columns, although the whole grid would be square.
    let grid = |ranks, sums| squarest_with_checksums(ranks, sums).unwrap();
    assert_eq!((grid(64, 1), grid(64, 2), grid(64, 4)), ((8, 7), (4, 14), (4, 12)));
    assert_eq!((grid(4, 1), grid(4, 2), grid(7, 4)), ((2, 1), (1, 2), (1, 3)));
}

/// 73 nodes form a grid of 8 x (8+1) and one spare. A second loss is survived after new checksums are made. For them, a rank
/// sends four fifths of its part of the matrix, which has 8 N^2/64 bytes. The expected time has three parts. Sending takes the
/// time for these bytes at 12.5 GB/s. Multiplying and adding takes the time to copy three times as many bytes. In addition, each
/// 512 KiB take 2 us.
#[test]
fn a_plan_with_a_rank_that_waits() {
    let with = |nodes, spare_ranks| Inputs {
        method: Some(Method::Abft),
        mtbf: Some(Mtbf::System(HOUR_S)),
        process_share: Some(1.0),
        in_place: Some(1.0),
        network: Some(12.5e9),
        copy: Some(10e9),
        spare_ranks,
        n: Some(500_000),
        simulate: 2000,
        ..Inputs::machine(nodes, 24, 64e9)
    };
    let advice = plan(&with(73, Some(1))).unwrap();
    let p = &advice.plan;
    assert_eq!((p.shape.p, p.shape.q, p.ranks, p.protection.spare_ranks), (8, 8, 73, 1));
    let bytes = 0.8 * 8.0 * 500_000.0f64.powi(2) / 64.0;
    let by_hand = bytes * (1.0 / 12.5e9 + 2.0 * 1.5 / 10e9 + 2e-6 / 524_288.0);
    assert!(
        (p.protection.renewal.unwrap() / by_hand - 1.0).abs() < 0.001,
        "{:?} {by_hand}",
        p.protection.renewal
    );
    let simulated = advice.simulated.as_ref().unwrap();
    assert!(simulated.wall.unwrap().agrees(p.pace.seconds_expected.unwrap(), 2.0), "{simulated:?}");
    assert!(simulated.renewed > 0.0);
    assert!(advice.skt_toml.contains("spare-ranks = 1"), "{}", advice.skt_toml);
    // All of the machine's rate is attributed to the 64 nodes that compute. So the machine without the 73rd node has a slightly
    // lower rate.
    let without = plan(&with(72, None)).unwrap().plan;
    assert_eq!((without.shape.p, without.shape.q, without.protection.spare_ranks), (8, 8, 0));
    assert!(
        without.survives < p.survives && p.survives < 1.0,
        "{} {}",
        without.survives,
        p.survives
    );
    assert!(without.pace.seconds_expected > p.pace.seconds_expected);
    let why = plan(&Inputs { grid: Some((8, 8)), ..with(73, None) }).unwrap_err().to_string();
    assert!(why.contains("does not take all 73 ranks"), "{why}");
    let why = plan(&Inputs { grid: Some((8, 8)), ..with(73, Some(2)) }).unwrap_err().to_string();
    assert!(why.contains("for checksums and 2 spare ranks does not take all 73 ranks"), "{why}");
}

/// If only a flat grid is possible, the plan warns and suggests a better grid. The suggestion counts the ranks with checksums and
/// the spare ranks.
#[test]
fn a_flat_grid_is_told_with_one_that_is_not() {
    let told = |nodes, method, sums, spare_ranks| {
        let inputs =
            Inputs { method, checksum_columns: Some(sums), spare_ranks, ..quick(nodes, 24, 64e9) };
        let warnings = plan(&inputs).unwrap().warnings;
        warnings.into_iter().find(|w| w.contains("flat grid"))
    };
    let own = told(71, None, 1, None).unwrap();
    assert!(
        own.contains("71 ranks allow only a flat grid of 1 x 71; 70 ranks (7 x 10) may"),
        "{own}"
    );
    let abft = Some(Method::Abft);
    // 71 is a prime number; 7 x (9+1) = 70.
    let one = told(71, abft, 1, None).unwrap();
    assert!(one.contains("flat grid of 1 x (70+1); 70 ranks (7 x (9+1)) may"), "{one}");
    let three = told(71, abft, 3, None).unwrap();
    assert!(three.contains("flat grid of 1 x (68+3); 70 ranks (7 x (7+3)) may"), "{three}");
    let waiting = told(73, abft, 1, Some(2)).unwrap();
    let words =
        "71 ranks allow only a flat grid of 1 x (70+1); 70 ranks (7 x (9+1)), and 2 spare, may";
    assert!(waiting.contains(words), "{waiting}");
    assert_eq!(told(72, abft, 1, None), None);
    assert_eq!(told(73, abft, 1, Some(1)), None);
}

/// With 64 process columns and a failure in ten days, the larger matrix is worth the checksum column. But after the loss of a
/// node, the run begins from scratch. The plan names the share of process failures above which checksums are faster, and the
/// comparison changes at this share.
#[test]
fn from_which_share_on_checksums_are_faster() {
    let inputs = Inputs { mtbf: Some(Mtbf::System(240.0 * HOUR_S)), ..quick(4096, 24, 64e9) };
    let at = |share: f64| {
        let inputs = Inputs { process_share: Some(share), ..inputs.clone() };
        plan(&inputs).unwrap().without_restart.unwrap()
    };
    let from = at(1.0).abft_from.unwrap();
    assert!(from > 0.0);
    assert_eq!(at(0.0).abft_from, Some(from));
    let (below, above) = (at(from - 0.01), at(from));
    assert!(below.abft <= below.in_place, "{below:?}");
    assert!(above.abft > above.in_place, "{above:?}");
    // The comparison has the expected rates of the alternatives.
    let advice = plan(&Inputs { process_share: Some(0.5), ..inputs.clone() }).unwrap();
    let compared = advice.without_restart.unwrap();
    assert_eq!(compared.restart, advice.plan.pace.rate_expected);
    for (what, rate) in
        [("self, in place", compared.in_place), ("column of checksums", compared.abft)]
    {
        let other = advice.alternatives.iter().find(|a| a.what == what).unwrap();
        assert_eq!(rate, other.plan.as_ref().unwrap().pace.rate_expected, "{what}");
    }
}

/// If every failure takes a whole node, recovery in place costs exactly as much as a restart. If every failure is of a process,
/// the run recovers sooner, and the plan is otherwise equal.
#[test]
fn in_place_compared_with_restarts() {
    let inputs = Inputs { mtbf: Some(Mtbf::System(HOUR_S)), ..quick(256, 24, 64e9) };
    let found = |share: f64| {
        let advice = plan(&Inputs { process_share: Some(share), ..inputs.clone() }).unwrap();
        let other = advice.alternatives.iter().find(|a| a.what == "self, in place").unwrap();
        (advice.plan.clone(), other.plan.clone().unwrap())
    };
    let (plan, in_place) = found(0.0);
    assert_eq!(plan, in_place);
    let (plan, in_place) = found(1.0);
    assert_eq!(plan.shape, in_place.shape);
    assert!(in_place.pace.seconds_expected < plan.pace.seconds_expected);
    assert!(in_place.survives >= plan.survives);
}

#[test]
fn refusals_tell_what_to_do() {
    let abft =
        |i: Inputs| plan(&Inputs { method: Some(Method::Abft), ..i }).unwrap_err().to_string();
    assert!(abft(quick(1, 8, 1e10)).contains("needs 2 ranks at least"));
    let two = abft(Inputs { checksum_columns: Some(2), ..quick(2, 8, 1e10) });
    assert!(two.contains("2 columns of checksums (method abft) need 3 ranks at least"), "{two}");
    let five = abft(Inputs { checksum_columns: Some(5), ..quick(9, 8, 1e10) });
    assert!(five.contains("at most 4"), "{five}");
    assert!(abft(Inputs { depth: 2, ..quick(4, 8, 1e10) }).contains("--depth 1"));
    let all = abft(Inputs { grid: Some((2, 2)), ..quick(4, 8, 1e10) });
    assert!(all.contains("one more process column"), "{all}");
    let say = |i: Inputs| plan(&i).unwrap_err().to_string();
    assert!(say(Inputs { group: Some(16), ..quick(4, 8, 1e10) }).contains("--group 4"));
    assert!(
        say(Inputs { n: Some(1_000_000), ..quick(1, 8, 1e10) })
            .contains("the largest N that fits is")
    );
    assert!(say(Inputs { grid: Some((3, 3)), ..quick(4, 8, 1e10) }).contains("3 x 3"));
    assert!(say(Inputs { losses: 4, ..quick(4, 8, 1e10) }).contains("--losses"));
    assert!(say(quick(2, 8, 1e8)).contains("reserve"));
    assert!(say(Inputs { ranks_per_node: 64, ..quick(2, 64, 3e9) }).contains("fewer ranks"));
    assert!(say(Inputs { method: Some(Method::Disk), ..quick(4, 8, 1e10) }).contains("--disk"));
    assert!(say(Inputs { nodes: 0, ..quick(1, 8, 1e10) }).contains("nodes"));
    assert!(say(Inputs { memory: f64::NAN, ..quick(1, 8, 1e10) }).contains("NaN"));
}

/// A calibration from three short runs predicts the rate of a fourth, larger run. The result lines have the form of real output.
#[test]
fn calibration_from_result_lines() {
    let guess = RateModel::new(230e9, 1000.0).unwrap();
    let sizes = calibration_sizes(&guess, 192, 50_000, 10.0).unwrap();
    assert_eq!(sizes.len(), 3);
    assert!(sizes.iter().all(|n| n % 192 == 0) && sizes.windows(2).all(|w| w[0] < w[1]));
    let total: f64 = sizes.iter().map(|n| guess.seconds(*n as f64).unwrap()).sum();
    assert!((7.0..=10.0).contains(&total), "{total}");

    let text = "\
WR11C2R4        6144   192     1     2               0.88             1.7566e+02
WR11C2R4        9024   192     1     2               2.53             1.9364e+02
WR11C2R4       12096   192     1     2               5.72             2.0633e+02
";
    let samples = read(text);
    let measured = Measured { fit: fit(&samples, None).unwrap(), ranks: 2, threads: 1 };
    let inputs = Inputs {
        ranks_per_node: 2,
        n: Some(16_000),
        measured: Some(measured),
        ..quick(1, 2, 24.0 * GIB)
    };
    let advice = plan(&inputs).unwrap();
    let gflops = advice.plan.pace.rate_bare / 1e9;
    // The reference HPL measured 215 Gflop/s at this N.
    assert!((gflops / 215.0 - 1.0).abs() < 0.05, "{gflops}");
    assert!(!advice.warnings.iter().any(|w| w.contains("rate is a guess")));
}

/// The same number of cores gives the same rate, however the cores are divided into ranks and threads.
#[test]
fn a_rate_is_carried_over_by_all_threads() {
    let text = "WR11C2R4  16000 192 4 6 4.7 5.8e+02\nWR11C2R4  32000 192 4 6 34.0 6.4e+02\n";
    let fit = fit(&read(text), None).unwrap();
    let planned = |ranks, threads| {
        let measured = Some(Measured { fit, ranks, threads });
        plan(&Inputs { n: Some(16_000), measured, ..quick(1, 24, 64.0 * GIB) }).unwrap()
    };
    let told = |advice: &Advice| advice.warnings.iter().any(|w| w.contains("in proportion"));
    let (alone, together) = (planned(24, 1), planned(1, 24));
    assert_eq!(alone.plan.pace.rate_bare, together.plan.pace.rate_bare);
    assert!(
        (alone.plan.pace.rate_bare / 580e9 - 1.0).abs() < 0.05,
        "{}",
        alone.plan.pace.rate_bare
    );
    assert!(told(&alone) && !told(&together));
    let half = planned(24, 2).plan.pace.rate_bare / alone.plan.pace.rate_bare;
    assert!((0.45..0.6).contains(&half), "{half}");
}

#[test]
fn a_name_for_memory_that_is_not_kept_is_told() {
    let told = |method| {
        let inputs = Inputs { job: Some("mine".into()), method, ..quick(8, 2, 24.0 * GIB) };
        plan(&inputs).unwrap().warnings.iter().any(|w| w.contains("--job has no effect"))
    };
    assert!(told(Some(Method::None)) && !told(None));
}

/// Helpers that encode need no more memory than method double. A save then stops the ranks only for the copy. The plan compares a
/// core that is reserved for helpers with a shared core. The interval of saves at which both cost the same is that of section 5.1
/// of the unified model.
#[test]
fn helpers_that_encode_make_saves_cheaper() {
    let mtbf = Some(Mtbf::System(6.0 * HOUR_S));
    let own = Inputs { mtbf, method: Some(Method::Double), ..quick(64, 24, 64e9) };
    let helped = Inputs { helpers: true, ..own.clone() };
    let (without, with) = (plan(&own).unwrap(), plan(&helped).unwrap());
    assert_eq!((without.plan.shape, without.plan.saving.helpers), (with.plan.shape, None));
    let helpers = with.plan.saving.helpers.unwrap();
    let (first, _) = with.plan.saving.save_cost.unwrap();
    // With one rank on each node, the helper uses one of 24 cores while it encodes.
    let stop = helpers.copy + helpers.encode / 24.0;
    assert!(first < 1.01 * stop && first > 0.5 * stop, "{first} {stop}");
    assert!(first < without.plan.saving.save_cost.unwrap().0);
    assert!(with.plan.saving.saving < without.plan.saving.saving);
    assert!((helpers.break_even - 24.0 * (helpers.encode - helpers.copy)).abs() < 1e-9);
    let (interval, _) = with.plan.saving.interval.unwrap();
    assert_eq!(helpers.core_pays, Some(interval < helpers.break_even));
    assert!(
        with.skt_toml.contains("method = \"double\"")
            && with.skt_toml.contains("encode = \"helper\"")
    );
    assert!(!without.skt_toml.contains("encode"));
    for method in Method::ALL.into_iter().filter(|method| *method != Method::Double) {
        let why = plan(&Inputs { method: Some(method), ..helped.clone() }).unwrap_err();
        assert!(method == Method::Disk || why.to_string().contains("--method double"), "{why}");
    }
}

/// With level two, the cost of storage depends on whether ranks or helpers write. The plan compares a core that is reserved for
/// helpers with shared cores. The interval at which both cost the same is that of section 5.1 of the unified model, without a
/// copy beforehand.
#[test]
fn the_cost_of_storage_depends_on_the_writer() {
    let mtbf = Some(Mtbf::System(6.0 * HOUR_S));
    let inputs = Inputs {
        mtbf,
        ranks_per_node: 2,
        disk: Some(20e9),
        level2: Some("/scratch".into()),
        ..quick(64, 24, 64e9)
    };
    let advice = plan(&inputs).unwrap();
    let storing = advice.plan.saving.storing.unwrap();
    let n = advice.plan.shape.n as f64;
    assert_eq!(storing.bytes, 8.0 * n * (n + 1.0));
    assert_eq!((storing.write, storing.every), (storing.bytes / 20e9, HOUR_S));
    // The matrix takes a third or more of 64 GB on each of 64 nodes. Writing it at 20 GB/s takes one to three minutes.
    assert!((60.0..180.0).contains(&storing.write), "{storing:?}");
    assert!((storing.waiting - storing.write / HOUR_S).abs() < 1e-12);
    assert!((storing.threads - storing.waiting / 12.0).abs() < 1e-12);
    assert_eq!(storing.kept_free, 1.0 / 24.0);
    // With 24 cores, the break-even point is 24 times the writing time.
    assert!((storing.break_even - 24.0 * storing.write).abs() < 1e-9);
    // The run ends before its first checkpoint on storage.
    assert!(advice.plan.pace.seconds_saved < HOUR_S && storing.core_pays.is_none());
    assert!(!advice.skt_toml.contains("level2-every") && !advice.skt_toml.contains("helper"));
    // 1/24 of ten minutes is 25 s, less than the time to write. With storage ten times as fast, it is more.
    let often = plan(&Inputs { level2_every: Some(600.0), ..inputs.clone() }).unwrap();
    assert_eq!(often.plan.saving.storing.unwrap().core_pays, Some(true));
    assert!(often.skt_toml.contains("level2-every = \"600s\""));
    let fast = Inputs { level2_every: Some(600.0), disk: Some(200e9), ..inputs.clone() };
    assert_eq!(plan(&fast).unwrap().plan.saving.storing.unwrap().core_pays, Some(false));
    // Without the rate of storage, or with method disk, only the missing input is reported.
    let unknown = plan(&Inputs { disk: None, ..inputs.clone() }).unwrap();
    assert_eq!(unknown.plan.saving.storing, None);
    assert!(unknown.warnings.iter().any(|w| w.contains("bandwidth of the file system (--disk)")));
    let method = Some(Method::Disk);
    let alone = plan(&Inputs { method, level2_every: Some(60.0), ..inputs.clone() }).unwrap();
    assert_eq!(alone.plan.saving.storing, None);
    assert!(alone.warnings.iter().any(|w| w.contains("--level2-every has no effect")));
    assert_eq!(plan(&Inputs { level2: None, ..inputs }).unwrap().plan.saving.storing, None);
}

/// Whole nodes are reserved for parity: as few as have room for the parity of all groups.
#[test]
fn ranks_for_checksums_alone_are_set_aside() {
    let set_aside = |(count, ranks), group, losses| {
        squarest_with_dedicated(Units { count, ranks }, group, losses)
    };
    let grid = |nodes, group, losses| set_aside(nodes, group, losses).unwrap();
    assert_eq!(grid((17, 1), None, 1), (4, 4));
    // Eight nodes with two ranks each form two groups, whose parity is on the ninth node.
    assert_eq!(grid((9, 2), None, 1), (4, 4));
    assert_eq!(grid((6, 1), Some(2), 1), (2, 2));
    assert_eq!(grid((6, 1), None, 2), (2, 2));
    assert!(set_aside((2, 4), None, 1).is_err());
    assert!(set_aside((4, 1), None, 3).is_err());

    let inputs = Inputs { layout: ParityLayout::Dedicated, ..quick(17, 8, 16.0 * GIB) };
    let advice = plan(&inputs).unwrap();
    let striped = plan(&quick(17, 8, 16.0 * GIB)).unwrap().plan;
    let dedicated = &advice.plan;
    assert_eq!((dedicated.shape.p, dedicated.shape.q), (4, 4));
    assert_eq!((dedicated.protection.group, dedicated.protection.group_most), (17, 17));
    assert_eq!(dedicated.rank.checksums, 0.0);
    assert!(dedicated.pace.rate_bare < striped.pace.rate_bare);
    for line in ["group = 16", "parity-layout = \"dedicated\""] {
        assert!(advice.skt_toml.contains(line), "{}", advice.skt_toml);
    }
    let mut layers = Layers::default();
    layers.toml(advice.skt_toml.as_bytes(), "skt.toml");
    let settings = Settings::from(&layers.merged);
    assert_eq!(settings.ranks(4, 4), 17);
    for refused in [
        Inputs { helpers: true, method: Some(Method::Double), ..inputs.clone() },
        Inputs { grid: Some((1, 17)), ..inputs.clone() },
        Inputs { losses: 16, ..inputs.clone() },
        // Each rank of the grid would be a group of its own.
        Inputs { grid: Some((1, 2)), ranks_per_node: 2, ..inputs.clone() },
    ] {
        assert!(plan(&refused).is_err());
    }
    // Storage contains the matrix, wherever the parity is stored.
    let (level2, disk) = (Some("/x".into()), Some(1e9));
    let stored = plan(&Inputs { level2, disk, ..inputs.clone() }).unwrap();
    let n = stored.plan.shape.n as f64;
    assert_eq!(stored.plan.saving.storing.as_ref().unwrap().bytes, 8.0 * n * (n + 1.0));
    for line in ["level2 = \"/x\"", "parity-layout = \"dedicated\""] {
        assert!(stored.skt_toml.contains(line), "{}", stored.skt_toml);
    }
    let alone = plan(&Inputs { grid: Some((1, 1)), ..inputs }).unwrap();
    assert!(alone.skt_toml.contains("group = 2"), "{}", alone.skt_toml);

    let flat = Inputs { layout: ParityLayout::Dedicated, ..quick(14, 8, 16.0 * GIB) };
    let warnings = plan(&flat).unwrap().warnings.join("\n");
    let words =
        "13 ranks that compute allow only a flat grid of 1 x 13; 12 ranks (3 x 4) may be faster";
    assert!(warnings.contains(words), "{warnings}");
}

/// The size of /dev/shm limits the matrix, however much memory is free.
#[test]
fn named_memory_goes_where_there_is_room_for_it() {
    let told = |posix: f64, sysv: f64, n| Inputs {
        named: NamedRoom { posix: Some(posix * GIB), sysv: Some(sysv * GIB) },
        n,
        ..quick(2, 1, 16.0 * GIB)
    };
    let named = |p: &Advice| {
        let rank = &p.plan.rank;
        rank.matrix + rank.checkpoint + rank.checksums
    };
    let free = plan(&quick(2, 1, 16.0 * GIB)).unwrap();
    assert!(free.warnings.iter().any(|w| w.contains("--shm")), "{:?}", free.warnings);

    let roomy = plan(&told(16.0, 64.0, None)).unwrap();
    assert_eq!((roomy.plan.store, roomy.plan.shape.n), (Store::Posix, free.plan.shape.n));
    assert!(!roomy.skt_toml.contains("store"));
    // /dev/shm has 64 MiB, as in a container, or half of the memory, as on Debian. The plan keeps its N and uses System V memory
    // instead.
    for shm in [0.0625, 8.0] {
        let advice = plan(&told(shm, 64.0, None)).unwrap();
        assert_eq!((advice.plan.store, advice.plan.shape.n), (Store::SysV, free.plan.shape.n));
        assert!(advice.skt_toml.contains("\nstore = \"sysv\"\n"), "{}", advice.skt_toml);
        assert!(advice.warnings.iter().any(|w| w.contains("System V")), "{:?}", advice.warnings);
    }
    let small = plan(&told(8.0, 64.0, Some(8000))).unwrap();
    assert_eq!(small.plan.store, Store::Posix);
    // Neither kind of memory has room for the whole problem. The plan uses as much as the larger one has, and gives the reason.
    for (shm, sysv, store) in [(8.0, 0.0, Store::Posix), (1.0, 4.0, Store::SysV)] {
        let advice = plan(&told(shm, sysv, None)).unwrap();
        let most = f64::max(shm, sysv) * GIB;
        assert_eq!(advice.plan.store, store);
        assert!((0.95 * most..=most).contains(&named(&advice)), "{} of {most}", named(&advice));
        let said = advice.warnings.join("\n");
        assert!(said.contains("mount -o remount,size=") && said.contains("/dev/shm"), "{said}");
    }
    for (shm, sysv, n) in [(0.01, 0.0, None), (1.0, 0.5, Some(16_000))] {
        let why = plan(&told(shm, sysv, n)).unwrap_err().to_string();
        assert!(why.contains("/dev/shm") && why.contains("remount"), "{why}");
    }
    // Without checkpoints, no persistent shared memory is needed.
    let bare = Inputs { method: Some(Method::None), ..told(0.0, 0.0, None) };
    assert_eq!(plan(&bare).unwrap().plan.store, Store::Posix);
}
