//! Files that the program may open, by Landlock.
//!
//! Its third version is required, as the first without a way to cut files that cannot be opened;
//! what later ones add (TCP, device ioctls, signals, abstract sockets) is taken where it is there,
//! for seccomp denies it anyway.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, make_bitflags,
    path_beneath_rules,
};

/// What a dynamically linked program needs of the system; what does not exist is left out.
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

/// Devices that hold nothing.
pub(super) const DEVICES: [&str; 5] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
];

const REQUIRED: ABI = ABI::V3;

/// Leaves to this process reading the system's files and `read_only`, and writing in `work`.
///
/// # Errors
///
/// - the kernel has no Landlock, or one before its third version
pub(super) fn restrict(read_only: &[PathBuf], work: &Path) -> Result<(), String> {
    let handled = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(REQUIRED));
    // The error lists the rights that are missing, which are all those of a version.
    let handled = handled
        .map_err(|_| "the kernel offers no Landlock, or one before its third version".to_owned())?;
    let status = enforce(handled, read_only, work).map_err(|error| with_causes(&error))?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(format!("the kernel says {:?}", status.landlock)),
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

fn enforce(
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
        let said = error.to_string();
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}
