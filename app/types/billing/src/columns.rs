//! The columns of a database for the named states of money: text, parsed once at the read.

use berth_values::text_column;

/// Types with `name` and `parse`.
macro_rules! names {
    ($($name:path)*) => {
        $(text_column!($name, |value: &$name| value.name().to_owned(), <$name>::parse);)*
    };
}

names! {
    crate::payments::PaymentState
    crate::ledger::TransferKind
    crate::invoices::InvoiceKind
    crate::invoices::InvoiceState
    crate::budgets::AtLimit
}
