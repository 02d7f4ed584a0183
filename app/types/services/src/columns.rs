//! The columns of a database for named states of services: text, parsed once at the read.

use berth_values::text_column;

/// Types with `name` and `parse`.
macro_rules! names {
    ($($name:path)*) => {
        $(text_column!($name, |value: &$name| value.name().to_owned(), <$name>::parse);)*
    };
}

names! {
    crate::services::ServiceAccess
    crate::services::ServiceProtocol
    crate::services::ServiceState
    crate::revisions::ReplicaProtocol
    crate::revisions::RevisionState
}
