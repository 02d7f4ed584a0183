//! The places for live streams over HTTP/1.1, where all windows of a browser share six connections to the portal.

use js_sys::Function;
use std::cell::Cell;
use std::rc::Rc;
use wasm_bindgen::closure::Closure;
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};

#[wasm_bindgen(module = "/js/streams.js")]
extern "C" {
    #[wasm_bindgen(js_name = needsPlaces)]
    fn needs_places() -> bool;

    #[wasm_bindgen(js_name = askForPlace)]
    fn ask_for_place(granted: &Function, lost: &Function) -> Function;
}

/// A place, or a question for one. It ends when it is dropped.
pub struct Place {
    granted: Rc<Cell<bool>>,
    give_back: Function,
    /// The closed question never calls them again.
    _handlers: [Closure<dyn FnMut()>; 2],
}

impl Place {
    /// True if a stream needs a place.
    pub fn is_needed() -> bool {
        needs_places()
    }

    /// Asks for a place. Calls `on_granted` with it, and `on_lost` when another window gets it.
    pub fn ask(on_granted: impl FnOnce() + 'static, on_lost: impl FnOnce() + 'static) -> Self {
        let granted = Rc::new(Cell::new(false));
        let (begun, ended) = (granted.clone(), granted.clone());
        let (mut on_granted, mut on_lost) = (Some(on_granted), Some(on_lost));
        let handlers: [Closure<dyn FnMut()>; 2] = [
            Closure::new(move || {
                begun.set(true);
                if let Some(on_granted) = on_granted.take() {
                    on_granted();
                }
            }),
            Closure::new(move || {
                ended.set(false);
                if let Some(on_lost) = on_lost.take() {
                    on_lost();
                }
            }),
        ];
        let [first, second] = handlers.each_ref().map(|handler| handler.as_ref().unchecked_ref::<Function>());
        let give_back = ask_for_place(first, second);
        Self { granted, give_back, _handlers: handlers }
    }

    /// True from the grant of the place until another window gets it.
    pub fn is_granted(&self) -> bool {
        self.granted.get()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // It throws nothing.
        let _ = self.give_back.call0(&JsValue::UNDEFINED);
    }
}
