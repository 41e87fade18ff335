//! Tests of the commands `model`, `plan` and `simulate` as a user runs them: their output, their files and their refusals.

use std::path::Path;

use assert_cmd::Command;
use skt_hpl::model::figures::{preset, presets};

fn skt(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("skt-hpl").unwrap();
    command.args(args);
    command
}

fn stdout(args: &[&str]) -> String {
    let output = skt(args).assert().success().get_output().stdout.clone();
    String::from_utf8(output).unwrap()
}

fn refusal(args: &[&str], code: i32) -> String {
    let output = skt(args).assert().code(code).get_output().stderr.clone();
    String::from_utf8(output).unwrap()
}

/// A drawing is refused if it would overwrite the file from which it is drawn.
#[test]
fn no_drawing_is_put_over_what_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("it");
    let at = file.to_str().unwrap();
    let run = ["--nodes", "4", "--group", "4", "--work", "1h", "--runs", "5"];
    for (text, words) in [
        (
            "WR11C2R4        2000   192     1     2               0.04             1.3e+02\n",
            vec!["model", "--svg", at, "efficiency", "--results", at],
        ),
        ("1h 0\n", [&["simulate", "--trace", at, "--svg", at][..], &run].concat()),
    ] {
        std::fs::write(&file, text).unwrap();
        let said = refusal(&words, 1);
        assert!(said.contains("would be lost: name another file for --svg"), "{said}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    }
}

/// A plan counts only the cores that its threads use. Without groups it gives no advice about groups.
#[test]
fn a_plan_counts_on_the_threads_that_it_starts() {
    let words = ["plan", "--nodes", "4", "--memory", "64G", "--cores", "8", "--method", "none"];
    let uneven = ["-n", "100000", "--ranks-per-node", "5", "--runs", "0", "--json"];
    let plan = stdout(&[&words[..], &uneven].concat());
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let rate = |plan: &serde_json::Value| plan["plan"]["rate_bare"].as_f64().unwrap();
    let even = ["-n", "100000", "--ranks-per-node", "8", "--runs", "0", "--json"];
    let even = stdout(&[&words[..], &even].concat());
    let even: serde_json::Value = serde_json::from_str(&even).unwrap();
    // The first plan has 20 threads instead of 32, and messages of fewer ranks.
    assert!(rate(&plan) < 0.7 * rate(&even), "{} {}", rate(&plan), rate(&even));
    let lost = stdout(&[&words[..], &["--mtbf", "1min"]].concat());
    assert!(lost.contains("practically never ends") && !lost.contains("--losses"), "{lost}");
}

/// With `--method disk` and without `--level2 DIR`, a plan is not written. With DIR the written files pass `check`.
#[test]
fn a_plan_with_checkpoints_to_disk_alone_says_where_they_go() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("new");
    let words = ["plan", "--nodes", "64", "--memory", "64GB", "--cores", "24", "--mtbf", "5h"];
    let disk = ["--method", "disk", "--disk", "10GB/s"];
    let written = ["--write", at.to_str().unwrap()];
    let said = refusal(&[&words[..], &disk, &written].concat(), 1);
    assert!(said.contains("--level2 DIR"), "{said}");
    assert!(!at.exists());
    stdout(&[&words[..], &disk].concat());

    let storage = ["--level2", dir.path().to_str().unwrap()];
    let text = stdout(&[&words[..], &disk, &storage, &written].concat());
    assert!(
        text.contains("Start the run in that folder with") && text.contains("self-checkpoint"),
        "{text}"
    );
    let toml = std::fs::read_to_string(at.join("skt.toml")).unwrap();
    assert!(toml.contains("method = \"disk\"") && toml.contains("level2 = "), "{toml}");
    assert!(!toml.contains("losses") && !toml.contains("group"), "{toml}");
    for file in ["HPL.dat", "skt.toml"] {
        let check = stdout(&["check", at.join(file).to_str().unwrap()]);
        assert!(check.contains("no fault found"), "{check}");
    }
}

#[test]
fn a_written_plan_passes_the_check() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    let plan = [
        "plan", "--nodes", "64", "--memory", "64GB", "--cores", "24", "--mtbf", "5h", "--write", at,
    ];
    let text = stdout(&plan);
    assert!(text.contains("Start the run in that folder with"), "{text}");
    for part in [
        "N = ",
        "groups of 16",
        "self-checkpoint of the corner",
        "double checkpoint",
        "Warnings",
        "Written:",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    for file in ["HPL.dat", "skt.toml"] {
        let path = dir.path().join(file);
        let check = stdout(&["check", path.to_str().unwrap()]);
        assert!(check.contains("no fault found"), "{check}");
    }
    // A second plan overwrites the first only with `--force`.
    assert!(refusal(&plan, 1).contains("--force"));
    stdout(&[&plan[..], &["--force"]].concat());
}

