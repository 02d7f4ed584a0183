//! The schedule of a service: the windows of a week in a form, and as text.

use berth_service_types::schedule::{ScheduleWindow, WeekTime, Weekday};
use berth_types::problems::FieldError;
use leptos::prelude::*;

use super::super::launch::draft::rows::RowInput;
use super::super::launch::rows::{
    Row, RowFrame, RowKind, RowSignals, Rows, item_pointer, row_input, row_list,
};
use super::super::parts::Call;
use super::super::text::counted;
use crate::ui::*;

static WINDOWS: RowKind = RowKind {
    label: "Schedule",
    one: "Window",
    add: "Add window",
    id: "schedule",
    pointer: "/scaling/schedule",
    hint: "Each window sets a least number of replicas for a time of each week. Times have the form 08:00. All windows use the time zone above.",
    max: 100,
};

/// The input of a window.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WindowRow {
    pub from_day: Weekday,
    /// `8:00`; 24:00 is the begin of the next day.
    pub from: String,
    pub until_day: Weekday,
    pub until: String,
    pub floor: String,
}

impl RowInput for WindowRow {
    fn is_blank(&self) -> bool {
        let has_text = [&self.from, &self.until, &self.floor].into_iter().any(|text| !text.trim().is_empty());
        !has_text && self.from_day == Weekday::default() && self.until_day == Weekday::default()
    }
}

/// Returns the minute of a day as text: `08:00`.
fn minute_text(minute: u16) -> String {
    format!("{:02}:{:02}", minute / 60, minute % 60)
}

/// Parses a time of a day.
fn week_time(day: Weekday, text: &str) -> Option<WeekTime> {
    let digits = |part: &str| (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
    let (hour, minute) = text.trim().split_once(':')?;
    if !digits(hour) || !digits(minute) || minute.len() != 2 {
        return None;
    }
    match (hour.parse::<u16>().ok()?, minute.parse::<u16>().ok()?) {
        (24, 0) => Some(WeekTime { day: day.following(), minute: 0 }),
        (hour @ 0..=23, minute @ 0..=59) => Some(WeekTime { day, minute: hour * 60 + minute }),
        _ => None,
    }
}

impl WindowRow {
    /// Returns the input that makes this window.
    pub fn new(window: &ScheduleWindow) -> Self {
        Self {
            from_day: window.begin.day,
            from: minute_text(window.begin.minute),
            until_day: window.end.day,
            until: minute_text(window.end.minute),
            floor: window.floor.to_string(),
        }
    }

    /// Parses the window with this number, with a floor of at most `max` replicas.
    fn parse(&self, index: usize, max: u32, errors: &mut Vec<FieldError>) -> Option<ScheduleWindow> {
        let mut refuse = |part: &str, detail: &str| {
            errors.push(FieldError::new(format!("/scaling/schedule/{index}/{part}"), detail));
        };
        let (begin, end) = (week_time(self.from_day, &self.from), week_time(self.until_day, &self.until));
        let floor = self.floor.trim().parse::<u32>().ok().filter(|floor| (1..=max).contains(floor));
        for (part, absent) in [("begin", begin.is_none()), ("end", end.is_none())] {
            if absent {
                refuse(part, "Enter a time, such as 08:00.");
            }
        }
        if begin.is_some() && begin == end {
            refuse(
                "end",
                "Enter an end that differs from the begin. For the whole week raise Least replicas.",
            );
        }
        if floor.is_none() {
            refuse("floor", "Enter 1 to the number in Most replicas.");
        }
        Some(ScheduleWindow { begin: begin?, end: end?, floor: floor? })
    }
}

/// Parses the windows of a schedule, with floors of at most `max` replicas. Blank rows do not count.
pub fn parse_rows(rows: &[WindowRow], max: u32, errors: &mut Vec<FieldError>) -> Vec<ScheduleWindow> {
    let filled = rows.iter().filter(|row| !row.is_blank()).enumerate();
    filled.filter_map(|(index, row)| row.parse(index, max, errors)).collect()
}

/// Returns the time zone of a form: that of the schedule, or without windows that of the browser if it has a name.
pub fn form_zone(windows: usize, zone: String, browser: String) -> String {
    if windows == 0 && browser.contains('/') { browser } else { zone }
}

/// Returns the name of a day: `Monday`.
const fn day_text(day: Weekday) -> &'static str {
    match day {
        Weekday::Monday => "Monday",
        Weekday::Tuesday => "Tuesday",
        Weekday::Wednesday => "Wednesday",
        Weekday::Thursday => "Thursday",
        Weekday::Friday => "Friday",
        Weekday::Saturday => "Saturday",
        Weekday::Sunday => "Sunday",
    }
}

