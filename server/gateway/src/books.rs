//! The books of a gateway: its credit, and the use that the portal does not know yet.
//!
//! Each change is a record of the journal, so a gateway that ends at any moment comes back with the same books. A
//! report to the portal has its number and its rows for ever, so that a repeated one is the same.

use std::collections::BTreeMap;

use berth_autoscaling::GatewayId;
use berth_autoscaling::credit::{Borrower, BorrowerTerms, Entry};
use berth_serving::reports::{BUCKETS, MAX_FAULTS, MAX_USES, ServiceFaults, Use};
use berth_types::ids::{InferenceKeyId, RevisionId, ServiceId};
use serde::{Deserialize, Serialize};

/// The worst cases of the smallest block.
pub const LEAST_BLOCK: u32 = 16;
/// The size of blocks, and the next block at room for a quarter.
const TERMS: BorrowerTerms = BorrowerTerms {
    requests_a_block: LEAST_BLOCK,
    low_requests: LEAST_BLOCK / 4,
    most_requests_a_block: 4_096,
};

/// A record of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    Credit(Entry),
    Used(Used),
    Failed(Failed),
    /// The first rows of use are in the report with this number.
    Reported {
        number: u64,
    },
    /// The portal has counted the report.
    Counted,
}

/// The use of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    pub service: ServiceId,
    pub revision: RevisionId,
    pub key: Option<InferenceKeyId>,
    pub is_error: bool,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub token_nanos: u64,
    /// The bucket of the time to the first byte; absent for an error.
    pub bucket: Option<usize>,
}

/// A request that failed without a fault of its caller or of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    pub service: ServiceId,
    pub kind: FaultKind,
}

/// The kind of such a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// The service had no ready replica.
    Asleep,
    /// The worker of no replica could be reached.
    Unreached,
    /// The connection to the replica broke, or the replica was silent, and its worker did not answer either.
    Lost,
}

/// A report on its way to the portal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outgoing {
    pub life: u64,
    pub number: u64,
    pub uses: Vec<Use>,
    /// Absent in the journals of earlier versions.
    #[serde(default)]
    pub faults: Vec<ServiceFaults>,
}

/// The use of each revision and key.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Use>", into = "Vec<Use>")]
struct Uses(BTreeMap<(ServiceId, RevisionId, Option<InferenceKeyId>), Use>);

impl From<Vec<Use>> for Uses {
    fn from(rows: Vec<Use>) -> Self {
        Self(rows.into_iter().map(|row| ((row.service, row.revision, row.key), row)).collect())
    }
}

impl From<Uses> for Vec<Use> {
    fn from(uses: Uses) -> Self {
        uses.0.into_values().collect()
    }
}

impl Uses {
    fn add(&mut self, used: &Used) {
        let Used { service, revision, key, .. } = *used;
        let row = self.0.entry((service, revision, key)).or_insert_with(|| Use {
            service,
            revision,
            key,
            requests: 0,
            errors: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            token_nanos: 0,
            first_byte: vec![0; BUCKETS],
        });
        row.requests = row.requests.saturating_add(1);
        row.errors = row.errors.saturating_add(u64::from(used.is_error));
        row.prompt_tokens = row.prompt_tokens.saturating_add(used.prompt_tokens);
        row.completion_tokens = row.completion_tokens.saturating_add(used.completion_tokens);
        row.token_nanos = row.token_nanos.saturating_add(used.token_nanos);
        if let Some(count) = used.bucket.and_then(|bucket| row.first_byte.get_mut(bucket)) {
            *count = count.saturating_add(1);
        }
    }

    /// Removes the rows of the next report.
    fn cut(&mut self) -> Vec<Use> {
        let first = std::iter::from_fn(|| self.0.pop_first().map(|(_, row)| row));
        first.take(MAX_USES).collect()
    }
}

/// The faults of each service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<ServiceFaults>", into = "Vec<ServiceFaults>")]
struct Faults(BTreeMap<ServiceId, ServiceFaults>);

impl From<Vec<ServiceFaults>> for Faults {
    fn from(rows: Vec<ServiceFaults>) -> Self {
        Self(rows.into_iter().map(|row| (row.service, row)).collect())
    }
}

impl From<Faults> for Vec<ServiceFaults> {
    fn from(faults: Faults) -> Self {
        faults.0.into_values().collect()
    }
}

