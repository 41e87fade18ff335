//! Checks that settings do not exclude each other. A refusal names the setting to leave out or to add. The checks are pure, and
//! run when settings replace values of HPL.dat, before costly work begins.

use super::diagnostic::{Diagnostic, Severity, and_list};
use super::settings::{Guarding, Overrides, Restart, Saving};
use crate::base::params::Engine;
use crate::checkpoint::layout::ParityLayout;
use crate::checkpoint::plan::{Encoding, Helpers};
use crate::checkpoint::protocol::Method;
use crate::checkpoint::storage::DirScope;
use crate::checkpoint::when::Interval;
use crate::lu::DEPTH_IN_STEPS;

impl Overrides {
    /// Refuses the first setting that another setting, or one of the lookahead `depths`, excludes.
    pub(super) fn go_together(&self, depths: &[usize]) -> Result<(), Diagnostic> {
        self.check_checksums(depths)?;
        self.check_nonstop()?;
        self.check_encoding()?;
        self.check_helpers()?;
        self.check_dedicated_ranks()?;
        self.check_disk()?;
        self.check_restart()?;
        self.check_level2()?;
        self.check_device()
    }

    /// Returns whether checksum columns protect the run in place of saves.
    fn is_abft(&self) -> bool {
        self.method == Some(Guarding::Checksums)
    }

    /// Returns whether checkpoint is set to off. If checkpoint is not set, the result is false.
    fn is_off(&self) -> bool {
        self.checkpoint == Some(Saving::Off)
    }

    fn saves_by(&self, method: Method) -> bool {
        self.method == Some(Guarding::Saves(method))
    }

    /// Returns warnings about settings of this source that a run would refuse or ignore if there were no other sources. With the
    /// settings of other sources, a run may accept and use them.
    pub fn alone(&self) -> Vec<Diagnostic> {
        let refused = self.go_together(&[]).err().map(|fault| {
            let message = format!("a run with these settings alone is refused: {}", fault.message);
            Diagnostic { severity: Severity::Warning, message, ..fault }
        });
        let unchecked = self.threshold.and_then(|threshold| self.unchecked(threshold));
        refused.into_iter().chain(self.idle(false)).chain(unchecked).collect()
    }

    /// Returns a warning if a run that continues after losses does not check its result, because `threshold` is zero or less.
    /// Otherwise returns `None`.
    pub(super) fn unchecked(&self, threshold: f64) -> Option<Diagnostic> {
        let way = match self.method {
            Some(Guarding::Checksums) => "method abft",
            _ if self.nonstop == Some(true) => "nonstop",
            _ => return None,
        };
        let what = format!(
            "threshold is {threshold}, so the result is not checked, not even after a loss that {way} recovers"
        );
        let help = "set --threshold 16.0 (line 13 of HPL.dat)";
        (threshold <= 0.0).then(|| Diagnostic::warning("settings", what).help(help))
    }

    /// Returns a warning about settings without effect, or `None`. Also returns `None` under --checkpoint off, which shows that
    /// the user wants no saves. Such settings are not refused, because they do not change the computation. `checkpoint_since` is
    /// true if checkpoint comes from a source that outranks the source of mtbf.
    pub(super) fn idle(&self, checkpoint_since: bool) -> Option<Diagnostic> {
        match self.checkpoint {
            Some(Saving::Off) => None,
            Some(Saving::Every(interval)) => self.idle_mtbf(interval, checkpoint_since),
            None => self.idle_without_saves(),
        }
    }

    /// Returns a warning about settings of checkpoints in a run without checkpoints; `None` if there are no such settings.
    fn idle_without_saves(&self) -> Option<Diagnostic> {
        let abft = self.is_abft();
        let of_saves = [
            ("mtbf", self.mtbf.is_some()),
            ("method", self.method.is_some() && !abft),
            ("scope", self.scope.is_some()),
            ("parity-code", self.parity_code.is_some()),
            ("losses", self.losses.is_some()),
            ("group", self.group.is_some()),
            ("parity-layout", self.parity_layout.is_some()),
            ("encode", self.encode.is_some()),
            ("helpers", self.helpers.is_some()),
            ("store", self.store.is_some()),
            ("domains", self.domains.is_some()),
            // Without abft, nonstop without saves is refused.
            ("nonstop", self.nonstop == Some(true) && abft),
        ];
        let set: Vec<&str> =
            of_saves.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect();
        let all = |before: &str| {
            and_list(&set.iter().map(|name| format!("{before}{name}")).collect::<Vec<_>>())
        };
        let (is, does) = if set.len() > 1 { ("are", "do") } else { ("is", "does") };
        let (why, help) = if abft {
            let instead = match self.losses {
                Some(_) => {
                    "set --checksum-columns to the number of process columns that may be lost, and "
                }
                None => "",
            };
            let help = format!("{instead}leave {} out, or give --checkpoint off", all("--"));
            ("method abft makes no saves", format!("{help} to suppress this warning"))
        } else {
            let help = "give --checkpoint auto to protect the run, or --checkpoint off to suppress this warning";
            ("the run is not protected, since checkpoint is not set", help.to_owned())
        };
        let what = format!("{} {is} set and {does} nothing: {why}", all(""));
        (!set.is_empty()).then(|| Diagnostic::warning("settings", what).help(help))
    }

