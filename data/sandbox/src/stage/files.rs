//! Restricts the files that the program can open, using Landlock.
//!
//! Version 3 of Landlock is required. It is the first version that prevents truncating files that
//! cannot be opened. Features of later versions (TCP, device ioctls, signals, abstract sockets) are
//! used if available; seccomp denies these operations anyway.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, make_bitflags,
    path_beneath_rules,
};

/// System files that a dynamically linked program needs; missing ones are skipped.
pub(super) const SYSTEM: [&str; 8] = [
    "/usr",
    "/bin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/etc/ld.so.cache",
];

/// Devices that store no data.
pub(super) const DEVICES: [&str; 5] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
];

const REQUIRED: ABI = ABI::V3;

/// Restricts this process to reading system files and `read_only`, and to writing in `work`.
///
/// # Errors
///
/// The kernel does not support Landlock version 3.
pub(super) fn restrict(read_only: &[PathBuf], work: &Path) -> Result<(), String> {
    let handled = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(REQUIRED));
    // The original error lists all missing rights, which are all rights of a Landlock version.
    let handled =
        handled.map_err(|_| "the kernel does not support Landlock version 3".to_owned())?;
    let status = apply_ruleset(handled, read_only, work).map_err(|error| with_causes(&error))?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(format!("the kernel reports {:?}", status.landlock)),
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

fn apply_ruleset(
    handled: Ruleset,
    read_only: &[PathBuf],
    work: &Path,
) -> Result<RestrictionStatus, RulesetError> {
    let readable = SYSTEM
        .iter()
        .map(Path::new)
        .chain(read_only.iter().map(PathBuf::as_path));
    let writable: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
        ReadFile | ReadDir | WriteFile | Truncate | MakeReg | MakeDir | MakeSym | RemoveFile
            | RemoveDir | Refer
    });
    let device = AccessFs::ReadFile | AccessFs::WriteFile;
    handled
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))?
        .handle_access(AccessNet::from_all(ABI::V4))?
        .scope(Scope::from_all(ABI::V6))?
        .create()?
        .add_rules(path_beneath_rules(readable, AccessFs::from_read(REQUIRED)))?
        .add_rules(path_beneath_rules(DEVICES, device))?
        .add_rules(path_beneath_rules([work], writable))?
        .restrict_self()
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.ends_with(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}
