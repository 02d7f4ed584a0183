//! Button for the next page of a list, and the lists that grow by pages. The page with the list sends the request.

use berth_types::Page as Rows;
use leptos::prelude::*;

use super::parts::{Call, CallProblem, ready};

/// The button and the error of its request. Hidden after the last page.
#[component]
pub fn LoadMore(
    /// The cursor of the next page; absent after the last page.
    #[prop(into)]
    cursor: Signal<Option<String>>,
    /// The request.
    call: Call,
    /// Sends the request.
    load: Callback<()>,
) -> impl IntoView {
    let ready = ready();
    let any = Memo::new(move |_| cursor.with(Option::is_some));
    let button = move || {
        any.get().then(|| {
            view! {
                <p>
                    <button
                        class="btn"
                        type="button"
                        disabled=move || !ready.get() || call.pending.get()
                        aria-busy=move || call.pending.get().then_some("true")
                        on:click=move |_| load.run(())
                    >
                        "Load more"
                    </button>
                </p>
            }
        })
    };
    view! {
        <CallProblem call=call beside_fields=&[]/>
        {button}
    }
}

/// The fewest and the most items of a request that refreshes a list.
const REFRESHED: (u32, u32) = (50, 200);

/// Returns the limit of a request that refreshes a list of `shown` items.
pub fn refresh_limit(shown: usize) -> u32 {
    let (fewest, most) = REFRESHED;
    u32::try_from(shown).unwrap_or(most).clamp(fewest, most)
}

/// Joins a fresh first page with the items of a known list that follow on it. Without such items the list is the
/// page. `cursor` is the one after the known list.
pub fn joined<T, K: PartialEq>(
    known: Vec<T>,
    cursor: Option<String>,
    fresh: Rows<T>,
    key: fn(&T) -> K,
) -> Rows<T> {
    let last = fresh.items.last().map(key);
    let place = known.iter().position(|one| Some(key(one)) == last);
    let rest: Vec<T> = match place.filter(|_| fresh.next_cursor.is_some()) {
        Some(place) => known.into_iter().skip(place.saturating_add(1)).collect(),
        None => Vec::new(),
    };
    if rest.is_empty() {
        return fresh;
    }
    Rows { items: fresh.items.into_iter().chain(rest).collect(), next_cursor: cursor }
}

/// Adds the items of the next page that a list does not have.
pub fn append<T, K: PartialEq>(known: &mut Vec<T>, next: Vec<T>, key: fn(&T) -> K) {
    for one in next {
        if !known.iter().any(|other| key(other) == key(&one)) {
            known.push(one);
        }
    }
}

/// Inserts an item into a list with the newest first, or replaces its copy. `key` grows with the creation of items,
/// and `version` with their changes: an item older than its copy is ignored.
pub fn merge_newest<T, K: PartialOrd, V: PartialOrd>(
    known: &mut Vec<T>,
    fresh: T,
    key: fn(&T) -> K,
    version: fn(&T) -> V,
) {
    let fresh_key = key(&fresh);
    match known.iter_mut().find(|one| key(one) == fresh_key) {
        Some(one) if version(one) <= version(&fresh) => *one = fresh,
        Some(_) => {}
        None => {
            let place = known.iter().position(|one| key(one) < fresh_key).unwrap_or(known.len());
            known.insert(place, fresh);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(items: &[u32], cursor: &str) -> Rows<u32> {
        let next_cursor = Some(cursor.to_owned()).filter(|cursor| !cursor.is_empty());
        Rows { items: items.to_vec(), next_cursor }
    }

    #[test]
    fn a_fresh_page_replaces_the_begin_of_a_list() {
        let join =
            |known: &[u32], fresh: Rows<u32>| joined(known.to_vec(), Some("old".to_owned()), fresh, |n| *n);
        let known = [9, 8, 7, 6];
        assert_eq!(join(&known, page(&[10, 9, 8], "8")), page(&[10, 9, 8, 7, 6], "old"), "a new item");
        assert_eq!(join(&known, page(&[8, 7], "7")), page(&[8, 7, 6], "old"), "an item is gone");
        assert_eq!(join(&known, page(&[7, 6], "6")), page(&[7, 6], "6"), "nothing follows");
        assert_eq!(join(&known, page(&[12, 11], "11")), page(&[12, 11], "11"), "items between are missing");
        assert_eq!(join(&known, page(&[9, 8], "")), page(&[9, 8], ""), "the whole list");
        assert_eq!(join(&known, page(&[], "")), page(&[], ""));
        assert_eq!(join(&[], page(&[1], "1")), page(&[1], "1"));
    }

    #[test]
    fn a_next_page_adds_no_item_twice() {
        let mut known = vec![3, 2];
        append(&mut known, vec![2, 1], |n| *n);
        assert_eq!(known, [3, 2, 1]);
    }

    #[test]
    fn a_newer_item_comes_first_and_an_older_copy_is_ignored() {
        let mut known = vec![(3, 'b'), (1, 'b')];
        for fresh in [(2, 'a'), (4, 'a'), (3, 'c'), (1, 'a'), (0, 'a')] {
            merge_newest(&mut known, fresh, |one| one.0, |one| one.1);
        }
        assert_eq!(known, [(4, 'a'), (3, 'c'), (2, 'a'), (1, 'b'), (0, 'a')]);
    }

    #[test]
    fn a_refresh_asks_for_the_shown_items() {
        assert_eq!([0, 50, 51, 200, 1_000].map(refresh_limit), [50, 50, 51, 200, 200]);
    }
}
