//! Resolves a hub name to a folder or file on this machine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::cache::{RepoCache, is_commit};
use crate::choice::{Choice, WantedFiles};
use crate::client::{Client, RetryPolicy};
use crate::download::{RequestedFile, fetch_file};
use crate::environment::HubSettings;
use crate::error::HubError;
use crate::event::{Event, Listener};
use crate::listing::{Files, ListedFile};
use crate::name::{HubName, RepoName};
use crate::refusal::RequestSubject;

/// The default revision.
const MAIN: &str = "main";

/// Files downloaded in parallel, as in `huggingface_hub`.
const N_PARALLEL: usize = 8;

/// The local files of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The folder of the commit, or the named file.
    pub path: PathBuf,
    /// The commit.
    pub commit: String,
    /// The reason why the cache was used instead of the hub's reply; `None` if the hub was used.
    pub instead: Option<String>,
}

/// A hub and this machine's cache.
#[derive(Debug)]
pub struct Hub {
    settings: HubSettings,
    pub(crate) client: Client,
}

impl Hub {
    /// Creates a client of the hub and its cache.
    ///
    /// # Errors
    ///
    /// `HF_ENDPOINT` is not an address, or the token cannot be sent.
    pub fn new(settings: HubSettings) -> Result<Self, HubError> {
        Self::with_retry_policy(settings, RetryPolicy::default())
    }

    /// The hub and cache that this process's environment sets.
    ///
    /// # Errors
    ///
    /// As for [`HubSettings::from_environment`] and [`Hub::new`].
    pub fn from_process_environment() -> Result<Self, HubError> {
        Self::new(HubSettings::from_process_environment()?)
    }

    pub(crate) fn with_retry_policy(
        settings: HubSettings,
        policy: RetryPolicy,
    ) -> Result<Self, HubError> {
        Ok(Self {
            client: Client::new(&settings, policy)?,
            settings,
        })
    }

    /// The address and cache settings.
    pub fn settings(&self) -> &HubSettings {
        &self.settings
    }

    /// The cached files of a name, without network requests; `None` if any file is missing.
    ///
    /// # Errors
    ///
    /// The cache cannot be read, or the repository does not have the requested part.
    pub fn cached_files(
        &self,
        name: &HubName,
        need: WantedFiles,
    ) -> Result<Option<Fetched>, HubError> {
        let cache = RepoCache::new(&self.settings.cache, &name.repo);
        match cache.commit(name.revision.as_deref().unwrap_or(MAIN))? {
            Some(commit) => match complete_by_listing(&cache, name, need, &commit)? {
                None => complete_by_folder(&cache, name, need, &commit),
                cached => Ok(cached),
            },
            None => Ok(None),
        }
    }

