//! The capacity of a board model over time: the boards that are free, in use and unavailable.

use berth_types::capacity::CapacityStep;
use berth_types::time::Timestamp;

/// The kind of a use of a board. The last kind of the uses at one time decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BoardUse {
    /// A reservation or a job of the caller's organization.
    Own,
    /// A reservation or a job of another organization.
    Others,
    /// Maintenance, or a board that takes no new work.
    Unavailable,
}

/// A use of a board of the model, or of a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsedSpan {
    /// The number of the board among the boards of the model, from 0.
    pub board: usize,
    pub kind: BoardUse,
    pub from: Timestamp,
    /// The span is half open; `None` if its end is unknown.
    pub until: Option<Timestamp>,
}

/// The number of present uses of a board, by kind.
#[derive(Debug, Clone, Copy, Default)]
struct Uses {
    own: u32,
    others: u32,
    unavailable: u32,
}

impl Uses {
    const fn count(&mut self, kind: BoardUse) -> &mut u32 {
        match kind {
            BoardUse::Own => &mut self.own,
            BoardUse::Others => &mut self.others,
            BoardUse::Unavailable => &mut self.unavailable,
        }
    }

    /// The deciding kind; `None` for a free board.
    const fn kind(self) -> Option<BoardUse> {
        if self.unavailable > 0 {
            Some(BoardUse::Unavailable)
        } else if self.others > 0 {
            Some(BoardUse::Others)
        } else if self.own > 0 {
            Some(BoardUse::Own)
        } else {
            None
        }
    }
}

const fn number(step: &mut CapacityStep, kind: Option<BoardUse>) -> &mut u32 {
    match kind {
        None => &mut step.free,
        Some(BoardUse::Own) => &mut step.own,
        Some(BoardUse::Others) => &mut step.others,
        Some(BoardUse::Unavailable) => &mut step.unavailable,
    }
}

/// A begin or an end of a use.
#[derive(Debug, Clone, Copy)]
struct Change {
    at: Timestamp,
    board: usize,
    kind: BoardUse,
    begins: bool,
}

/// The changes of the numbers of `boards` boards in a window, the first at the begin of the window. Empty for an
/// empty window. The time is that of sorting the spans: 10,000 spans take some milliseconds.
pub fn capacity_steps(
    boards: usize,
    spans: &[UsedSpan],
    (from, until): (Timestamp, Timestamp),
) -> Vec<CapacityStep> {
    if from >= until {
        return Vec::new();
    }
    let mut changes: Vec<Change> = Vec::with_capacity(spans.len().saturating_mul(2));
    for span in spans.iter().filter(|span| span.board < boards) {
        let (begin, end) = (span.from.max(from), span.until.unwrap_or(until).min(until));
        if begin < end {
            let change =
                |at: Timestamp, begins: bool| Change { at, board: span.board, kind: span.kind, begins };
            changes.extend([change(begin, true), change(end, false)]);
        }
    }
    changes.sort_unstable_by_key(|change| change.at);
    let all = u32::try_from(boards).unwrap_or(u32::MAX);
    let mut uses = vec![Uses::default(); boards];
    let mut step = CapacityStep { at: from, free: all, ..CapacityStep::default() };
    let mut steps: Vec<CapacityStep> = Vec::new();
    let mut changes = changes.into_iter().peekable();
    let mut at = from;
    loop {
        while let Some(change) = changes.next_if(|change| change.at <= at) {
            let Some(uses) = uses.get_mut(change.board) else { continue };
            let before = uses.kind();
            let count = uses.count(change.kind);
            *count = if change.begins { count.saturating_add(1) } else { count.saturating_sub(1) };
            let left = number(&mut step, before);
            *left = left.saturating_sub(1);
            let entered = number(&mut step, uses.kind());
            *entered = entered.saturating_add(1);
        }
        step.at = at;
        if steps.last().is_none_or(|last| !last.has_numbers_of(&step)) {
            steps.push(step);
        }
        match changes.peek() {
            Some(next) if next.at < until => at = next.at,
            _ => return steps,
        }
    }
}

