//! Page of one invoice, with a print layout.
//!
//! An issued invoice is final; only a credit note corrects it.

use std::future::Future;

use berth_types::documents::{invoice_file_stem, invoice_pdf_name};
use berth_types::ids::{InvoiceId, OrgId};
use berth_types::invoices::{Invoice, InvoiceKind, InvoiceState};
use berth_types::problems::Problem;
use futures::join;
use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::hooks::use_params_map;
use serde::{Deserialize, Serialize};

use super::super::org_data::org_object_view;
use super::super::parts::{Call, CallProblem, when_some};
use super::super::payments::PayInvoice;
use super::document::{PrintButton, csv_link, document, pdf_link};
use super::text::title;
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::identity::window_title;
use crate::session::{use_object_org, use_session};
use crate::ui::Crumbs;

/// An invoice with its credit note or its voided invoice.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    invoice: Invoice,
    other: Option<Invoice>,
    /// True for an open invoice on a portal with card payments.
    by_card: bool,
}

fn load(org: OrgId, id: Option<InvoiceId>) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let calls = id.map(|id| {
        (api::invoices::one(org, id), api::invoices::list(org, None), api::payments::settings(org))
    });
    async move {
        // An invalid id is answered like an unknown one.
        let Some((invoice, newest, settings)) = calls else { return Err(Problem::not_found()) };
        let (invoice, newest) = join!(invoice, newest);
        let invoice = invoice?;
        // The invoice is complete without the other document.
        let newest = newest.map(|page| page.items).unwrap_or_default();
        let belongs =
            |other: &Invoice| invoice.corrects == Some(other.id) || other.corrects == Some(invoice.id);
        let other = newest.into_iter().find(belongs);
        let open = invoice.kind == InvoiceKind::Invoice && invoice.state == InvoiceState::Open;
        // A failed request hides only the button.
        let by_card = open && settings.await.is_ok_and(|settings| settings.enabled);
        Ok(Loaded { invoice, other, by_card })
    }
}

/// The page of one invoice.
#[component]
pub fn InvoicePage() -> impl IntoView {
    let org = use_object_org();
    let params = use_params_map();
    let id = Memo::new(move |_| {
        params.with(|params| params.get("invoice")).and_then(|text| text.parse::<InvoiceId>().ok())
    });
    let data: Resource<Answer<Option<Loaded>>> = Resource::new(
        move || (org.get(), id.get()),
        |(org, id): (Option<OrgId>, Option<InvoiceId>)| when_some(org.map(|org| load(org, id))),
    );
    org_object_view(data, |loaded| view! { <InvoiceView loaded=loaded/> }.into_any())
}

/// Returns the line about the other document with its link.
fn other_line(invoice: &Invoice, other: Option<&Invoice>) -> Option<AnyView> {
    let (text, id, name) = match (invoice.kind, invoice.corrects, other) {
        (InvoiceKind::CreditNote, Some(id), Some(other)) => ("Voids ", id, title(other)),
        (InvoiceKind::CreditNote, Some(id), None) => ("Voids ", id, "an invoice".to_owned()),
        (InvoiceKind::Invoice, _, Some(other)) => ("Voided by ", other.id, title(other)),
        _ => return None,
    };
    let path = org_link(&format!("/invoices/{id}"));
    Some(view! { <p>{text}<a href=path>{name}</a>"."</p> }.into_any())
}

#[component]
fn InvoiceView(loaded: Loaded) -> impl IntoView {
    let Loaded { invoice, other, by_card } = loaded;
    let (org, id) = (invoice.org, invoice.id);
    let call = Call::idle();
    let pay =
        (by_card && use_session().pays_for(org)).then(|| view! { <PayInvoice org=org id=id call=call/> });
    let name = title(&invoice);
    let heading = name.clone();
    let window_title = window_title(&name);
    let other = other_line(&invoice, other.as_ref());
    let pdf = pdf_link(api::invoices::pdf_path(org, id), invoice_pdf_name(&invoice));
    let csv_file = format!("{}.csv", invoice_file_stem(&invoice));
    let csv = csv_link(api::invoices::csv_path(org, id), csv_file);
    view! {
        <Title text=window_title/>
        <div class="page">
            <Crumbs list="Invoices" path=Signal::derive(org_link("/invoices")) name=name/>
            <div class="page__head">
                <h1>{heading}</h1>
                <div class="page__actions">{pay}{pdf}{csv}<PrintButton/></div>
            </div>
            <CallProblem call=call beside_fields=&[]/>
            {document(&invoice, other)}
        </div>
    }
}
