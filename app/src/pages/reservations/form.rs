//! The signals of the reservation form.

use berth_types::ids::OrgId;
use berth_types::jobs::Topology;
use berth_types::offerings::Offering;
use berth_types::problems::FieldError;
use berth_types::reservations::{Every, NewQuote};
use leptos::prelude::*;

use super::capacity::{ModelRow, spread_boards};
use super::choice::Choice;
use super::draft::Draft;
use crate::pages::curl;
use crate::pages::parts::origin;
use crate::pages::text::counted;

/// The pointers of the fields with their own errors.
pub const FIELDS: &[&str] = &[
    "/offering",
    "/nodes",
    "/gpus_per_node",
    "/starts_at",
    "/ends_at",
    "/topology",
    "/repeat/every",
    "/repeat/count",
];

/// The parsed form: a request or its errors; absent without a chosen time.
pub type ParsedForm = Option<Result<NewQuote, Vec<FieldError>>>;

fn size(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// The signals of the form.
#[derive(Clone, Copy)]
pub struct Form {
    /// The time.
    pub choice: Choice,
    /// The name.
    pub name: RwSignal<String>,
    /// The parsed form.
    pub parsed: Memo<ParsedForm>,
    /// True with a priced offering. Without one the page has no form.
    pub orderable: bool,
    pub(super) offering: RwSignal<String>,
    pub(super) nodes: RwSignal<String>,
    pub(super) devices: RwSignal<String>,
    pub(super) topology: RwSignal<Topology>,
    pub(super) every: RwSignal<Option<Every>>,
    pub(super) occurrences: RwSignal<String>,
    /// The models with a priced offering of whole boards, each with the slug of that offering.
    whole_boards: StoredValue<Vec<(String, String)>>,
}

impl Form {
    /// Returns a form with the first offering with a price; a whole board comes before a slice, and a free one first.
    pub fn new(offerings: &[Offering], choice: Choice) -> Self {
        let priced = || offerings.iter().filter(|offering| offering.price.version > 0);
        let boards = || priced().filter(|offering| offering.mig_profile.is_none());
        let free = boards().find(|offering| offering.available > 0);
        let board =
            free.or_else(|| boards().find(|offering| offering.capacity > 0)).or_else(|| boards().next());
        let first = board.or_else(|| priced().next()).map(|offering| offering.slug.clone());
        let orderable = first.is_some();
        let offering = RwSignal::new(first.unwrap_or_default());
        let (nodes, devices) = (RwSignal::new("1".to_owned()), RwSignal::new("1".to_owned()));
        let topology = RwSignal::new(Topology::Any);
        let every = RwSignal::new(None::<Every>);
        let occurrences = RwSignal::new("2".to_owned());
        let parsed = Memo::new(move |_| {
            if choice.empty() {
                return None;
            }
            let (begin, end) = choice.instants();
            let draft = Draft {
                offering: offering.get(),
                nodes: nodes.get(),
                devices: devices.get(),
                begin,
                end,
                topology: topology.get(),
                every: every.get(),
                occurrences: occurrences.get(),
            };
            Some(draft.request())
        });
        let name = RwSignal::new(String::new());
        let whole_boards: Vec<(String, String)> =
            boards().map(|offering| (offering.gpu_model.clone(), offering.slug.clone())).collect();
        let whole_boards = StoredValue::new(whole_boards);
        Self {
            choice,
            name,
            parsed,
            orderable,
            offering,
            nodes,
            devices,
            topology,
            every,
            occurrences,
            whole_boards,
        }
    }

    /// Returns the slug of the priced offering of whole boards of a model.
    fn find_whole_boards(self, model: &str) -> Option<String> {
        self.whole_boards
            .with_value(|all| all.iter().find(|(known, _)| known == model).map(|(_, slug)| slug.clone()))
    }

    /// Returns the sentence about a number of whole boards that the form cannot have; `None` if it can have them.
    pub fn obstacle(self, row: &ModelRow, boards: u32) -> Option<String> {
        if self.find_whole_boards(&row.model).is_none() {
            return Some(format!("Whole boards of {} have no price.", row.model));
        }
        let is_spread = spread_boards(boards, row).is_some();
        (!is_spread).then(|| {
            let (all, nodes) =
                (counted(size(boards), "board", "boards"), counted(size(row.nodes), "node", "nodes"));
            format!(
                "{all} cannot be spread evenly over at most {nodes}. Each node of a reservation has the same number of boards: choose another number."
            )
        })
    }

    /// Sets offering, nodes and devices for a number of whole boards of a model. With an obstacle, the form stays.
    pub fn choose_boards(self, row: &ModelRow, boards: u32) {
        let spread = self.find_whole_boards(&row.model).zip(spread_boards(boards, row));
        let Some((slug, (nodes, devices))) = spread else { return };
        self.offering.set(slug);
        self.nodes.set(nodes.to_string());
        self.devices.set(devices.to_string());
    }

    /// Returns the request for a quote as a curl command.
    pub fn curl(self, org: OrgId) -> Signal<String> {
        let origin = origin();
        Signal::derive(move || match self.parsed.get() {
            Some(Ok(request)) => {
                let body = serde_json::to_string(&request).unwrap_or_default();
                curl::post(&origin.get(), &format!("/orgs/{org}/quotes"), &body)
            }
            _ => "Complete the form to get the command.".to_owned(),
        })
    }
}