    /// Returns a warning if mtbf is set, but the interval of saves is not `auto`, so that the mtbf is not used. There is no
    /// warning if checkpoint comes from a source that outranks the source of mtbf (`checkpoint_since`).
    fn idle_mtbf(&self, interval: Interval, checkpoint_since: bool) -> Option<Diagnostic> {
        // The mtbf of a file needs no warning if the user sets another interval for a single run.
        let asked = !matches!(interval, Interval::Auto { .. }) && !checkpoint_since;
        (self.mtbf.is_some() && asked).then(|| {
            let what = format!(
                "mtbf is set and does nothing: checkpoint is {interval}, and only --checkpoint auto uses the mtbf"
            );
            Diagnostic::warning("settings", what)
                .help("give --checkpoint auto, or leave --mtbf out")
        })
    }

    /// Refuses saves, and a lookahead deeper than 1, under --method abft. Refuses checksum columns under all other methods.
    fn check_checksums(&self, depths: &[usize]) -> Result<(), Diagnostic> {
        refuse_if(
            self.checksum_columns.is_some() && !self.is_abft(),
            "checksum-columns is set, and method is not abft: only that method has checksum columns",
            "give --method abft, or leave --checksum-columns out",
        )?;
        refuse_if(
            self.is_abft() && self.saves(),
            "method abft saves nothing, so it does not go together with checkpoint",
            "leave --checkpoint out, or give another method",
        )?;
        refuse_if(
            self.is_abft() && depths.iter().any(|&depth| depth > DEPTH_IN_STEPS),
            "method abft needs a lookahead of 0 or 1",
            "set --depth 1 (line 25 of HPL.dat)",
        )
    }

    /// Refuses --nonstop with settings under which memory may lack a usable checkpoint after a loss. Without a restart, all ranks
    /// resume from memory. Also refuses spare ranks that no method uses.
    fn check_nonstop(&self) -> Result<(), Diagnostic> {
        if self.nonstop != Some(true) {
            return refuse_if(
                !self.is_abft() && self.spare_ranks.unwrap_or(0) > 0,
                "spare-ranks is set, but only nonstop and method abft use spare ranks",
                "give --nonstop or --method abft, or leave --spare-ranks out",
            );
        }
        let (what, help) = match self.method {
            // [`Overrides::idle`] warns that nonstop does nothing under method abft.
            Some(Guarding::Checksums) => return Ok(()),
            _ if !self.saves() => (
                "--nonstop resumes from a checkpoint: add --checkpoint",
                "give --checkpoint auto, or leave --nonstop out",
            ),
            Some(Guarding::Saves(Method::Single)) => (
                "nonstop is set, and method single survives no loss during a save",
                "give --method self or double, or leave --nonstop out",
            ),
            Some(Guarding::Saves(Method::Disk)) => (
                "--nonstop resumes from memory, and method disk keeps no checkpoint there",
                "give --method self or double, or leave --nonstop out",
            ),
            Some(Guarding::Saves(Method::SelfCheckpoint | Method::Double)) | None => return Ok(()),
        };
        refuse(what, help)
    }

    /// Refuses --restart require and --restart never without checkpoints. Only a run with checkpoints leaves memory from which to
    /// resume, or which to remove.
    fn check_restart(&self) -> Result<(), Diagnostic> {
        let (word, help) = match self.restart {
            Some(Restart::Require) => (
                "require",
                "give the same --checkpoint as at the earlier start, or leave --restart out",
            ),
            // With --checkpoint off the run neither removes memory nor resumes from it, so `never` does no harm.
            Some(Restart::Never) if !self.is_off() => {
                ("never", "leave --restart out: without --checkpoint no run resumes from memory")
            }
            _ => return Ok(()),
        };
        let what = match (&self.checkpoint, self.method) {
            (Some(Saving::Every(_)), _) => return Ok(()),
            (_, Some(Guarding::Checksums)) => "method abft leaves nothing to resume from",
            (Some(Saving::Off), _) => "checkpoint is off",
            (None, _) => "checkpoint is not set",
        };
        refuse(&format!("restart is {word}, and {what}"), help)
    }

