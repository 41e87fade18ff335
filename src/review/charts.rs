//! Drawings of time for the page: a bar of parts, and a timeline. `model::plot` draws the curves.
//!
//! Classes in the style sheet of the page define the colours. The page has a table with the numbers of every drawing.

use std::fmt::Write as _;

use crate::base::units::show_seconds;
use crate::model::plot::escape;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 34.0;
/// Smallest width of a part that took any time, in units of the drawing, so that the part is visible.
const LEAST: f64 = 1.5;

/// A stretch of time: start and end in seconds, the class that defines its colour, and its text. The text is shown when the mouse
/// is over the stretch.
#[derive(Clone, Debug, PartialEq)]
pub struct Stretch {
    pub from: f64,
    pub to: f64,
    pub class: String,
    pub title: String,
}

fn usable(value: f64) -> f64 {
    if value.is_finite() { value.clamp(0.0, 1e15) } else { 0.0 }
}

/// Draws the parts of a total as sections of one bar. Each part has a class, a name and a size.
pub fn bar(label: &str, parts: &[(String, &str, f64)]) -> String {
    let mut at = 0.0;
    let stretches: Vec<Stretch> = parts
        .iter()
        .map(|(class, name, size)| {
            let from = at;
            at += usable(*size);
            Stretch { from, to: at, class: class.clone(), title: (*name).to_owned() }
        })
        .collect();
    drawn(label, &stretches, at, false)
}

/// Draws stretches of time in one bar from 0 to `total` seconds, with a scale below it.
pub fn timeline(label: &str, stretches: &[Stretch], total: f64) -> String {
    drawn(label, stretches, usable(total), true)
}

fn drawn(label: &str, stretches: &[Stretch], total: f64, scale: bool) -> String {
    let mut out = format!(
        "<svg class=\"bar\" role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {WIDTH:.0} {HEIGHT:.0}\" \
         preserveAspectRatio=\"none\">\n<rect x=\"0\" y=\"0\" width=\"{WIDTH:.0}\" height=\"{HEIGHT:.0}\" \
         class=\"ground\"/>\n",
        escape(label)
    );
    let total = total.max(1e-9);
    for s in stretches {
        let (from, to) = (usable(s.from).min(total), usable(s.to).min(total));
        if to <= from {
            continue;
        }
        let x = (from / total * WIDTH).min(WIDTH - LEAST);
        let width = ((to - from) / total * WIDTH).clamp(LEAST, WIDTH - x);
        let _ = writeln!(
            out,
            "<rect x=\"{x:.2}\" y=\"0\" width=\"{width:.2}\" height=\"{HEIGHT:.0}\" class=\"{}\"><title>{}: {}\
             </title></rect>",
            escape(&s.class),
            escape(&s.title),
            show_seconds(to - from)
        );
    }
    out.push_str("</svg>\n");
    if scale {
        // The text is below the drawing, not in it, so that it keeps its size when the drawing becomes narrow.
        out.push_str("<div class=\"scale\">");
        for i in 0..=4 {
            let _ = write!(out, "<span>{}</span>", show_seconds(total * f64::from(i) / 4.0));
        }
        out.push_str("</div>\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bar_has_a_rectangle_for_each_part_that_took_time() {
        let parts = [
            ("p0".to_owned(), "a < b", 1.0),
            ("p1".to_owned(), "none", 0.0),
            ("p2".to_owned(), "c", 3.0),
        ];
        let svg = bar("times", &parts);
        assert_eq!(svg.matches("<title>").count(), 2);
        assert!(svg.contains("a &lt; b: 1.0 s") && svg.contains("width=\"720.00\""), "{svg}");
    }

    proptest! {
        /// For any numbers, the drawing is well-formed and within its frame.
        #[test]
        fn always_within_its_frame(
            all in proptest::collection::vec((any::<f64>(), any::<f64>()), 0..20), total in any::<f64>()
        ) {
            let stretches: Vec<Stretch> = all.iter().map(|(from, to)| Stretch {
                from: *from, to: *to, class: "x".into(), title: "t".into()
            }).collect();
            let svg = timeline("l", &stretches, total);
            prop_assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}", svg);
            for rect in svg.split("<rect ").skip(1) {
                let number = |key: &str| {
                    let tail = rect.split_once(&format!("{key}=\"")).unwrap().1;
                    tail.split_once('"').unwrap().0.parse::<f64>().unwrap()
                };
                prop_assert!(number("x") >= 0.0 && number("x") + number("width") <= WIDTH + 0.02, "{}", rect);
            }
        }
    }
}
