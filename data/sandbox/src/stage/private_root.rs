//! A root of its own: an empty file system with the system's files and the given ones mounted
//! read-only, a working directory of bounded size, and nothing else, not even /proc.

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

/// More files than an honest program makes in seconds, and few enough to cost nothing.
const MAX_FILES: u32 = 4096;

/// Makes the new root and enters it; the old one is gone.
///
/// # Errors
///
/// - the system refuses a mount; the reason names it
pub(super) fn enter(folder: &Path, read_only: &[PathBuf], limits: &Limits) -> Result<(), String> {
    let root = folder.join(protocol::ROOT);
    told("unshare", unshare(CloneFlags::CLONE_NEWNS))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    told("/", mount_change("/", private))?;
    mount_tmpfs(&root, "size=1m,mode=755")?;
    let mut builder = Builder {
        root: &root,
        made: Vec::new(),
    };
    for path in SYSTEM.map(Path::new) {
        builder.add_system(path)?;
    }
    // A folder comes before those within it, which it then has brought along.
    let mut read_only: Vec<&PathBuf> = read_only.iter().collect();
    read_only.sort_by_key(|path| path.components().count());
    for path in read_only {
        let real = told(path.display(), fs::canonicalize(path))?;
        builder.add(&real, &real)?;
        builder.add(&real, path)?;
    }
    for path in DEVICES.map(Path::new).iter().filter(|path| path.exists()) {
        let place = builder.place(path)?;
        told(place.display(), File::create(&place))?;
        told(path.display(), mount_bind_recursive(*path, &place))?;
    }
    let work = builder.place(Path::new(WORK))?;
    told(WORK, fs::create_dir(&work))?;
    let options = format!("size={},nr_inodes={MAX_FILES},mode=700", limits.disk_bytes);
    mount_tmpfs(&work, &options)?;
    told("host name", sethostname(b"sandbox"))?;
    change_root(&root)
}

fn told<T, E: std::fmt::Display>(
    what: impl std::fmt::Display,
    result: Result<T, E>,
) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

fn mount_tmpfs(place: &Path, options: &str) -> Result<(), String> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let options = told("mount options", CString::new(options))?;
    let mounted = mount("tmpfs", place, "tmpfs", flags, options.as_c_str());
    told(format!("tmpfs at {}", place.display()), mounted)
}

struct Builder<'a> {
    root: &'a Path,
    /// What is there already, links too, as paths in the new root.
    made: Vec<PathBuf>,
}

impl Builder<'_> {
    /// Where `path` of the new root is at present, with its parents.
    fn place(&self, path: &Path) -> Result<PathBuf, String> {
        let below = told(path.display(), path.strip_prefix("/"))?;
        let place = self.root.join(below);
        if let Some(parent) = place.parent() {
            told(parent.display(), fs::create_dir_all(parent))?;
        }
        Ok(place)
    }

    /// Links stay links: `/lib` is one on most systems.
    fn add_system(&mut self, path: &Path) -> Result<(), String> {
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() => {
                let target = told(path.display(), fs::read_link(path))?;
                told(path.display(), symlink(target, self.place(path)?))?;
                self.made.push(path.to_owned());
                Ok(())
            }
            Ok(_) => self.add(path, path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Mounts `source` at `path`, unless what is there already leads to it.
    fn add(&mut self, source: &Path, path: &Path) -> Result<(), String> {
        if self.made.iter().any(|made| path.starts_with(made)) {
            return Ok(());
        }
        let place = self.place(path)?;
        if source.is_dir() {
            told(place.display(), fs::create_dir_all(&place))?;
        } else {
            told(place.display(), File::create(&place))?;
        }
        told(source.display(), mount_bind_recursive(source, &place))?;
        let flags = told(source.display(), read_only_flags(&place))?;
        let remounted = mount_remount(&place, flags, c"");
        told(format!("read-only {}", source.display()), remounted)?;
        self.made.push(path.to_owned());
        Ok(())
    }
}

/// Flags that the mount has from outside must stay, or the kernel refuses.
fn read_only_flags(place: &Path) -> io::Result<MountFlags> {
    let mut flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    if statvfs(place)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        flags |= MountFlags::NOEXEC;
    }
    Ok(flags)
}

fn change_root(root: &Path) -> Result<(), String> {
    told("chdir", std::env::set_current_dir(root))?;
    // The old root comes to lie on the new one, whence it is taken away.
    told("pivot_root", pivot_root(".", "."))?;
    told("umount", unmount(".", UnmountFlags::DETACH))?;
    told("chdir", std::env::set_current_dir("/"))?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    told("read-only root", mount_remount("/", flags, c""))
}