    /// Refuses encoding by helpers without a second copy in memory. The ranks change the matrix while helpers encode, so helpers
    /// need a copy of the new state in addition to the last checkpoint. Also refuses such encoding without checkpoints, and under
    /// --nonstop.
    fn check_encoding(&self) -> Result<(), Diagnostic> {
        if self.encode != Some(Encoding::Helper) || self.is_off() {
            return Ok(());
        }
        let saves = "encode is helper, with which helpers do a part of each save";
        refuse_if(
            self.is_abft(),
            &format!("{saves}, and method abft makes no saves"),
            "leave --encode out",
        )?;
        refuse_if(
            self.checkpoint.is_none(),
            &format!("{saves}, and checkpoint is not set"),
            "add --checkpoint auto",
        )?;
        refuse_if(
            self.nonstop == Some(true),
            "encode is helper, and nonstop is set: a helper that waits for the helper of a lost rank cannot be interrupted",
            "give --encode pipelined, or leave --nonstop out and let `skt-hpl run` restart the job",
        )?;
        let why = match self.method {
            Some(Guarding::Saves(Method::Disk)) => "disk saves from the matrix itself",
            Some(Guarding::Saves(Method::Single)) => "single writes over its only copy",
            _ => "self encodes from the matrix itself",
        };
        refuse_if(
            !self.saves_by(Method::Double),
            &format!(
                "encode is helper, which needs a copy of the matrix in addition to the last checkpoint, and method {why}"
            ),
            "give --method double, which has this copy (`skt-hpl plan` prints how much memory is left), or --encode pipelined",
        )
    }

    /// Refuses --helper-cores if helpers have no work, and --encode helper with --helpers off.
    fn check_helpers(&self) -> Result<(), Diagnostic> {
        if self.is_off() {
            return Ok(());
        }
        let off = self.helpers == Some(Helpers::Off);
        let (encode, cores) = (self.encode == Some(Encoding::Helper), self.helper_cores.is_some());
        refuse_if(
            off && encode,
            "encode is helper, and helpers is off: no helper would compute the parity",
            "give --encode pipelined, with which the ranks compute the parity, or leave --helpers out",
        )?;
        refuse_if(
            cores && off,
            "helper-cores is set, and helpers is off: no helper would use these cores",
            "leave --helper-cores or --helpers out",
        )?;
        refuse_if(
            cores && self.saves_by(Method::Disk),
            "helper-cores is set, and method is disk: all ranks wait during each save, so their own cores are free to write to storage",
            "leave --helper-cores out",
        )?;
        refuse_if(
            cores && self.is_abft(),
            "helper-cores is set, and method abft makes no saves in which helpers would take part",
            "leave --helper-cores out",
        )?;
        refuse_if(
            cores && self.level2.is_none() && !encode,
            "helper-cores is set, and this run has no helpers",
            "a run has helpers with --level2 DIR or --encode helper: give one of these, or leave --helper-cores out",
        )
    }

    /// Refuses dedicated ranks without checkpoints in memory, under --nonstop, and with --encode helper. Dedicated ranks hold the
    /// parity of checkpoints in memory and do nothing else.
    fn check_dedicated_ranks(&self) -> Result<(), Diagnostic> {
        if self.parity_layout != Some(ParityLayout::Dedicated) {
            return Ok(());
        }
        let saves = self.saves();
        let refuse_ranks = |broken: bool, what: &str, help: &str| {
            let what = format!(
                "parity-layout is dedicated, which keeps the parity on additional ranks: {what}"
            );
            refuse_if(broken, &what, help)
        };
        refuse_ranks(
            self.is_abft() && !self.is_off(),
            "method abft has checksum columns in place of parity",
            "set the number of checksum columns with --checksum-columns, and leave --parity-layout out",
        )?;
        refuse_ranks(
            saves && self.saves_by(Method::Disk),
            "method disk keeps nothing in memory, so there is no parity",
            "give --parity-layout striped, or --method self, which keeps checkpoints in memory and copies them to DIR",
        )?;
        refuse_ranks(
            saves && self.nonstop == Some(true),
            "under nonstop a spare rank replaces ranks of the grid, but not ranks that hold parity",
            "give --parity-layout striped, or leave --nonstop out and let `skt-hpl run` restart the job",
        )?;
        refuse_ranks(
            saves && self.encode == Some(Encoding::Helper),
            "a helper encodes while its rank computes, and ranks that hold parity do not compute",
            "give --encode pipelined or reduce, or --parity-layout striped",
        )
    }

    /// Refuses method disk without a DIR for its checkpoints, and with settings that method disk does not use.
    fn check_disk(&self) -> Result<(), Diagnostic> {
        if !self.saves_by(Method::Disk) || self.is_off() {
            return Ok(());
        }
        refuse_if(
            self.level2.is_none(),
            "method is disk, and no setting names the folder of its checkpoints",
            "give --level2 DIR: a folder that all nodes share, or with --level2-scope node a folder on a disk of each node",
        )?;
        refuse_if(
            self.level2_every.is_some(),
            "method is disk, with which every save goes to DIR, and level2-every is set",
            "set the interval of saves with --checkpoint, and leave --level2-every out",
        )?;
        let of_parity = [
            ("losses", self.losses.is_some()),
            ("group", self.group.is_some()),
            ("parity-code", self.parity_code.is_some()),
            ("parity-layout", self.parity_layout.is_some()),
            ("encode", self.encode.is_some()),
        ];
        for (name, set) in of_parity {
            refuse_if(
                set && !self.has_parity(),
                &format!(
                    "method is disk, which keeps no parity on a DIR that all nodes share, and {name} is set"
                ),
                &format!(
                    "a shared DIR survives the loss of all nodes: leave --{name} out, or give --level2-scope node"
                ),
            )?;
        }
        Ok(())
    }

