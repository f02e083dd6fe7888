//! Turns Burn's panic on a device without memory left into an error that says what was asked for.
//!
//! On a GPU memory is taken behind the back of the thread that computes, so that Burn has no other way
//! than to panic when a result is read. A message of that kind is caught here and kept off the
//! terminal; every other panic goes where it would have gone. On a CPU the operating system decides, and
//! there is nothing to catch.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

/// What needs less memory where a model is trained.
pub const TRAINING_SETTINGS: [&str; 3] = [
    "train.gradient_checkpointing = \"full\"",
    "a smaller train.per_device_train_batch_size with as much more \
     train.gradient_accumulation_steps, which learns the same",
    "a smaller data.max_length",
];

/// What needs less memory where a retriever is trained.
pub const RETRIEVER_SETTINGS: [&str; 3] = [
    "a smaller retriever.mini_batch_size, which learns the same",
    "a smaller retriever.max_seq_length",
    "a smaller retriever.per_device_train_batch_size",
];

/// What needs less memory where texts are generated.
pub const GENERATION_SETTINGS: [&str; 3] = [
    "a smaller eval.batch_size",
    "eval.kv_cache_tokens, which bounds the texts that are generated together",
    "a smaller eval.max_new_tokens",
];

/// A device that had no memory left.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", self.words())]
pub struct OutOfMemory {
    /// What was asked for, if the driver said it.
    pub asked_bytes: Option<u64>,
    /// What the work takes by the plan, largest part first, as "name size".
    pub parts: Vec<String>,
    /// What takes less.
    pub settings: [&'static str; 3],
    /// The newest checkpoint of the run.
    pub checkpoint: Option<PathBuf>,
}

impl OutOfMemory {
    fn words(&self) -> String {
        let mut words = "the device has no memory left".to_owned();
        if let Some(bytes) = self.asked_bytes {
            words += &format!(": {bytes} bytes more were asked for");
        }
        if !self.parts.is_empty() {
            words += &format!("; by the plan the run holds {}", self.parts.join(", "));
        }
        words += &format!("; what takes less: {}", self.settings.join("; or "));
        if let Some(path) = &self.checkpoint {
            let path = path.display();
            words += &format!("; {path} is kept, and the same command resumes from there");
        }
        words
    }
}

/// Runs work that computes on a device.
///
/// # Errors
///
/// An [`OutOfMemory`] with `settings` where the device had no memory left; else what the work says.
pub fn caught<T, E: From<OutOfMemory>>(
    settings: [&'static str; 3],
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let before = Arc::new(take_hook());
    let others = Arc::clone(&before);
    set_hook(Box::new(move |panic| {
        if !tells_of_memory(panic.payload()) {
            others(panic);
        }
    }));
    let outcome = catch_unwind(AssertUnwindSafe(work));
    drop(take_hook());
    // The only other owner was the hook that has just been dropped.
    if let Ok(before) = Arc::try_unwrap(before) {
        set_hook(before);
    }
    match outcome {
        Ok(outcome) => outcome,
        Err(payload) if tells_of_memory(payload.as_ref()) => Err(E::from(OutOfMemory {
            asked_bytes: text_of(payload.as_ref()).and_then(asked_bytes),
            parts: Vec::new(),
            settings,
            checkpoint: None,
        })),
        Err(payload) => resume_unwind(payload),
    }
}

/// The beginnings of CubeCL's messages: `IoError::OutOfMemory`,
/// `IoError::BufferTooBig` and `LaunchError::OutOfMemory`.
const MESSAGES: [&str; 3] = [
    "out of device memory allocating ",
    "can't allocate buffer of size: ",
    "An out-of-memory error happened during launch",
];

fn tells_of_memory(payload: &(dyn Any + Send)) -> bool {
    text_of(payload).is_some_and(|text| MESSAGES.iter().any(|message| text.contains(message)))
}

fn text_of(payload: &(dyn Any + Send)) -> Option<&str> {
    payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
}

/// The number behind the first message that has one.
fn asked_bytes(text: &str) -> Option<u64> {
    MESSAGES[..2].iter().find_map(|message| {
        let rest = &text[text.find(message)? + message.len()..];
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn panics_with(text: &'static str) -> Result<(), Error> {
        caught(TRAINING_SETTINGS, || std::panic::panic_any(text.to_owned()))
    }

    #[test]
    fn a_panic_of_a_device_without_memory_is_an_error_with_its_own_exit_status() {
        // As Burn reads the loss of a step that CubeCL could not give memory to.
        let read = "Error while reading data: use `try_into_data` instead to catch the error at \
                    runtime: An error happened during execution\nCaused by:\n  An IO error happened\n\
                    Caused by:\n  out of device memory allocating 4294967296 bytes\nBacktrace";
        let error = panics_with(read).unwrap_err();
        assert_eq!(error.exit_code(), 4);
        let said = error.to_string();
        for part in [
            "4294967296 bytes",
            "gradient_checkpointing = \"full\"",
            "per_device_train_batch_size",
            "data.max_length",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let launch = "An out-of-memory error happened during launch\nCaused by:\n  no pages";
        let Err(Error::OutOfMemory(found)) = panics_with(launch) else {
            panic!("a launch without memory is caught");
        };
        assert_eq!(found.asked_bytes, None);
    }

    #[test]
    fn other_panics_and_other_errors_pass() {
        let outcome = catch_unwind(|| panics_with("index out of bounds"));
        let payload = outcome.expect_err("the panic passes");
        assert_eq!(text_of(payload.as_ref()), Some("index out of bounds"));
        let usage = caught(TRAINING_SETTINGS, || -> Result<(), Error> {
            Err(Error::Usage("--x".to_owned()))
        });
        assert!(matches!(usage, Err(Error::Usage(_))));
        let found = caught(TRAINING_SETTINGS, || Ok::<i32, Error>(3));
        assert!(matches!(found, Ok(3)));
    }

    #[test]
    fn the_message_names_what_is_held_and_what_is_kept() {
        let error = OutOfMemory {
            asked_bytes: Some(1 << 30),
            parts: vec!["base weights 15.0 GiB".to_owned()],
            settings: GENERATION_SETTINGS,
            checkpoint: Some(PathBuf::from("runs/a/checkpoint-000020")),
        };
        let said = error.to_string();
        for part in [
            "base weights 15.0 GiB",
            "eval.batch_size",
            "runs/a/checkpoint-000020 is kept",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
