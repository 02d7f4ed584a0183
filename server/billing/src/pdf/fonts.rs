//! The fonts of PDF files: their glyphs and widths. A character without a glyph is a box.
//!
//! A glyph stands for one character: scripts with joined letters or from right to left are written letter by
//! letter from left to right.

use krilla::text::{Font, GlyphId, KrillaGlyph};
use skrifa::charmap::Charmap;
use skrifa::instance::{LocationRef, Size};
use skrifa::metrics::GlyphMetrics;
use skrifa::{FontRef, MetadataProvider};

use super::wrap::{Weight, Widths};

/// DejaVu Sans, with Latin, Greek and Cyrillic letters and the signs of currencies.
const REGULAR: &[u8] = include_bytes!("../../fonts/DejaVuSansCondensed.ttf");
const BOLD: &[u8] = include_bytes!("../../fonts/DejaVuSansCondensed-Bold.ttf");

struct Face {
    font: Font,
    charmap: Charmap<'static>,
    metrics: GlyphMetrics<'static>,
}

impl Face {
    fn new(file: &'static [u8]) -> Option<Self> {
        let table = FontRef::new(file).ok()?;
        Some(Self {
            font: Font::new(file.into(), 0)?,
            charmap: table.charmap(),
            metrics: table.glyph_metrics(Size::unscaled(), LocationRef::default()),
        })
    }

    fn glyph(&self, c: char) -> skrifa::GlyphId {
        self.charmap.map(c).unwrap_or(skrifa::GlyphId::NOTDEF)
    }

    fn em(&self, glyph: skrifa::GlyphId) -> f32 {
        self.metrics.advance_width(glyph).unwrap_or(0.0) / self.font.units_per_em()
    }
}

/// The fonts of a file.
pub(super) struct Fonts {
    regular: Face,
    bold: Face,
}

impl Fonts {
    /// Reads the fonts of the program.
    pub(super) fn new() -> Option<Self> {
        Some(Self { regular: Face::new(REGULAR)?, bold: Face::new(BOLD)? })
    }

    fn face(&self, weight: Weight) -> &Face {
        match weight {
            Weight::Regular => &self.regular,
            Weight::Bold => &self.bold,
        }
    }

    pub(super) fn font(&self, weight: Weight) -> Font {
        self.face(weight).font.clone()
    }

    /// Returns the glyphs of a text, each with its characters.
    pub(super) fn glyphs(&self, text: &str, weight: Weight) -> Vec<KrillaGlyph> {
        let face = self.face(weight);
        let glyph = |(start, c): (usize, char)| {
            let glyph = face.glyph(c);
            let id = GlyphId::new(glyph.to_u32());
            KrillaGlyph::new(id, face.em(glyph), 0.0, 0.0, 0.0, start..start + c.len_utf8(), None)
        };
        text.char_indices().map(glyph).collect()
    }
}

impl Widths for Fonts {
    fn em(&self, c: char, weight: Weight) -> f32 {
        let face = self.face(weight);
        face.em(face.glyph(c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fonts_have_the_letters_of_europe_and_the_signs_of_currencies() {
        let fonts = Fonts::new().unwrap();
        for weight in [Weight::Regular, Weight::Bold] {
            for c in "AzßÅøčőşțŁ ΑωΏ АяЇў 0123456789 $€£¥₹₺₽ −–— ’“”…".chars()
            {
                assert_ne!(fonts.face(weight).glyph(c), skrifa::GlyphId::NOTDEF, "{c}");
            }
            assert_eq!(fonts.face(weight).glyph('株'), skrifa::GlyphId::NOTDEF);
            assert!(fonts.em('株', weight) > 0.0);
        }
        // The digits have one width, so that the amounts of a column are aligned.
        let widths: Vec<f32> = ('0'..='9').map(|c| fonts.em(c, Weight::Regular)).collect();
        assert!(widths.iter().all(|width| Some(width) == widths.first()), "{widths:?}");
    }
}