impl Faults {
    fn add(&mut self, failed: Failed) {
        let Failed { service, kind } = failed;
        let none = ServiceFaults { service, asleep: 0, unreached: 0, lost: 0 };
        let row = self.0.entry(service).or_insert(none);
        let count = match kind {
            FaultKind::Asleep => &mut row.asleep,
            FaultKind::Unreached => &mut row.unreached,
            FaultKind::Lost => &mut row.lost,
        };
        *count = count.saturating_add(1);
    }

    /// Removes the rows of the next report.
    fn cut(&mut self) -> Vec<ServiceFaults> {
        let first = std::iter::from_fn(|| self.0.pop_first().map(|(_, row)| row));
        first.take(MAX_FAULTS).collect()
    }
}

/// The books.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Books {
    /// The time of the start in milliseconds, higher than that of all starts before.
    life: u64,
    /// The number of the last report of this life.
    number: u64,
    /// Absent before the first snapshot.
    borrower: Option<Borrower>,
    uses: Uses,
    /// Absent in the journals of earlier versions.
    #[serde(default)]
    faults: Faults,
    outgoing: Option<Outgoing>,
}

impl Books {
    /// The books of a gateway without a journal.
    pub fn new(now_ms: u64) -> Self {
        Self {
            life: now_ms.max(1),
            number: 0,
            borrower: None,
            uses: Uses::default(),
            faults: Faults::default(),
            outgoing: None,
        }
    }

    /// Begins the next start with the books of the last one. The requests of the last start ended with it: what they
    /// held is free again. A report on its way keeps its life and its number.
    pub fn restart(&mut self, now_ms: u64) {
        self.life = now_ms.max(self.life.saturating_add(1));
        self.number = 0;
        if let Some(borrower) = &mut self.borrower {
            borrower.set_terms(TERMS);
            borrower.restart();
        }
    }

    /// Applies a record of the journal.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Credit(entry) => {
                if let Some(borrower) = &mut self.borrower {
                    borrower.replay([entry]);
                }
            }
            Record::Used(used) => self.uses.add(&used),
            Record::Failed(failed) => self.faults.add(failed),
            Record::Reported { number } => {
                self.number = number;
                let (uses, faults) = (self.uses.cut(), self.faults.cut());
                self.outgoing = Some(Outgoing { life: self.life, number, uses, faults });
            }
            Record::Counted => self.outgoing = None,
        }
    }

    /// The borrower of this gateway, if the first snapshot has come.
    pub const fn borrower(&mut self) -> Option<&mut Borrower> {
        self.borrower.as_mut()
    }

    /// Begins the credit of a gateway with this number. Returns true if it is new: the books are then stored as a whole.
    pub fn open_credit(&mut self, gateway: u64) -> bool {
        let gateway = GatewayId(gateway);
        if self.borrower.as_ref().is_some_and(|borrower| borrower.gateway() == gateway) {
            return false;
        }
        self.borrower = Some(Borrower::new(gateway, self.life, TERMS));
        true
    }

    /// The report on its way.
    pub const fn outgoing(&self) -> Option<&Outgoing> {
        self.outgoing.as_ref()
    }

    /// The record of the next report.
    pub const fn next_report(&self) -> Record {
        Record::Reported { number: self.number.saturating_add(1) }
    }
}

#[cfg(test)]
mod tests {
    use berth_autoscaling::credit::{HoldAnswer, KeyId, Payer};
    use berth_types::ids::OrgId;
    use berth_types::time::Timestamp;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn credit_of_an_earlier_version_gets_the_present_rules() {
        let mut books = Books::new(1);
        books.open_credit(4);
        let mut value = serde_json::to_value(&books).unwrap();
        let terms = value["borrower"]["terms"].clone();
        value["borrower"]["terms"] = serde_json::json!({"requests_a_block": 8, "low_requests": 2});
        let mut old: Books = serde_json::from_value(value).unwrap();
        old.restart(9);
        assert_eq!(serde_json::to_value(&old).unwrap()["borrower"]["terms"], terms);
    }

    fn used(service: u128, tokens: u64) -> Record {
        Record::Used(Used {
            service: ServiceId::from_uuid(Uuid::from_u128(service)),
            revision: RevisionId::from_uuid(Uuid::from_u128(1)),
            key: None,
            is_error: tokens == 0,
            prompt_tokens: tokens,
            completion_tokens: 1,
            token_nanos: 2,
            bucket: (tokens > 0).then_some(24),
        })
    }

