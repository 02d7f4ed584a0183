//! Spans of a board as tiles in the columns of the calendar, with a text for each column.
//!
//! Pure. The portal hides the owners of foreign spans.

use berth_types::jobs::Placement;
use berth_types::reservations::{CalendarRow, Span, SpanKind};
use berth_types::time::Timestamp;

use super::clock::Frame;

/// The kind of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// An upcoming reservation.
    Upcoming,
    /// An active reservation.
    Active,
    /// A running job up to its time limit.
    Job,
    /// A held start of a waiting job.
    HeldStart,
    /// Maintenance.
    Maintenance,
}

/// A tile: columns from left to right, memory slices of the board from top to bottom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The first column.
    pub start: usize,
    /// The number of columns.
    pub size: usize,
    /// The first memory slice.
    pub top: u32,
    /// The number of memory slices.
    pub high: u32,
    /// The kind.
    pub kind: BlockKind,
    /// True for a span of the organization.
    pub own: bool,
    /// The label on the tile; empty for a foreign span.
    pub label: String,
    /// The text without the time.
    pub text: String,
    /// The start.
    pub from: Timestamp,
    /// The end; absent for an unknown end.
    pub until: Option<Timestamp>,
    /// The path of its page below the address of the organization; empty without a page.
    pub path: String,
}

fn span_text(span: &Span) -> String {
    let named = |noun: &str| match (span.own, span.name.is_empty()) {
        (true, false) => format!("{}, your {noun}", span.name),
        (true, true) => format!("your {noun}"),
        (false, _) => "taken".to_owned(),
    };
    match span.kind {
        SpanKind::Reservation => named("reservation"),
        SpanKind::Job => named("job"),
        SpanKind::Maintenance if span.name.is_empty() => "maintenance".to_owned(),
        SpanKind::Maintenance => format!("maintenance: {}", span.name),
        SpanKind::HeldStart => "held for a waiting job".to_owned(),
    }
}

fn block(span: &Span, cells: u32, frame: &Frame, now: Timestamp) -> Option<Block> {
    // A span with an unknown end is drawn up to now.
    let known = span.ends_at.unwrap_or_else(|| now.max(span.starts_at).plus_seconds(1));
    let (start, size) = frame.touched(span.starts_at, known)?;
    let Placement { start: top, size: high } = span.placement.unwrap_or(Placement { start: 0, size: cells });
    let kind = match span.kind {
        SpanKind::Reservation if span.starts_at > now => BlockKind::Upcoming,
        SpanKind::Reservation => BlockKind::Active,
        SpanKind::Job => BlockKind::Job,
        SpanKind::HeldStart => BlockKind::HeldStart,
        SpanKind::Maintenance => BlockKind::Maintenance,
    };
    let path = match (span.own && !span.id.is_empty(), span.kind) {
        (true, SpanKind::Reservation) => format!("/reservations/{}", span.id),
        (true, SpanKind::Job) => format!("/jobs/{}", span.id),
        _ => String::new(),
    };
    let label =
        if span.own || span.kind == SpanKind::Maintenance { span.name.clone() } else { String::new() };
    Some(Block {
        start,
        size,
        top,
        high,
        kind,
        own: span.own,
        label,
        text: span_text(span),
        from: span.starts_at,
        until: span.ends_at,
        path,
    })
}

fn share_slices(a: &Block, b: &Block) -> bool {
    a.top < b.top.saturating_add(b.high) && b.top < a.top.saturating_add(a.high)
}

/// Returns the tiles of a board, earliest first. If two spans share only a column, the later tile starts one
/// column later, unless it would disappear.
pub fn blocks(row: &CalendarRow, frame: &Frame, now: Timestamp) -> Vec<Block> {
    let mut spans: Vec<&Span> = row.spans.iter().collect();
    spans.sort_by_key(|span| span.starts_at);
    let mut out: Vec<Block> = Vec::new();
    for span in spans {
        let Some(mut block) = block(span, row.cells, frame, now) else { continue };
        let occupied =
            out.iter().filter(|earlier| share_slices(earlier, &block)).map(|b| b.start + b.size).max();
        let end = block.start + block.size;
        if let Some(free) = occupied.filter(|free| *free > block.start && *free < end) {
            block.size = end - free;
            block.start = free;
        }
        out.push(block);
    }
    out
}

