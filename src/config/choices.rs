//! The named choices of HPL.dat. Each has a digit in the file, a name on the command line, and a meaning in words.
//!
//! One table per choice feeds the file's reader, the flags, their help and `skt-hpl check`. So the digit 4 of line 23 and
//! `--bcast blong` cannot drift apart.

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::base::params::{Bcast, Fact, Form, Mapping, Rng, Swap};

/// A value of a choice.
pub struct Named<T: 'static> {
    pub value: T,
    /// Digit of the value in HPL.dat.
    pub digit: i128,
    /// Name of the value on the command line, in `skt.toml` and in the environment.
    pub name: &'static str,
    pub words: &'static str,
}

/// A choice that HPL.dat spells as a digit.
pub trait Choice: Copy + PartialEq + 'static {
    const ALL: &'static [Named<Self>];
    /// Value that the reference takes without a warning if the digit is none of these.
    const FALLBACK: Self;

    fn from_digit(digit: i128) -> Option<Self> {
        let named = Self::ALL.iter().find(|n| n.digit == digit)?;
        Some(named.value)
    }

    fn named(self) -> &'static Named<Self> {
        Self::ALL
            .iter()
            .find(|n| n.value == self)
            .expect("the table of a choice names each of its values")
    }

    /// Lists the digits with their names: "0 (left), 1 (crout), 2 (right)".
    fn allowed() -> String {
        let all: Vec<String> =
            Self::ALL.iter().map(|n| format!("{} ({})", n.digit, n.name)).collect();
        all.join(", ")
    }
}

macro_rules! choice {
    ($type:ty, fallback $fallback:expr, $( $value:expr => $digit:literal $name:literal $words:literal ),+ $(,)?) => {
        impl Choice for $type {
            const ALL: &'static [Named<Self>] = &[
                $( Named { value: $value, digit: $digit, name: $name, words: $words } ),+
            ];
            const FALLBACK: Self = $fallback;
        }

        impl ValueEnum for $type {
            fn value_variants<'a>() -> &'a [Self] {
                &[ $( $value ),+ ]
            }

            fn to_possible_value(&self) -> Option<PossibleValue> {
                Some(match *self {
                    $( v if v == $value => PossibleValue::new($name)
                        .alias(stringify!($digit))
                        .help($words), )+
                    _ => return None,
                })
            }
        }
    };
}

choice!(Mapping, fallback Mapping::Row,
    Mapping::Row => 0 "row" "neighbouring ranks fill a row of the grid first",
    Mapping::Column => 1 "column" "neighbouring ranks fill a column of the grid first",
);

choice!(Fact, fallback Fact::Right,
    Fact::Left => 0 "left" "left-looking",
    Fact::Crout => 1 "crout" "Crout",
    Fact::Right => 2 "right" "right-looking",
);

choice!(Bcast, fallback Bcast::OneRingM,
    Bcast::OneRing => 0 "1ring" "one ring",
    Bcast::OneRingM => 1 "1ringM" "one ring, the next process spared the forwarding",
    Bcast::TwoRing => 2 "2ring" "two rings",
    Bcast::TwoRingM => 3 "2ringM" "two rings, the next process spared the forwarding",
    Bcast::Long => 4 "blong" "spread and roll, for slow networks and large panels",
    Bcast::LongM => 5 "blongM" "spread and roll, the next process served first",
);

choice!(Swap, fallback Swap::Long,
    Swap::BinaryExchange => 0 "binary-exchange" "pairs of process rows exchange, in log2(P) steps",
    Swap::Long => 1 "long" "spread and roll over the process rows",
    Swap::Mix => 2 "mix" "binary exchange up to the threshold's columns, long above",
);

choice!(Form, fallback Form::Transposed,
    Form::Transposed => 0 "transposed" "stored transposed",
    Form::NotTransposed => 1 "not-transposed" "stored as it is",
);

impl ValueEnum for Rng {
    fn value_variants<'a>() -> &'a [Self] {
        &[Rng::Hpl, Rng::Xoshiro]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Rng::Hpl => PossibleValue::new("hpl").help("the reference's own, bit for bit"),
            Rng::Xoshiro => PossibleValue::new("xoshiro").help("xoshiro256++, seeded per block"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that digits and names are unambiguous, and that the flag's parser takes both.
    fn sound<T: Choice + ValueEnum + std::fmt::Debug>() {
        for (k, named) in T::ALL.iter().enumerate() {
            assert_eq!(named.digit, k as i128, "the digits count up from 0");
            assert_eq!(T::from_digit(named.digit), Some(named.value));
            assert_eq!(T::from_str(named.name, true), Ok(named.value));
            assert_eq!(T::from_str(&named.digit.to_string(), true), Ok(named.value));
        }
        assert_eq!(T::value_variants().len(), T::ALL.len());
        assert_eq!(T::from_digit(-1), None);
        assert_eq!(T::from_digit(T::ALL.len() as i128), None);
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