/// A written plan with checksum columns starts P x (Q+1) ranks, has P x Q in HPL.dat, and names the method in skt.toml.
#[test]
fn a_written_plan_with_checksums_passes_the_check() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    let plan = [
        "plan",
        "--nodes",
        "72",
        "--memory",
        "64GB",
        "--cores",
        "24",
        "--mtbf",
        "24h",
        "--method",
        "abft",
        "--process-share",
        "0.95",
        "--in-place",
        "1s",
        "--runs",
        "100",
        "--write",
        at,
    ];
    let text = stdout(&plan);
    for part in [
        "8 x 8, row-major",
        "a column of 8 ranks with checksums",
        "that the run need not begin from scratch",
        "Without a restart (95 % of the failures",
        "is better here",
        "self, in place",
        "mpirun --with-ft ulfm",
        "-np 72 --map-by ppr:1:node --bind-to none skt-hpl",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("skt-hpl run --hosts"), "{text}");
    for file in ["HPL.dat", "skt.toml"] {
        let path = dir.path().join(file);
        let check = stdout(&["check", path.to_str().unwrap()]);
        assert!(check.contains("no fault found"), "{check}");
    }
    let toml = std::fs::read_to_string(dir.path().join("skt.toml")).unwrap();
    assert!(toml.contains("method = \"abft\"") && !toml.contains("[checkpoint]"), "{toml}");
}

/// A written plan with two checksum columns starts P x (Q+2) ranks, and its files contain the number of columns.
#[test]
fn a_written_plan_with_two_columns_of_checksums_passes_the_check() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    let plan = "plan --nodes 80 --memory 64GB --cores 24 --mtbf 24h --method abft --checksum-columns 2 --runs 100 --write";
    let text = stdout(&plan.split(' ').chain([at]).collect::<Vec<_>>());
    for part in [
        "8 x 8, row-major",
        "2 columns of 8 ranks with checksums, which survive the loss of 2 process columns",
        "  2 columns of checksums ",
        "3 columns of checksums",
        "16 ranks more than the grid has",
        "-np 80 --map-by ppr:1:node --bind-to none skt-hpl",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let path = dir.path().join("skt.toml");
    let check = stdout(&["check", path.to_str().unwrap()]);
    assert!(check.contains("no fault found"), "{check}");
    let toml = std::fs::read_to_string(path).unwrap();
    assert!(toml.contains("checksum-columns = 2"), "{toml}");
}

#[test]
fn runs_with_checksums_are_simulated() {
    let base = ["simulate", "--nodes", "72", "--mtbf", "1h", "--work", "2h", "--method", "abft"];
    assert!(refusal(&base, 2).contains("--columns"));
    let words = [&base[..], &["--columns", "8", "--process-share", "1", "--runs", "200"]].concat();
    let text = stdout(&words);
    // Two hours and an eighth of them.
    assert!(text.contains("2.25 h work") && text.contains("without a restart"), "{text}");
    assert!(text.contains("start from scratch"), "{text}");
    // With two checksum columns, the run takes a quarter longer than without, and survives more losses.
    let double = stdout(&[&words[..], &["--checksum-columns", "2"]].concat());
    assert!(double.contains("2.50 h work"), "{double}");
    let from_scratch = |text: &str| {
        let line = text.lines().find(|line| line.contains("start from scratch")).unwrap();
        line.split_whitespace().next().unwrap().parse::<f64>().unwrap()
    };
    assert!(from_scratch(&double) < from_scratch(&text), "{double}\n{text}");
    assert!(refusal(&[&base[..7], &["--checksum-columns", "2"]].concat(), 2).contains("--columns"));
    // If checksums are rebuilt between losses, the run begins from scratch less often. Of 73 nodes, 72 form the grid of 8 x
    // (8+1), and one is a spare.
    let waiting = ["--renew-time", "20s", "--spare-ranks", "1"];
    let mut renewing = [&words[..], &waiting].concat();
    renewing[2] = "73";
    let renewing = stdout(&renewing);
    assert!(renewing.contains("per run were rebuilt"), "{renewing}");
    assert!(from_scratch(&renewing) < from_scratch(&text), "{renewing}\n{text}");
    let uneven = refusal(&[&words[..], &waiting].concat(), 1);
    assert!(uneven.contains("72 nodes with a rank each, less 1 spare"), "{uneven}");
    let own = ["simulate", "--nodes", "72", "--mtbf", "1h", "--work", "2h"];
    let in_place =
        [&own[..], &["--process-share", "1", "--in-place", "1s", "--spare-ranks", "3"]].concat();
    assert!(stdout(&in_place).contains("without a restart"));
    assert!(
        refusal(&[&own[..], &["--columns", "8"]].concat(), 1).contains("no columns of checksums")
    );
    assert!(
        refusal(&[&own[..], &["--method", "single", "--in-place", "1s"]].concat(), 1)
            .contains("in place")
    );
}