/// Returns a schedule as text: `Monday 08:00 to Friday 18:00 at least 3 replicas`.
pub fn schedule_text(windows: &[ScheduleWindow], time_zone: &str) -> String {
    let time = |time: WeekTime| format!("{} {}", day_text(time.day), minute_text(time.minute));
    let window = |window: &ScheduleWindow| {
        let floor = counted(usize::try_from(window.floor).unwrap_or(usize::MAX), "replica", "replicas");
        format!("{} to {} at least {floor}", time(window.begin), time(window.end))
    };
    let all: Vec<String> = windows.iter().map(window).collect();
    if all.is_empty() { String::new() } else { format!("{} ({time_zone})", all.join("; ")) }
}

/// The signals of a window.
#[derive(Clone, Copy)]
pub struct WindowSignals {
    from_day: RwSignal<Weekday>,
    from: RwSignal<String>,
    until_day: RwSignal<Weekday>,
    until: RwSignal<String>,
    floor: RwSignal<String>,
}

impl RowSignals for WindowSignals {
    type Input = WindowRow;

    fn new(row: WindowRow) -> Self {
        Self {
            from_day: RwSignal::new(row.from_day),
            from: RwSignal::new(row.from),
            until_day: RwSignal::new(row.until_day),
            until: RwSignal::new(row.until),
            floor: RwSignal::new(row.floor),
        }
    }

    fn input(self) -> WindowRow {
        WindowRow {
            from_day: self.from_day.get(),
            from: self.from.get(),
            until_day: self.until_day.get(),
            until: self.until.get(),
            floor: self.floor.get(),
        }
    }
}

fn day_select(label: &'static str, value: RwSignal<Weekday>, frame: RowFrame, part: &'static str) -> AnyView {
    let invalid = frame.invalid(part);
    let option = move |day: Weekday| {
        view! {
            <option value=day.name() prop:selected=move || value.get() == day>{day_text(day)}</option>
        }
    };
    view! {
        <select
            aria-label=label
            aria-describedby=frame.error_id()
            aria-invalid=move || invalid.get()
            on:change=move |event| value.set(Weekday::parse(&event_target_value(&event)).unwrap_or_default())
        >
            {Weekday::ALL.into_iter().map(option).collect::<Vec<_>>()}
        </select>
    }
    .into_any()
}

