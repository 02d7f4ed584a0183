//! Limits of an organization: labels, units and parsing.
//!
//! Pure. Checks only the format of numbers, with the same error pointers as the portal.

use berth_types::problems::FieldError;
use berth_types::quotas::Limits;

use super::super::text::grouped;
use super::numbers::{Unit, parse_whole};

/// The kind of a limit, other than a limit on devices of one offering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// Boards of running jobs.
    Boards,
    /// Running jobs.
    RunningJobs,
    /// The cost of all running jobs per hour.
    Spend,
    /// Queued jobs.
    QueuedJobs,
    /// Whole-board hours of the jobs submitted in a month.
    BoardHours,
    /// Simultaneously reserved boards.
    ReservedBoards,
    /// Guaranteed boards.
    GuaranteedBoards,
    /// The weight for fair share.
    Weight,
}

impl LimitKind {
    /// All kinds in the order of the pages.
    pub const ALL: [Self; 8] = [
        Self::Boards,
        Self::RunningJobs,
        Self::Spend,
        Self::QueuedJobs,
        Self::BoardHours,
        Self::ReservedBoards,
        Self::GuaranteedBoards,
        Self::Weight,
    ];

    /// The kinds with a use, which an organization can request. Only the operator sets the others.
    pub const COUNTED: [Self; 6] = [
        Self::Boards,
        Self::RunningJobs,
        Self::Spend,
        Self::QueuedJobs,
        Self::BoardHours,
        Self::ReservedBoards,
    ];

    /// Returns the field of the API.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Boards => "boards_milli",
            Self::RunningJobs => "running_jobs",
            Self::Spend => "spend_per_hour_micros",
            Self::QueuedJobs => "queued_jobs",
            Self::BoardHours => "board_hours_per_month",
            Self::ReservedBoards => "reserved_boards_milli",
            Self::GuaranteedBoards => "guaranteed_boards_milli",
            Self::Weight => "weight_milli",
        }
    }

    /// Returns the label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Boards => "Boards at once",
            Self::RunningJobs => "Running jobs",
            Self::Spend => "Cost per hour",
            Self::QueuedJobs => "Queued jobs",
            Self::BoardHours => "Board-hours per month",
            Self::ReservedBoards => "Reserved boards",
            Self::GuaranteedBoards => "Guaranteed capacity",
            Self::Weight => "Fair-share weight",
        }
    }

    /// Returns the meaning and the effect of the limit.
    pub const fn hint(self) -> &'static str {
        match self {
            Self::Boards => {
                "Boards in use; a slice or share counts as its part of a board. A job beyond the limit waits."
            }
            Self::RunningJobs => "A job beyond the limit waits.",
            Self::Spend => "Total of all running jobs. A job beyond the limit waits.",
            Self::QueuedJobs => "A submission beyond the limit is refused.",
            Self::BoardHours => {
                "A job counts with its time limit until it ends. A submission beyond the limit is refused."
            }
            Self::ReservedBoards => {
                "Simultaneously reserved boards. A reservation beyond the limit is refused."
            }
            Self::GuaranteedBoards => {
                "Scheduled first among jobs of the same priority, until this capacity is reached."
            }
            Self::Weight => "Order among organizations: past use divided by the weight. The default is 1.",
        }
    }

    /// Returns the unit of the value.
    pub const fn unit(self) -> Unit {
        match self {
            Self::Boards | Self::ReservedBoards | Self::GuaranteedBoards | Self::Weight => Unit::Milli,
            Self::RunningJobs | Self::QueuedJobs | Self::BoardHours => Unit::Whole,
            Self::Spend => Unit::Money,
        }
    }

    /// Returns the unit behind a number field.
    pub fn unit_text(self, currency: &str) -> String {
        match self {
            Self::Boards | Self::ReservedBoards | Self::GuaranteedBoards => "boards".to_owned(),
            Self::RunningJobs | Self::QueuedJobs => "jobs".to_owned(),
            Self::Spend => format!("{currency}/h"),
            Self::BoardHours => "hours".to_owned(),
            Self::Weight => String::new(),
        }
    }

    /// Returns the noun after a number: `of 8` running jobs.
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Boards => "boards at once",
            Self::RunningJobs => "running jobs",
            Self::Spend => "cost per hour",
            Self::QueuedJobs => "queued jobs",
            Self::BoardHours => "board-hours this month",
            Self::ReservedBoards => "reserved boards",
            Self::GuaranteedBoards => "boards of guaranteed capacity",
            Self::Weight => "weight",
        }
    }

    /// Returns its value of these limits; nothing without a limit.
    pub const fn value(self, limits: &Limits) -> Option<i64> {
        match self {
            Self::Boards => limits.boards_milli,
            Self::RunningJobs => limits.running_jobs,
            Self::Spend => limits.spend_per_hour_micros,
            Self::QueuedJobs => limits.queued_jobs,
            Self::BoardHours => limits.board_hours_per_month,
            Self::ReservedBoards => limits.reserved_boards_milli,
            Self::GuaranteedBoards => limits.guaranteed_boards_milli,
            Self::Weight => limits.weight_milli,
        }
    }

    /// Sets its value of these limits.
    pub const fn set_value(self, limits: &mut Limits, value: Option<i64>) {
        match self {
            Self::Boards => limits.boards_milli = value,
            Self::RunningJobs => limits.running_jobs = value,
            Self::Spend => limits.spend_per_hour_micros = value,
            Self::QueuedJobs => limits.queued_jobs = value,
            Self::BoardHours => limits.board_hours_per_month = value,
            Self::ReservedBoards => limits.reserved_boards_milli = value,
            Self::GuaranteedBoards => limits.guaranteed_boards_milli = value,
            Self::Weight => limits.weight_milli = value,
        }
    }
}

