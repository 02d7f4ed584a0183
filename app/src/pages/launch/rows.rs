//! Lists of rows in the launch form: their signals, and their frame with limit, errors and buttons.

use berth_types::jobs::Condition;
use leptos::prelude::*;

use super::super::parts::{Call, FieldError, focus_soon};
use super::draft::rows::{DependencyRow, RowInput, SecretRow, VolumeRow};
use crate::ui::labelled_error;

/// The signals of one row.
pub trait RowSignals: Copy + Send + Sync + 'static {
    /// The input of the row.
    type Input: RowInput + 'static;

    /// Returns a row with this input.
    fn new(input: Self::Input) -> Self;

    /// Returns the present input, with a subscription.
    fn input(self) -> Self::Input;
}

/// A name with its value: a variable, a file or a label.
#[derive(Clone, Copy)]
pub struct PairSignals {
    /// The name, path or key.
    pub name: RwSignal<String>,
    /// The value or content.
    pub value: RwSignal<String>,
}

impl RowSignals for PairSignals {
    type Input = (String, String);

    fn new((name, value): Self::Input) -> Self {
        Self { name: RwSignal::new(name), value: RwSignal::new(value) }
    }

    fn input(self) -> Self::Input {
        (self.name.get(), self.value.get())
    }
}

/// A secret as a variable or a file.
#[derive(Clone, Copy)]
pub struct SecretSignals {
    /// The name of the secret.
    pub name: RwSignal<String>,
    /// True for a file.
    pub as_file: RwSignal<bool>,
    /// The name of the variable or of the file.
    pub target: RwSignal<String>,
}

impl RowSignals for SecretSignals {
    type Input = SecretRow;

    fn new(row: SecretRow) -> Self {
        Self {
            name: RwSignal::new(row.name),
            as_file: RwSignal::new(row.as_file),
            target: RwSignal::new(row.target),
        }
    }

    fn input(self) -> SecretRow {
        SecretRow { name: self.name.get(), as_file: self.as_file.get(), target: self.target.get() }
    }
}

/// A volume at a path.
#[derive(Clone, Copy)]
pub struct VolumeSignals {
    /// The name of the volume.
    pub name: RwSignal<String>,
    /// The path in the job.
    pub path: RwSignal<String>,
    /// True for a volume with changes by the job.
    pub writable: RwSignal<bool>,
}

impl RowSignals for VolumeSignals {
    type Input = VolumeRow;

    fn new(row: VolumeRow) -> Self {
        Self {
            name: RwSignal::new(row.name),
            path: RwSignal::new(row.path),
            writable: RwSignal::new(row.writable),
        }
    }

    fn input(self) -> VolumeRow {
        VolumeRow { name: self.name.get(), path: self.path.get(), writable: self.writable.get() }
    }
}

/// A port number.
#[derive(Clone, Copy)]
pub struct PortSignals {
    /// The number.
    pub number: RwSignal<String>,
}

impl RowSignals for PortSignals {
    type Input = String;

    fn new(number: String) -> Self {
        Self { number: RwSignal::new(number) }
    }

    fn input(self) -> String {
        self.number.get()
    }
}

/// Another job whose end comes first.
#[derive(Clone, Copy)]
pub struct DependencySignals {
    /// The id of the job, alone or after its name.
    pub job: RwSignal<String>,
    /// The required end.
    pub condition: RwSignal<Condition>,
}

impl RowSignals for DependencySignals {
    type Input = DependencyRow;

    fn new(row: DependencyRow) -> Self {
        Self { job: RwSignal::new(row.job), condition: RwSignal::new(row.condition) }
    }

    fn input(self) -> DependencyRow {
        DependencyRow { job: self.job.get(), condition: self.condition.get() }
    }
}

/// A row with its key.
#[derive(Clone, Copy)]
pub struct Row<T> {
    /// The key of the row.
    pub id: u32,
    /// The signals of the row.
    pub fields: T,
}

/// The rows of a field.
#[derive(Clone, Copy)]
pub struct Rows<T: RowSignals> {
    list: RwSignal<Vec<Row<T>>>,
    next: StoredValue<u32>,
}

