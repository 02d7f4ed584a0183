//! The idle rule of a job: utilization and period before a stop.
//!
//! Checks only the format of numbers.

use berth_types::jobs::StopWhenIdle;
use berth_types::problems::FieldError as Wrong;
use leptos::prelude::*;

use super::super::parts::{Call, FieldError};
use crate::ui::NumberField;

/// The error pointers of the fields.
const POINTERS: [&str; 3] = ["/stop_when_idle", "/stop_when_idle/below_percent", "/stop_when_idle/for_s"];

/// Parses the rule; nothing when disabled.
pub fn parse(enabled: bool, percent: &str, minutes: &str, errors: &mut Vec<Wrong>) -> Option<StopWhenIdle> {
    if !enabled {
        return None;
    }
    let default = StopWhenIdle::default();
    let percent = percent.trim();
    let below_percent =
        percent.strip_suffix('%').unwrap_or(percent).trim_end().parse().unwrap_or_else(|_| {
            errors.push(Wrong::new("/stop_when_idle/below_percent", "Enter a whole percentage, such as 40."));
            default.below_percent
        });
    let for_s = minutes.trim().parse::<u32>().map_or_else(
        |_| {
            errors.push(Wrong::new("/stop_when_idle/for_s", "Enter whole minutes, such as 60."));
            default.for_s
        },
        |minutes| minutes.saturating_mul(60),
    );
    Some(StopWhenIdle { below_percent, for_s })
}

/// The checkbox, with two number fields when checked.
#[component]
pub fn StopWhenIdleFields(
    /// True with the rule.
    enabled: RwSignal<bool>,
    /// Percent of utilization below which the devices are idle.
    percent: RwSignal<String>,
    /// Minutes of idle devices before the stop.
    minutes: RwSignal<String>,
    /// The submission.
    call: Call,
) -> impl IntoView {
    let [whole, percent_error, minutes_error] = POINTERS.map(|at| call.field(at));
    view! {
        <div class="field field--wide">
            <label class="check">
                <input
                    type="checkbox"
                    name="stop_when_idle"
                    aria-describedby="idle-error"
                    prop:checked=move || enabled.get()
                    on:change=move |ev| enabled.set(event_target_checked(&ev))
                />
                <span>
                    "Stop when idle"
                    <span class="check__hint">
                        "The job is stopped after a period of low utilization and is not retried. Without utilization data from the driver, the job continues."
                    </span>
                </span>
            </label>
            <FieldError id="idle-error" error=whole/>
        </div>
        {move || {
            enabled
                .get()
                .then(|| {
                    view! {
                        <div class="field-row">
                            <NumberField
                                label="Utilization below"
                                id="idle_percent"
                                unit="%"
                                value=percent
                                hint="Mean of all devices of the job."
                                error=percent_error
                            />
                            <NumberField
                                label="Idle period"
                                id="idle_minutes"
                                unit="min"
                                value=minutes
                                hint="10 to 1,440 min."
                                error=minutes_error
                            />
                        </div>
                    }
                })
        }}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(percent: &str, minutes: &str) -> Result<StopWhenIdle, Vec<String>> {
        let mut errors = Vec::new();
        let rule = parse(true, percent, minutes, &mut errors);
        if errors.is_empty() {
            Ok(rule.unwrap())
        } else {
            Err(errors.into_iter().map(|e| e.pointer).collect())
        }
    }

    #[test]
    fn percent_and_minutes_are_a_rule() {
        assert_eq!(read("40", "60"), Ok(StopWhenIdle::default()));
        assert_eq!(read(" 5 % ", " 10"), Ok(StopWhenIdle { below_percent: 5, for_s: 600 }));
        // The portal checks the ranges.
        assert_eq!(read("500", "4294967295"), Ok(StopWhenIdle { below_percent: 500, for_s: u32::MAX }));
        assert_eq!(read("few", "an hour"), Err(POINTERS[1..].iter().map(|p| (*p).to_owned()).collect()));
        assert_eq!(parse(false, "few", "an hour", &mut Vec::new()), None);
    }
}