/// The subject of a requested limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A limit of this kind.
    Kind(LimitKind),
    /// Devices of the offering with this slug.
    Devices(String),
}

impl Subject {
    /// Returns the pointer below the limits without its slash, as the value of an option.
    pub fn name(&self) -> String {
        match self {
            Self::Kind(kind) => kind.field().to_owned(),
            Self::Devices(slug) => format!("devices/{slug}"),
        }
    }

    /// Finds the subject of an option.
    pub fn parse(name: &str) -> Option<Self> {
        match name.strip_prefix("devices/") {
            Some(slug) => Some(Self::Devices(slug.to_owned())),
            None => LimitKind::ALL.into_iter().find(|kind| kind.field() == name).map(Self::Kind),
        }
    }

    /// Returns the label.
    pub fn label(&self) -> String {
        match self {
            Self::Kind(kind) => kind.label().to_owned(),
            Self::Devices(slug) => format!("Devices of {slug}"),
        }
    }

    /// Returns the unit of the value.
    pub const fn unit(&self) -> Unit {
        match self {
            Self::Kind(kind) => kind.unit(),
            Self::Devices(_) => Unit::Whole,
        }
    }

    /// Returns the unit behind a number field.
    pub fn unit_text(&self, currency: &str) -> String {
        match self {
            Self::Kind(kind) => kind.unit_text(currency),
            Self::Devices(_) => "devices".to_owned(),
        }
    }

    /// Returns its value of these limits; nothing without a limit.
    pub fn value(&self, limits: &Limits) -> Option<i64> {
        match self {
            Self::Kind(kind) => kind.value(limits),
            Self::Devices(slug) => limits.devices.get(slug).copied(),
        }
    }

    /// Returns limits with only this value.
    pub fn only(&self, value: i64) -> Limits {
        let mut limits = Limits::default();
        match self {
            Self::Kind(kind) => kind.set_value(&mut limits, Some(value)),
            Self::Devices(slug) => {
                limits.devices.insert(slug.clone(), value);
            }
        }
        limits
    }
}

