//! Lists of processors as users write them: `7,15` or `0-3,8`. Settings read such lists, and messages print them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::base::cores::most;

/// Processors by the numbers that the system gives them, written as `7,15` or `0-3,8`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct List(pub BTreeSet<usize>);

impl FromStr for List {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number =
            |text: &str| text.trim().parse::<usize>().ok().filter(|&number| number < most());
        let range = |part: &str| match part.split_once('-') {
            Some((first, last)) => Some(number(first)?..=number(last)?),
            None => number(part).map(|only| only..=only),
        };
        let mut all = BTreeSet::new();
        for part in text.split(',') {
            match range(part).filter(|range| !range.is_empty()) {
                Some(range) => all.extend(range),
                None => {
                    return Err("numbers of processors, such as 7,15 or 0-3, are needed".to_owned());
                }
            }
        }
        Ok(Self(all))
    }
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut rest = self.0.iter().copied().peekable();
        let mut between = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if_eq(&(last + 1)) {
                last = next;
            }
            if last == first {
                write!(f, "{between}{first}")?
            } else {
                write!(f, "{between}{first}-{last}")?
            }
            between = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_are_written() {
        for (text, written) in
            [("7", "7"), ("7,15", "7,15"), ("3-5,0, 1 ,9", "0-1,3-5,9"), ("2-2", "2"), ("1,1", "1")]
        {
            let list: List = text.parse().unwrap();
            assert_eq!((list.to_string().as_str(), list.to_string().parse()), (written, Ok(list)));
        }
        for bad in ["", ",", "1,", "a", "-1", "3-1", "1-", "99999", "0x3", "1.5"] {
            assert!(bad.parse::<List>().is_err(), "{bad}");
        }
    }
}
