//! Metrics in the text format of Prometheus.
//!
//! Portal and worker both write it. It must not read devices or decide about access.

use std::fmt::Write;

/// The media type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metric family. Its name, kind and help are constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    pub name: &'static str,
    /// `gauge`, `counter` or `histogram`.
    pub kind: &'static str,
    pub help: &'static str,
}

/// The text of metrics, grouped by family.
#[derive(Debug, Default)]
pub struct Exposition {
    families: Vec<(Family, String)>,
}

/// Appends the value of a label, escaped.
fn escape(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

impl Exposition {
    /// Adds a family without values.
    pub fn declare(&mut self, family: Family) {
        if !self.families.iter().any(|(known, _)| known.name == family.name) {
            self.families.push((family, String::new()));
        }
    }

    /// Adds a value; NaN and infinities are ignored.
    pub fn add(&mut self, family: Family, labels: &[(&str, &str)], value: f64) {
        self.add_part(family, "", labels, value);
    }

    /// Adds a value of a part of a family, such as `_sum` of a histogram.
    pub fn add_part(&mut self, family: Family, part: &str, labels: &[(&str, &str)], value: f64) {
        self.declare(family);
        let known = self.families.iter_mut().find(|(known, _)| known.name == family.name);
        let Some((_, rows)) = known.filter(|_| value.is_finite()) else { return };
        rows.push_str(family.name);
        rows.push_str(part);
        let mut open = '{';
        for (name, label) in labels {
            rows.push(open);
            open = ',';
            rows.push_str(name);
            rows.push_str("=\"");
            escape(rows, label);
            rows.push('"');
        }
        // A write into a String cannot fail.
        let _ = if open == '{' { writeln!(rows, " {value}") } else { writeln!(rows, "}} {value}") };
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        for (Family { name, kind, help }, rows) in &self.families {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            out.push_str(rows);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_what_is_no_number_is_left_out() {
        let mut out = Exposition::default();
        let family = Family { name: "x", kind: "gauge", help: "X." };
        out.add(family, &[("a", "q\"b\\c\nd"), ("b", "")], 1.5);
        out.add(family, &[], f64::NAN);
        out.add(family, &[], 2.0);
        assert_eq!(out.text(), "# HELP x X.\n# TYPE x gauge\nx{a=\"q\\\"b\\\\c\\nd\",b=\"\"} 1.5\nx 2\n");
    }
}