/// Lists limits as text: `Boards at once: 0.25`.
pub fn limits_text(limits: &Limits, currency: &str) -> Vec<String> {
    let kinds = LimitKind::ALL.into_iter().filter_map(|kind| {
        Some(format!("{}: {}", kind.label(), kind.unit().text(kind.value(limits)?, currency)))
    });
    let devices = limits.devices.iter().map(|(slug, maximum)| {
        let label = Subject::Devices(slug.clone()).label();
        format!("{label}: {}", grouped(*maximum))
    });
    kinds.chain(devices).collect()
}

/// Parses limits from input by kind and by slug of offering; an empty field is no limit. `base` is the pointer
/// of the limits in the body of the request.
///
/// # Errors
/// One error for each invalid field.
pub fn parse_limits(
    fields: &[(LimitKind, String)],
    devices: &[(String, String)],
    base: &str,
) -> Result<Limits, Vec<FieldError>> {
    let mut limits = Limits::default();
    let mut errors = Vec::new();
    for (kind, text) in fields.iter().filter(|(_, text)| !text.trim().is_empty()) {
        match kind.unit().parse(text) {
            Some(value) => kind.set_value(&mut limits, Some(value)),
            None => errors.push(FieldError::new(format!("{base}/{}", kind.field()), kind.unit().example())),
        }
    }
    for (slug, text) in devices {
        let pointer = format!("{base}/devices/{slug}");
        match parse_whole(text) {
            None => {
                let detail = format!("{} Remove the row for no limit.", Unit::Whole.example());
                errors.push(FieldError::new(pointer, detail));
            }
            Some(maximum) => {
                if limits.devices.insert(slug.clone(), maximum).is_some() {
                    errors.push(FieldError::new(pointer, "Duplicate offering: remove one row."));
                }
            }
        }
    }
    if errors.is_empty() { Ok(limits) } else { Err(errors) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_value() {
        for kind in LimitKind::ALL {
            let mut limits = Limits::default();
            kind.set_value(&mut limits, Some(7));
            let set: Vec<LimitKind> =
                LimitKind::ALL.into_iter().filter(|k| k.value(&limits).is_some()).collect();
            assert_eq!(set, [kind]);
            // The API refuses unknown fields.
            let json = serde_json::json!({ kind.field(): 7 });
            assert_eq!(serde_json::from_value::<Limits>(json).unwrap(), limits);
            assert_eq!(Subject::parse(kind.field()), Some(Subject::Kind(kind)));
        }
        let devices = Subject::Devices("a30-24gb".to_owned());
        assert_eq!(Subject::parse(&devices.name()), Some(devices.clone()));
        assert_eq!(devices.value(&devices.only(3)), Some(3));
        assert_eq!(Subject::parse("nonsense"), None);
    }

    #[test]
    fn a_form_becomes_limits() {
        let fields = [
            (LimitKind::Boards, "0.125".to_owned()),
            (LimitKind::Spend, " 12.50".to_owned()),
            (LimitKind::QueuedJobs, " ".to_owned()),
        ];
        let devices = [("a30-24gb".to_owned(), "2".to_owned())];
        let limits = parse_limits(&fields, &devices, "").unwrap();
        assert_eq!((limits.boards_milli, limits.spend_per_hour_micros), (Some(125), Some(12_500_000)));
        assert_eq!((limits.queued_jobs, limits.devices.get("a30-24gb")), (None, Some(&2)));
        assert_eq!(
            limits_text(&limits, "USD"),
            ["Boards at once: 0.125", "Cost per hour: $12.50", "Devices of a30-24gb: 2"]
        );

        let fields =
            [(LimitKind::Boards, "an eighth".to_owned()), (LimitKind::RunningJobs, "1.5".to_owned())];
        let twice = [("o".to_owned(), "1".to_owned()), ("o".to_owned(), "2".to_owned())];
        let errors = parse_limits(&fields, &twice, "/limits").unwrap_err();
        let at: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(at, ["/limits/boards_milli", "/limits/running_jobs", "/limits/devices/o"]);
        assert_eq!(parse_limits(&[], &[("o".to_owned(), String::new())], "").unwrap_err().len(), 1);
    }
}