/// Flags that a method does not use are refused.
#[test]
fn settings_without_use_for_a_simulated_method_are_refused() {
    let base = ["simulate", "--nodes", "72", "--mtbf", "1h", "--work", "2h", "--runs", "10"];
    let of_saves = ["--checkpoint 9s", "--encode-time 9s", "--flush-time 9s", "--recover 9s"];
    let of_groups = ["--group 4", "--losses 2", "--spread --domain-size 8 --domain-mtbf 9d"];
    let words = |method: &'static str, more: &'static str| {
        base.into_iter().chain(["--method"]).chain(method.split(' ')).chain(more.split(' '))
    };
    let n = |words: Vec<&'static str>| -> Vec<&str> {
        let (work, of_n) = (["--work", "2h"], ["-n", "9999", "--rate", "1"]);
        words.into_iter().filter(|word| !work.contains(word)).chain(of_n).collect()
    };
    for method in ["none", "abft --columns 8"] {
        for more in of_saves.iter().chain(&of_groups).chain(&["--scope whole"]) {
            let said = refusal(&n(words(method, more).collect()), 1);
            let flag = more.split(' ').next().unwrap();
            assert!(
                said.contains("has no saves") && said.contains(flag),
                "{method} {more}: {said}"
            );
        }
    }
    for more in of_groups {
        let said = refusal(&words("disk", more).collect::<Vec<_>>(), 1);
        assert!(said.contains("method disk has no groups"), "{more}: {said}");
    }
    for more in of_saves {
        stdout(&words("disk", more).collect::<Vec<_>>());
    }
    let said = stdout(&words("none", "--regenerate 9s").collect::<Vec<_>>());
    assert!(said.contains("method none"), "{said}");
    // Flags that describe a matrix are refused for other work, and the age of nodes if it makes no difference.
    for more in ["--scope whole", "--nb 64", "--rate 1", "--n-half 900"] {
        let flag = more.split(' ').next().unwrap();
        let said = refusal(&words("self", more).collect::<Vec<_>>(), 2);
        assert!(said.contains("--work") && said.contains(flag), "{more}: {said}");
        if flag != "--rate" {
            stdout(&n(words("self", more).collect()));
        }
    }
    let said = refusal(&words("self", "--age new").collect::<Vec<_>>(), 2);
    assert!(said.contains("--weibull"), "{said}");
}

/// `--json FILE` overwrites no input, and replaces nothing that is not a regular file.
#[test]
fn a_document_harms_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("a.new"), "mine").unwrap();
    let base = ["simulate", "--nodes", "72", "--mtbf", "1h", "--work", "2h", "--runs", "10"];
    let to = |file: &Path, more: &[&str]| {
        let mut command = skt(&base);
        command.args(more).arg("--json").arg(file).assert()
    };
    to(&at("a.json"), &[]).success();
    assert_eq!(std::fs::read_to_string(at("a.new")).unwrap(), "mine");
    serde_json::from_slice::<serde_json::Value>(&std::fs::read(at("a.json")).unwrap()).unwrap();
    let fifo = at("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let read = fifo.clone();
    let reader = std::thread::spawn(move || std::fs::read(read).unwrap());
    to(&fifo, &[]).success();
    serde_json::from_slice::<serde_json::Value>(&reader.join().unwrap()).unwrap();
    assert!(!fifo.is_file());
    let out = to(Path::new("/dev/stdout"), &[]).success();
    serde_json::from_slice::<serde_json::Value>(&out.get_output().stdout).unwrap();
    // An input is not overwritten. An output that cannot be written is reported before the simulation begins.
    let trace = at("trace");
    std::fs::write(&trace, "0 1\n3600 2\n").unwrap();
    let base = ["simulate", "--nodes", "72", "--work", "2h", "--trace", trace.to_str().unwrap()];
    skt(&base).arg("--json").arg(&trace).assert().code(1);
    assert_eq!(std::fs::read_to_string(&trace).unwrap(), "0 1\n3600 2\n");
    to(Path::new("/no/such/folder/a.json"), &[]).code(6);
    let results = at("run.json");
    let line = "WR11C2R4 12000 192 1 2 5.58 2.0645e+02\n";
    std::fs::write(&results, line).unwrap();
    let plan = ["plan", "--nodes", "2", "--memory", "4GB", "--cores", "2", "--runs", "0"];
    let both = [results.to_str().unwrap(); 2];
    skt(&plan).args(["--results", both[0], "--json", both[1]]).assert().code(1);
    assert_eq!(std::fs::read_to_string(&results).unwrap(), line);
}

