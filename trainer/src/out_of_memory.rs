//! Turns Burn's out-of-memory panic into an error with the requested size.
//!
//! On a GPU, memory is allocated asynchronously, so Burn reports a failed allocation by a panic
//! when a result is read. This module catches these panics without printing them; all other panics
//! pass through. On a CPU, the operating system ends the process, and there is nothing to catch.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

/// Settings that reduce memory in language-model training.
pub const TRAINING_SETTINGS: [&str; 3] = [
    "set train.gradient_checkpointing = \"full\"",
    "lower train.per_device_train_batch_size and raise \
     train.gradient_accumulation_steps by the same factor (the training result is the same)",
    "lower data.max_length",
];

/// Settings that reduce memory in retriever training.
pub const RETRIEVER_SETTINGS: [&str; 3] = [
    "lower retriever.mini_batch_size (the training result is the same)",
    "lower retriever.max_seq_length",
    "lower retriever.per_device_train_batch_size",
];

/// Settings that reduce memory in generation.
pub const GENERATION_SETTINGS: [&str; 3] = [
    "lower eval.batch_size",
    "lower eval.kv_cache_tokens, which limits how many completions are generated together",
    "lower eval.max_new_tokens",
];

/// The device ran out of memory.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", self.message())]
pub struct OutOfMemory {
    /// Bytes of the failed allocation, if the driver reported them.
    pub requested_bytes: Option<u64>,
    /// Planned memory use, largest part first, as "name size".
    pub parts: Vec<String>,
    /// Settings that reduce memory.
    pub settings: [&'static str; 3],
    /// Newest checkpoint of the run.
    pub checkpoint: Option<PathBuf>,
}

impl OutOfMemory {
    fn message(&self) -> String {
        let mut message = "the device is out of memory".to_owned();
        if let Some(bytes) = self.requested_bytes {
            message += &format!(": an allocation of {bytes} bytes failed");
        }
        if !self.parts.is_empty() {
            message += &format!("; planned use: {}", self.parts.join(", "));
        }
        message += &format!("; to use less, {}", self.settings.join("; or "));
        if let Some(path) = &self.checkpoint {
            let path = path.display();
            message += &format!("; {path} is saved, and the same command resumes from there");
        }
        message
    }
}

/// Runs `work` on a device.
///
/// # Errors
///
/// An [`OutOfMemory`] with `settings` if the device ran out of memory; otherwise the error of the
/// work.
pub fn catch_out_of_memory<T, E: From<OutOfMemory>>(
    settings: [&'static str; 3],
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let previous = Arc::new(take_hook());
    let print_panic = Arc::clone(&previous);
    set_hook(Box::new(move |panic| {
        if !is_out_of_memory(panic.payload()) {
            print_panic(panic);
        }
    }));
    let outcome = catch_unwind(AssertUnwindSafe(work));
    drop(take_hook());
    // The hook was the only other owner, and it was dropped above.
    if let Ok(previous) = Arc::try_unwrap(previous) {
        set_hook(previous);
    }
    match outcome {
        Ok(outcome) => outcome,
        Err(payload) if is_out_of_memory(payload.as_ref()) => Err(E::from(OutOfMemory {
            requested_bytes: panic_message(payload.as_ref()).and_then(requested_bytes),
            parts: Vec::new(),
            settings,
            checkpoint: None,
        })),
        Err(payload) => resume_unwind(payload),
    }
}

/// Prefixes of CubeCL's out-of-memory messages: `IoError::OutOfMemory`, `IoError::BufferTooBig` and
/// `LaunchError::OutOfMemory`.
const MESSAGES: [&str; 3] = [
    "out of device memory allocating ",
    "can't allocate buffer of size: ",
    "An out-of-memory error happened during launch",
];

fn is_out_of_memory(payload: &(dyn Any + Send)) -> bool {
    panic_message(payload).is_some_and(|text| MESSAGES.iter().any(|message| text.contains(message)))
}

fn panic_message(payload: &(dyn Any + Send)) -> Option<&str> {
    payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
}

/// The number of bytes in the message, if it has one.
fn requested_bytes(text: &str) -> Option<u64> {
    MESSAGES[..2].iter().find_map(|message| {
        let after = &text[text.find(message)? + message.len()..];
        let digits = after.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn panics_with(text: &'static str) -> Result<(), Error> {
        catch_out_of_memory(TRAINING_SETTINGS, || std::panic::panic_any(text.to_owned()))
    }

    #[test]
    fn an_out_of_memory_panic_is_an_error_with_its_own_exit_status() {
        // Burn's message when the loss is read after CubeCL failed to allocate memory.
        let read = "Error while reading data: use `try_into_data` instead to catch the error at \
                    runtime: An error happened during execution\nCaused by:\n  An IO error happened\n\
                    Caused by:\n  out of device memory allocating 4294967296 bytes\nBacktrace";
        let error = panics_with(read).unwrap_err();
        assert_eq!(error.exit_code(), 4);
        let message = error.to_string();
        for part in [
            "4294967296 bytes",
            "gradient_checkpointing = \"full\"",
            "per_device_train_batch_size",
            "data.max_length",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
        let launch = "An out-of-memory error happened during launch\nCaused by:\n  no pages";
        let Err(Error::OutOfMemory(out_of_memory)) = panics_with(launch) else {
            panic!("a launch without memory is caught");
        };
        assert_eq!(out_of_memory.requested_bytes, None);
    }

    #[test]
    fn other_panics_and_errors_pass_through() {
        let outcome = catch_unwind(|| panics_with("index out of bounds"));
        let payload = outcome.expect_err("the panic passes");
        assert_eq!(panic_message(payload.as_ref()), Some("index out of bounds"));
        let usage = catch_out_of_memory(TRAINING_SETTINGS, || -> Result<(), Error> {
            Err(Error::Usage("--x".to_owned()))
        });
        assert!(matches!(usage, Err(Error::Usage(_))));
        let result = catch_out_of_memory(TRAINING_SETTINGS, || Ok::<i32, Error>(3));
        assert!(matches!(result, Ok(3)));
    }

    #[test]
    fn the_message_names_memory_in_use_and_saved_state() {
        let error = OutOfMemory {
            requested_bytes: Some(1 << 30),
            parts: vec!["base weights 15.0 GiB".to_owned()],
            settings: GENERATION_SETTINGS,
            checkpoint: Some(PathBuf::from("runs/a/checkpoint-000020")),
        };
        let message = error.to_string();
        for part in [
            "base weights 15.0 GiB",
            "eval.batch_size",
            "runs/a/checkpoint-000020 is saved",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}
