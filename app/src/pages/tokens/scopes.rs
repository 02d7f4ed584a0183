//! The choice of the scopes of a token: a preset, or single scopes.

use berth_types::scopes::ApiScope;
use leptos::prelude::*;

use crate::pages::parts::FieldError;

/// The single scopes, each with its requests. Requests of operators have no scope here.
const CHOICES: [(ApiScope, &str); 13] = [
    (ApiScope::JobsRead, "See jobs, logs, offerings and limits."),
    (ApiScope::JobsWrite, "Launch and stop jobs, open terminals and ports."),
    (ApiScope::StorageRead, "Download artifacts and volumes, see names of secrets."),
    (ApiScope::StorageWrite, "Change files, volumes and secrets."),
    (ApiScope::ReservationsRead, "See reservations and capacity."),
    (ApiScope::ReservationsWrite, "Reserve, extend and cancel."),
    (ApiScope::ServicesRead, "See services, their use and inference keys."),
    (ApiScope::ServicesWrite, "Change services, traffic and inference keys."),
    (ApiScope::MembersRead, "See members, tokens, webhooks and the audit log."),
    (ApiScope::BillingRead, "See balance, usage and invoices."),
    (ApiScope::BillingWrite, "Pay, and change budgets."),
    (ApiScope::FleetRead, "See nodes and boards."),
    (ApiScope::Scim, "Provision members by SCIM, with a service account."),
];

/// The scopes of the preset *Jobs*.
const JOBS: [ApiScope; 2] = [ApiScope::JobsWrite, ApiScope::StorageWrite];

/// A common set of scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Preset {
    Jobs,
    ReadOnly,
    Everything,
    Selected,
}

impl Preset {
    const ALL: [Self; 4] = [Self::Jobs, Self::ReadOnly, Self::Everything, Self::Selected];

    const fn name(self) -> &'static str {
        match self {
            Self::Jobs => "jobs",
            Self::ReadOnly => "read-only",
            Self::Everything => "everything",
            Self::Selected => "selected",
        }
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Jobs => "Jobs",
            Self::ReadOnly => "Read only",
            Self::Everything => "Everything",
            Self::Selected => "Selected",
        }
    }

    const fn hint(self) -> &'static str {
        match self {
            Self::Jobs => "Jobs, with their files, volumes and secrets.",
            Self::ReadOnly => "All requests without an effect.",
            Self::Everything => "All that the role permits, also changes of members and tokens.",
            Self::Selected => "The selected scopes.",
        }
    }

    /// The scopes of the preset; `None` for selected ones.
    fn scopes(self) -> Option<Vec<ApiScope>> {
        match self {
            Self::Jobs => Some(JOBS.to_vec()),
            Self::ReadOnly => {
                let scopes = CHOICES.iter().map(|(scope, _)| *scope);
                Some(scopes.filter(|scope| scope.name().ends_with(":read")).collect())
            }
            Self::Everything => Some(vec![ApiScope::Admin]),
            Self::Selected => None,
        }
    }
}

/// The state of the choice.
#[derive(Clone, Copy)]
pub(super) struct ScopeChoice {
    preset: RwSignal<Preset>,
    /// The scopes of the token.
    pub(super) scopes: RwSignal<Vec<ApiScope>>,
}

impl ScopeChoice {
    /// The choice of a new form.
    pub(super) fn new() -> Self {
        Self { preset: RwSignal::new(Preset::Jobs), scopes: RwSignal::new(JOBS.to_vec()) }
    }

    fn choose(self, preset: Preset) {
        self.preset.set(preset);
        match preset.scopes() {
            Some(scopes) => self.scopes.set(scopes),
            // No single scope stands for everything.
            None => self.scopes.update(|scopes| scopes.retain(|scope| *scope != ApiScope::Admin)),
        }
    }

    fn toggle(self, scope: ApiScope, checked: bool) {
        self.preset.set(Preset::Selected);
        self.scopes.update(|scopes| {
            scopes.retain(|known| *known != scope);
            if checked {
                scopes.push(scope);
            }
        });
    }
}

/// The fields of the scopes.
#[component]
pub(super) fn ScopeFields(
    /// The state of the choice.
    choice: ScopeChoice,
    /// The error below the fields.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let presets = Preset::ALL
        .into_iter()
        .map(|preset| {
            let at_first = preset == Preset::Jobs;
            view! {
                <label>
                    <input
                        type="radio"
                        name="scope-preset"
                        value=preset.name()
                        checked=at_first
                        prop:checked=move || choice.preset.get() == preset
                        on:change=move |_| choice.choose(preset)
                    />
                    {preset.label()}
                </label>
            }
        })
        .collect_view();
    let checkbox = move |(scope, text): (ApiScope, &'static str)| {
        let at_first = JOBS.contains(&scope);
        view! {
            <label class="check">
                <input
                    type="checkbox"
                    name="scope"
                    value=scope.name()
                    checked=at_first
                    prop:checked=move || choice.scopes.with(|scopes| scopes.contains(&scope))
                    on:change=move |ev| choice.toggle(scope, event_target_checked(&ev))
                />
                <span><span class="mono">{scope.name()}</span><span class="check__hint">{text}</span></span>
            </label>
        }
    };
    let hides_single = move || choice.preset.get() == Preset::Everything;
    view! {
        <div class="field field--wide">
            <span class="field__label" id="scopes-label">"Scopes"</span>
            <div class="segmented" role="radiogroup" aria-labelledby="scopes-label">{presets}</div>
            <p class="field__hint">{move || choice.preset.get().hint()}</p>
        </div>
        <fieldset class="field field--wide" aria-describedby="scopes-error" hidden=hides_single>
            <legend class="visually-hidden">"Single scopes"</legend>
            <div class="scopes">{CHOICES.map(checkbox).into_iter().collect_view()}</div>
        </fieldset>
        <FieldError id="scopes-error" error=error/>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_scopes_of_the_form() {
        let single: Vec<ApiScope> = CHOICES.iter().map(|(scope, _)| *scope).collect();
        for preset in [Preset::Jobs, Preset::ReadOnly] {
            let scopes = preset.scopes().unwrap();
            assert!(!scopes.is_empty() && scopes.iter().all(|scope| single.contains(scope)), "{preset:?}");
        }
        let read = Preset::ReadOnly.scopes().unwrap();
        assert!(
            ApiScope::ALL.into_iter().all(|scope| read.contains(&scope) == scope.name().ends_with(":read"))
        );
        assert_eq!(Preset::Everything.scopes(), Some(vec![ApiScope::Admin]));
    }
}