/// Flags of the calibration are refused without `--calibrate`.
#[test]
fn a_plan_that_measures_nothing_takes_no_words_about_how() {
    let base = ["plan", "--nodes", "4", "--memory", "16GiB", "--cores", "2", "--runs", "0"];
    for more in [["--launch-command", "mpirun -np {ranks}"], ["--program", "/bin/true"]] {
        let said = refusal(&[&base[..], &more].concat(), 2);
        assert!(said.contains("--calibrate"), "{more:?}: {said}");
    }
}

/// `model nonstop` compares ways to recover. With Q = 31 and 127, checksum columns leave 31 of 32 and 127 of 128 parts for the
/// matrix. The rates are those of docs/PROTECTION.md.
#[test]
fn ways_to_go_on_compared() {
    let text = stdout(&["model", "nonstop", "--mtbf", "10h", "--process-share", "1"]);
    let row = |way: &str| {
        let line = text.lines().find(|line| line.starts_with(way));
        line.unwrap_or_else(|| panic!("{way}\n{text}")).to_owned()
    };
    for (way, parts) in [
        ("self, restarts", ["46.9 %", "1.0000", "0.9677"]),
        ("self, in place", ["46.9 %", "1.0000", "0.9699"]),
        ("checksums, Q = 31, R = 1 ", ["96.9 %", "1.0323", "0.9570"]),
        ("checksums, Q = 127, R = 1 ", ["99.2 %", "1.0079", "0.9804"]),
    ] {
        let row = row(way);
        for part in parts {
            assert!(row.contains(part), "{part}\n{row}");
        }
    }
    let two = "model nonstop --mtbf 10h --process-share 1 --columns 8 --checksum-columns 1,2";
    let two = stdout(&two.split(' ').collect::<Vec<_>>());
    for row in ["checksums, Q = 8, R = 1 ", "checksums, Q = 8, R = 2 "] {
        let line = two.lines().find(|line| line.starts_with(row)).unwrap();
        let parts = if row.contains("R = 2") { ["80.0 %", "1.2500"] } else { ["88.9 %", "1.1250"] };
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
    // Rebuilt checksums count if the number of process rows is given. A run has 1.6 losses, and an attempt with one checksum
    // column survives one.
    let rows = "model nonstop --mtbf 1h --process-share 1 --columns 8 --checksum-columns 1";
    let through = |more: &str| {
        let words = format!("{rows} {more}");
        let text = stdout(&words.split_whitespace().collect::<Vec<_>>());
        let line = text.lines().last().unwrap().trim_end_matches(" %").to_owned();
        line.split_whitespace().last().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(through(""), through("--rows 1"));
    assert!(through("--rows 8 --spare-ranks 1") > through("--rows 8"));
    assert!(refusal(&["model", "nonstop", "--spare-ranks", "1"], 2).contains("--rows"));
    assert!(refusal(&["model", "nonstop", "--mtbf", "10h"], 2).contains("--process-share"));
    let beyond = ["model", "nonstop", "--mtbf", "10h", "--process-share", "1.5"];
    assert!(refusal(&beyond, 1).contains("between 0 and 1"));
}

/// Output of `plan --show-ranks`, which `scripts/run.sh` reads.
#[test]
fn a_layout_follows_from_what_a_node_has() {
    for (given, told) in [
        ("--cores 64 --numa 8", "8 ranks a node, 8 threads a rank\n"),
        ("--cores 24", "1 rank a node, 24 threads a rank\n"),
        ("--cores 24 --ranks-per-node 24", "24 ranks a node, 1 thread a rank\n"),
    ] {
        let words: Vec<&str> =
            ["plan", "--show-ranks"].into_iter().chain(given.split(' ')).collect();
        assert_eq!(stdout(&words), told);
    }
    let here = stdout(&["plan", "--show-ranks"]);
    assert!(here.contains(" a node, ") && here.ends_with(" a rank\n"), "{here}");
    let plan = ["plan", "--cores", "64", "--numa", "8", "--memory", "64GiB", "--runs", "0"];
    assert!(stdout(&plan).contains("8 ranks a node, 8 threads a rank"));
}

/// `plan` accepts the parity layouts of the benchmark under the same flag, and writes them to skt.toml.
#[test]
fn a_plan_takes_the_parity_layouts_of_the_benchmark() {
    let machine = ["plan", "--nodes", "4", "--memory", "16GiB", "--cores", "2", "--runs", "0"];
    for layout in ["grid", "localised", "dedicated"] {
        let dir = tempfile::tempdir().unwrap();
        let write = ["--parity-layout", layout, "--write", dir.path().to_str().unwrap()];
        stdout(&[&machine[..], &write].concat());
        let written = std::fs::read_to_string(dir.path().join("skt.toml")).unwrap();
        assert!(written.contains(&format!("parity-layout = \"{layout}\"")), "{written}");
    }
    assert!(refusal(&["plan", "--layout", "grid"], 2).contains("unexpected argument '--layout'"));
}

#[test]
fn free_memory_is_no_more_than_the_machine_has() {
    let told = stdout(&["plan", "--free-memory"]);
    let kib: u64 = told.strip_suffix(" KiB\n").expect(&told).parse().unwrap();
    let machine = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = machine.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    let total: u64 = total.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    assert!((1..total).contains(&kib), "{kib} of {total}");
}

#[test]
fn a_plan_as_json() {
    let machine = ["plan", "--nodes", "16", "--memory", "16GiB", "--cores", "8"];
    let text = stdout(&[&machine[..], &["--time-limit", "2h", "--json", "--runs", "50"]].concat());
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["plan"]["group"], 16);
    assert!(json["plan"]["seconds_expected"].as_f64().unwrap() <= 7200.0);
    assert!(json["hpl_dat"].as_str().unwrap().lines().count() == 31);
    assert!(json["simulated"]["runs"] == 50);
}

#[test]
fn results_of_earlier_runs_set_the_rate() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("HPL.out");
    std::fs::write(
        &file,
        "WR11C2R4        6144   192     1     2               0.88             1.7566e+02\n\
         WR11C2R4       12096   192     1     2               5.72             2.0633e+02\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let text = stdout(&[
        "plan",
        "--memory",
        "16GiB",
        "--cores",
        "2",
        "--ranks-per-node",
        "2",
        "--results",
        file,
        "-n",
        "16000",
        "--runs",
        "0",
    ]);
    assert!(text.contains("Measured") && text.contains("fitted:"), "{text}");
    assert!(!text.contains("the rate is a guess"), "{text}");
    let text =
        stdout(&["model", "efficiency", "--results", file, "-n", "16000,32000", "--peak", "276"]);
    assert!(text.contains("E(N) = N /") && text.contains("N = 32000"), "{text}");
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "nothing\n").unwrap();
    assert!(
        refusal(&["plan", "--results", empty.to_str().unwrap()], 1).contains("contains no result")
    );
    assert!(refusal(&["plan", "--results", "/nowhere"], 1).contains("/nowhere"));
}

