//! The columns of a database for named states and scopes: text, parsed once at the read.

use berth_values::text_column;

/// Types with `name` and `parse`.
macro_rules! names {
    ($($name:path)*) => {
        $(text_column!($name, |value: &$name| value.name().to_owned(), <$name>::parse);)*
    };
}

names! {
    crate::jobs::JobState
    crate::jobs::Topology
    crate::reservations::ReservationState
    crate::files::FileKind
    crate::files::FileState
    crate::volumes::BlobKind
    crate::webhooks::DeliveryState
    crate::quotas::QuotaRequestState
    crate::change_requests::ChangeAction
    crate::change_requests::ChangeState
    crate::accounts::Role
    crate::operators::OperatorRole
    crate::nodes::NodeState
    crate::health::GpuTaskKind
}

text_column!(
    crate::scopes::ApiScopes,
    |scopes: &crate::scopes::ApiScopes| scopes.to_text(),
    crate::scopes::ApiScopes::from_text
);
