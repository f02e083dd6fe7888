//! A name becomes a folder or a file of this machine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::cache::{RepoCache, is_commit};
use crate::choice::{Choice, Need};
use crate::client::{Client, Patience};
use crate::download::{Wanted, fetch_file};
use crate::environment::HubSettings;
use crate::error::HubError;
use crate::listing::{Files, ListedFile};
use crate::name::{HubName, RepoName};
use crate::refusal::About;

/// The revision of a name that has none.
const MAIN: &str = "main";

/// Files that are fetched at once, as in `huggingface_hub`.
const N_AT_ONCE: usize = 8;

/// What happens while files are fetched or uploaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// There is so much to do.
    Begun {
        /// Bytes of all files.
        bytes: u64,
        /// How many files.
        n_files: usize,
    },
    /// So many more bytes are done.
    Bytes(u64),
    /// So many bytes are to be done again.
    Lost(u64),
    /// A try has failed, and the next one comes after a while.
    Waiting {
        /// How long.
        seconds: u64,
        /// What happened.
        why: &'a str,
    },
}

/// Hears what happens, from several threads.
pub type Listener<'a> = &'a (dyn Fn(Event<'_>) + Sync);

/// What a name has become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The folder of the commit, or the file that was named.
    pub path: PathBuf,
    /// The commit.
    pub commit: String,
    /// Why the cache was taken in place of an answer, if it was.
    pub instead: Option<String>,
}

/// A hub with the cache of this machine.
#[derive(Debug)]
pub struct Hub {
    settings: HubSettings,
    pub(crate) client: Client,
}

impl Hub {
    /// # Errors
    ///
    /// `HF_ENDPOINT` is no address, or the token cannot be sent.
    pub fn new(settings: HubSettings) -> Result<Self, HubError> {
        Self::with_patience(settings, Patience::default())
    }

    /// The hub and the cache that the environment of this process names.
    ///
    /// # Errors
    ///
    /// As [`HubSettings::from_environment`] and [`Hub::new`].
    pub fn of_process() -> Result<Self, HubError> {
        let settings = HubSettings::from_environment(&|name| std::env::var(name).ok())?;
        Self::new(settings)
    }

    pub(crate) fn with_patience(
        settings: HubSettings,
        patience: Patience,
    ) -> Result<Self, HubError> {
        Ok(Self {
            client: Client::new(&settings, patience)?,
            settings,
        })
    }

    /// Where it asks and keeps files.
    pub fn settings(&self) -> &HubSettings {
        &self.settings
    }

    /// What the cache has of a name, without asking anybody; nothing where any of it is missing.
    ///
    /// # Errors
    ///
    /// The cache cannot be read; the name is of something that the repository has not.
    pub fn cached(&self, name: &HubName, need: Need) -> Result<Option<Fetched>, HubError> {
        let cache = RepoCache::new(&self.settings.cache, &name.repo);
        match cache.commit(name.revision.as_deref().unwrap_or(MAIN))? {
            Some(commit) => match in_cache(&cache, name, need, &commit)? {
                None => Ok(in_folder(&cache, name, need, &commit)),
                found => Ok(found),
            },
            None => Ok(None),
        }
    }

    /// Makes what a name means lie in the cache. A commit that is whole there is asked nobody about;
    /// of a branch or a tag the hub says which commit it is. Where the hub cannot be reached, what
    /// the cache has is taken, and [`Fetched::instead`] says so.
    ///
    /// # Errors
    ///
    /// The hub has it not, does not give it, or cannot be reached, and the cache has it not either;
    /// the cache cannot be written; nothing may be asked and something is missing.
    pub fn fetch(
        &self,
        name: &HubName,
        need: Need,
        told: Listener<'_>,
    ) -> Result<Fetched, HubError> {
        if self.settings.is_offline {
            return match self.cached(name, need)? {
                Some(found) => Ok(found),
                None => Err(self.offline(name)?),
            };
        }
        match self.fetch_asking(name, need, told) {
            Err(error) if error.may_be_passed_over() => match self.cached(name, need)? {
                Some(found) => Ok(Fetched {
                    instead: Some(error.to_string()),
                    ..found
                }),
                None => Err(error),
            },
            fetched => fetched,
        }
    }

    fn offline(&self, name: &HubName) -> Result<HubError, HubError> {
        let cache = RepoCache::new(&self.settings.cache, &name.repo);
        let commit = cache.commit(name.revision.as_deref().unwrap_or(MAIN))?;
        let is_partly = commit.filter(|commit| cache.snapshot(commit).is_dir());
        Ok(HubError::Offline {
            name: name.to_string(),
            cache: self.settings.cache.clone(),
            lacking: match is_partly {
                Some(commit) => format!(" with all that is needed of its commit {commit}"),
                None => String::new(),
            },
        })
    }

    fn fetch_asking(
        &self,
        name: &HubName,
        need: Need,
        told: Listener<'_>,
    ) -> Result<Fetched, HubError> {
        let revision = name.revision.as_deref().unwrap_or(MAIN);
        let cache = RepoCache::new(&self.settings.cache, &name.repo);
        let what = name.to_string();
        let about = About {
            repo: &name.repo,
            revision,
            file: None,
            right: "read",
            what: &what,
        };
        let commit = match is_commit(revision) {
            true => revision.to_owned(),
            false => self.client.commit(about, told)?,
        };
        if let Some(found) = in_cache(&cache, name, need, &commit)? {
            // A cache that can only be read serves all the same, as in huggingface_hub.
            let _ = cache.keep_commit(revision, &commit);
            return Ok(found);
        }
        let files = match cache.listing(&commit)? {
            Some(files) => files,
            None => self.client.files(&commit, about, told)?,
        };
        let choice = Choice::new(&name.repo, &name.part, need, names_of(&files));
        let first = choice.first()?;
        cache.make_folders()?;
        cache.keep_listing(&commit, &files)?;
        cache.keep_commit(revision, &commit)?;
        let of_commit = OfCommit {
            about,
            commit: &commit,
            files: &files,
        };
        self.fetch_files(&cache, of_commit, &first, told)?;
        let second = choice.second(&cache.snapshot(&commit))?;
        self.fetch_files(&cache, of_commit, &second, told)?;
        fetched(&cache, &choice, &commit)
    }

    /// Fetches files of a commit, some at a time.
    fn fetch_files(
        &self,
        cache: &RepoCache,
        of: OfCommit<'_>,
        paths: &[String],
        told: Listener<'_>,
    ) -> Result<(), HubError> {
        let OfCommit {
            about,
            commit,
            files,
        } = of;
        let is_missing = |path: &&String| !cache.pointer(commit, path).exists();
        let missing = paths.iter().filter(is_missing);
        let missing: Vec<_> = missing
            .filter_map(|path| Some((path.as_str(), files.get(path)?)))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        check_space(cache, about.repo, missing.iter().map(|(_, file)| *file))?;
        told(Event::Begun {
            bytes: missing.iter().map(|(_, file)| file.bytes()).sum(),
            n_files: missing.len(),
        });
        in_parallel(&missing, |(path, file)| {
            let wanted = Wanted {
                about: About {
                    file: Some(path),
                    ..about
                },
                commit,
                path,
                file,
            };
            fetch_file(&self.client, cache, wanted, told)
        })
    }
}

#[derive(Debug, Clone, Copy)]
struct OfCommit<'a> {
    about: About<'a>,
    commit: &'a str,
    files: &'a Files,
}

