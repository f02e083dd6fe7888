//! Creates a private root: an empty file system that contains only the system's files and the given
//! files, mounted read-only, and a working directory of limited size. It does not even contain
//! /proc.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, unshare};
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::process::pivot_root;
use rustix::system::sethostname;

use super::files::{DEVICES, SYSTEM};
use crate::limits::Limits;
use crate::protocol;

/// The working directory, in the new root.
pub(super) const WORK: &str = "/sandbox";

/// Maximum number of files: more than normal code creates in seconds, but cheap for the kernel.
const MAX_FILES: u32 = 4096;

/// Creates the new root and enters it; the old root becomes inaccessible.
///
/// # Errors
///
/// The system refuses a mount; the reason contains its path.
pub(super) fn enter_private_root(
    folder: &Path,
    read_only: &[PathBuf],
    limits: &Limits,
) -> Result<(), String> {
    let root = folder.join(protocol::ROOT);
    with_context("unshare", unshare(CloneFlags::CLONE_NEWNS))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    with_context("/", mount_change("/", private))?;
    mount_tmpfs(&root, "size=1m,mode=755")?;
    let mut builder = RootBuilder {
        root: &root,
        entries: Vec::new(),
    };
    for path in SYSTEM.map(Path::new) {
        builder.add_system(path)?;
    }
    // A folder is mounted before the folders inside it, which then already exist.
    let mut read_only: Vec<&PathBuf> = read_only.iter().collect();
    read_only.sort_by_key(|path| path.components().count());
    for path in read_only {
        let real = with_context(path.display(), fs::canonicalize(path))?;
        builder.add(&real, &real)?;
        builder.add(&real, path)?;
    }
    for path in DEVICES.map(Path::new).iter().filter(|path| path.exists()) {
        let target = builder.path_in_root(path)?;
        with_context(target.display(), File::create(&target))?;
        with_context(path.display(), mount_bind_recursive(*path, &target))?;
    }
    let work = builder.path_in_root(Path::new(WORK))?;
    with_context(WORK, fs::create_dir(&work))?;
    let options = format!("size={},nr_inodes={MAX_FILES},mode=700", limits.disk_bytes);
    mount_tmpfs(&work, &options)?;
    with_context("host name", sethostname(b"sandbox"))?;
    change_root(&root)
}

fn with_context<T, E: std::fmt::Display>(
    context: impl std::fmt::Display,
    result: Result<T, E>,
) -> Result<T, String> {
    result.map_err(|error| format!("{context}: {error}"))
}

fn mount_tmpfs(target: &Path, options: &str) -> Result<(), String> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let options = with_context("mount options", CString::new(options))?;
    let mounted = mount("tmpfs", target, "tmpfs", flags, options.as_c_str());
    with_context(format!("tmpfs at {}", target.display()), mounted)
}

struct RootBuilder<'a> {
    root: &'a Path,
    /// Existing entries, including links, as paths in the new root.
    entries: Vec<PathBuf>,
}

impl RootBuilder<'_> {
    /// The current location of a path of the new root; its parents are created.
    fn path_in_root(&self, path: &Path) -> Result<PathBuf, String> {
        let relative_path = with_context(path.display(), path.strip_prefix("/"))?;
        let target = self.root.join(relative_path);
        if let Some(parent) = target.parent() {
            with_context(parent.display(), fs::create_dir_all(parent))?;
        }
        Ok(target)
    }

    /// Adds a system path. Links remain links, because `/lib` is a link on most systems.
    fn add_system(&mut self, path: &Path) -> Result<(), String> {
        match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_symlink() => {
                let target = with_context(path.display(), fs::read_link(path))?;
                with_context(path.display(), symlink(target, self.path_in_root(path)?))?;
                self.entries.push(path.to_owned());
                Ok(())
            }
            Ok(_) => self.add(path, path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Mounts `source` at `path`, unless `path` already leads to it.
    fn add(&mut self, source: &Path, path: &Path) -> Result<(), String> {
        if self.entries.iter().any(|added| path.starts_with(added)) {
            return Ok(());
        }
        let target = self.path_in_root(path)?;
        if source.is_dir() {
            with_context(target.display(), fs::create_dir_all(&target))?;
        } else {
            with_context(target.display(), File::create(&target))?;
        }
        with_context(source.display(), mount_bind_recursive(source, &target))?;
        let flags = with_context(source.display(), read_only_flags(&target))?;
        let remounted = mount_remount(&target, flags, c"");
        with_context(format!("read-only {}", source.display()), remounted)?;
        self.entries.push(path.to_owned());
        Ok(())
    }
}

/// Flags for a read-only mount. Flags of the original mount must be kept, or the kernel refuses.
fn read_only_flags(target: &Path) -> io::Result<MountFlags> {
    let mut flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    if statvfs(target)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        flags |= MountFlags::NOEXEC;
    }
    Ok(flags)
}

fn change_root(root: &Path) -> Result<(), String> {
    with_context("chdir", std::env::set_current_dir(root))?;
    // The old root is stacked on the new one and then unmounted.
    with_context("pivot_root", pivot_root(".", "."))?;
    with_context("umount", unmount(".", UnmountFlags::DETACH))?;
    with_context("chdir", std::env::set_current_dir("/"))?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    with_context("read-only root", mount_remount("/", flags, c""))
}
