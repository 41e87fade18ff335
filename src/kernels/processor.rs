//! Instructions of this processor on which kernels depend, and the kind of the processor.

use std::env::consts::ARCH;

/// Instruction set of the processor, as far as the choice of kernels depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Baseline,
    Avx2,
    Avx512,
}

impl Level {
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let all512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl");
            if all512 {
                return Level::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Level::Avx2;
            }
        }
        Level::Baseline
    }

    pub fn name(self) -> &'static str {
        match self {
            Level::Baseline if cfg!(target_arch = "x86_64") => "no AVX2",
            // Other architectures have only one level.
            Level::Baseline => ARCH,
            Level::Avx2 => "AVX2",
            Level::Avx512 => "AVX-512",
        }
    }
}

/// Returns a text with the kind of this processor: the properties by which libraries select their kernels.
pub(super) fn processor_kind() -> String {
    const TELLING: [&str; 5] = ["vendor_id", "cpu family", "model", "CPU implementer", "CPU part"];
    let kind = processor(&TELLING);
    if cfg!(target_arch = "x86_64") { format!("{kind}, {}", Level::detect().name()) } else { kind }
}

/// Returns the values of the fields `names` in `/proc/cpuinfo` for the first processor, separated by spaces.
pub(super) fn processor(names: &[&str]) -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let first = info.split("\n\n").next().unwrap_or_default();
    let fields = first.lines().filter_map(|line| line.split_once(':'));
    let told = fields.filter(|(name, _)| names.contains(&name.trim()));
    told.map(|(_, value)| value.trim()).collect::<Vec<_>>().join(" ")
}
