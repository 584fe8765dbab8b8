//! Small plots as SVG: curves over batch sizes, and bars. Readable on light and dark pages.
//!
//! Knows nothing of what is measured.

use std::fmt::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};

use super::figures::number;

const WIDTH: f64 = 720.0;
const MARGIN: f64 = 24.0;
const LINE: f64 = 24.0;
/// Plain classes rather than variables: not every viewer knows those.
const STYLE: &str = "\
.b{fill:#ffffff}text{font:13px system-ui,sans-serif;fill:#1f2328}\
.t{font-size:16px;font-weight:600}.d{fill:#656d76}.e{text-anchor:end}.m{text-anchor:middle}\
.g{stroke:#d8dee4;stroke-width:1;fill:none}\
.l{stroke-width:2.5;fill:none}.i{stroke-dasharray:6 5;stroke-width:1.5}\
.f0{fill:#0969da}.f1{fill:#bc4c00}.f2{fill:#1a7f37}.f3{fill:#8250df}.f4{fill:#bf3989}\
.s0{stroke:#0969da}.s1{stroke:#bc4c00}.s2{stroke:#1a7f37}.s3{stroke:#8250df}.s4{stroke:#bf3989}\
@media(prefers-color-scheme:dark){.b{fill:#0d1117}text{fill:#e6edf3}.d{fill:#9198a1}\
.g{stroke:#30363d}\
.f0{fill:#4493f8}.f1{fill:#f0883e}.f2{fill:#3fb950}.f3{fill:#ab7df8}.f4{fill:#db61a2}\
.s0{stroke:#4493f8}.s1{stroke:#f0883e}.s2{stroke:#3fb950}.s3{stroke:#ab7df8}.s4{stroke:#db61a2}}";
const N_COLOURS: usize = 5;

/// One curve. All values must be positive: both axes are logarithmic.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    /// A limit rather than a measurement: drawn dashed.
    pub(super) is_limit: bool,
}

/// Curves with logarithmic axes.
#[derive(Clone, Debug)]
pub(super) struct Curves {
    pub(super) title: String,
    pub(super) subtitle: String,
    pub(super) x_label: String,
    pub(super) y_label: String,
    pub(super) series: Vec<Series>,
}

/// Bars of one quantity.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) bars: Vec<(String, f64)>,
}

/// Panels of horizontal bars, one below the other.
#[derive(Clone, Debug)]
pub(super) struct Bars {
    pub(super) title: String,
    pub(super) subtitle: String,
    pub(super) panels: Vec<Panel>,
}

/// Writes a plot to a file.
pub(super) fn save(path: &Path, svg: &str) -> Result<()> {
    std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))
}

impl Curves {
    pub(super) fn svg(&self) -> String {
        let all = || self.series.iter().flat_map(|series| &series.points);
        let x = Axis::new(all().map(|point| point.0), 80.0, WIDTH - MARGIN, Base::Two);
        let y = Axis::new(all().map(|point| point.1), 380.0, 90.0, Base::Ten);
        let mut svg = Svg::new(450.0, &self.title, &self.subtitle);
        svg.axes(&x, &y);
        svg.text(WIDTH / 2.0, 428.0, "d m", &self.x_label);
        svg.text(80.0, 76.0, "d", &self.y_label);
        for (i, series) in self.series.iter().enumerate() {
            svg.curve(i, series, &x, &y);
            svg.legend(i, self.series.len(), series);
        }
        svg.finish()
    }
}

impl Bars {
    pub(super) fn svg(&self) -> String {
        let n_bars: usize = self.panels.iter().map(|panel| panel.bars.len()).sum();
        let height = 72.0 + LINE * (n_bars as f64 + 2.0 * self.panels.len() as f64);
        let mut svg = Svg::new(height, &self.title, &self.subtitle);
        let mut top = 72.0;
        for (i, panel) in self.panels.iter().enumerate() {
            svg.text(MARGIN, top + 15.0, "d", &panel.title);
            top += LINE;
            svg.panel(i, top, panel);
            top += LINE * (panel.bars.len() as f64 + 1.0);
        }
        svg.finish()
    }
}

