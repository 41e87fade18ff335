//! `--blas`: libraries with all the names and integers there are, and those that are none.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dat::Dat;
use crate::job::{Job, Ran};

/// `plain_blas.c`, built so.
fn built(name: &str, how: &[&str]) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mpi/plain_blas.c");
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lib{name}.so"));
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror"])
        .args(how)
        .args(["-o".as_ref(), built.as_os_str(), source.as_ref()])
        .status();
    assert!(done.is_ok_and(|status| status.success()), "cc builds {source}");
    built
}

/// A run whose every multiplication is the library's. Both forms of L1 and U: all triangles there are.
fn run(library: &str, form: &str) -> Ran {
    let dat = Dat { ns: vec![150], nbs: vec![16], grids: vec![(1, 2)], ..Dat::default() };
    let forms = ["--l1", form, "--u", form];
    Job::new(2)
        .dat(&dat)
        .args(&["--blas", library, "--engine", "blas", "--json", "run.json"])
        .args(&forms)
        .run()
}

#[test]
fn libraries_of_every_kind_are_called_rightly() {
    for (name, wide, how) in [
        ("fortran-narrow", false, &["-DINTEGER=int", "-DNAME(x)=x##_"][..]),
        ("fortran-wide", true, &["-DINTEGER=long", "-DNAME(x)=x##_"]),
        ("fortran-wide-64", true, &["-DINTEGER=long", "-DNAME(x)=x##_64_"]),
        ("c-narrow", false, &["-DFOR_C", "-DINTEGER=int", "-DNAME(x)=cblas_##x"]),
        ("c-wide", true, &["-DFOR_C", "-DINTEGER=long", "-DNAME(x)=cblas_##x"]),
        ("c-wide-64", true, &["-DFOR_C", "-DINTEGER=long", "-DNAME(x)=cblas_##x##64_"]),
    ] {
        let library = built(name, how);
        for form in ["transposed", "not-transposed"] {
            let ran = run(library.to_str().unwrap(), form).expect_code(0);
            let blas = ran.json().blas;
            assert!(blas.name.starts_with(&format!("BLAS lib{name}.so")), "{}", blas.name);
            assert_eq!(blas.name.ends_with("(64-bit integers)"), wide, "{}", blas.name);
            assert_eq!(blas.engine, "blas");
        }
    }
}

/// Refused by all ranks at once, in one sentence, before anything is computed.
#[test]
fn what_is_no_blas_is_refused() {
    let wrong = built("wrong", &["-DWRONG", "-DINTEGER=int", "-DNAME(x)=x##_"]);
    for (library, why) in [
        ("/nowhere/libblas.so", "cannot be loaded"),
        ("libm.so.6", "it is not a BLAS"),
        (wrong.to_str().unwrap(), "does not multiply rightly"),
    ] {
        let ran = run(library, "transposed").expect_code(6);
        assert_eq!(ran.err.matches(&format!("--blas {library}")).count(), 1, "{}", ran.told());
        assert!(ran.err.contains(why), "{}", ran.told());
    }
}