/// Reduces steps until `until` to at most `most`. Each is then an equal part of the time, with the numbers of the
/// moment with the fewest free boards. Returns `None` if the steps are few enough.
pub fn coarse_steps(steps: &[CapacityStep], until: Timestamp, most: usize) -> Option<Vec<CapacityStep>> {
    let from = steps.first()?.at;
    if steps.len() <= most {
        return None;
    }
    let parts = i64::try_from(most).unwrap_or(i64::MAX).max(1);
    let length = i128::from(until.micros()) - i128::from(from.micros());
    let edge = |part: i64| {
        let micros = i128::from(from.micros()) + length * i128::from(part) / i128::from(parts);
        Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    };
    let mut out: Vec<CapacityStep> = Vec::new();
    let mut rest = steps;
    for part in 0..parts {
        let (begin, end) = (edge(part), edge(part.saturating_add(1)));
        if begin >= end {
            continue;
        }
        // The step at the begin of the part started before it or at it.
        let passed = rest.partition_point(|step| step.at <= begin).saturating_sub(1);
        rest = rest.get(passed..).unwrap_or_default();
        let least = rest.iter().take_while(|step| step.at < end).min_by_key(|step| step.free);
        let Some(least) = least else { continue };
        let step = CapacityStep { at: begin, ..*least };
        if out.last().is_none_or(|last| !last.has_numbers_of(&step)) {
            out.push(step);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Minutes of the window of the enumerated cases.
    const MINUTES: i64 = 4;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_micros(minute * 60_000_000)
    }

    fn span(board: usize, kind: BoardUse, from: i64, until: Option<i64>) -> UsedSpan {
        UsedSpan { board, kind, from: at(from), until: until.map(at) }
    }

    /// The numbers of a minute: free, own, others, unavailable. Looks at each board and span by itself.
    fn oracle(boards: usize, spans: &[UsedSpan], minute: i64) -> [u32; 4] {
        let mut numbers = [0; 4];
        for board in 0..boards {
            let here = |kind: BoardUse| {
                spans.iter().any(|span| {
                    let begun = span.from.micros() <= at(minute).micros();
                    let open = span.until.is_none_or(|until| until.micros() > at(minute).micros());
                    span.board == board && span.kind == kind && begun && open
                })
            };
            let kind = if here(BoardUse::Unavailable) {
                3
            } else if here(BoardUse::Others) {
                2
            } else if here(BoardUse::Own) {
                1
            } else {
                0
            };
            numbers[kind] += 1;
        }
        numbers
    }

    fn numbers(step: &CapacityStep) -> [u32; 4] {
        [step.free, step.own, step.others, step.unavailable]
    }

    /// Compares the steps with the oracle for each minute of the window from 0 to 4.
    fn check(boards: usize, spans: &[UsedSpan]) {
        let steps = capacity_steps(boards, spans, (at(0), at(MINUTES)));
        assert_eq!(steps[0].at, at(0));
        assert!(steps.windows(2).all(|two| two[0].at < two[1].at && !two[0].has_numbers_of(&two[1])));
        for minute in 0..MINUTES {
            let step = steps.iter().rfind(|step| step.at <= at(minute)).unwrap();
            assert_eq!(numbers(step), oracle(boards, spans, minute), "minute {minute} of {spans:?}");
        }
    }

    /// All spans of a board: each kind, from before the window until after it, with empty spans and unknown ends.
    fn spans_of(board: usize) -> Vec<UsedSpan> {
        let mut all = Vec::new();
        for kind in [BoardUse::Own, BoardUse::Others, BoardUse::Unavailable] {
            for from in -1..=MINUTES {
                all.push(span(board, kind, from, None));
                all.extend((from..=MINUTES + 1).map(|until| span(board, kind, from, Some(until))));
            }
        }
        all
    }

    #[test]
    fn all_pairs_of_spans_agree_with_the_minutes() {
        // Two spans of one board touch, nest, overlap, are equal or have a gap; or they are on two boards.
        for boards in [2, 3] {
            check(boards, &[]);
            for first in spans_of(0) {
                for second in spans_of(0).into_iter().chain(spans_of(1)) {
                    check(boards, &[first, second]);
                }
            }
        }
    }

    #[test]
    fn three_spans_on_one_board_agree_with_the_minutes() {
        use BoardUse::{Others, Own, Unavailable};
        let few = |kind: BoardUse| {
            let times = (0..=2).flat_map(|from| (from + 1..=3).map(move |until| (from, until)));
            times.map(move |(from, until)| span(0, kind, from, Some(until)))
        };
        for own in few(Own) {
            for others in few(Others) {
                for unavailable in few(Unavailable) {
                    check(2, &[own, others, unavailable]);
                    check(2, &[unavailable, UsedSpan { board: 1, ..others }, own, own]);
                }
            }
        }
    }

    #[test]
    fn an_empty_window_and_unknown_boards_have_no_steps() {
        let foreign = [span(2, BoardUse::Own, 0, None)];
        assert!(capacity_steps(2, &foreign, (at(3), at(3))).is_empty());
        let steps = capacity_steps(2, &foreign, (at(0), at(3)));
        assert_eq!(steps.iter().map(numbers).collect::<Vec<_>>(), [[2_u32, 0, 0, 0]]);
        let none = capacity_steps(0, &[], (at(0), at(3)));
        assert_eq!(none.iter().map(numbers).collect::<Vec<_>>(), [[0_u32; 4]]);
    }

    #[test]
    fn coarse_steps_have_the_fewest_free_boards_of_their_part() {
        let until = at(60);
        for spans in 1..30_i64 {
            // Uses of one minute with gaps of one minute, on alternating boards.
            let uses: Vec<UsedSpan> = (0..spans)
                .map(|n| {
                    span(usize::try_from(n % 2).unwrap(), BoardUse::Others, 2 * n, Some(2 * n + 1 + n % 2))
                })
                .collect();
            let exact = capacity_steps(2, &uses, (at(0), until));
            for most in 1..=12_usize {
                let Some(coarse) = coarse_steps(&exact, until, most) else {
                    assert!(exact.len() <= most);
                    continue;
                };
                assert!(exact.len() > most && coarse.len() <= most, "{most}: {coarse:?}");
                let parts = i64::try_from(most).unwrap();
                for part in 0..parts {
                    let edge = |part: i64| at(60).micros() * part / parts;
                    let inside = (0..60).filter(|minute| {
                        at(minute + 1).micros() > edge(part) && at(*minute).micros() < edge(part + 1)
                    });
                    let fewest = inside.map(|minute| oracle(2, &uses, minute)[0]).min().unwrap();
                    let begin = Timestamp::from_micros(edge(part));
                    let step = coarse.iter().rfind(|step| step.at <= begin).unwrap();
                    assert_eq!(step.free, fewest, "part {part} of {most}, {spans} spans");
                }
            }
        }
        assert_eq!(coarse_steps(&[], until, 1), None);
    }
}
