//! The limits of an organization: what they are called, in what they are counted, how they are typed.
//!
//! Pure; must not decide what the portal accepts: only what is no number at all is refused here, under
//! the same pointers that the portal uses.

use berth_types::problems::FieldError;
use berth_types::quotas::Limits;

use super::super::words::grouped;
use super::numbers::{Unit, parse_whole};

/// A limit of an organization. Those on devices of one offering stand beside these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Whole boards held at once.
    Boards,
    /// Jobs that run at once.
    RunningJobs,
    /// What running jobs cost an hour.
    Spend,
    /// Jobs that wait.
    QueuedJobs,
    /// Whole-board hours submitted in a month.
    BoardHours,
    /// Whole boards in reservations.
    ReservedBoards,
    /// Whole boards that come before all others.
    GuaranteedBoards,
    /// Its part in fair share.
    Weight,
}

impl Kind {
    /// In the order in which pages show them.
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

    /// Those that something counts against, and that an organization can ask for: shares and weights
    /// are the operator's to give.
    pub const COUNTED: [Self; 6] = [
        Self::Boards,
        Self::RunningJobs,
        Self::Spend,
        Self::QueuedJobs,
        Self::BoardHours,
        Self::ReservedBoards,
    ];

    /// Its name on the wire.
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

    /// What it is called.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Boards => "Boards at once",
            Self::RunningJobs => "Running jobs",
            Self::Spend => "Spend an hour",
            Self::QueuedJobs => "Waiting jobs",
            Self::BoardHours => "Board hours a month",
            Self::ReservedBoards => "Reserved boards",
            Self::GuaranteedBoards => "Guaranteed boards",
            Self::Weight => "Weight",
        }
    }

    /// What it means, and what happens beyond it.
    pub const fn hint(self) -> &'static str {
        match self {
            Self::Boards => "A slice or a share counts as its part of a board. A job beyond it waits.",
            Self::RunningJobs => "A job beyond it waits.",
            Self::Spend => "What running jobs cost together. A job beyond it waits.",
            Self::QueuedJobs => "A submission beyond it is refused.",
            Self::BoardHours => {
                "Each job counts at its longest until it has ended. A submission beyond it is refused."
            }
            Self::ReservedBoards => "The most at any one time. A reservation beyond it is refused.",
            Self::GuaranteedBoards => {
                "While less than this is held, jobs come before all others of their priority."
            }
            Self::Weight => {
                "For fair share: 2 counts twice as much as 1, which is what everybody has without."
            }
        }
    }

    /// In what it is counted.
    pub const fn unit(self) -> Unit {
        match self {
            Self::Boards | Self::ReservedBoards | Self::GuaranteedBoards | Self::Weight => Unit::Milli,
            Self::RunningJobs | Self::QueuedJobs | Self::BoardHours => Unit::Whole,
            Self::Spend => Unit::Money,
        }
    }

    /// What stands behind the number in a field.
    pub fn unit_text(self, currency: &str) -> String {
        match self {
            Self::Boards | Self::ReservedBoards | Self::GuaranteedBoards => "boards".to_owned(),
            Self::RunningJobs | Self::QueuedJobs => "jobs".to_owned(),
            Self::Spend => format!("{currency}/h"),
            Self::BoardHours => "hours".to_owned(),
            Self::Weight => String::new(),
        }
    }

    /// What so many are, in a sentence: `of 8` this.
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Boards => "boards at once",
            Self::RunningJobs => "running jobs",
            Self::Spend => "an hour",
            Self::QueuedJobs => "waiting jobs",
            Self::BoardHours => "board hours this month",
            Self::ReservedBoards => "reserved boards",
            Self::GuaranteedBoards => "guaranteed boards",
            Self::Weight => "weight",
        }
    }

    /// Its value among limits; nothing where it does not limit.
    pub const fn of(self, limits: &Limits) -> Option<i64> {
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

    /// Puts its value among limits.
    pub const fn put(self, limits: &mut Limits, value: Option<i64>) {
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

/// What a new limit is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// One of the limits that every organization can have.
    Kind(Kind),
    /// Devices of an offering, by its slug.
    Devices(String),
}

impl Subject {
    /// Its pointer below the limits, without the slash: the value of its option in a form.
    pub fn name(&self) -> String {
        match self {
            Self::Kind(kind) => kind.field().to_owned(),
            Self::Devices(slug) => format!("devices/{slug}"),
        }
    }

    /// What an option stands for.
    pub fn parse(name: &str) -> Option<Self> {
        match name.strip_prefix("devices/") {
            Some(slug) => Some(Self::Devices(slug.to_owned())),
            None => Kind::ALL.into_iter().find(|kind| kind.field() == name).map(Self::Kind),
        }
    }

    /// What it is called.
    pub fn label(&self) -> String {
        match self {
            Self::Kind(kind) => kind.label().to_owned(),
            Self::Devices(slug) => format!("Devices of {slug}"),
        }
    }

    /// In what it is counted.
    pub const fn unit(&self) -> Unit {
        match self {
            Self::Kind(kind) => kind.unit(),
            Self::Devices(_) => Unit::Whole,
        }
    }

    /// What stands behind the number in a field.
    pub fn unit_text(&self, currency: &str) -> String {
        match self {
            Self::Kind(kind) => kind.unit_text(currency),
            Self::Devices(_) => "devices".to_owned(),
        }
    }

    /// Its value among limits; nothing where it does not limit.
    pub fn of(&self, limits: &Limits) -> Option<i64> {
        match self {
            Self::Kind(kind) => kind.of(limits),
            Self::Devices(slug) => limits.devices.get(slug).copied(),
        }
    }

    /// Limits that say this alone.
    pub fn alone(&self, value: i64) -> Limits {
        let mut limits = Limits::default();
        match self {
            Self::Kind(kind) => kind.put(&mut limits, Some(value)),
            Self::Devices(slug) => {
                limits.devices.insert(slug.clone(), value);
            }
        }
        limits
    }
}

/// Limits in words, one phrase each: `Boards at once: 0.25`.
pub fn described(limits: &Limits, currency: &str) -> Vec<String> {
    let kinds = Kind::ALL.into_iter().filter_map(|kind| {
        Some(format!("{}: {}", kind.label(), kind.unit().text(kind.of(limits)?, currency)))
    });
    let devices = limits.devices.iter().map(|(slug, most)| {
        let label = Subject::Devices(slug.clone()).label();
        format!("{label}: {}", grouped(*most))
    });
    kinds.chain(devices).collect()
}

/// Limits from what is typed, by their kinds and by slugs of offerings; an empty field does not limit.
/// `base` is where the limits stand in the body of the request.
pub fn read(
    fields: &[(Kind, String)],
    devices: &[(String, String)],
    base: &str,
) -> Result<Limits, Vec<FieldError>> {
    let mut limits = Limits::default();
    let mut errors = Vec::new();
    for (kind, text) in fields.iter().filter(|(_, text)| !text.trim().is_empty()) {
        match kind.unit().parse(text) {
            Some(value) => kind.put(&mut limits, Some(value)),
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
            Some(most) => {
                if limits.devices.insert(slug.clone(), most).is_some() {
                    errors.push(FieldError::new(pointer, "There are two rows for it; keep one."));
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
    fn every_kind_keeps_its_own_value() {
        for kind in Kind::ALL {
            let mut limits = Limits::default();
            kind.put(&mut limits, Some(7));
            let set: Vec<Kind> = Kind::ALL.into_iter().filter(|k| k.of(&limits).is_some()).collect();
            assert_eq!(set, [kind]);
            // The name is that of the wire, which refuses unknown ones.
            let json = serde_json::json!({ kind.field(): 7 });
            assert_eq!(serde_json::from_value::<Limits>(json).unwrap(), limits);
            assert_eq!(Subject::parse(kind.field()), Some(Subject::Kind(kind)));
        }
        let devices = Subject::Devices("a30-24gb".to_owned());
        assert_eq!(Subject::parse(&devices.name()), Some(devices.clone()));
        assert_eq!(devices.of(&devices.alone(3)), Some(3));
        assert_eq!(Subject::parse("nonsense"), None);
    }

    #[test]
    fn a_form_becomes_limits() {
        let fields = [
            (Kind::Boards, "0.125".to_owned()),
            (Kind::Spend, " 12.50".to_owned()),
            (Kind::QueuedJobs, " ".to_owned()),
        ];
        let devices = [("a30-24gb".to_owned(), "2".to_owned())];
        let limits = read(&fields, &devices, "").unwrap();
        assert_eq!((limits.boards_milli, limits.spend_per_hour_micros), (Some(125), Some(12_500_000)));
        assert_eq!((limits.queued_jobs, limits.devices.get("a30-24gb")), (None, Some(&2)));
        assert_eq!(
            described(&limits, "USD"),
            ["Boards at once: 0.125", "Spend an hour: $12.50", "Devices of a30-24gb: 2"]
        );

        let fields = [(Kind::Boards, "an eighth".to_owned()), (Kind::RunningJobs, "1.5".to_owned())];
        let twice = [("o".to_owned(), "1".to_owned()), ("o".to_owned(), "2".to_owned())];
        let errors = read(&fields, &twice, "/limits").unwrap_err();
        let at: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(at, ["/limits/boards_milli", "/limits/running_jobs", "/limits/devices/o"]);
        assert_eq!(read(&[], &[("o".to_owned(), String::new())], "").unwrap_err().len(), 1);
    }
}