/// Results of a single N on one node give a rate, but not its growth with N. The growth is guessed for one node; a plan for 1024
/// nodes must not predict more than about 1024 times the rate.
#[test]
fn one_size_of_one_node_makes_a_thousand_no_faster_than_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("one.out");
    let line = "WR11C2R4       40000   192     1     1              50.20             8.5000e+02\n";
    std::fs::write(&file, line).unwrap();
    let words = "plan --nodes 1024 --cores 24 --ranks-per-node 1 --memory 64GB --results-threads 24 --runs 0 --json --results";
    let words: Vec<&str> = words.split(' ').chain(file.to_str()).collect();
    let told: serde_json::Value = serde_json::from_str(&stdout(&words)).unwrap();
    let rate = told["plan"]["rate_bare"].as_f64().unwrap();
    let all = 1024.0 * 850e9;
    assert!((0.5 * all..1.1 * all).contains(&rate), "{rate:e} of {all:e}: {told}");
}

/// Profiles of runs with one and two threads predict the rate of more threads.
#[test]
fn many_cores_from_the_parts_of_few() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, tests: &[(u64, u64, u64, f64)]| {
        let tests: Vec<_> = tests
            .iter()
            .map(|&(n, threads, depth, part)| {
                serde_json::json!({
                    "params": {"n": n, "nb": 200, "p": 1, "q": 1, "depth": depth},
                    "outcome": {"threads": threads, "protection": null, "times": {
                        "rfact": part, "laswp": part, "trsm": part, "gemm": 10.0 * part, "solve": part, "total": 15.0 * part,
                    }},
                })
            })
            .collect();
        let path = dir.path().join(name);
        std::fs::write(&path, serde_json::json!({ "tests": tests }).to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let few = file("few.json", &[(8000, 1, 0, 1.0), (16000, 1, 0, 8.0), (8000, 2, 0, 0.5)]);
    let args = ["model", "cores", "--cores", "16", "-n", "40000", "--results"];
    assert!(refusal(&[&args[..], &[&few]].concat(), 1).contains("--threads 2"));
    let more = file("more.json", &[(16000, 2, 0, 4.0), (16000, 2, 1, 4.0)]);
    let text = stdout(&[&args[..], &[&few, "--results", &more]].concat());
    // All parts of the profile use shared memory bandwidth. So memory that serves only eight of sixteen cores makes the
    // difference.
    let rows: Vec<f64> = text
        .lines()
        .filter(|line| line.contains("40000 "))
        .filter_map(|line| line.split_whitespace().nth(3)?.parse().ok())
        .collect();
    assert!(rows.len() == 2 && rows[0] < rows[1] && rows[1] < 1.0, "{rows:?}\n{text}");
    assert!(text.contains("not a measurement"), "{text}");
    let other = file("other.json", &[]);
    assert!(refusal(&[&args[..], &[&other]].concat(), 1).contains("other.json"));
}

/// A calibration runs the benchmark by a launcher and reads its results. Here a script stands for both, and prints the
/// benchmark's output.
#[test]
fn calibration_runs_the_benchmark_and_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("launch");
    std::fs::write(
        &script,
        "#!/bin/sh\n\
         # launch RANKS PROGRAM --dat NONE --config NONE --n=N,N,... --threads T: a machine of 100 Gflop/s N/(N+1000)\n\
         [ \"$1 $3 $4 $5 $6\" = '2 --dat /dev/null --config /dev/null' ] || exit 9\n\
         for word; do case $word in --n=*) sizes=${word#--n=} ;; --threads) threads=told ;; esac; done\n\
         [ \"$sizes\" ] && [ \"$threads\" ] || exit 9\n\
         for n in $(echo $sizes | tr , ' '); do\n\
         awk -v n=$n 'BEGIN { r = 100 * n / (n + 1000); t = n * n * (2 * n / 3 + 1.5) / r / 1e9;\n\
         printf \"WR11C2R4  %d 192 1 2 %.2f %.4e\\n\", n, t, r }'\n\
         done\n",
    )
    .unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let launcher = format!("{} {{ranks}}", script.display());
    let base = [
        "plan",
        "--memory",
        "16GiB",
        "--cores",
        "2",
        "--ranks-per-node",
        "2",
        "--json",
        "--runs",
        "0",
        "--calibrate",
        "10s",
        "--launch-command",
    ];
    let text = stdout(&[&base[..], &[&launcher]].concat());
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rate = &json["plan"]["rate"];
    assert!((rate["r_inf"].as_f64().unwrap() / 100e9 - 1.0).abs() < 0.001, "{rate}");
    assert!((rate["n_half"].as_f64().unwrap() / 1000.0 - 1.0).abs() < 0.01, "{rate}");
    // Failures of the launcher and of the benchmark are reported.
    assert!(refusal(&[&base[..], &["/nowhere/mpirun"]].concat(), 6).contains("--launch-command"));
    assert!(refusal(&[&base[..], &["false"]].concat(), 6).contains("calibration failed"));
    assert!(refusal(&[&base[..], &["true"]].concat(), 6).contains("no result"));
}