    /// Refuses level two without checkpoints, from which the files on storage are made. A user who sets level two must not get a
    /// run without it. Also refuses inexact codes if each node has its own DIR. Rebuilt files of a lost node must be identical,
    /// but an inexact code rebuilds them only up to rounding.
    fn check_level2(&self) -> Result<(), Diagnostic> {
        refuse_if(
            self.is_abft() && self.checkpoint.is_none() && self.level2.is_some(),
            "level2 is set, and method abft makes no saves that could go there",
            "leave --level2 out",
        )?;
        let lacking = match (&self.level2, &self.checkpoint) {
            (Some(_), None) => Some(("level2", "checkpoint", "--checkpoint auto")),
            (None, _) if self.level2_every.is_some() => {
                Some(("level2-every", "level2", "--level2 DIR"))
            }
            (None, _) if self.level2_scope.is_some() => {
                Some(("level2-scope", "level2", "--level2 DIR"))
            }
            _ => None,
        };
        if let Some((given, wanted, help)) = lacking {
            let help =
                format!("checkpoints in memory are copied to the DIR of --level2: add {help}");
            return refuse(&format!("{given} is set, but {wanted} is not"), &help);
        }
        let inexact = self.parity_code.is_some_and(|code| !code.exact());
        refuse_if(
            self.level2_scope == Some(DirScope::Node) && inexact,
            "level2-scope is node, and this parity code rebuilds lost files only up to rounding",
            "give --parity-code xor or --parity-code reed-solomon, or leave --parity-code out",
        )
    }

    /// Refuses settings that do not work with a matrix in device memory.
    fn check_device(&self) -> Result<(), Diagnostic> {
        if !self.has_device() {
            return Ok(());
        }
        refuse_if(
            self.saves() && self.method != Some(Guarding::Saves(Method::Double)),
            "device and checkpoint are set, and a matrix in device memory can be saved by method double alone",
            "give --method double",
        )?;
        refuse_if(
            self.is_abft(),
            "device is set, and method abft has no checksum columns in device memory",
            "give --method double with --checkpoint auto, or leave --device out",
        )?;
        refuse_if(
            self.engine.is_some_and(|engine| !matches!(engine, Engine::Auto | Engine::Blas)),
            "device is set, and engine is a kernel of the processor",
            "leave --engine or --device out",
        )
    }
}

fn refuse(what: &str, help: &str) -> Result<(), Diagnostic> {
    Err(Diagnostic::error("settings", what).help(help))
}