    #[test]
    fn use_is_summed_and_each_report_has_its_rows_for_ever() {
        let mut books = Books::new(5);
        for record in [used(1, 7), used(1, 0), used(2, 3)] {
            books.apply(record);
        }
        let next = books.next_report();
        assert_eq!(next, Record::Reported { number: 1 });
        books.apply(next);
        books.apply(used(1, 9));
        let first = books.outgoing().unwrap().clone();
        assert_eq!((first.life, first.number, first.uses.len()), (5, 1, 2));
        assert_eq!((first.uses[0].requests, first.uses[0].errors, first.uses[0].prompt_tokens), (2, 1, 7));
        assert_eq!((first.uses[0].first_byte[24], first.uses[0].token_nanos), (1, 4));
        let text = serde_json::to_string(&books).unwrap();
        let mut again: Books = serde_json::from_str(&text).unwrap();
        assert_eq!(again, books);
        again.restart(3);
        assert_eq!(again.outgoing(), Some(&first), "a report on its way keeps its life");
        again.apply(Record::Counted);
        again.apply(again.next_report());
        let second = again.outgoing().unwrap();
        assert_eq!((second.life, second.number, second.uses[0].prompt_tokens), (6, 1, 9));
    }

    #[test]
    fn faults_are_counted_by_service_and_each_report_has_its_own() {
        let failed = |service: u128, kind| {
            Record::Failed(Failed { service: ServiceId::from_uuid(Uuid::from_u128(service)), kind })
        };
        let mut books = Books::new(5);
        for kind in [FaultKind::Asleep, FaultKind::Unreached, FaultKind::Lost, FaultKind::Lost] {
            books.apply(failed(1, kind));
        }
        for service in 2..MAX_FAULTS as u128 + 3 {
            books.apply(failed(service, FaultKind::Asleep));
        }
        books.apply(books.next_report());
        let first = books.outgoing().unwrap().clone();
        assert_eq!(first.faults.len(), MAX_FAULTS);
        let ServiceFaults { asleep, unreached, lost, .. } = first.faults[0];
        assert_eq!((asleep, unreached, lost), (1, 1, 2));
        let again: Books = serde_json::from_str(&serde_json::to_string(&books).unwrap()).unwrap();
        assert_eq!(again, books);
        books.apply(Record::Counted);
        books.apply(books.next_report());
        assert_eq!(books.outgoing().unwrap().faults.len(), 2);
    }

    #[test]
    fn books_of_an_earlier_version_have_no_faults() {
        let mut books = Books::new(5);
        books.apply(used(1, 7));
        books.apply(books.next_report());
        let mut value = serde_json::to_value(&books).unwrap();
        value.as_object_mut().unwrap().remove("faults").unwrap();
        value["outgoing"].as_object_mut().unwrap().remove("faults").unwrap();
        assert_eq!(serde_json::from_value::<Books>(value).unwrap(), books);
    }

    #[test]
    fn a_report_has_a_limited_number_of_rows() {
        let mut books = Books::new(1);
        for service in 0..MAX_USES as u128 + 3 {
            books.apply(used(service, 1));
        }
        books.apply(books.next_report());
        assert_eq!(books.outgoing().unwrap().uses.len(), MAX_USES);
        books.apply(Record::Counted);
        books.apply(books.next_report());
        assert_eq!(books.outgoing().unwrap().uses.len(), 3);
    }

    #[test]
    fn a_restart_frees_the_holds_and_keeps_the_credit() {
        let mut books = Books::new(1);
        assert!(books.open_credit(4) && !books.open_credit(4));
        let payer = Payer { org: OrgId::from_uuid(Uuid::from_u128(1)), key: KeyId(1) };
        let now = Timestamp::from_micros(0);
        let borrower = books.borrower().unwrap();
        assert_eq!(borrower.hold(1, payer, 10, now), HoldAnswer::Waits);
        let block = borrower.messages(now).remove(0);
        let berth_autoscaling::credit::Content::Ask(ask) = block.content else { panic!("an ask") };
        let grant = berth_autoscaling::credit::ToGateway::Grant {
            block: ask.block,
            size: 10,
            until: now.plus_seconds(60),
        };
        borrower.receive(&grant, now);
        assert_eq!(borrower.hold(1, payer, 10, now), HoldAnswer::Held);
        assert_eq!(borrower.hold(2, payer, 10, now), HoldAnswer::Waits);
        books.restart(9);
        let borrower = books.borrower().unwrap();
        assert_eq!(borrower.hold(3, payer, 10, now), HoldAnswer::Held, "the block is still there");
        assert!(books.open_credit(5), "another gateway begins anew");
    }
}
