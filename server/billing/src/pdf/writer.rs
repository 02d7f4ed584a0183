//! The pages of a document as a PDF file, with a tree of tags for screen readers.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use berth_types::time::Timestamp;
use krilla::Document;
use krilla::color::rgb;
use krilla::error::KrillaResult;
use krilla::geom::{PathBuilder, Point, Rect};
use krilla::metadata::{DateTime, Metadata};
use krilla::num::NormalizedF32;
use krilla::page::PageSettings;
use krilla::paint::{Fill, FillRule};
use krilla::surface::Surface;
use krilla::tagging::{
    Artifact, ArtifactType, ContentTag, Identifier, Node, SpanTag, TableHeaderScope, Tag, TagGroup, TagTree,
};

use super::compose::Layout;
use super::flow::{PAGE_HEIGHT_PT, PAGE_WIDTH_PT, Place, PlacedText, Rule, Section};
use super::fonts::Fonts;

const LANGUAGE: &str = "en";
/// The shades of grey of quiet texts and of rules.
const QUIET: u8 = 90;
const RULE: u8 = 160;
const RULE_PT: f32 = 0.5;

/// The tagged texts of a document in the order of reading.
type Leaves = BTreeMap<Place, Vec<Identifier>>;

fn fill(grey: u8) -> Fill {
    Fill {
        paint: rgb::Color::new(grey, grey, grey).into(),
        opacity: NormalizedF32::ONE,
        rule: FillRule::NonZero,
    }
}

/// Returns a time as the format has it.
fn date_time(at: Timestamp) -> Option<DateTime> {
    let text = at.to_string();
    let part = |from: usize| text.get(from..from + 2)?.parse::<u8>().ok();
    let date = DateTime::new(text.get(..4)?.parse().ok()?).month(part(5)?).day(part(8)?);
    Some(date.hour(part(11)?).minute(part(14)?).second(part(17)?).utc_offset_hour(0).utc_offset_minute(0))
}

/// Returns the title, the author and the date of a file.
pub(super) fn metadata(title: &str, issuer: &str, created_at: Option<Timestamp>) -> Metadata {
    let metadata = Metadata::new()
        .title(title.to_owned())
        .authors(vec![issuer.to_owned()])
        .creator("Berth".to_owned())
        .language(LANGUAGE.to_owned());
    match created_at.and_then(date_time) {
        Some(date) => metadata.creation_date(date),
        None => metadata,
    }
}

fn draw_rule(surface: &mut Surface<'_>, rule: Rule) {
    let mut builder = PathBuilder::new();
    let Some(rect) = Rect::from_xywh(rule.x_pt, rule.y_pt, rule.width_pt, RULE_PT) else { return };
    builder.push_rect(rect);
    let Some(path) = builder.finish() else { return };
    surface.start_tagged(ContentTag::Artifact(Artifact::with_kind(ArtifactType::Layout)));
    surface.set_fill(Some(fill(RULE)));
    surface.draw_path(&path);
    surface.end_tagged();
}

fn draw_text(surface: &mut Surface<'_>, text: &PlacedText, fonts: &Fonts) -> Identifier {
    let style = text.style;
    let tag = match text.place {
        Some(_) => ContentTag::Span(SpanTag::empty()),
        None => ContentTag::Artifact(Artifact::with_kind(ArtifactType::PaginationOther)),
    };
    let leaf = surface.start_tagged(tag);
    surface.set_fill(Some(fill(if style.is_quiet { QUIET } else { 0 })));
    let glyphs = fonts.glyphs(&text.text, style.weight);
    let start = Point::from_xy(text.x_pt, text.y_pt);
    surface.draw_glyphs(start, &glyphs, fonts.font(style.weight), &text.text, style.size_pt, false);
    surface.end_tagged();
    leaf
}

/// Returns the cells of a row.
fn row_group(row: Vec<(usize, Vec<Identifier>)>, is_head: bool) -> TagGroup {
    let cell = |(column, leaves): (usize, Vec<Identifier>)| {
        let children = leaves.into_iter().map(Node::Leaf).collect();
        Node::Group(match column {
            _ if is_head => TagGroup::with_children(Tag::TH(TableHeaderScope::Column), children),
            0 => TagGroup::with_children(Tag::TH(TableHeaderScope::Row), children),
            _ => TagGroup::with_children(Tag::TD, children),
        })
    };
    TagGroup::with_children(Tag::TR, row.into_iter().map(cell).collect())
}

/// Returns the table of a section.
fn table_group(leaves: Leaves, has_head: bool) -> TagGroup {
    let mut rows: BTreeMap<usize, Vec<(usize, Vec<Identifier>)>> = BTreeMap::new();
    for (place, leaves) in leaves {
        rows.entry(place.row).or_default().push((place.column, leaves));
    }
    let mut head = TagGroup::new(Tag::THead);
    let mut body = TagGroup::new(Tag::TBody);
    for (number, row) in rows {
        let is_head = has_head && number == 0;
        let part = if is_head { &mut head } else { &mut body };
        part.push(row_group(row, is_head));
    }
    let mut table = TagGroup::new(Tag::Table);
    if has_head {
        table.push(head);
    }
    table.push(body);
    table
}

fn tag_tree(sections: &[Section], mut leaves: Leaves) -> TagTree {
    let mut tree = TagTree::new().with_lang(Some(LANGUAGE.to_owned()));
    for (number, section) in sections.iter().enumerate() {
        let later = leaves.split_off(&Place { section: number + 1, row: 0, column: 0 });
        let of_section = std::mem::replace(&mut leaves, later);
        if of_section.is_empty() {
            continue;
        }
        if let Section::Table { has_head } = section {
            tree.push(table_group(of_section, *has_head));
            continue;
        }
        for leaves in of_section.into_values() {
            let children = leaves.into_iter().map(Node::Leaf).collect();
            tree.push(match section {
                Section::Title => TagGroup::with_children(Tag::Hn(NonZeroU16::MIN, None), children),
                Section::Paragraphs | Section::Table { .. } => TagGroup::with_children(Tag::P, children),
            });
        }
    }
    tree
}

/// Writes the pages.
///
/// # Errors
/// A font cannot be embedded, or a limit of the format is exceeded.
pub(super) fn write(layout: &Layout, fonts: &Fonts, metadata: Metadata) -> KrillaResult<Vec<u8>> {
    let settings = PageSettings::from_wh(PAGE_WIDTH_PT, PAGE_HEIGHT_PT).unwrap_or_default();
    let mut document = Document::new();
    let mut leaves = Leaves::new();
    for layout_page in &layout.pages {
        let mut page = document.start_page_with(settings.clone());
        let mut surface = page.surface();
        for rule in &layout_page.rules {
            draw_rule(&mut surface, *rule);
        }
        for text in &layout_page.texts {
            let leaf = draw_text(&mut surface, text, fonts);
            if let Some(place) = text.place {
                leaves.entry(place).or_default().push(leaf);
            }
        }
        surface.finish();
        page.finish();
    }
    document.set_tag_tree(tag_tree(&layout.sections, leaves));
    document.set_metadata(metadata);
    document.finish()
}
