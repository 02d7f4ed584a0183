//! Colours and styles of a terminal as classes of the style sheet.
//!
//! Pure: without lines and browser.

use anstyle_parse::Params;

const NAMES: [&str; 8] = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

/// One of the 16 colours of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Colour {
    index: u8,
    bright: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Style {
    fore: Option<Colour>,
    back: Option<Colour>,
    bold: bool,
    dim: bool,
    italic: bool,
    underline: bool,
    inverse: bool,
    strike: bool,
}

impl Style {
    /// Returns the classes of the style sheet.
    pub(super) fn class(self) -> String {
        let mut class = String::new();
        let mut add = |part: String| {
            if !class.is_empty() {
                class.push(' ');
            }
            class.push_str(&part);
        };
        if let Some((colour, name)) = self.fore.and_then(named) {
            add(format!("ansi-{}{name}", if colour.bright { "bright-" } else { "" }));
        }
        if let Some((_, name)) = self.back.and_then(named) {
            add(format!("ansi-bg-{name}"));
        }
        let flags = [
            (self.bold, "ansi-bold"),
            (self.dim, "ansi-dim"),
            (self.italic, "ansi-italic"),
            (self.underline, "ansi-underline"),
            (self.inverse, "ansi-inverse"),
            (self.strike, "ansi-strike"),
        ];
        for (on, name) in flags {
            if on {
                add(name.to_owned());
            }
        }
        class
    }

    /// Applies the parameters of one SGR sequence.
    pub(super) fn apply(&mut self, params: &Params) {
        let mut groups = params.iter();
        while let Some(group) = groups.next() {
            let Some((&code, inner)) = group.split_first() else { continue };
            match code {
                0 => *self = Self::default(),
                1 => self.bold = true,
                2 => self.dim = true,
                3 => self.italic = true,
                4 => self.underline = inner.first() != Some(&0),
                7 => self.inverse = true,
                9 => self.strike = true,
                21 => self.underline = true,
                22 => (self.bold, self.dim) = (false, false),
                23 => self.italic = false,
                24 => self.underline = false,
                27 => self.inverse = false,
                29 => self.strike = false,
                39 => self.fore = None,
                49 => self.back = None,
                30..=37 | 90..=97 => self.fore = basic(code),
                40..=47 | 100..=107 => self.back = basic(code - 10),
                38 | 48 => {
                    let colour = if inner.is_empty() { following(&mut groups) } else { extended(inner) };
                    if code == 38 { self.fore = colour } else { self.back = colour }
                }
                _ => {}
            }
        }
    }
}

fn named(colour: Colour) -> Option<(Colour, &'static str)> {
    NAMES.get(usize::from(colour.index)).map(|name| (colour, *name))
}

/// Finds the colour of a code: 30 to 37 and 90 to 97.
fn basic(code: u16) -> Option<Colour> {
    let bright = code >= 90;
    let index = u8::try_from(code.checked_sub(if bright { 90 } else { 30 })?).ok()?;
    Some(Colour { index, bright })
}

/// Parses `38;5;n` and `38;2;r;g;b`; consumes the numbers of the colour.
fn following<'a>(groups: &mut impl Iterator<Item = &'a [u16]>) -> Option<Colour> {
    let kind = *groups.next()?.first()?;
    let count = match kind {
        5 => 1,
        2 => 3,
        _ => return None,
    };
    let mut all = vec![kind];
    all.extend(groups.take(count).filter_map(|group| group.first()));
    extended(&all)
}

/// Finds the nearest of the 16 colours for the numbers after 38 or 48.
fn extended(numbers: &[u16]) -> Option<Colour> {
    match numbers {
        [5, index, ..] => match *index {
            index @ 0..=7 => basic(30 + index),
            index @ 8..=15 => basic(90 + index - 8),
            index @ 16..=231 => {
                let cube = index - 16;
                let level = |step: u16| if step == 0 { 0 } else { 55 + 40 * step };
                Some(nearest(level(cube / 36), level(cube / 6 % 6), level(cube % 6)))
            }
            index @ 232..=255 => {
                let grey = 8 + 10 * (index - 232);
                Some(nearest(grey, grey, grey))
            }
            _ => None,
        },
        // With colons a colour space can precede the three values.
        [2, .., red, green, blue] => Some(nearest(*red, *green, *blue)),
        _ => None,
    }
}

fn nearest(red: u16, green: u16, blue: u16) -> Colour {
    let (red, green, blue) = (red.min(255), green.min(255), blue.min(255));
    let most = red.max(green).max(blue);
    let least = red.min(green).min(blue);
    if most - least < 32 {
        return match most {
            0..=39 => Colour { index: 0, bright: false },
            40..=127 => Colour { index: 0, bright: true },
            _ => Colour { index: 7, bright: most > 220 },
        };
    }
    let middle = least + (most - least) / 2;
    let bit = |value: u16, bit: u8| if value > middle { bit } else { 0 };
    Colour { index: bit(red, 1) | bit(green, 2) | bit(blue, 4), bright: most > 220 }
}
