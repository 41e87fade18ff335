//! A test in the words that the solver reads: the lines of HPL.dat, or flags.

use std::fmt::Write as _;

use clap::ValueEnum;

use crate::base::params::{Bcast, Fact, Form, Mapping, Swap, TestParams};

/// The 31 lines of HPL.dat for one test at each of the sizes `ns`.
pub fn hpl_dat(test: &TestParams, ns: &[usize], title: &str) -> String {
    let fact = |f| match f {
        Fact::Left => 0,
        Fact::Crout => 1,
        Fact::Right => 2,
    };
    let form = |f| match f {
        Form::Transposed => 0,
        Form::NotTransposed => 1,
    };
    let bcast = match test.bcast {
        Bcast::OneRing => 0,
        Bcast::OneRingM => 1,
        Bcast::TwoRing => 2,
        Bcast::TwoRingM => 3,
        Bcast::Long => 4,
        Bcast::LongM => 5,
    };
    let swap = match test.swap {
        Swap::BinaryExchange => 0,
        Swap::Long => 1,
        Swap::Mix => 2,
    };
    let mapping = match test.mapping {
        Mapping::Row => 0,
        Mapping::Column => 1,
    };
    let sizes: Vec<String> = ns.iter().map(usize::to_string).collect();
    // A title with a line break would shift every line below it.
    let title: String = title.chars().filter(|c| !c.is_control()).collect();
    let rows: [(String, &str); 29] = [
        ("HPL.out".into(), "output file name (if any)"),
        ("6".into(), "device out (6=stdout,7=stderr,file)"),
        (ns.len().to_string(), "# of problems sizes (N)"),
        (sizes.join(" "), "Ns"),
        ("1".into(), "# of NBs"),
        (test.nb.to_string(), "NBs"),
        (mapping.to_string(), "PMAP process mapping (0=Row-,1=Column-major)"),
        ("1".into(), "# of process grids (P x Q)"),
        (test.p.to_string(), "Ps"),
        (test.q.to_string(), "Qs"),
        (format!("{:?}", test.threshold), "threshold"),
        ("1".into(), "# of panel fact"),
        (fact(test.pfact).to_string(), "PFACTs (0=left, 1=Crout, 2=Right)"),
        ("1".into(), "# of recursive stopping criterium"),
        (test.nbmin.to_string(), "NBMINs (>= 1)"),
        ("1".into(), "# of panels in recursion"),
        (test.ndiv.to_string(), "NDIVs"),
        ("1".into(), "# of recursive panel fact."),
        (fact(test.rfact).to_string(), "RFACTs (0=left, 1=Crout, 2=Right)"),
        ("1".into(), "# of broadcast"),
        (bcast.to_string(), "BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)"),
        ("1".into(), "# of lookahead depth"),
        (test.depth.to_string(), "DEPTHs (>=0)"),
        (swap.to_string(), "SWAP (0=bin-exch,1=long,2=mix)"),
        (test.swap_threshold.to_string(), "swapping threshold"),
        (form(test.l1).to_string(), "L1 in (0=transposed,1=no-transposed) form"),
        (form(test.u).to_string(), "U  in (0=transposed,1=no-transposed) form"),
        (u8::from(test.equilibrate).to_string(), "Equilibration (0=no,1=yes)"),
        (test.align.to_string(), "memory alignment in double (> 0)"),
    ];
    let mut text = format!("HPLinpack benchmark input file\n{title}\n");
    for (value, comment) in rows {
        let _ = writeln!(text, "{value:<12} {comment}");
    }
    text
}

/// Flags that say all of what those lines say, and what of a test no line says.
pub fn flags(test: &TestParams, ns: &[usize]) -> Vec<String> {
    let sizes: Vec<String> = ns.iter().map(usize::to_string).collect();
    let said = [
        ("n", sizes.join(",")),
        ("nb", test.nb.to_string()),
        ("p", test.p.to_string()),
        ("q", test.q.to_string()),
        ("pmap", name(&test.mapping)),
        ("threshold", format!("{:?}", test.threshold)),
        ("rng", name(&test.rng)),
        ("seed", test.seed.to_string()),
        ("pfact", name(&test.pfact)),
        ("nbmin", test.nbmin.to_string()),
        ("ndiv", test.ndiv.to_string()),
        ("rfact", name(&test.rfact)),
        ("bcast", name(&test.bcast)),
        ("depth", test.depth.to_string()),
        ("swap", name(&test.swap)),
        ("swap-threshold", test.swap_threshold.to_string()),
        ("l1", name(&test.l1)),
        ("u", name(&test.u)),
        ("equil", test.equilibrate.to_string()),
        ("align", test.align.to_string()),
    ];
    said.into_iter().map(|(flag, value)| format!("--{flag}={value}")).collect()
}

fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