/// The time zone of the schedule, and its windows.
#[component]
pub fn ScheduleFields(
    rows: Rows<WindowSignals>,
    /// The time zone of the schedule.
    zone: RwSignal<String>,
    /// The request of the form.
    call: Call,
) -> impl IntoView {
    let controls = |row: Row<WindowSignals>, frame: RowFrame| {
        let WindowSignals { from_day, from, until_day, until, floor } = row.fields;
        view! {
            {day_select("From day", from_day, frame, "/begin")}
            {row_input("From", "", from, frame, "/begin")}
            {day_select("Until day", until_day, frame, "/end")}
            {row_input("Until", "", until, frame, "/end")}
            {row_input("Replicas", "", floor, frame, "/floor")}
        }
        .into_any()
    };
    view! {
        <Field
            label="Time zone"
            name="schedule-zone"
            kind="text"
            value=zone
            hint=Some("IANA name, such as Europe/Oslo. The windows follow its summer time.".to_owned())
            error=call.field("/scaling/time_zone")
        />
        {row_list(&WINDOWS, rows, call, item_pointer, controls)}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_minute_of_each_day_survives_the_form() {
        for day in Weekday::ALL {
            for minute in 0..1_440 {
                let time = WeekTime { day, minute };
                assert_eq!(week_time(day, &minute_text(minute)), Some(time));
            }
        }
        let midnight = WeekTime { day: Weekday::Monday, minute: 0 };
        assert_eq!(week_time(Weekday::Sunday, " 24:00 "), Some(midnight));
        assert_eq!(week_time(Weekday::Monday, "8:05"), Some(WeekTime { minute: 485, ..midnight }));
        for text in ["", "8", "8:5", "24:01", "25:00", "12:60", "-1:00", "+1:00", "012:00", "a:00", "8:00:00"]
        {
            assert_eq!(week_time(Weekday::Monday, text), None, "{text}");
        }
    }

    #[test]
    fn windows_come_back_and_their_errors_are_at_their_rows() {
        let time = |day, minute| WeekTime { day, minute };
        let windows = vec![
            ScheduleWindow { begin: time(Weekday::Monday, 480), end: time(Weekday::Friday, 1_080), floor: 3 },
            ScheduleWindow { begin: time(Weekday::Sunday, 0), end: time(Weekday::Monday, 1), floor: 1 },
        ];
        let mut rows: Vec<WindowRow> = windows.iter().map(WindowRow::new).collect();
        rows.insert(1, WindowRow::default());
        let mut errors = Vec::new();
        assert_eq!(parse_rows(&rows, 3, &mut errors), windows);
        assert_eq!(errors.len(), 0, "a blank row does not count");
        rows.push(WindowRow { from: "noon".to_owned(), ..WindowRow::default() });
        parse_rows(&rows, 3, &mut errors);
        let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        let at = |part: &str| format!("/scaling/schedule/2/{part}");
        assert_eq!(pointers, [at("begin"), at("end"), at("floor")]);
        assert_eq!(
            schedule_text(&windows, "Europe/Oslo"),
            "Monday 08:00 to Friday 18:00 at least 3 replicas; Sunday 00:00 to Monday 00:01 at least 1 replica \
             (Europe/Oslo)"
        );
        assert_eq!(schedule_text(&[], "UTC"), "");
    }

    #[test]
    fn a_window_has_a_floor_within_the_bounds_and_a_length() {
        let row = |from: &str, until: &str, floor: &str| WindowRow {
            from: from.to_owned(),
            until: until.to_owned(),
            floor: floor.to_owned(),
            ..WindowRow::default()
        };
        for (row, parts) in [
            (row("8:00", "9:00", "1"), Vec::new()),
            (row("8:00", "9:00", "4"), Vec::new()),
            (row("8:00", "9:00", "0"), vec!["floor"]),
            (row("8:00", "9:00", "5"), vec!["floor"]),
            (row("8:00", "9:00", ""), vec!["floor"]),
            (row("8:00", "08:00", "2"), vec!["end"]),
            (row("", "", "2"), vec!["begin", "end"]),
        ] {
            let mut errors = Vec::new();
            parse_rows(std::slice::from_ref(&row), 4, &mut errors);
            let pointers: Vec<String> = errors.into_iter().map(|error| error.pointer).collect();
            let expected: Vec<String> =
                parts.into_iter().map(|part| format!("/scaling/schedule/0/{part}")).collect();
            assert_eq!(pointers, expected, "{row:?}");
        }
    }

    #[test]
    fn a_window_with_a_chosen_day_counts() {
        assert!(WindowRow { from: " ".to_owned(), ..WindowRow::default() }.is_blank());
        for day in Weekday::ALL.into_iter().filter(|day| *day != Weekday::Monday) {
            for row in [
                WindowRow { from_day: day, ..WindowRow::default() },
                WindowRow { until_day: day, ..WindowRow::default() },
            ] {
                assert!(!row.is_blank(), "{row:?}");
            }
        }
    }

    #[test]
    fn a_form_without_windows_has_the_zone_of_the_browser() {
        for (windows, browser, zone) in [
            (0, "Asia/Tokyo", "Asia/Tokyo"),
            (0, "UTC", "Europe/Oslo"),
            (0, "local time", "Europe/Oslo"),
            (1, "Asia/Tokyo", "Europe/Oslo"),
        ] {
            assert_eq!(form_zone(windows, "Europe/Oslo".to_owned(), browser.to_owned()), zone, "{browser}");
        }
    }
}
