//! Figures as data, shown as a table of numbers or as an SVG.
//!
//! The SVG writer is our own and small: lines and grouped bars in panels, linear and logarithmic axes, and a legend. Tests
//! compare its text with a stored copy, and figures are identical on every machine.

use std::fmt::Write as _;

/// A curve, or a set of bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    /// Points that are not finite interrupt a line.
    pub points: Vec<(f64, f64)>,
    pub style: Style,
}

impl Series {
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, style: Style::Line }
    }

    pub fn dashed(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { style: Style::Dashed, ..Self::line(name, points) }
    }

    pub fn dots(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { style: Style::Dots, ..Self::line(name, points) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Line,
    Dashed,
    Dots,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    pub label: String,
    pub log: bool,
    /// Fixed range; None takes the range from the data.
    pub range: Option<(f64, f64)>,
}

impl Axis {
    pub fn linear(label: &str) -> Self {
        Self { label: label.into(), log: false, range: None }
    }

    pub fn log(label: &str) -> Self {
        Self { label: label.into(), log: true, range: None }
    }

    pub fn within(self, low: f64, high: f64) -> Self {
        Self { range: Some((low, high)), ..self }
    }
}

/// A pair of axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
    /// Names of the groups of bars. If there are any, the series are bars, and x of a point is the index of its group.
    pub categories: Vec<String>,
}

impl Panel {
    /// A panel of curves.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis, series: Vec<Series>) -> Self {
        Self { title: title.into(), x, y, series, categories: Vec::new() }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    pub title: String,
    pub panels: Vec<Panel>,
    /// Explanation below the panels.
    pub note: String,
}

/// Colours that the colour-blind can distinguish: the palette of Okabe and Ito without its yellow.
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"];

/// Function from the index of a series to its colour.
type Ink = fn(usize) -> String;

/// Colours of a stand-alone drawing on white.
fn on_paper(series: usize) -> String {
    COLOURS[series % COLOURS.len()].into()
}

/// Colours of a drawing in a page. The style sheet of the page defines `--series-0` and so on, and the classes, for a light and a
/// dark theme.
fn in_page(series: usize) -> String {
    format!("var(--series-{})", series % COLOURS.len())
}

const PLOT_WIDTH: f64 = 400.0;
const PLOT_HEIGHT: f64 = 270.0;
const LEFT: f64 = 72.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 58.0;
const RIGHT: f64 = 18.0;
const LEGEND_LINE: f64 = 16.0;

/// Escapes text for SVG and HTML, between tags or in quotes.
pub fn escape(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '&' => "&amp;".into(),
            '<' => "&lt;".into(),
            '>' => "&gt;".into(),
            '"' => "&quot;".into(),
            c if c.is_control() => " ".into(),
            c => c.to_string(),
        })
        .collect()
}

/// Formats a number for an axis, as short as possible.
fn tick_label(v: f64) -> String {
    let magnitude = v.abs();
    if magnitude != 0.0 && !(1e-3..1e5).contains(&magnitude) {
        let exponent = magnitude.log10().floor();
        let mantissa = (v / 10f64.powf(exponent) * 100.0).round() / 100.0;
        return format!("{mantissa}e{exponent}");
    }
    // Steps are 1, 2 or 5 times a power of ten. Rounding removes the errors of binary fractions.
    format!("{}", (v * 1e6).round() / 1e6)
}

/// Whether a value can be drawn on an axis. Differences and quotients of values outside the bounds here may overflow.
fn drawable(v: f64, log: bool) -> bool {
    v.abs() < 1e100 && (!log || v > 1e-100)
}

