//! Elements of the page: cells, tables, legends, and the classes that colour drawings.

use std::fmt::Write as _;

use crate::base::timeline::What;
use crate::model::plot::escape;
use crate::supervise::tell::timeline::Part;

/// Returns a table cell with text.
pub(super) fn words(text: &str) -> String {
    format!("<td>{}</td>", escape(text))
}

pub(super) fn number(text: &str) -> String {
    format!("<td class=\"n\">{}</td>", escape(text))
}

/// Returns a table of texts. A heading that begins with `#` marks a column of numbers.
pub(super) fn table(headings: &[&str], rows: impl IntoIterator<Item: AsRef<[String]>>) -> String {
    let cell = |(heading, text): (&&str, &String)| {
        if heading.starts_with('#') { number(text) } else { words(text) }
    };
    let cells = |row: &[String]| headings.iter().zip(row).map(cell).collect::<String>();
    table_of_cells(headings, rows.into_iter().map(|row| cells(row.as_ref())))
}

/// Returns a table of rows that already consist of cells.
pub(super) fn table_of_cells(headings: &[&str], rows: impl Iterator<Item = String>) -> String {
    let mut out = String::from("<div class=\"wide\"><table>\n<tr>");
    for heading in headings {
        let _ = match heading.strip_prefix('#') {
            Some(heading) => write!(out, "<th class=\"n\">{}</th>", escape(heading)),
            None => write!(out, "<th>{}</th>", escape(heading)),
        };
    }
    out.push_str("</tr>\n");
    for row in rows {
        let _ = writeln!(out, "<tr>{row}</tr>");
    }
    out.push_str("</table></div>\n");
    out
}

/// Returns a foldable element with `table`, the numbers of a drawing.
pub(super) fn numbers(table: &str) -> String {
    format!("<details><summary>The numbers</summary>\n{table}</details>\n")
}

pub(super) fn legend(entries: &[(String, &str)]) -> String {
    let mut out = String::from("<ul class=\"legend\">");
    for (class, name) in entries {
        let _ = write!(out, "<li><i class=\"{class}\"></i>{}</li>", escape(name));
    }
    out.push_str("</ul>\n");
    out
}

/// Returns the class of the style sheet that colours an interruption.
pub(super) fn class_of(what: What) -> &'static str {
    match what {
        What::Save => "c2",
        What::Lost => "c3",
        What::Down => "c1",
        What::Restore => "c5",
    }
}

pub(super) fn class_of_part(part: Part) -> &'static str {
    match part {
        Part::Start => "c6",
        Part::Compute => "c0",
        Part::Detect => "c1",
        Part::Stop => "c7",
        Part::Replace => "c4",
        Part::Restore => "c5",
        Part::Repeat => "c3",
        Part::Pause => "ground",
    }
}