impl<T: RowSignals> Rows<T> {
    /// Returns rows with these inputs.
    pub fn new(inputs: Vec<T::Input>) -> Self {
        let rows = Self { list: RwSignal::new(Vec::new()), next: StoredValue::new(0) };
        for input in inputs {
            rows.add(input);
        }
        rows
    }

    /// Adds a row.
    pub fn add(self, input: T::Input) {
        let id = self.next.get_value();
        self.next.set_value(id.saturating_add(1));
        self.list.update(|list| list.push(Row { id, fields: T::new(input) }));
    }

    /// Replaces all rows by those with these inputs.
    pub fn replace(self, inputs: Vec<T::Input>) {
        self.list.set(Vec::new());
        for input in inputs {
            self.add(input);
        }
    }

    /// Removes a row.
    pub fn remove(self, id: u32) {
        self.list.update(|list| list.retain(|row| row.id != id));
    }

    /// Counts the rows, with a subscription.
    pub fn count(self) -> usize {
        self.list.with(Vec::len)
    }

    /// Returns the present inputs, with a subscription to all fields.
    pub fn inputs(self) -> Vec<T::Input> {
        self.list.with(|list| list.iter().map(|row| row.fields.input()).collect())
    }

    /// Returns the first row that meets a condition.
    pub fn find(self, condition: impl Fn(T) -> bool) -> Option<T> {
        self.list.with_untracked(|list| list.iter().map(|row| row.fields).find(|fields| condition(*fields)))
    }

    /// Returns the position of a row, from 0, with a subscription.
    pub fn position(self, id: u32) -> usize {
        self.list.with(|list| list.iter().take_while(|row| row.id != id).count())
    }

    /// Returns the position of a row, from 0, among the rows with input, with a subscription.
    pub fn index(self, id: u32) -> usize {
        self.list.with(|list| {
            list.iter().take_while(|row| row.id != id).filter(|row| !row.fields.input().is_blank()).count()
        })
    }
}

/// The texts and the limit of a list of rows.
pub struct RowKind {
    /// The label above the rows.
    pub label: &'static str,
    /// The name of a row: `Volume`.
    pub one: &'static str,
    /// The button for another row.
    pub add: &'static str,
    /// The id of the list, and the prefix of its other ids.
    pub id: &'static str,
    /// The pointer of the list.
    pub pointer: &'static str,
    /// The hint below the label.
    pub hint: &'static str,
    /// The largest number of rows.
    pub max: usize,
}

/// The frame of a row: its name, its errors and its button.
#[derive(Clone, Copy)]
pub struct RowFrame {
    kind: &'static RowKind,
    id: u32,
    /// Absent for a row without input.
    pointer: Signal<Option<String>>,
    call: Call,
}

impl RowFrame {
    /// Returns the id of the errors, for `aria-describedby`.
    pub fn error_id(self) -> String {
        format!("{}-{}-error", self.kind.id, self.id)
    }

    /// Returns `true` for `aria-invalid` if the row or this part of it has an error.
    pub fn invalid(self, part: &'static str) -> Signal<Option<&'static str>> {
        let Self { pointer, call, .. } = self;
        Signal::derive(move || {
            let row = pointer.get()?;
            call.problem.with(|problem| {
                let mut parts = problem.iter().flat_map(|problem| &problem.errors);
                let here = parts.any(|error| {
                    part_in(&row, &error.pointer).is_some_and(|found| found.is_empty() || found == part)
                });
                here.then_some("true")
            })
        })
    }

    /// Returns the errors of the row, each with its label.
    fn errors(self) -> Signal<Option<String>> {
        let Self { pointer, call, .. } = self;
        Signal::derive(move || {
            let row = pointer.get()?;
            call.problem.with(|problem| {
                let errors = problem.iter().flat_map(|problem| &problem.errors);
                let here = errors.filter(|error| part_in(&row, &error.pointer).is_some());
                let texts: Vec<String> = here.map(labelled_error).collect();
                (!texts.is_empty()).then(|| texts.join(" "))
            })
        })
    }
}

/// Returns the part of a row to which a pointer leads: `/path`, or `""` for the row; `None` elsewhere.
fn part_in<'a>(row: &str, pointer: &'a str) -> Option<&'a str> {
    pointer.strip_prefix(row).filter(|part| part.is_empty() || part.starts_with('/'))
}

