//! Templates as first inputs of the form: a row of buttons.

use berth_types::offerings::Offering;
use berth_types::templates::JobTemplate;
use leptos::prelude::*;

use super::super::parts::{focus_soon, ready};
use super::draft::Draft;
use super::kept_draft::KeptDraft;

/// The number of templates before the others are collapsed.
const VISIBLE: usize = 8;

fn is_on_sale(offerings: &[Offering], slug: &str) -> bool {
    offerings.iter().any(|offering| offering.slug == slug && offering.price.version > 0)
}

/// The input from a template.
struct Filled {
    draft: Draft,
    /// The name from the template; empty if a typed name stayed.
    template_name: String,
    /// The sentences about the input.
    notice: String,
}

/// Returns the input from a template; `None` for a template of another version of the portal. The present offering
/// stays unless the template has one on sale. The present reservation stays, with its offering. A name stays unless
/// it is `template_name`, the name from the last template.
fn fill(
    template: &JobTemplate,
    (present, template_name): (&Draft, &str),
    is_on_sale: impl Fn(&str) -> bool,
) -> Option<Filled> {
    let job = template.submission(&present.offering).ok()?;
    let (mut draft, absent) = Draft::from_submission(&job);
    if present.reservation.is_some() || !is_on_sale(&draft.offering) {
        draft.offering.clone_from(&present.offering);
    }
    draft.reservation = present.reservation;
    let is_typed = present.name != template_name && !present.name.trim().is_empty();
    let template_name = if is_typed { String::new() } else { draft.name.clone() };
    if is_typed {
        draft.name.clone_from(&present.name);
    }
    let mut text = format!("Filled from the template {}. {}", template.title, template.description);
    if !absent.is_empty() {
        text.push_str(&format!(" Not in the form: {}.", absent.join(", ")));
    }
    Some(Filled { draft, template_name, notice: text.trim_end().to_owned() })
}

/// The buttons of the templates, and the one for a blank form.
#[component]
pub fn TemplateRow(
    /// The input of the form.
    kept: KeptDraft,
    /// The templates.
    templates: Vec<JobTemplate>,
    /// All offerings.
    offerings: RwSignal<Vec<Offering>>,
) -> impl IntoView {
    let ready = ready();
    let button = move |template: JobTemplate| {
        let (title, description) = (template.title.clone(), template.description.clone());
        let choose = move |_: leptos::ev::MouseEvent| {
            let (present, template_name) = kept.present_and_template_name();
            let is_on_sale = |slug: &str| offerings.with_untracked(|all| is_on_sale(all, slug));
            match fill(&template, (&present, &template_name), is_on_sale) {
                Some(Filled { draft, template_name, notice }) => kept.replace(draft, template_name, notice),
                None => kept.show_notice("This page cannot read the template. Nothing was changed."),
            }
        };
        view! {
            <button
                class="btn btn--small"
                type="button"
                title=description
                disabled=move || !ready.get()
                on:click=choose
            >
                {title}
            </button>
        }
        .into_any()
    };
    let mut buttons: Vec<AnyView> = templates.into_iter().map(button).collect();
    let others = buttons.split_off(buttons.len().min(VISIBLE));
    let others = (!others.is_empty()).then(|| {
        view! {
            <details class="more">
                <summary>"More templates"</summary>
                <div class="row launch-templates">{others}</div>
            </details>
        }
    });
    view! {
        <div role="group" aria-labelledby="start-from">
            <div class="row launch-templates">
                <span class="field__label" id="start-from">"Start from"</span>
                <button
                    class="btn btn--small"
                    type="button"
                    disabled=move || !ready.get() || kept.is_blank()
                    on:click=move |_| {
                        kept.clear();
                        // The button is disabled now.
                        focus_soon(".launch-draft button".to_owned());
                    }
                >
                    "Blank form"
                </button>
                {buttons}
            </div>
            {others}
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn template(job: serde_json::Value) -> JobTemplate {
        let body = json!({"name": "notebook", "title": "Notebook", "description": "Opens.", "job": job});
        serde_json::from_value(body).unwrap()
    }

    fn present() -> Draft {
        Draft { command: "echo typed".to_owned(), ..Draft::new("h100".to_owned()) }
    }

    fn filled(template: &JobTemplate, present: &Draft) -> (Draft, String) {
        let Filled { draft, notice, .. } = fill(template, (present, ""), |slug| slug != "sold-out").unwrap();
        (draft, notice)
    }

    #[test]
    fn a_template_fills_the_form_and_keeps_the_offering() {
        let job = json!({"script": "exec jupyter lab", "ports": [8_888], "max_duration_s": 7_200});
        let (draft, text) = filled(&template(job), &present());
        assert_eq!((draft.name.as_str(), draft.offering.as_str()), ("notebook", "h100"));
        assert_eq!((draft.as_script, draft.command.as_str(), draft.limit.as_str()), (true, "", "2"));
        assert_eq!(draft.ports, ["8888"]);
        assert_eq!(text, "Filled from the template Notebook. Opens.");
    }

    #[test]
    fn an_offering_of_the_template_counts_only_on_sale_and_outside_a_reservation() {
        let with = |slug: &str| template(json!({"command": ["true"], "offering": slug}));
        assert_eq!(filled(&with("a30"), &present()).0.offering, "a30");
        assert_eq!(filled(&with("sold-out"), &present()).0.offering, "h100");
        let reservation = "res_00000000000000000000000001".parse().ok();
        let inside = Draft { reservation, ..present() };
        let (draft, _) = filled(&with("a30"), &inside);
        assert_eq!((draft.offering.as_str(), draft.reservation), ("h100", reservation));
    }

    #[test]
    fn a_typed_name_stays() {
        let job = json!({"command": ["true"], "name": "lab"});
        assert_eq!(filled(&template(job.clone()), &present()).0.name, "lab");
        let typed = Draft { name: "mine".to_owned(), ..present() };
        let one = template(job);
        let first = fill(&one, (&typed, ""), |_| true).unwrap();
        assert_eq!((first.draft.name.as_str(), first.template_name.as_str()), ("mine", ""));
        let second = fill(&one, (&first.draft, &first.template_name), |_| true).unwrap();
        assert_eq!(second.draft.name, "mine");
        // The name from an earlier template is no typed name.
        let third = fill(&one, (&typed, "mine"), |_| true).unwrap();
        assert_eq!((third.draft.name.as_str(), third.template_name.as_str()), ("lab", "lab"));
    }

    #[test]
    fn a_template_of_another_version_fills_nothing() {
        let unknown = template(json!({"command": ["true"], "gpus": 1}));
        assert!(fill(&unknown, (&present(), ""), |_| true).is_none());
    }
}
