//! The choices that HPL.dat writes as digits.
//!
//! [`params`](crate::base::params) defines the values with their digits, names and meanings. The file's reader, the flags, their
//! help and `skt-hpl check` all use this definition. So the digit 4 of line 23 and `--bcast blong` always mean the same.

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::base::params::{Bcast, Fact, Form, Mapping, Swap};

/// Choice of HPL.dat, such as PFACT or BCAST. The file writes the choice as a digit, which is the index of the value.
pub trait Choice: ValueEnum + Copy + PartialEq + 'static {
    /// Value that the reference HPL uses, without a warning, if no value has the file's digit.
    const FALLBACK: Self;

    fn from_digit(digit: i128) -> Option<Self> {
        Self::value_variants().get(usize::try_from(digit).ok()?).copied()
    }

    fn digit(self) -> usize {
        let place = Self::value_variants().iter().position(|value| *value == self);
        place.expect("every value is among all of them")
    }

    /// Returns the name and the meaning that the value has on the command line, in `skt.toml` and in the environment.
    fn named(self) -> PossibleValue {
        self.to_possible_value().expect("no value of a choice is hidden")
    }

    fn name(self) -> String {
        self.named().get_name().to_owned()
    }

    /// Returns the list of the digits with their names: "0 (left), 1 (crout), 2 (right)".
    fn allowed() -> String {
        let named = |value: &Self| format!("{} ({})", value.digit(), value.name());
        Self::value_variants().iter().map(named).collect::<Vec<_>>().join(", ")
    }
}

impl Choice for Mapping {
    const FALLBACK: Self = Mapping::Row;
}

impl Choice for Fact {
    const FALLBACK: Self = Fact::Right;
}

impl Choice for Bcast {
    const FALLBACK: Self = Bcast::OneRingM;
}

impl Choice for Swap {
    const FALLBACK: Self = Swap::Long;
}

impl Choice for Form {
    const FALLBACK: Self = Form::Transposed;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that digits and names are unambiguous, and that the flag's parser takes both.
    fn sound<T: Choice + std::fmt::Debug>() {
        let all = T::value_variants();
        for (k, &value) in all.iter().enumerate() {
            assert_eq!(T::from_digit(k as i128), Some(value));
            assert_eq!(value.digit(), k);
            assert_eq!(T::from_str(&value.name(), true), Ok(value));
            assert_eq!(T::from_str(&k.to_string(), true), Ok(value), "the digits count up from 0");
            assert!(value.named().get_help().is_some());
        }
        assert_eq!(T::from_digit(-1), None);
        assert_eq!(T::from_digit(all.len() as i128), None);
    }

    #[test]
    fn every_table_is_sound() {
        sound::<Mapping>();
        sound::<Fact>();
        sound::<Bcast>();
        sound::<Swap>();
        sound::<Form>();
    }

    #[test]
    fn the_reference_substitutes_as_the_contract_says() {
        assert_eq!(Mapping::FALLBACK, Mapping::Row);
        assert_eq!(Fact::FALLBACK, Fact::Right);
        assert_eq!(Bcast::FALLBACK, Bcast::OneRingM);
        assert_eq!(Swap::FALLBACK, Swap::Long);
        assert_eq!(Form::FALLBACK, Form::Transposed);
    }
}