/// A list of rows. `pointer` returns the pointer of a row from its number and its input.
pub fn row_list<T: RowSignals>(
    kind: &'static RowKind,
    rows: Rows<T>,
    call: Call,
    pointer: fn(&'static RowKind, usize, &T::Input) -> String,
    controls: impl Fn(Row<T>, RowFrame) -> AnyView + Clone + Send + 'static,
) -> AnyView {
    let row = move |row: Row<T>| {
        let (id, fields) = (row.id, row.fields);
        let at = Signal::derive(move || {
            let input = fields.input();
            (!input.is_blank()).then(|| pointer(kind, rows.index(id), &input))
        });
        let frame = RowFrame { kind, id, pointer: at, call };
        let remove = move |_: leptos::ev::MouseEvent| {
            rows.remove(id);
            // The errors below would be at other rows now.
            call.forget(kind.pointer);
            focus_soon(format!("#{}-add", kind.id));
        };
        let name = move || format!("{} {}", kind.one, rows.position(id).saturating_add(1));
        view! {
            <div class="rows__row" role="group" aria-label=name>
                {controls(row, frame)}
                <button class="btn btn--quiet" type="button" on:click=remove>"Remove"</button>
                <FieldError id=frame.error_id() error=frame.errors()/>
            </div>
        }
    };
    let key = |row: &Row<T>| row.id;
    let add = move |_: leptos::ev::MouseEvent| {
        rows.add(T::Input::default());
        focus_soon(format!("#{}-rows > :last-child :is(input, select)", kind.id));
    };
    let count = Memo::new(move |_| rows.count());
    let error = call.field(kind.pointer);
    let [label_id, hint_id, rows_id, add_id, error_id] =
        ["label", "hint", "rows", "add", "error"].map(|part| format!("{}-{part}", kind.id));
    let (labelled, described) = (label_id.clone(), format!("{hint_id} {error_id}"));
    view! {
        <div class="field field--wide" role="group" aria-labelledby=labelled aria-describedby=described>
            <span class="field__label" id=label_id>
                {kind.label} " " <span class="quiet">{move || format!("{} of {}", count.get(), kind.max)}</span>
            </span>
            <p class="field__hint" id=hint_id>{kind.hint}</p>
            <div class="rows" id=rows_id>
                <For each=move || rows.list.get() key=key children=row/>
            </div>
            <p>
                <button
                    class="btn btn--small"
                    type="button"
                    id=add_id
                    disabled=move || { count.get() >= kind.max }
                    on:click=add
                >
                    {kind.add}
                </button>
            </p>
            <FieldError id=error_id error=error/>
        </div>
    }
    .into_any()
}

/// Returns the pointer of a list's item.
pub fn item_pointer<I>(kind: &'static RowKind, index: usize, _: &I) -> String {
    format!("{}/{index}", kind.pointer)
}

/// A text input of a row.
pub fn row_input(
    label: &'static str,
    placeholder: &'static str,
    value: RwSignal<String>,
    frame: RowFrame,
    part: &'static str,
) -> AnyView {
    let invalid = frame.invalid(part);
    view! {
        <input
            class="input mono"
            aria-label=label
            placeholder=placeholder
            autocomplete="off"
            spellcheck="false"
            aria-describedby=frame.error_id()
            aria-invalid=move || invalid.get()
            prop:value=move || value.get()
            on:input=move |ev| value.set(event_target_value(&ev))
        />
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_at_its_row_only() {
        assert_eq!(part_in("/volumes/1", "/volumes/1"), Some(""));
        assert_eq!(part_in("/volumes/1", "/volumes/1/path"), Some("/path"));
        for elsewhere in ["/volumes", "/volumes/0/path", "/volumes/10/path", "/secrets/1"] {
            assert_eq!(part_in("/volumes/1", elsewhere), None, "{elsewhere}");
        }
    }
}
