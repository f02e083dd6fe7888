//! Turns panics in third-party code into errors, without printing them to the terminal.
//!
//! An untrusted file must not end the program, even if a library panics on it. The panic hook is
//! global to the process, so ours is set once, before the first such call. During such a call it
//! prints nothing on the thread that runs the call. It passes all other panics to the previous
//! hook.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// Runs `call` and returns a panic as an error with its message.
///
/// After an error, discard everything that `call` modifies, because it may be only partly changed.
pub fn catch_panic<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous_hook = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            if INSIDE.get() == 0 {
                previous_hook(panicked);
            }
        }));
    });
    INSIDE.set(INSIDE.get() + 1);
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    INSIDE.set(INSIDE.get() - 1);
    result.map_err(|panicked| message(&*panicked))
}

fn message(panicked: &(dyn Any + Send)) -> String {
    let text = match panicked.downcast_ref::<&str>() {
        Some(text) => Some((*text).to_owned()),
        None => panicked.downcast_ref::<String>().cloned(),
    };
    let text = text.unwrap_or_else(|| "panicked without a message".to_owned());
    match text.char_indices().nth(300) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::catch_panic;

    #[test]
    fn a_panic_becomes_an_error_and_later_calls_work() {
        assert_eq!(catch_panic(|| 3), Ok(3));
        let items: Vec<u8> = Vec::new();
        let error = catch_panic(|| items[3]).unwrap_err();
        assert!(error.contains("index is 3"), "{error}");
        let nested = catch_panic(|| catch_panic(|| panic!("inner {}", 1)).unwrap_err());
        assert_eq!(nested.as_deref(), Ok("inner 1"));
        let long = catch_panic(|| panic!("{}", "é".repeat(1000))).unwrap_err();
        assert!(long.chars().count() == 301, "{long}");
    }
}