/// Nodes of which several run on this machine (`--nodes-here`) divide its cores.
#[test]
fn nodes_of_one_machine_have_no_core_twice() {
    let words: Vec<usize> = stdout(&["plan", "--show-ranks"])
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [ranks, threads] = words[..] else { panic!("{words:?}") };
    let text = stdout(&["plan", "--nodes", "2", "--nodes-here", "2", "--runs", "0", "--json"]);
    let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
    let number = |name: &str| plan["plan"][name].as_u64().unwrap() as usize;
    let each = number("threads_per_rank") * (number("ranks") / 2);
    assert!(
        each * 2 <= (ranks * threads).max(2),
        "{each} cores of {words:?} for each of two nodes"
    );
}

/// Variables of the user's own runs do not affect a calibration, except those that describe the machine, such as `SKT_BLAS`.
#[test]
fn a_calibration_heeds_no_variable_of_the_users_runs() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let launcher = dir.path().join("launcher");
    let text = "#!/bin/sh\nenv | grep ^SKT_ > variables\n\
                echo 'WR11C2R4        2000   192     1     1               0.06             8.9000e+01'\n";
    std::fs::write(&launcher, text).unwrap();
    std::fs::set_permissions(&launcher, std::fs::Permissions::from_mode(0o755)).unwrap();
    let words = "plan --nodes 1 --memory 1GiB --cores 1 --runs 0 --calibrate 1s";
    let words: Vec<&str> = words.split(' ').collect();
    let mut command = skt(&words);
    command.current_dir(dir.path()).arg("--launch-command").arg(&launcher);
    let away = "JSON OUTPUT N PFACT SWAP_THRESHOLD CHECKPOINT LEVEL2 PROGRESS TIMING";
    let away: Vec<&str> = away.split(' ').collect();
    let kept = ["BLAS", "ENGINE", "PIN", "PREFLIGHT"];
    for name in away.iter().chain(&kept) {
        command.env(format!("SKT_{name}"), "off");
    }
    command.assert().success();
    let seen = std::fs::read_to_string(dir.path().join("variables")).unwrap();
    let has = |name: &&str| seen.lines().any(|line| line == format!("SKT_{name}=off"));
    assert!(!away.iter().any(has), "{seen}");
    assert!(kept.iter().all(has), "{seen}");
}