/// Returns the text of a column: `free`, `taken`, `partly taken: a, your job; taken`.
pub fn column_text(blocks: &[Block], cells: u32, column: usize) -> String {
    let here: Vec<&Block> = blocks.iter().filter(|b| (b.start..b.start + b.size).contains(&column)).collect();
    if here.is_empty() {
        return "free".to_owned();
    }
    let mut names: Vec<&str> = Vec::new();
    for block in &here {
        if !names.contains(&block.text.as_str()) {
            names.push(&block.text);
        }
    }
    let names = names.join("; ");
    let slices: u32 = here.iter().map(|block| block.high).fold(0, u32::saturating_add);
    if slices < cells { format!("partly taken: {names}") } else { names }
}

#[cfg(test)]
mod tests {
    use super::super::clock::View;
    use super::*;

    /// Returns a time of 22 November, such as `09:30`.
    fn at(clock: &str) -> Timestamp {
        format!("2026-11-22T{clock}:00Z").parse().unwrap()
    }

    fn span(kind: SpanKind, from: &str, until: Option<&str>, slices: Option<(u32, u32)>, name: &str) -> Span {
        Span {
            kind,
            starts_at: at(from),
            ends_at: until.map(at),
            placement: slices.map(|(start, size)| Placement { start, size }),
            own: !name.is_empty(),
            id: if name.is_empty() { String::new() } else { format!("id_{name}") },
            name: name.to_owned(),
        }
    }

    fn drawn(spans: Vec<Span>, now: &str) -> Vec<Block> {
        let row = CalendarRow {
            node: "node_00000000000000000000000001".parse().unwrap(),
            node_name: "quay-1".to_owned(),
            gpu_uuid: "GPU".to_owned(),
            gpu_index: 0,
            model: "H100-80GB".to_owned(),
            cells: 8,
            spans,
        };
        let day = at("00:00").millis() / 86_400_000;
        blocks(&row, &Frame::new(View::Day, day, &|_| 0), at(now))
    }

    #[test]
    fn slices_are_stacked_and_boards_fill_their_row() {
        let all = drawn(
            vec![
                span(SpanKind::Reservation, "09:00", Some("11:00"), Some((4, 4)), "night"),
                span(SpanKind::Job, "09:00", Some("10:00"), Some((0, 1)), ""),
                span(SpanKind::Reservation, "12:00", Some("13:00"), None, ""),
            ],
            "09:30",
        );
        let places: Vec<_> = all.iter().map(|b| (b.start, b.size, b.top, b.high)).collect();
        assert_eq!(places, [(18, 4, 4, 4), (18, 2, 0, 1), (24, 2, 0, 8)]);
        let kinds: Vec<_> = all.iter().map(|b| (b.kind, b.own, b.path.as_str())).collect();
        assert_eq!(
            kinds,
            [
                (BlockKind::Active, true, "/reservations/id_night"),
                (BlockKind::Job, false, ""),
                (BlockKind::Upcoming, false, ""),
            ]
        );
        assert_eq!(column_text(&all, 8, 18), "partly taken: night, your reservation; taken");
        assert_eq!(column_text(&all, 8, 24), "taken");
        assert_eq!(column_text(&all, 8, 40), "free");
    }

    #[test]
    fn neighbours_within_a_column_do_not_overlap() {
        let all = drawn(
            vec![
                span(SpanKind::Reservation, "09:00", Some("10:10"), None, "a"),
                span(SpanKind::Reservation, "10:15", Some("12:00"), None, "b"),
                span(SpanKind::Reservation, "12:05", Some("12:10"), None, "c"),
                span(SpanKind::Reservation, "12:10", Some("12:20"), None, "d"),
            ],
            "08:00",
        );
        let places: Vec<_> = all.iter().map(|b| (b.start, b.size)).collect();
        // The last tile would disappear.
        assert_eq!(places, [(18, 3), (21, 3), (24, 1), (24, 1)]);
    }

    #[test]
    fn a_span_with_an_unknown_end_is_drawn_up_to_now() {
        let all = drawn(vec![span(SpanKind::Job, "09:00", None, None, "train")], "10:45");
        assert_eq!(all.iter().map(|b| (b.start, b.size)).collect::<Vec<_>>(), [(18, 4)]);
        let later = drawn(vec![span(SpanKind::Maintenance, "11:00", Some("12:00"), None, "")], "10:45");
        assert_eq!(later.first().map(|b| b.text.as_str()), Some("maintenance"));
    }
}
