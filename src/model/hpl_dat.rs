//! Writes a test as input of the solver: as lines of HPL.dat, or as flags.

use std::fmt::Write as _;

use clap::ValueEnum;

use crate::base::params::TestParams;

/// Returns the 31 lines of HPL.dat for one test at each of the sizes `ns`.
pub fn hpl_dat(test: &TestParams, ns: &[usize], title: &str) -> String {
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
        (digit(&test.mapping), "PMAP process mapping (0=Row-,1=Column-major)"),
        ("1".into(), "# of process grids (P x Q)"),
        (test.p.to_string(), "Ps"),
        (test.q.to_string(), "Qs"),
        (format!("{:?}", test.threshold), "threshold"),
        ("1".into(), "# of panel fact"),
        (digit(&test.pfact), "PFACTs (0=left, 1=Crout, 2=Right)"),
        ("1".into(), "# of recursive stopping criterium"),
        (test.nbmin.to_string(), "NBMINs (>= 1)"),
        ("1".into(), "# of panels in recursion"),
        (test.ndiv.to_string(), "NDIVs"),
        ("1".into(), "# of recursive panel fact."),
        (digit(&test.rfact), "RFACTs (0=left, 1=Crout, 2=Right)"),
        ("1".into(), "# of broadcast"),
        (digit(&test.bcast), "BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)"),
        ("1".into(), "# of lookahead depth"),
        (test.depth.to_string(), "DEPTHs (>=0)"),
        (digit(&test.swap), "SWAP (0=bin-exch,1=long,2=mix)"),
        (test.swap_threshold.to_string(), "swapping threshold"),
        (digit(&test.l1), "L1 in (0=transposed,1=no-transposed) form"),
        (digit(&test.u), "U  in (0=transposed,1=no-transposed) form"),
        (u8::from(test.equilibrate).to_string(), "Equilibration (0=no,1=yes)"),
        (test.align.to_string(), "memory alignment in double (> 0)"),
    ];
    let mut text = format!("HPLinpack benchmark input file\n{title}\n");
    for (value, comment) in rows {
        let _ = writeln!(text, "{value:<12} {comment}");
    }
    text
}

/// Returns flags for the content of HPL.dat, and for the parameters of a test that have no line in HPL.dat.
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

/// Returns the digit that stands for a choice in HPL.dat. On the command line the digit is an alias of the choice.
fn digit(value: &impl ValueEnum) -> String {
    let named = value.to_possible_value();
    let digit = named.and_then(|v| v.get_name_and_aliases().nth(1).map(str::to_owned));
    digit.expect("every choice of HPL.dat has a digit")
}

fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