#[test]
fn every_figure_prints_and_draws() {
    let dir = tempfile::tempdir().unwrap();
    let list = stdout(&["model", "figure"]);
    for (name, _) in presets() {
        assert!(list.contains(name));
    }
    for name in ["self-12", "unified-8a", "encoding", "self-table-3", "helpers-4"] {
        let svg = dir.path().join(name);
        let text = stdout(&["model", "figure", name, "--svg", svg.to_str().unwrap()]);
        assert!(text.lines().count() > 10);
        let svg = std::fs::read_to_string(svg).unwrap();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }
    assert!(refusal(&["model", "figure", "self-99"], 1).contains("self-12"));
    assert!(refusal(&["model", "figure", "--svg", "x.svg"], 2).contains("no figure to draw"));
    assert!(
        refusal(&["model", "figure", "self-12", "--svg", "/nowhere/x.svg"], 6)
            .contains("/nowhere/x.svg")
    );
}

#[derive(Debug, PartialEq)]
enum Drawn {
    Bars(usize),
    Curves(usize),
}

impl Drawn {
    /// Counts the bars or curves of a drawing. Marks of the legend, frames and backgrounds do not count.
    fn in_picture(svg: &str) -> Self {
        let bar = |line: &&str| {
            line.starts_with("<rect") && line.contains(r##"fill="#"##) && !line.contains("<text")
        };
        match svg.lines().filter(bar).count() {
            0 => Drawn::Curves(svg.matches("<path d=\"M").count()),
            bars => Drawn::Bars(bars),
        }
    }
}

#[test]
fn every_topic_answers_and_draws() {
    let dir = tempfile::tempdir().unwrap();
    // For each topic of `model`: flags, a part of the text, and the content of the drawing. These are: a bar for each of three
    // methods; one curve; methods self and single; five schemes for one and for several losses; inline and three sizes; three
    // groupings of two applications and four of the other two.
    let topics: [(&[&str], &str, Drawn); 6] = [
        (&["memory", "--group", "16"], "46.9 %", Drawn::Bars(3)),
        (&["interval", "--save", "20s", "--mtbf", "5h"], "13.9 min", Drawn::Curves(1)),
        (&["reliability"], "0.6125", Drawn::Curves(2)),
        (
            &["encoding", "--processes", "64", "--losses", "2"],
            "chain, best segment",
            Drawn::Curves(10),
        ),
        (
            &["helpers", "--copy-time", "1s", "--encode-time", "10s", "--interval", "2min"],
            "1 of   16 cores costs   7.08 %: pays",
            Drawn::Curves(4),
        ),
        (
            &["waste", "--machine", "titan", "--mtbf-processor", "14.75y"],
            "SELF-MEMORY",
            Drawn::Curves(14),
        ),
    ];
    for (args, expected, drawn) in topics {
        let svg = dir.path().join(format!("{}.svg", args[0]));
        let text = stdout(&[&["model"], args, &["--svg", svg.to_str().unwrap()]].concat());
        assert!(text.contains(expected), "{args:?}\n{text}");
        assert_eq!(Drawn::in_picture(&std::fs::read_to_string(svg).unwrap()), drawn, "{args:?}");
    }
    assert!(refusal(&["model", "waste", "--alpha", "2"], 1).contains("alpha"));
    assert!(refusal(&["model", "memory", "--group", "1"], 1).contains("group size"));
    assert!(
        refusal(&["model", "interval", "--save", "20 parsecs", "--mtbf", "5h"], 2).contains("min")
    );
}

#[test]
fn simulations_are_repeatable_and_explained() {
    let dir = tempfile::tempdir().unwrap();
    let base = [
        "simulate",
        "--nodes",
        "160000",
        "--mtbf",
        "5h",
        "--work",
        "100h",
        "--checkpoint",
        "13.6min",
        "--encode-time",
        "20s",
        "--flush-time",
        "0",
        "--detect",
        "0",
        "--restart-time",
        "0",
    ];
    let single = [&base[..], &["--method", "single", "--runs", "2000"]].concat();
    let text = stdout(&single);
    assert!(text.contains("a loss during a save"), "{text}");
    assert_eq!(text, stdout(&[&single[..], &["--simulation-threads", "1"]].concat()));
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&[&single[..], &["--json"]].concat())).unwrap();
    let finished = json["summary"]["finished"]["value"].as_f64().unwrap();
    assert!((finished - 0.61).abs() < 0.04, "{finished}");

    let svg = dir.path().join("s.svg");
    let hpl = [
        "simulate",
        "--nodes",
        "4096",
        "--mtbf-node",
        "2y",
        "-n",
        "2000000",
        "--rate",
        "1000",
        "--n-half",
        "50000",
        "--weibull",
        "0.7",
        "--age",
        "new",
        "--spare-nodes",
        "8",
        "--repair",
        "1d",
        "--time-limit",
        "3h",
        "--domain-size",
        "32",
        "--domain-mtbf",
        "5y",
        "--spread",
        "--runs",
        "200",
        "--svg",
        svg.to_str().unwrap(),
    ];
    let text = stdout(&hpl);
    assert!(text.contains("finish") && text.contains("95 % within"), "{text}");
    assert!(std::fs::read_to_string(svg).unwrap().contains("limit"));

    let trace = dir.path().join("trace");
    std::fs::write(&trace, "0 1\n7200 5\n9000 77\n").unwrap();
    let traced = [
        "simulate",
        "--nodes",
        "128",
        "--work",
        "10h",
        "--trace",
        trace.to_str().unwrap(),
        "--runs",
        "100",
    ];
    assert!(stdout(&traced).contains("failures"));
    std::fs::write(&trace, "0 1\nseven 5\n").unwrap();
    assert!(refusal(&traced, 1).contains("line 2"));
    assert!(
        refusal(&["simulate", "--nodes", "4", "--mtbf", "1h", "--work", "1h"], 1)
            .contains("at least the group size")
    );
    assert!(refusal(&["simulate", "--nodes", "4", "--mtbf", "1h"], 2).contains("--work"));
}

/// The figures in docs/figures are equal to the output of the program.
#[test]
fn the_pictures_of_the_documentation_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/figures");
    for name in [
        "self-10",
        "self-11",
        "self-12",
        "self-14",
        "self-groups",
        "encoding",
        "encoding-8",
        "unified-8a",
        "hpl",
        "nonstop",
        "replacement",
    ] {
        let path = folder.join(format!("{name}.svg"));
        let stored =
            std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(
            stored == preset(name).unwrap().svg(),
            "{name}.svg is not what the program draws: `skt-hpl model figure {name} --svg {}`, and look at it",
            path.display()
        );
    }
}