    /// Downloads the files of a name into the cache. A complete cached commit needs no request. For
    /// a branch or a tag, the hub is asked for the commit. If the hub cannot be reached, cached
    /// files are used, and [`Fetched::instead`] contains the reason.
    ///
    /// # Errors
    ///
    /// - The hub does not have or serve the files.
    /// - The hub cannot be reached and the cache is incomplete, or a file is missing in offline
    ///   mode.
    /// - The cache cannot be written.
    pub fn fetch(
        &self,
        name: &HubName,
        need: WantedFiles,
        report: Listener<'_>,
    ) -> Result<Fetched, HubError> {
        if self.settings.is_offline {
            return match self.cached_files(name, need)? {
                Some(cached) => Ok(cached),
                None => Err(self.offline(name)?),
            };
        }
        match self.fetch_from_hub(name, need, report) {
            Err(error) if error.allows_cached() => match self.cached_files(name, need)? {
                Some(cached) => Ok(Fetched {
                    instead: Some(error.to_string()),
                    ..cached
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
                Some(commit) => format!(" with all required files of its commit {commit}"),
                None => String::new(),
            },
        })
    }

    fn fetch_from_hub(
        &self,
        name: &HubName,
        need: WantedFiles,
        report: Listener<'_>,
    ) -> Result<Fetched, HubError> {
        let revision = name.revision.as_deref().unwrap_or(MAIN);
        let cache = RepoCache::new(&self.settings.cache, &name.repo);
        let name_text = name.to_string();
        let subject = RequestSubject {
            repo: &name.repo,
            revision,
            file: None,
            permission: "read",
            what: &name_text,
        };
        let commit = match is_commit(revision) {
            true => revision.to_owned(),
            false => self.client.commit(subject, report)?,
        };
        if let Some(cached) = complete_by_listing(&cache, name, need, &commit)? {
            // A read-only cache is still usable, as in huggingface_hub.
            let _ = cache.store_commit(revision, &commit);
            return Ok(cached);
        }
        let files = match cache.listing(&commit)? {
            Some(files) => files,
            None => self.client.files(&commit, subject, report)?,
        };
        let choice = Choice::new(&name.repo, &name.part, need, names_of(&files));
        let first_files = choice.first_files()?;
        cache.make_folders()?;
        cache.store_listing(&commit, &files)?;
        cache.store_commit(revision, &commit)?;
        let commit_files = FileChoice {
            about: subject,
            commit: &commit,
            files: &files,
        };
        self.fetch_files(&cache, commit_files, &first_files, report)?;
        let second = choice.second_files(&cache.snapshot(&commit))?;
        self.fetch_files(&cache, commit_files, &second, report)?;
        to_fetched(&cache, &choice, &commit)
    }

    /// Downloads files of a commit, several in parallel.
    fn fetch_files(
        &self,
        cache: &RepoCache,
        choice: FileChoice<'_>,
        paths: &[String],
        report: Listener<'_>,
    ) -> Result<(), HubError> {
        let FileChoice {
            about: subject,
            commit,
            files,
        } = choice;
        let mut missing = Vec::new();
        for path in paths {
            if let Some(file) = files.get(path)
                && !cache.has_file(commit, path, Some(file))?
            {
                missing.push((path.as_str(), file));
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        check_space(cache, subject.repo, missing.iter().map(|(_, file)| *file))?;
        report(Event::Begun {
            bytes: saturating_sum(missing.iter().map(|(_, file)| file.bytes())),
            n_files: missing.len(),
        });
        in_parallel(&missing, |(path, file)| {
            let requested = RequestedFile {
                about: RequestSubject {
                    file: Some(path),
                    ..subject
                },
                commit,
                path,
                file,
                files,
            };
            fetch_file(&self.client, cache, requested, report)
        })
    }
}

#[derive(Debug, Clone, Copy)]
struct FileChoice<'a> {
    about: RequestSubject<'a>,
    commit: &'a str,
    files: &'a Files,
}

fn names_of(files: &Files) -> impl Iterator<Item = &str> {
    files.keys().map(String::as_str)
}

/// Returns a cached commit that is complete according to its listing.
fn complete_by_listing(
    cache: &RepoCache,
    name: &HubName,
    need: WantedFiles,
    commit: &str,
) -> Result<Option<Fetched>, HubError> {
    let Some(files) = cache.listing(commit)? else {
        return Ok(None);
    };
    let choice = Choice::new(&name.repo, &name.part, need, names_of(&files));
    let has_all = |paths: Vec<String>| {
        for path in paths {
            if !cache.has_file(commit, &path, files.get(&path))? {
                return Ok(false);
            }
        }
        Ok::<_, HubError>(true)
    };
    if !has_all(choice.first_files()?)? || !has_all(choice.second_files(&cache.snapshot(commit))?)?
    {
        return Ok(None);
    }
    to_fetched(cache, &choice, commit).map(Some)
}

/// Returns a cached commit without a listing if its folder has all required files. Programs that
/// fetch single files leave such commits.
fn complete_by_folder(
    cache: &RepoCache,
    name: &HubName,
    need: WantedFiles,
    commit: &str,
) -> Result<Option<Fetched>, HubError> {
    let snapshot = cache.snapshot(commit);
    let names = RepoCache::list_names(&snapshot);
    let names = names.iter().map(String::as_str);
    let choice = Choice::new(&name.repo, &name.part, need, names);
    let Ok(first_files) = choice.first_files() else {
        return Ok(None);
    };
    // An index must not be read before it is known to be a blob of the cache.
    if !has_all_names(cache, commit, &first_files)? {
        return Ok(None);
    }
    let Ok(second) = choice.second_files(&snapshot) else {
        return Ok(None);
    };
    match has_all_names(cache, commit, &second)? {
        true => Ok(to_fetched(cache, &choice, commit).ok()),
        false => Ok(None),
    }
}

fn has_all_names(cache: &RepoCache, commit: &str, paths: &[String]) -> Result<bool, HubError> {
    for path in paths {
        if !cache.has_file(commit, path, None)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn to_fetched(cache: &RepoCache, choice: &Choice<'_>, commit: &str) -> Result<Fetched, HubError> {
    Ok(Fetched {
        path: match choice.file()? {
            Some(file) => cache.pointer(commit, &file),
            None => cache.snapshot(commit),
        },
        commit: commit.to_owned(),
        instead: None,
    })
}

/// Refuses a download that does not fit the disk.
fn check_space<'f>(
    cache: &RepoCache,
    repo: &RepoName,
    files: impl Iterator<Item = &'f ListedFile>,
) -> Result<(), HubError> {
    let Some(free_bytes) = cache.free_bytes() else {
        return Ok(());
    };
    let contents: BTreeMap<&str, &ListedFile> = files.map(|file| (file.hash(), file)).collect();
    let mut missing = Vec::new();
    for (hash, file) in contents {
        if !cache.has_blob(file)? {
            let downloaded = std::fs::symlink_metadata(cache.incomplete(hash));
            let downloaded = downloaded.map_or(0, |metadata| metadata.len());
            missing.push(file.bytes().saturating_sub(downloaded));
        }
    }
    let needed_bytes = saturating_sum(missing.into_iter());
    if needed_bytes <= free_bytes {
        return Ok(());
    }
    Err(HubError::NoSpace {
        cache: cache.root().to_owned(),
        repo: repo.clone(),
        needed: size_text(needed_bytes),
        free: size_text(free_bytes),
    })
}

/// Saturating sum of sizes from a server, which can be any numbers.
pub(crate) fn saturating_sum(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

/// Formats a number of bytes.
pub(crate) fn size_text(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} KB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// Runs `work` for each item, several in parallel; after the first error no further item is
/// started.
pub(crate) fn in_parallel<T: Sync>(
    items: &[T],
    work: impl Fn(&T) -> Result<(), HubError> + Sync,
) -> Result<(), HubError> {
    let next_item = AtomicUsize::new(0);
    let first_error: Mutex<Option<HubError>> = Mutex::new(None);
    let error_of = || first_error.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..N_PARALLEL.min(items.len()) {
            scope.spawn(|| {
                while error_of().is_none()
                    && let Some(item) = items.get(next_item.fetch_add(1, Ordering::Relaxed))
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