/// An axis with its bounds. Maps values to positions from 0 to 1, and places ticks.
struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    fn of(axis: &Axis, values: impl Iterator<Item = f64> + Clone, from_zero: bool) -> Self {
        let usable = values.filter(|v| drawable(*v, axis.log));
        let (mut low, mut high) = axis.range.unwrap_or_else(|| {
            usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)))
        });
        if !(low.is_finite() && high.is_finite()) {
            (low, high) = if axis.log { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        if axis.log {
            low = low.max(1e-100);
            if high <= low * 1.001 {
                (low, high) = (low / 3.0, low * 3.0);
            }
        } else {
            if from_zero && axis.range.is_none() {
                low = low.min(0.0);
            }
            if high - low <= 1e-12 * high.abs().max(low.abs()) {
                (low, high) = (low - 0.5 * low.abs().max(1.0), high + 0.5 * high.abs().max(1.0));
            }
            if axis.range.is_none() {
                high += 0.04 * (high - low);
            }
        }
        Self { low, high, log: axis.log }
    }

    fn at(&self, v: f64) -> f64 {
        if self.log {
            (v.max(1e-100) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (v - self.low) / (self.high - self.low)
        }
    }

    fn ticks(&self) -> Vec<f64> {
        let mut ticks = Vec::new();
        if self.log {
            let decades = (self.high / self.low).log10();
            let steps: &[f64] = if decades < 1.5 {
                &[1.0, 2.0, 3.0, 5.0, 7.0]
            } else if decades < 3.5 {
                &[1.0, 2.0, 5.0]
            } else {
                &[1.0]
            };
            let stride = (decades / 8.0).ceil().max(1.0) as i32;
            let mut exponent = self.low.log10().floor() as i32;
            while 10f64.powi(exponent) <= self.high * 1.0001 {
                for s in steps {
                    let v = s * 10f64.powi(exponent);
                    if v >= self.low * 0.9999 && v <= self.high * 1.0001 {
                        ticks.push(v);
                    }
                }
                exponent += stride;
            }
        } else {
            let rough = (self.high - self.low) / 6.0;
            let power = 10f64.powf(rough.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0]
                .into_iter()
                .map(|m| m * power)
                .find(|s| *s >= rough)
                .unwrap_or(rough);
            let first = (self.low / step - 1e-9).ceil();
            for i in 0..=12 {
                let v = (first + f64::from(i)) * step;
                if v > self.high + 1e-9 * step {
                    break;
                }
                ticks.push(v);
            }
        }
        ticks
    }
}

fn put_text(out: &mut String, x: f64, y: f64, class: &str, text: &str) {
    let text = escape(text);
    let _ = writeln!(out, r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{text}</text>"#);
}

/// Number of legend entries in a line, which depends on the longest name.
fn legend_columns(panel: &Panel) -> usize {
    match panel.series.iter().map(|s| s.name.chars().count()).max().unwrap_or(0) {
        ..=16 => 3,
        17..=30 => 2,
        _ => 1,
    }
}

fn legend_height(panel: &Panel) -> f64 {
    panel.series.len().div_ceil(legend_columns(panel)) as f64 * LEGEND_LINE
}

impl Panel {
    fn bars(&self) -> bool {
        !self.categories.is_empty()
    }

    /// Draws the panel. `id` makes the names in it unique among all drawings of a page.
    fn draw(&self, out: &mut String, x0: f64, y0: f64, ink: Ink, id: &str) {
        let xs = self.series.iter().flat_map(|s| s.points.iter().map(|p| p.0));
        let ys = self.series.iter().flat_map(|s| s.points.iter().map(|p| p.1));
        let groups = Axis::linear("").within(-0.5, self.categories.len() as f64 - 0.5);
        let frame = Frame {
            x: Scale::of(if self.bars() { &groups } else { &self.x }, xs, false),
            y: Scale::of(&self.y, ys, true),
            left: x0 + LEFT,
            top: y0 + TOP,
            clip: format!("{id}c{x0:.0}_{y0:.0}"),
        };
        self.draw_frame(out, &frame);
        let width = 0.8 / self.series.len().max(1) as f64;
        for (i, series) in self.series.iter().enumerate() {
            let colour = ink(i);
            if self.bars() {
                self.draw_bars(out, &frame, series, width * i as f64, width, &colour);
            } else {
                series.draw(out, &frame, &colour);
            }
        }
        let Frame { left, top, clip, .. } = &frame;
        let _ = writeln!(
            out,
            r#"<clipPath id="{clip}"><rect x="{left:.1}" y="{top:.1}" width="{PLOT_WIDTH}" height="{PLOT_HEIGHT}"/></clipPath>"#
        );
        self.draw_legend(out, x0, frame.bottom() + BOTTOM + 4.0, ink);
    }

    /// Draws title, grid, ticks and labels.
    fn draw_frame(&self, out: &mut String, frame: &Frame) {
        let (left, top, bottom) = (frame.left, frame.top, frame.bottom());
        let middle = left + PLOT_WIDTH / 2.0;
        put_text(out, middle, top - 12.0, "panel", &self.title);
        for v in frame.y.ticks() {
            let at = frame.py(v);
            let _ = write!(
                out,
                r#"<line x1="{left:.1}" y1="{at:.1}" x2="{:.1}" y2="{at:.1}" class="grid"/>"#,
                left + PLOT_WIDTH
            );
            put_text(out, left - 6.0, at + 4.0, "ytick", &tick_label(v));
        }
        let below = bottom + 16.0;
        let ticks = if self.bars() { Vec::new() } else { frame.x.ticks() };
        for v in ticks {
            let at = frame.px(v);
            let _ = write!(
                out,
                r#"<line x1="{at:.1}" y1="{top:.1}" x2="{at:.1}" y2="{bottom:.1}" class="grid"/>"#
            );
            put_text(out, at, below, "xtick", &tick_label(v));
        }
        // Long names are written at an angle.
        let many = self.categories.len() > 5;
        let lean = many && self.categories.iter().any(|c| c.chars().count() > 7);
        for (i, name) in self.categories.iter().enumerate() {
            let at = frame.px(i as f64);
            if lean {
                let turn = format!(r#"rotate(-25 {at:.1} {below:.1})"#);
                let _ = writeln!(
                    out,
                    r#"<text x="{at:.1}" y="{below:.1}" class="small" transform="{turn}" text-anchor="end">{}</text>"#,
                    escape(name)
                );
            } else {
                put_text(out, at, below, "xtick", name);
            }
        }
        let (lx, ly) = (left - LEFT + 16.0, top + PLOT_HEIGHT / 2.0);
        let _ = writeln!(
            out,
            r#"<rect x="{left:.1}" y="{top:.1}" width="{PLOT_WIDTH}" height="{PLOT_HEIGHT}" class="frame"/>
<text x="{middle:.1}" y="{:.1}" class="label">{}</text>
<text x="{lx:.1}" y="{ly:.1}" class="label" transform="rotate(-90 {lx:.1} {ly:.1})">{}</text>"#,
            bottom + if many { 52.0 } else { 36.0 },
            escape(&self.x.label),
            escape(&self.y.label)
        );
    }

    /// Draws the bars of a series, at their offset from the beginning of the category.
    fn draw_bars(
        &self,
        out: &mut String,
        frame: &Frame,
        series: &Series,
        offset: f64,
        width: f64,
        colour: &str,
    ) {
        let y = &frame.y;
        let drawn = |p: &&(f64, f64)| {
            drawable(p.1, y.log) && (0.0..self.categories.len() as f64).contains(&p.0)
        };
        for (group, value) in series.points.iter().filter(drawn) {
            let from = group - 0.4 + offset;
            let (a, b) = (frame.px(from), frame.px(from + width * 0.92));
            let (low, high) = (frame.py(y.low.max(0.0)), frame.py(value.clamp(y.low, y.high)));
            let _ = writeln!(
                out,
                r#"<rect x="{a:.1}" y="{high:.1}" width="{:.1}" height="{:.1}" fill="{colour}"/>"#,
                b - a,
                (low - high).max(0.0)
            );
        }
    }

    /// Draws the legend, its first line at height `y0`.
    fn draw_legend(&self, out: &mut String, x0: f64, y0: f64, ink: Ink) {
        let columns = legend_columns(self);
        let column_width = (LEFT + PLOT_WIDTH) / columns as f64;
        for (i, series) in self.series.iter().enumerate() {
            let colour = ink(i);
            let a = x0 + 24.0 + (i % columns) as f64 * column_width;
            let b = y0 + (i / columns) as f64 * LEGEND_LINE;
            let dash = series.dash("5 3");
            let mark = if self.bars() || series.style == Style::Dots {
                format!(
                    r#"<rect x="{:.1}" y="{:.1}" width="10" height="10" fill="{colour}"/>"#,
                    a + 6.0,
                    b - 9.0
                )
            } else {
                format!(
                    r#"<line x1="{a:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="{colour}" stroke-width="2.5"{dash}/>"#,
                    b - 4.0,
                    a + 22.0,
                    b - 4.0
                )
            };
            out.push_str(&mark);
            put_text(out, a + 28.0, b, "legend", &series.name);
        }
    }
}

/// The area that a panel's series are drawn in.
struct Frame {
    x: Scale,
    y: Scale,
    left: f64,
    top: f64,
    /// Name of the path that clips lines.
    clip: String,
}

impl Frame {
    fn px(&self, v: f64) -> f64 {
        self.left + self.x.at(v) * PLOT_WIDTH
    }

    fn py(&self, v: f64) -> f64 {
        self.top + (1.0 - self.y.at(v)) * PLOT_HEIGHT
    }

    fn bottom(&self) -> f64 {
        self.top + PLOT_HEIGHT
    }
}

impl Series {
    /// Returns the attribute of a dashed line, or an empty text for other styles.
    fn dash(&self, pattern: &str) -> String {
        if self.style == Style::Dashed {
            format!(r#" stroke-dasharray="{pattern}""#)
        } else {
            String::new()
        }
    }

    /// Draws dots or a line.
    fn draw(&self, out: &mut String, frame: &Frame, colour: &str) {
        let visible = |p: &&(f64, f64)| drawable(p.0, frame.x.log) && drawable(p.1, frame.y.log);
        if self.style == Style::Dots {
            for (a, b) in self.points.iter().filter(visible) {
                let (x, y) = (frame.px(*a), frame.py(*b));
                let _ =
                    writeln!(out, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"/>"#);
            }
            return;
        }
        let (dash, clip) = (self.dash("6 4"), &frame.clip);
        // Points that cannot be drawn interrupt the line.
        for run in self.points.split(|p| !visible(&p)).filter(|run| !run.is_empty()) {
            let mut d = String::new();
            for (k, (a, b)) in run.iter().enumerate() {
                let to = if k == 0 { "M" } else { "L" };
                let (x, y) = (frame.px(*a), frame.py(*b).clamp(-1e4, 1e4));
                let _ = write!(d, "{to}{x:.1} {y:.1}");
            }
            let _ = writeln!(
                out,
                r#"<path d="{d}" fill="none" stroke="{colour}" stroke-width="2"{dash} clip-path="url(#{clip})"/>"#
            );
        }
    }
}

impl Panel {
    /// Returns the panel as an SVG element of a page, as wide as the page allows. The style sheet of the page defines the
    /// colours; `id` is a name that no other drawing of the page has.
    pub fn inline(&self, id: &str) -> String {
        let width = LEFT + PLOT_WIDTH + RIGHT;
        let height = TOP + PLOT_HEIGHT + BOTTOM + legend_height(self) + 14.0;
        let mut out = format!(
            r#"<svg class="plot" role="img" aria-label="{}" viewBox="0 0 {width:.0} {height:.0}">"#,
            escape(&self.title)
        );
        out.push('\n');
        self.draw(&mut out, 0.0, 0.0, in_page, id);
        out.push_str("</svg>\n");
        out
    }
}

impl Figure {
    /// Returns the figure as a stand-alone SVG document.
    pub fn svg(&self) -> String {
        let count = self.panels.len();
        let columns = count.clamp(1, if count == 4 { 2 } else { 3 });
        let rows = count.div_ceil(columns).max(1);
        let legend = self.panels.iter().map(legend_height).fold(0.0, f64::max);
        let cell_width = LEFT + PLOT_WIDTH + RIGHT;
        let cell_height = TOP + PLOT_HEIGHT + BOTTOM + legend + 14.0;
        let width = cell_width * columns as f64;
        let per_line = (width / 6.2) as usize;
        let notes = wrap(&self.note, per_line);
        let height = 34.0 + cell_height * rows as f64 + 15.0 * notes.len() as f64 + 6.0;
        let mut out = format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" font-family="Helvetica, Arial, sans-serif">
<style>.title{{font-size:17px;font-weight:bold;text-anchor:middle}}.panel{{font-size:14px;font-weight:bold;text-anchor:middle}}.label{{font-size:13px;text-anchor:middle}}.xtick{{font-size:11px;text-anchor:middle}}.ytick{{font-size:11px;text-anchor:end}}.small{{font-size:10px}}.legend{{font-size:12px}}.note{{font-size:11px;fill:#444}}.grid{{stroke:#ddd;stroke-width:1}}.frame{{fill:none;stroke:#444;stroke-width:1}}</style>
<rect width="100%" height="100%" fill="white"/>
<text x="{:.1}" y="24" class="title">{}</text>
"##,
            width / 2.0,
            escape(&self.title)
        );
        for (i, panel) in self.panels.iter().enumerate() {
            let x = (i % columns) as f64 * cell_width;
            let y = 34.0 + (i / columns) as f64 * cell_height;
            panel.draw(&mut out, x, y, on_paper, "");
        }
        for (i, line) in notes.iter().enumerate() {
            let y = height - 15.0 * (notes.len() - i) as f64 + 3.0;
            let line = escape(line);
            let _ = writeln!(out, r#"<text x="14" y="{y:.1}" class="note">{line}</text>"#);
        }
        out.push_str("</svg>\n");
        out
    }

    /// Returns the figure as columns of numbers, with a table for each panel.
    pub fn table(&self) -> String {
        let mut out = format!("{}\n", self.title);
        for panel in &self.panels {
            let _ = writeln!(out, "\n{} ({} over {})", panel.title, panel.y.label, panel.x.label);
            let xs = panel.series.iter().flat_map(|s| s.points.iter().map(|p| p.0));
            let mut keys: Vec<f64> = xs.filter(|x| x.is_finite()).collect();
            keys.sort_by(f64::total_cmp);
            keys.dedup();
            // Curves have many points; the table shows about twenty of them.
            let step = if panel.bars() { 1 } else { keys.len().div_ceil(20).max(1) };
            let last = keys.len().saturating_sub(1);
            let shown = keys.iter().enumerate().filter(|(i, _)| i % step == 0 || *i == last);
            let widths: Vec<usize> =
                panel.series.iter().map(|s| s.name.chars().count().max(11)).collect();
            let _ = write!(out, "{:>18}", "");
            for (s, w) in panel.series.iter().zip(&widths) {
                let _ = write!(out, "  {:>w$}", s.name);
            }
            out.push('\n');
            for (_, key) in shown {
                let number_of = format!("{key:.6}");
                let number_of = number_of.trim_end_matches('0').trim_end_matches('.');
                let name = panel.categories.get(*key as usize).map_or(number_of, String::as_str);
                let _ = write!(out, "{name:>18}");
                for (s, w) in panel.series.iter().zip(&widths) {
                    let point = s.points.iter().find(|(x, _)| x == key);
                    let finite = point.filter(|(_, y)| y.is_finite());
                    let value = finite.map_or("-".into(), |(_, y)| number(*y));
                    let _ = write!(out, "  {value:>w$}");
                }
                out.push('\n');
            }
        }
        if !self.note.is_empty() {
            let _ = writeln!(out, "\n{}", wrap(&self.note, 100).join("\n"));
        }
        out
    }
}

fn number(v: f64) -> String {
    if v != 0.0 && !(1e-3..1e6).contains(&v.abs()) { format!("{v:.4e}") } else { format!("{v:.5}") }
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn figure(points: Vec<(f64, f64)>, log: bool, bars: bool) -> Figure {
        let axis = |label| if log { Axis::log(label) } else { Axis::linear(label) };
        Figure {
            title: "A <b> & \"c\"".into(),
            panels: vec![Panel {
                title: "p".into(),
                x: axis("x"),
                y: axis("y"),
                series: vec![Series { name: "s < t".into(), points, style: Style::Line }],
                categories: if bars { vec!["one".into(), "two".into()] } else { vec![] },
            }],
            note: "why".into(),
        }
    }

    #[test]
    fn text_is_escaped_and_numbers_are_short() {
        let svg = figure(vec![(0.0, 1.0), (1.0, 2.0)], false, false).svg();
        assert!(svg.contains("A &lt;b&gt; &amp; &quot;c&quot;") && svg.contains("s &lt; t"));
        for (v, text) in
            [(0.0, "0"), (0.1 + 0.2, "0.3"), (1e6, "1e6"), (2.5e-5, "2.5e-5"), (150.0, "150")]
        {
            assert_eq!(tick_label(v), text);
        }
    }

    #[test]
    fn a_gap_in_the_data_is_a_gap_in_the_line() {
        let svg = figure(
            vec![(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 1.0), (4.0, 1.0)],
            false,
            false,
        )
        .svg();
        assert_eq!(svg.matches("<path").count(), 2);
    }

    proptest! {
        /// Whatever the data, the document has no NaN, no infinity and no unbalanced tags.
        #[test]
        fn always_a_sound_document(points in proptest::collection::vec((any::<f64>(), any::<f64>()), 0..20), log in any::<bool>(), bars in any::<bool>()) {
            let figure = figure(points, log, bars);
            let svg = figure.svg();
            prop_assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            prop_assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
            prop_assert!(svg.ends_with("</svg>\n"));
            prop_assert!(!figure.table().contains("NaN"));
        }

        #[test]
        fn ticks_lie_within(low in -1e6..1e6f64, span in 1e-6..1e9f64, log in any::<bool>()) {
            let (low, high) = if log { (low.abs() + 1e-9, low.abs() + span + 1e-8) } else { (low, low + span) };
            let scale = Scale { low, high, log };
            let ticks = scale.ticks();
            prop_assert!(ticks.len() <= 40);
            prop_assert!(ticks.iter().all(|t| (-1e-3..=1.001).contains(&scale.at(*t))));
        }
    }
}
