//! The spans on a board as tiles in the columns of the calendar, and each column in words.
//!
//! Pure; must not say whose a foreign span is: the portal does not tell, and neither does the page.

use berth_types::jobs::Placement;
use berth_types::reservations::{CalendarRow, Span, SpanKind};
use berth_types::time::Timestamp;

use super::clock::Frame;

/// What a tile stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// A reservation that is to come.
    Booked,
    /// A reservation that has begun.
    Held,
    /// A job that runs, up to its limit.
    Job,
    /// A start that is kept for a job that waits.
    Start,
    /// Nobody may use it.
    Maintenance,
}

/// A span as it is drawn: columns from left to right, slices of the board from top to bottom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The first of its columns.
    pub start: usize,
    /// How many columns it has.
    pub size: usize,
    /// The first of its slices.
    pub top: u32,
    /// How many slices it has.
    pub high: u32,
    /// What it stands for.
    pub look: Look,
    /// It is the organization's own.
    pub own: bool,
    /// What stands on it; empty where nothing is known.
    pub label: String,
    /// It in words, without its time.
    pub words: String,
    /// When it begins.
    pub from: Timestamp,
    /// When it is over; absent where nobody knows.
    pub until: Option<Timestamp>,
    /// The page about it; empty where there is none.
    pub path: String,
}

fn words(span: &Span) -> String {
    let named = |what: &str| match (span.own, span.name.is_empty()) {
        (true, false) => format!("{}, your {what}", span.name),
        (true, true) => format!("your {what}"),
        (false, _) => "taken".to_owned(),
    };
    match span.kind {
        SpanKind::Reservation => named("reservation"),
        SpanKind::Job => named("job"),
        SpanKind::Maintenance if span.name.is_empty() => "maintenance".to_owned(),
        SpanKind::Maintenance => format!("maintenance: {}", span.name),
        SpanKind::HeldStart => "kept for a job that waits".to_owned(),
    }
}

fn block(span: &Span, cells: u32, frame: &Frame, now: Timestamp) -> Option<Block> {
    // What nobody knows the end of is drawn as far as it is known: up to now.
    let known = span.ends_at.unwrap_or_else(|| now.max(span.starts_at).plus_seconds(1));
    let (start, size) = frame.touched(span.starts_at, known)?;
    let Placement { start: top, size: high } = span.placement.unwrap_or(Placement { start: 0, size: cells });
    let look = match span.kind {
        SpanKind::Reservation if span.starts_at > now => Look::Booked,
        SpanKind::Reservation => Look::Held,
        SpanKind::Job => Look::Job,
        SpanKind::HeldStart => Look::Start,
        SpanKind::Maintenance => Look::Maintenance,
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
        look,
        own: span.own,
        label,
        words: words(span),
        from: span.starts_at,
        until: span.ends_at,
        path,
    })
}

fn share_slices(a: &Block, b: &Block) -> bool {
    a.top < b.top.saturating_add(b.high) && b.top < a.top.saturating_add(a.high)
}

/// The tiles of a board, the earliest first. Two that only meet within a column do not overlap: the later
/// one begins a column later, unless nothing would be left of it.
pub fn blocks(row: &CalendarRow, frame: &Frame, now: Timestamp) -> Vec<Block> {
    let mut spans: Vec<&Span> = row.spans.iter().collect();
    spans.sort_by_key(|span| span.starts_at);
    let mut out: Vec<Block> = Vec::new();
    for span in spans {
        let Some(mut block) = block(span, row.cells, frame, now) else { continue };
        let taken =
            out.iter().filter(|earlier| share_slices(earlier, &block)).map(|b| b.start + b.size).max();
        let end = block.start + block.size;
        if let Some(free) = taken.filter(|free| *free > block.start && *free < end) {
            block.size = end - free;
            block.start = free;
        }
        out.push(block);
    }
    out
}

/// What is on a board in one column: `free`, `taken`, `partly taken: a, your job; taken`.
pub fn column_words(blocks: &[Block], cells: u32, column: usize) -> String {
    let here: Vec<&Block> = blocks.iter().filter(|b| (b.start..b.start + b.size).contains(&column)).collect();
    if here.is_empty() {
        return "free".to_owned();
    }
    let mut names: Vec<&str> = Vec::new();
    for block in &here {
        if !names.contains(&block.words.as_str()) {
            names.push(&block.words);
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

    /// `clock` of 22 November, `09:30`.
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
    fn slices_lie_below_each_other_and_boards_fill_their_row() {
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
        let looks: Vec<_> = all.iter().map(|b| (b.look, b.own, b.path.as_str())).collect();
        assert_eq!(
            looks,
            [(Look::Held, true, "/reservations/id_night"), (Look::Job, false, ""), (Look::Booked, false, ""),]
        );
        assert_eq!(column_words(&all, 8, 18), "partly taken: night, your reservation; taken");
        assert_eq!(column_words(&all, 8, 24), "taken");
        assert_eq!(column_words(&all, 8, 40), "free");
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
        // Nothing would be left of the last one.
        assert_eq!(places, [(18, 3), (21, 3), (24, 1), (24, 1)]);
    }

    #[test]
    fn what_has_no_known_end_is_drawn_up_to_now() {
        let all = drawn(vec![span(SpanKind::Job, "09:00", None, None, "train")], "10:45");
        assert_eq!(all.iter().map(|b| (b.start, b.size)).collect::<Vec<_>>(), [(18, 4)]);
        let later = drawn(vec![span(SpanKind::Maintenance, "11:00", Some("12:00"), None, "")], "10:45");
        assert_eq!(later.first().map(|b| b.words.as_str()), Some("maintenance"));
    }
}