fn names_of(files: &Files) -> impl Iterator<Item = &str> {
    files.keys().map(String::as_str)
}

/// A commit that is whole by its own listing.
fn in_cache(
    cache: &RepoCache,
    name: &HubName,
    need: Need,
    commit: &str,
) -> Result<Option<Fetched>, HubError> {
    let Some(files) = cache.listing(commit)? else {
        return Ok(None);
    };
    let choice = Choice::new(&name.repo, &name.part, need, names_of(&files));
    let has_all = |paths: Vec<String>| {
        paths
            .iter()
            .all(|path| cache.pointer(commit, path).exists())
    };
    if !has_all(choice.first()?) || !has_all(choice.second(&cache.snapshot(commit))?) {
        return Ok(None);
    }
    fetched(cache, &choice, commit).map(Some)
}

/// A commit of which nobody has kept a listing, as another program fetches single files: whole where
/// the folder itself looks so.
fn in_folder(cache: &RepoCache, name: &HubName, need: Need, commit: &str) -> Option<Fetched> {
    let snapshot = cache.snapshot(commit);
    let names = RepoCache::names_in(&snapshot);
    let names = names.iter().map(String::as_str);
    let choice = Choice::new(&name.repo, &name.part, need, names);
    choice.first().ok()?;
    choice.second(&snapshot).ok()?;
    fetched(cache, &choice, commit).ok()
}

fn fetched(cache: &RepoCache, choice: &Choice<'_>, commit: &str) -> Result<Fetched, HubError> {
    Ok(Fetched {
        path: match choice.file()? {
            Some(file) => cache.pointer(commit, &file),
            None => cache.snapshot(commit),
        },
        commit: commit.to_owned(),
        instead: None,
    })
}

/// Refuses to begin what does not fit the disk.
fn check_space<'f>(
    cache: &RepoCache,
    repo: &RepoName,
    files: impl Iterator<Item = &'f ListedFile>,
) -> Result<(), HubError> {
    let Some(free) = cache.free_bytes() else {
        return Ok(());
    };
    let contents: BTreeMap<&str, u64> = files.map(|file| (file.etag(), file.bytes())).collect();
    let is_missing = |(etag, _): &(&&str, &u64)| !cache.blob(etag).exists();
    let needed: u64 = (contents.iter().filter(is_missing))
        .map(|(etag, bytes)| {
            let begun = std::fs::metadata(cache.incomplete(etag));
            bytes.saturating_sub(begun.map_or(0, |found| found.len()))
        })
        .sum();
    if needed <= free {
        return Ok(());
    }
    Err(HubError::NoSpace {
        cache: cache.root().to_owned(),
        repo: repo.clone(),
        needed: size(needed),
        free: size(free),
    })
}

/// Bytes as people say them.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} KB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// Does `work` for each item, some at a time; the first error ends what has not begun.
pub(crate) fn in_parallel<T: Sync>(
    items: &[T],
    work: impl Fn(&T) -> Result<(), HubError> + Sync,
) -> Result<(), HubError> {
    let next = AtomicUsize::new(0);
    let first_error: Mutex<Option<HubError>> = Mutex::new(None);
    let error_of = || first_error.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..N_AT_ONCE.min(items.len()) {
            scope.spawn(|| {
                while error_of().is_none()
                    && let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    if let Err(error) = work(item) {
                        error_of().get_or_insert(error);
                    }
                }
            });
        }
    });
    match error_of().take() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}