#[derive(Clone, Copy)]
enum Base {
    Two,
    Ten,
}

/// A logarithmic scale between two places.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    base: Base,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, from: f64, to: f64, base: Base) -> Axis {
        let values: Vec<f64> = values.filter(|v| v.is_finite() && *v > 0.0).collect();
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(0.0, f64::max);
        let (low, high) = if high > 0.0 { (low, high) } else { (1.0, 2.0) };
        // A little room, and never an empty range.
        let room = match base {
            Base::Two => 1.05,
            Base::Ten => 1.3,
        };
        Axis { low: low / room, high: high * room, from, to, base }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        self.from + share * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        let steps: &[f64] = match self.base {
            Base::Two => &[1.0],
            Base::Ten => &[1.0, 2.0, 5.0],
        };
        let base = match self.base {
            Base::Two => 2.0_f64,
            Base::Ten => 10.0,
        };
        let first = self.low.log(base).floor() as i32;
        let last = self.high.log(base).ceil() as i32;
        let all = (first..=last).flat_map(|power| steps.iter().map(move |s| s * base.powi(power)));
        all.filter(|tick| (self.low..=self.high).contains(tick)).collect()
    }
}

struct Svg {
    text: String,
}

impl Svg {
    fn new(height: f64, title: &str, subtitle: &str) -> Svg {
        let mut svg = Svg { text: String::new() };
        svg.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n<title>{}</title>\n\
             <style>{STYLE}</style>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" rx=\"8\" class=\"b\"/>\n",
            escape(title),
        ));
        svg.text(MARGIN, 30.0, "t", title);
        svg.text(MARGIN, 50.0, "d", subtitle);
        svg
    }

    fn put(&mut self, arguments: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(arguments);
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape(text);
        self.put(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>\n"));
    }

    fn axes(&mut self, x: &Axis, y: &Axis) {
        for tick in x.ticks() {
            let (at, from, to) = (x.at(tick), y.from, y.to);
            self.put(format_args!("<path class=\"g\" d=\"M{at:.1} {from}V{to}\"/>\n"));
            self.text(at, y.from + 20.0, "m", &tick_text(tick));
        }
        for tick in y.ticks() {
            let (at, from, to) = (y.at(tick), x.from, x.to);
            self.put(format_args!("<path class=\"g\" d=\"M{from} {at:.1}H{to}\"/>\n"));
            self.text(x.from - 10.0, at + 4.0, "e", &tick_text(tick));
        }
    }

    fn curve(&mut self, i: usize, series: &Series, x: &Axis, y: &Axis) {
        let places: Vec<(f64, f64)> =
            series.points.iter().map(|&(px, py)| (x.at(px), y.at(py))).collect();
        let path: Vec<String> = places.iter().map(|(px, py)| format!("{px:.1} {py:.1}")).collect();
        let (path, colour) = (path.join("L"), i % N_COLOURS);
        let class = if series.is_limit { "l i" } else { "l" };
        self.put(format_args!("<path class=\"{class} s{colour}\" d=\"M{path}\"/>\n"));
        if series.is_limit {
            return;
        }
        for ((px, py), (_, value)) in places.iter().zip(&series.points) {
            self.put(format_args!(
                "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3.5\" class=\"f{colour}\"/>\n"
            ));
            self.text(*px, py - 9.0, "m", &number(*value));
        }
    }

    fn legend(&mut self, i: usize, n: usize, series: &Series) {
        let x = WIDTH - MARGIN - 190.0;
        let y = 380.0 - 14.0 - 20.0 * (n - 1 - i) as f64;
        let (colour, end) = (i % N_COLOURS, x + 26.0);
        let class = if series.is_limit { "l i" } else { "l" };
        self.put(format_args!("<path class=\"{class} s{colour}\" d=\"M{x} {y}H{end}\"/>\n"));
        self.text(x + 34.0, y + 4.0, "", &series.name);
    }

    fn panel(&mut self, i: usize, top: f64, panel: &Panel) {
        let widest = panel.bars.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let left = MARGIN + 12.0 + 7.2 * widest as f64;
        let room = (WIDTH - MARGIN - 80.0 - left).max(1.0);
        let largest = panel.bars.iter().map(|bar| bar.1).filter(|v| v.is_finite());
        let largest = largest.fold(0.0, f64::max);
        for (row, (name, value)) in panel.bars.iter().enumerate() {
            let y = top + LINE * row as f64;
            let share = if largest > 0.0 && value.is_finite() { value / largest } else { 0.0 };
            let (length, colour) = (share.max(0.0) * room, i % N_COLOURS);
            self.text(left - 8.0, y + 13.0, "e", name);
            self.put(format_args!(
                "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"17\" rx=\"2\" \
                 class=\"f{colour}\"/>\n"
            ));
            self.text(left + length + 8.0, y + 13.0, "", &number(*value));
        }
    }

    fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

/// A tick is a round number: no digits that say nothing.
fn tick_text(value: f64) -> String {
    if value >= 1.0 {
        number(value).trim_end_matches(".00").replace(".0", "")
    } else {
        value.to_string()
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether every tag is closed in order, and no stray markup is left in text.
    fn is_well_formed(svg: &str) -> bool {
        let mut open = Vec::new();
        let mut rest = svg;
        while let Some(start) = rest.find('<') {
            let Some(end) = rest[start..].find('>').map(|end| start + end) else { return false };
            let (text, tag) = (&rest[..start], &rest[start + 1..end]);
            let has_bare_ampersand = text.split('&').skip(1).any(|part| !part.contains(';'));
            if text.contains('>') || has_bare_ampersand || tag.matches('"').count() % 2 == 1 {
                return false;
            }
            let name = tag.split([' ', '/']).next().unwrap_or("");
            match (tag.strip_prefix('/'), tag.ends_with('/')) {
                (Some(name), _) if open.pop() != Some(name) => return false,
                (Some(_), _) | (None, true) => {}
                (None, false) => open.push(name),
            }
            rest = &rest[end + 1..];
        }
        open.is_empty() && rest.trim().is_empty()
    }

    fn curves(points: Vec<(f64, f64)>) -> Curves {
        let series = |name: &str, is_limit| Series {
            name: name.to_owned(),
            points: points.clone(),
            is_limit,
        };
        Curves {
            title: "a < b & \"c\"".to_owned(),
            subtitle: "<model>".to_owned(),
            x_label: "batch".to_owned(),
            y_label: "tokens/s".to_owned(),
            series: vec![series("measured", false), series("ceiling", true)],
        }
    }

    #[test]
    fn plots_are_well_formed_whatever_the_names_and_numbers() {
        assert!(!is_well_formed("<a><b></a></b>") && !is_well_formed("<a>x & y</a>"));
        let cases = [vec![], vec![(1.0, 10.0)], vec![(1.0, 10.0), (64.0, 12345.6)]];
        for points in cases {
            let svg = curves(points).svg();
            assert!(is_well_formed(&svg), "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        let bars = |values: &[f64]| Bars {
            title: "bars".to_owned(),
            subtitle: String::new(),
            panels: vec![Panel {
                title: "p95 <ms>".to_owned(),
                bars: values.iter().map(|&value| ("a&b".to_owned(), value)).collect(),
            }],
        };
        for values in [&[][..], &[0.0], &[1.0, 1000.0], &[f64::NAN, 3.0]] {
            let svg = bars(values).svg();
            assert!(is_well_formed(&svg), "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn ticks_are_round_and_lie_on_the_axis() {
        let axis = Axis::new([1.0, 64.0].into_iter(), 0.0, 100.0, Base::Two);
        assert_eq!(axis.ticks(), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]);
        let axis = Axis::new([90.0, 1100.0].into_iter(), 0.0, 100.0, Base::Ten);
        assert_eq!(axis.ticks(), [100.0, 200.0, 500.0, 1000.0]);
        assert!(axis.ticks().iter().all(|&tick| (0.0..=100.0).contains(&axis.at(tick))));
        assert_eq!([1.0, 20.0, 1000.0, 0.5].map(tick_text), ["1", "20", "1,000", "0.5"]);
    }
}
