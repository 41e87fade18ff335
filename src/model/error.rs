//! The error type of the models, and the checks that every formula runs on its inputs.
//!
//! Formulas divide by their inputs and take roots of them. A zero or a NaN among the inputs can become a plausible number after a
//! few formulas. So each public function checks its inputs by these helpers, and passes its result through [`finite`] before
//! returning it.

use crate::base::exit::Refusal;

/// Reason why a model cannot answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// An input is outside the range in which the formula is valid, a text cannot be used, or the requested run does not fit the
    /// machine, the memory or the time.
    #[error("{0}")]
    Refused(String),
    /// The inputs are each valid, but the result exceeds the range of a double.
    #[error("{what} cannot be computed: the result is {value}; the inputs are too extreme")]
    Overflow { what: &'static str, value: f64 },
}

impl From<ModelError> for Refusal {
    fn from(error: ModelError) -> Self {
        Refusal::bad_input(error)
    }
}

pub(crate) type Result<T> = std::result::Result<T, ModelError>;

/// Returns the error that refuses the inputs for the reason `why`.
pub(crate) fn refused<T>(why: impl Into<String>) -> Result<T> {
    Err(ModelError::Refused(why.into()))
}

/// Returns the error that the input `what` is outside its range, which `rule` states in words.
pub(crate) fn out_of_range<T>(what: &str, rule: &str, value: f64) -> Result<T> {
    refused(format!("{what} must be {rule}, but it is {value}"))
}

/// Checks that an input is a finite number above zero.
pub(crate) fn positive(what: &'static str, value: f64) -> Result<f64> {
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        out_of_range(what, "a number above zero", value)
    }
}

/// Checks that an input is a finite number, zero or above.
pub(crate) fn non_negative(what: &'static str, value: f64) -> Result<f64> {
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        out_of_range(what, "zero or a number above it", value)
    }
}

/// Checks that an input is from zero to one, both included.
pub(crate) fn fraction(what: &'static str, value: f64) -> Result<f64> {
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        out_of_range(what, "between 0 and 1", value)
    }
}

/// Checks that an input is above zero and at most one.
pub(crate) fn share(what: &'static str, value: f64) -> Result<f64> {
    if value > 0.0 && value <= 1.0 {
        Ok(value)
    } else {
        out_of_range(what, "above 0 and at most 1", value)
    }
}

/// Checks that an input is at least `least`; `rule` states this bound in words.
pub(crate) fn at_least(
    what: &'static str,
    value: u64,
    least: u64,
    rule: &'static str,
) -> Result<u64> {
    if value >= least { Ok(value) } else { out_of_range(what, rule, value as f64) }
}

/// Checks that an input is at most `most`; `rule` states this bound in words.
pub(crate) fn at_most(what: &'static str, value: f64, most: f64, rule: &'static str) -> Result<()> {
    if value <= most { Ok(()) } else { out_of_range(what, rule, value) }
}

/// Checks that a result is finite before it is returned.
pub(crate) fn finite(what: &'static str, value: f64) -> Result<f64> {
    if value.is_finite() { Ok(value) } else { Err(ModelError::Overflow { what, value }) }
}