fn refuse_if(broken: bool, what: &str, help: &str) -> Result<(), Diagnostic> {
    if broken { refuse(what, help) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::base::params::Device;
    use crate::checkpoint::plan::Scope;
    use crate::config::hpl_dat::HplDat;
    use crate::config::settings::{Settings, level2_every};
    use crate::parity::Code;
    use crate::shm::Store;
    use crate::testkit::papers::available;

    fn dat() -> HplDat {
        HplDat::default()
    }

    #[test]
    fn a_second_level_needs_a_first() {
        let apply = |set: Overrides| set.apply(&mut dat()).map_err(|e| e.to_string());
        let dir = Some(PathBuf::from("/scratch"));
        let why = apply(Overrides { level2: dir.clone(), ..Overrides::default() }).unwrap_err();
        assert!(why.contains("--checkpoint auto"), "{why}");
        let third = Interval::Iterations(3);
        let every = Some(third);
        let why = apply(Overrides { level2_every: every, ..Overrides::default() }).unwrap_err();
        assert!(why.contains("--level2 DIR"), "{why}");
        let node = Some(DirScope::Node);
        let why = apply(Overrides { level2_scope: node, ..Overrides::default() }).unwrap_err();
        assert!(why.contains("--level2 DIR"), "{why}");
        let both = Overrides {
            level2: dir,
            level2_every: every,
            checkpoint: Some(Saving::Every(Interval::Iterations(1))),
            ..Overrides::default()
        };
        apply(both.clone()).unwrap();
        assert_eq!(Settings::from(&both).saves().cloned().unwrap().level2.unwrap().every, third);
        let own = Overrides { level2_scope: node, ..both.clone() };
        apply(own.clone()).unwrap();
        assert_eq!(
            Settings::from(&own).saves().cloned().unwrap().level2.unwrap().scope,
            DirScope::Node
        );
        let why = apply(Overrides { parity_code: Some(Code::Sum), ..own }).unwrap_err();
        assert!(why.contains("up to rounding"), "{why}");
        // The file of settings sets level two and checkpoints, and the user turns checkpoints off for one run.
        apply(Overrides { checkpoint: Some(Saving::Off), ..both }).unwrap();
        for bad in ["auto", "0", "", "soon"] {
            assert!(level2_every(bad).is_err(), "{bad}");
        }
    }

    /// Returns the single warning of settings without effect.
    fn idle(set: &Overrides) -> String {
        set.idle(false).expect("something does nothing").to_string()
    }

    #[test]
    fn settings_of_saves_are_reported_if_there_are_none() {
        let two = Overrides {
            losses: Some(2),
            parity_layout: Some(ParityLayout::Striped),
            ..Overrides::default()
        };
        let why = idle(&two);
        assert!(why.contains("losses and parity-layout are set and do nothing"), "{why}");
        let one = Overrides { losses: Some(2), ..Overrides::default() };
        let why = idle(&one);
        assert!(why.contains("losses is set and does nothing"), "{why}");
        let why = idle(&Overrides { mtbf: Some(60.0), ..Overrides::default() });
        assert!(why.contains("mtbf is set and does nothing"), "{why}");
        for checkpoint in [Saving::Off, Saving::Every(Interval::Iterations(1))] {
            let set = Overrides { checkpoint: Some(checkpoint), ..two.clone() };
            assert_eq!(set.idle(false), None);
        }
        let job = Overrides { job: Some("j".to_owned()), ..Overrides::default() };
        assert_eq!(job.idle(false), None);
    }

    #[test]
    fn a_run_that_goes_on_after_losses_without_a_check_is_warned_of() {
        let abft = Overrides { method: Some(Guarding::Checksums), ..Overrides::default() };
        let checkpoint = Some(Saving::Every(Interval::Iterations(1)));
        let nonstop = Overrides { nonstop: Some(true), checkpoint, ..Overrides::default() };
        for (set, way) in [(&abft, "method abft"), (&nonstop, "nonstop")] {
            for threshold in [0.0, -16.0] {
                let why = set.unchecked(threshold).unwrap().to_string();
                assert!(why.contains("the result is not checked") && why.contains(way), "{why}");
                let set = Overrides { threshold: Some(threshold), ..set.clone() };
                assert_eq!(set.alone().len(), 1, "{:?}", set.alone());
            }
            assert_eq!(set.unchecked(16.0), None);
        }
        assert_eq!(Overrides::default().unchecked(0.0), None);
    }

    /// Method abft makes no saves, so settings of saves have no effect.
    #[test]
    fn settings_of_saves_are_reported_under_abft() {
        let abft = Some(Guarding::Checksums);
        let bare = Overrides { method: abft, checksum_columns: Some(2), ..Overrides::default() };
        let bare = Overrides { spare_ranks: Some(1), ..bare };
        assert_eq!(bare.idle(false), None);
        let all = Overrides {
            mtbf: Some(60.0),
            scope: Some(Scope::Whole),
            parity_code: Some(Code::Xor),
            losses: Some(2),
            group: Some(4),
            parity_layout: Some(ParityLayout::Striped),
            encode: Some(Encoding::Reduce),
            helpers: Some(Helpers::Off),
            store: Some(Store::SysV),
            domains: Some("racks".into()),
            nonstop: Some(true),
            ..bare.clone()
        };
        all.apply(&mut dat()).unwrap();
        let why = idle(&all);
        for words in [
            "mtbf, scope, parity-code, losses, group, parity-layout, encode, helpers, store, domains and nonstop are set and do \
             nothing",
            "method abft makes no saves",
            "--checksum-columns",
            "leave --mtbf, --scope,",
        ] {
            assert!(why.contains(words), "{words}: {why}");
        }
        let why = idle(&Overrides { store: Some(Store::SysV), ..bare.clone() });
        assert!(why.contains("store is set and does nothing"), "{why}");
        assert!(!why.contains("--checksum-columns"), "{why}");
        assert_eq!(Overrides { checkpoint: Some(Saving::Off), ..all }.idle(false), None);

        let apply = |set: &Overrides| set.apply(&mut dat()).map_err(|e| e.to_string());
        let why = apply(&Overrides { level2: Some("/x".into()), ..bare.clone() }).unwrap_err();
        assert!(why.contains("abft makes no saves") && why.contains("leave --level2 out"), "{why}");
        let helper_cores = Some("3".parse().unwrap());
        let why = apply(&Overrides { helper_cores, ..bare }).unwrap_err();
        assert!(why.contains("abft") && why.contains("leave --helper-cores out"), "{why}");
    }

    #[test]
    fn checksums_go_with_no_saves_and_a_short_lookahead() {
        let apply = |set: &Overrides| set.apply(&mut dat()).map_err(|e| e.to_string());
        let abft = Overrides { method: Some(Guarding::Checksums), ..Overrides::default() };
        let every = Some(Saving::Every(Interval::Iterations(5)));
        let why = apply(&Overrides { checkpoint: every, ..abft.clone() }).unwrap_err();
        assert!(why.contains("abft saves nothing") && why.contains("--checkpoint out"), "{why}");
        apply(&Overrides { checkpoint: Some(Saving::Off), ..abft.clone() }).unwrap();
        for depths in [vec![0, 2], vec![3]] {
            let why = apply(&Overrides { depth: Some(depths), ..abft.clone() }).unwrap_err();
            assert!(why.contains("a lookahead of 0 or 1") && why.contains("--depth 1"), "{why}");
        }
        // Values of HPL.dat count as well.
        let mut deep = HplDat { depths: vec![2], ..dat() };
        assert!(abft.apply(&mut deep).is_err());
        apply(&Overrides { depth: Some(vec![0, 1]), ..abft.clone() }).unwrap();
        let columns = Overrides { checksum_columns: Some(2), ..abft };
        apply(&columns).unwrap();
        let why = apply(&Overrides { method: None, ..columns }).unwrap_err();
        assert!(why.contains("method is not abft"), "{why}");
    }

    #[test]
    fn going_on_without_a_start_needs_saves_in_memory() {
        let apply = |set: &Overrides| set.apply(&mut dat()).map_err(|e| e.to_string());
        let every = Some(Saving::Every(Interval::Iterations(5)));
        let nonstop = Overrides {
            nonstop: Some(true),
            spare_ranks: Some(1),
            checkpoint: every,
            ..Overrides::default()
        };
        apply(&nonstop).unwrap();
        let method = |m| Overrides { method: Some(Guarding::Saves(m)), ..nonstop.clone() };
        apply(&method(Method::Double)).unwrap();
        let why = apply(&method(Method::Single)).unwrap_err();
        assert!(why.contains("no loss during a save") && why.contains("self or double"), "{why}");
        let disk = Overrides { level2: Some("/scratch".into()), ..method(Method::Disk) };
        assert!(apply(&disk).unwrap_err().contains("keeps no checkpoint there"));
        for checkpoint in [None, Some(Saving::Off)] {
            let why = apply(&Overrides { checkpoint, ..nonstop.clone() }).unwrap_err();
            assert!(why.contains("add --checkpoint"), "{why}");
        }
        for nonstop_is in [None, Some(false)] {
            let set = Overrides { nonstop: nonstop_is, ..nonstop.clone() };
            let why = apply(&set).unwrap_err();
            assert!(why.contains("use spare ranks"), "{why}");
            apply(&Overrides { spare_ranks: Some(0), ..set.clone() }).unwrap();
            let abft = Some(Guarding::Checksums);
            apply(&Overrides { method: abft, checkpoint: None, ..set }).unwrap();
        }
    }

    #[test]
    fn settings_by_themselves_are_looked_at_together() {
        let abft = Overrides { method: Some(Guarding::Checksums), ..Overrides::default() };
        assert_eq!(abft.alone(), []);
        let both = Overrides { checkpoint: Some(Saving::Every(Interval::Iterations(5))), ..abft };
        let told = both.alone();
        assert!(!told.iter().any(Diagnostic::is_error), "{told:?}");
        assert!(told[0].message.contains("alone is refused: method abft"), "{told:?}");
        let idle = Overrides { losses: Some(2), ..Overrides::default() };
        assert!(idle.alone()[0].message.contains("losses is set and does nothing"));
    }

    #[test]
    fn settings_without_effect_on_saves_are_reported_with_them() {
        let auto = Overrides {
            checkpoint: Some(Saving::Every(Interval::Auto { mtbf_s: 0.0 })),
            mtbf: Some(60.0),
            ..Overrides::default()
        };
        assert_eq!(auto.idle(false), None);
        for (interval, told) in
            [(Interval::Iterations(3), "checkpoint is 3"), (Interval::Seconds(9.0), "is 9s")]
        {
            let set = Overrides { checkpoint: Some(Saving::Every(interval)), ..auto.clone() };
            let why = idle(&set);
            assert!(why.contains("mtbf is set and does nothing") && why.contains(told), "{why}");
            assert_eq!(set.idle(true), None, "that is for once");
        }
        for helpers in [Helpers::Off, Helpers::Threads] {
            let set = Overrides { helpers: Some(helpers), ..auto.clone() };
            assert_eq!(set.idle(false), None, "what a run without storage has anyway");
        }
    }

    #[test]
    fn a_user_who_insists_on_memory_does_not_begin_from_scratch() {
        let apply = |set: &Overrides| set.apply(&mut dat()).map_err(|e| e.to_string());
        let require = Overrides { restart: Some(Restart::Require), ..Overrides::default() };
        let off = Overrides { checkpoint: Some(Saving::Off), ..require.clone() };
        let why = apply(&off).unwrap_err();
        assert!(why.contains("restart is require, and checkpoint is off"), "{why}");
        assert!(apply(&Overrides { method: Some(Guarding::Checksums), ..off.clone() }).is_err());
        assert!(apply(&require).unwrap_err().contains("checkpoint is not set"));
        // The file of settings sets restart, and the user turns checkpoints off for one run.
        for restart in [Restart::Never, Restart::Auto] {
            apply(&Overrides { restart: Some(restart), ..off.clone() }).unwrap();
        }
        let every = Some(Saving::Every(Interval::Iterations(1)));
        apply(&Overrides { checkpoint: every, ..require }).unwrap();
    }

    #[test]
    fn a_device_goes_with_method_double_alone() {
        let apply = |set: &Overrides| set.apply(&mut dat()).map_err(|e| e.to_string());
        let host = Overrides { device: Some(Device::Host), ..Overrides::default() };
        apply(&host).unwrap();
        assert_eq!(Settings::from(&host).engine, Engine::Blas);
        let checkpoint = Some(Saving::Every(Interval::Iterations(1)));
        let abft = Some(Guarding::Checksums);
        let disk = Some(Guarding::Saves(Method::Disk));
        let double = Some(Guarding::Saves(Method::Double));
        let level2 = Some("dir".into());
        let saves = Overrides { checkpoint, method: double, ..host.clone() };
        apply(&saves).unwrap();
        let settings = Settings::from(&saves);
        assert!(settings.saves().is_some_and(|saves| saves.scheme.on_device));
        for (set, word) in [
            (Overrides { checkpoint, ..host.clone() }, "double"),
            (Overrides { checkpoint, method: disk, level2, ..host.clone() }, "double"),
            (Overrides { method: abft, ..host.clone() }, "abft"),
            (Overrides { engine: Some(Engine::Packed), ..host.clone() }, "engine"),
        ] {
            let why = apply(&set).unwrap_err();
            assert!(why.contains("device") && why.contains(word), "{why}");
            for device in [None, Some(Device::None)] {
                apply(&Overrides { device, ..set.clone() }).unwrap();
            }
        }
        apply(&Overrides { nonstop: Some(true), ..saves }).unwrap();
        let off = Some(Saving::Off);
        apply(&Overrides { checkpoint: off, engine: Some(Engine::Blas), ..host }).unwrap();
    }

    #[test]
    fn ranks_for_checksums_alone_are_refused_where_they_would_have_no_part() {
        let every = Some(Saving::Every(Interval::Iterations(1)));
        let parity_layout = Some(ParityLayout::Dedicated);
        let plain = Overrides { checkpoint: every, parity_layout, ..Overrides::default() };
        plain.apply(&mut dat()).unwrap();
        let refused = |set: Overrides, word: &str| {
            let why = set.apply(&mut dat()).unwrap_err().to_string();
            assert!(
                why.contains("parity-layout is dedicated") && why.contains(word),
                "{word}: {why}"
            );
            Overrides { checkpoint: Some(Saving::Off), ..set }
        };
        let abft = Some(Guarding::Checksums);
        let off = refused(
            Overrides { method: abft, checkpoint: None, ..plain.clone() },
            "--checksum-columns",
        );
        off.apply(&mut dat()).unwrap();
        let level2 = Some(PathBuf::from("/scratch"));
        let stored = Overrides { level2: level2.clone(), ..plain.clone() };
        stored.apply(&mut dat()).unwrap();
        Overrides { level2_scope: Some(DirScope::Node), ..stored }.apply(&mut dat()).unwrap();
        let disk = Some(Guarding::Saves(Method::Disk));
        let off = refused(Overrides { level2, method: disk, ..plain.clone() }, "nothing in memory");
        off.apply(&mut dat()).unwrap();
        refused(Overrides { nonstop: Some(true), ..plain.clone() }, "nonstop");
        let (encode, method) = (Some(Encoding::Helper), Some(Guarding::Saves(Method::Double)));
        refused(Overrides { encode, method, ..plain.clone() }, "--encode pipelined");

        // Without --group, each loss needs one dedicated rank for every 16 positions. With --group, each loss needs one for each
        // group.
        let ranks = |set: &Overrides, p, q| Settings::from(set).ranks(p, q);
        assert_eq!((ranks(&plain, 2, 2), ranks(&plain, 4, 5)), (5, 22));
        let two = Overrides { losses: Some(2), group: Some(4), ..plain.clone() };
        assert_eq!((ranks(&two, 2, 3), Settings::from(&two).dedicated(2, 3)), (10, 4));
        assert_eq!(ranks(&Overrides { checkpoint: None, ..two }, 2, 3), 6);
    }

    #[test]
    fn method_disk_needs_a_dir_and_no_parity_where_all_see_it() {
        let apply = |set: &Overrides| set.apply(&mut dat()).map_err(|e| e.to_string());
        let disk = Overrides {
            method: Some(Guarding::Saves(Method::Disk)),
            checkpoint: Some(Saving::Every(Interval::Iterations(5))),
            ..Overrides::default()
        };
        let why = apply(&disk).unwrap_err();
        assert!(why.contains("--level2 DIR"), "{why}");
        // The file of settings sets method disk, and the user turns checkpoints off for one run.
        apply(&Overrides { checkpoint: Some(Saving::Off), ..disk.clone() }).unwrap();
        let disk = Overrides { level2: Some("/scratch".into()), ..disk };
        apply(&disk).unwrap();
        let why = apply(&Overrides { checkpoint: None, ..disk.clone() }).unwrap_err();
        assert!(why.contains("--checkpoint auto"), "{why}");
        let every = Some(Interval::Iterations(2));
        let why = apply(&Overrides { level2_every: every, ..disk.clone() }).unwrap_err();
        assert!(why.contains("level2-every"), "{why}");

        let protection = |set: &Overrides| Settings::from(set).saves().cloned().unwrap();
        let shared = protection(&disk);
        assert_eq!((shared.scheme.losses, shared.group), (0, Some(1)));
        assert!(shared.scheme.check().is_ok() && available(&shared.scheme, 1) == 1.0);
        let node = Overrides { level2_scope: Some(DirScope::Node), ..disk.clone() };
        let apart = protection(&node);
        assert_eq!((apart.scheme.losses, apart.group), (1, None));
        assert_eq!(available(&apart.scheme, 4), 0.75);
        for set in [
            Overrides { losses: Some(2), ..Overrides::default() },
            Overrides { group: Some(4), ..Overrides::default() },
            Overrides { parity_code: Some(Code::Xor), ..Overrides::default() },
            Overrides { parity_layout: Some(ParityLayout::Grid), ..Overrides::default() },
            Overrides { encode: Some(Encoding::Reduce), ..Overrides::default() },
        ] {
            let Overrides { losses, group, parity_code, parity_layout, encode, .. } = set;
            let why = apply(&Overrides {
                losses,
                group,
                parity_code,
                parity_layout,
                encode,
                ..disk.clone()
            });
            assert!(why.unwrap_err().contains("--level2-scope node"));
            apply(&Overrides { losses, group, parity_code, parity_layout, encode, ..node.clone() })
                .unwrap();
        }
    }

    #[test]
    fn helpers_need_a_copy_of_their_own_and_a_save() {
        let apply = |set: &Overrides| set.apply(&mut dat()).map_err(|e| e.to_string());
        let double = Overrides {
            encode: Some(Encoding::Helper),
            method: Some(Guarding::Saves(Method::Double)),
            checkpoint: Some(Saving::Every(Interval::Iterations(5))),
            ..Overrides::default()
        };
        apply(&double).unwrap();
        assert!(double.helpers_talk());
        assert_eq!(Settings::from(&double).saves().cloned().unwrap().encode, Encoding::Helper);
        // The file of settings sets encode, and the user turns checkpoints off for one run.
        let off = Overrides { checkpoint: Some(Saving::Off), ..double.clone() };
        apply(&off).unwrap();
        assert!(!off.helpers_talk());
        let why = |set: Overrides| apply(&set).unwrap_err();
        assert!(why(Overrides { checkpoint: None, ..double.clone() }).contains("--checkpoint"));
        assert!(why(Overrides { nonstop: Some(true), ..double.clone() }).contains("nonstop"));
        let abft = Overrides { method: Some(Guarding::Checksums), ..double.clone() };
        assert!(why(Overrides { checkpoint: None, ..abft }).contains("abft makes no saves"));
        for (method, says) in [
            (None, "self encodes"),
            (Some(Method::SelfCheckpoint), "self encodes"),
            (Some(Method::Single), "its only copy"),
            (Some(Method::Disk), "disk saves"),
        ] {
            let method = method.map(Guarding::Saves);
            let level2 = Some("/scratch".into());
            let why = why(Overrides { method, level2, ..double.clone() });
            assert!(why.contains(says) && why.contains("--method double"), "{why}");
        }
    }

    #[test]
    fn helpers_are_off_or_have_work_where_they_run() {
        let apply = |set: &Overrides| set.apply(&mut dat()).map_err(|e| e.to_string());
        let off = Overrides {
            helpers: Some(Helpers::Off),
            level2: Some("/scratch".into()),
            checkpoint: Some(Saving::Every(Interval::Iterations(5))),
            ..Overrides::default()
        };
        apply(&off).unwrap();
        let protection = Settings::from(&off).saves().cloned().unwrap();
        assert_eq!((protection.helpers, protection.helper_cores), (Helpers::Off, None));
        // A site's file of settings may turn helpers off for all runs.
        apply(&Overrides { level2: None, ..off.clone() }).unwrap();
        apply(&Overrides { level2: None, checkpoint: None, ..off.clone() }).unwrap();
        let method = Some(Guarding::Saves(Method::Double));
        let encode = Some(Encoding::Helper);
        let both = Overrides { method, encode, ..off.clone() };
        let why = apply(&both).unwrap_err();
        assert!(why.contains("no helper would compute the parity"), "{why}");
        apply(&Overrides { checkpoint: Some(Saving::Off), ..both }).unwrap();

        let helper_cores = Some("3".parse().unwrap());
        let cores = Overrides { helpers: None, helper_cores, ..off };
        apply(&cores).unwrap();
        let why = |set: Overrides| apply(&set).unwrap_err();
        let cores = || cores.clone();
        assert!(
            why(Overrides { helpers: Some(Helpers::Off), ..cores() }).contains("use these cores")
        );
        assert!(why(Overrides { level2: None, ..cores() }).contains("no helpers"));
        let disk = Some(Guarding::Saves(Method::Disk));
        assert!(why(Overrides { method: disk, ..cores() }).contains("disk"));
        apply(&Overrides { level2: None, method, encode, ..cores() }).unwrap();
        apply(&Overrides { level2: None, checkpoint: Some(Saving::Off), ..cores() }).unwrap();
    }
}
