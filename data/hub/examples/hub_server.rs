//! The test hub as a program, for clients in other languages.
//!
//! `hub_server FOLDER` serves each `FOLDER/models/OWNER/NAME` and `FOLDER/datasets/OWNER/NAME`,
//! prints its address, and exits when its standard input closes. Files larger than 10,000 bytes are
//! in the large-file storage. The accepted token is `hf_of_the_test`.

use std::io::{Read, Write};
use std::path::Path;

use tooltune_hub::test_hub::TestHub;

fn add(hub: &TestHub, repo: &str, dir: &Path, prefix: &str) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            add(hub, repo, &entry.path(), &format!("{name}/"))?;
        } else {
            let bytes = std::fs::read(entry.path())?;
            hub.add(repo, &name, &bytes, bytes.len() > 10_000);
        }
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1).expect("a folder");
    let hub = TestHub::start();
    hub.require_token("hf_of_the_test");
    for kind in ["models", "datasets"] {
        let Ok(owners) = std::fs::read_dir(Path::new(&folder).join(kind)) else {
            continue;
        };
        for owner in owners.flatten() {
            for repo in std::fs::read_dir(owner.path())?.flatten() {
                let [owner, name] =
                    [&owner, &repo].map(|e| e.file_name().to_string_lossy().into_owned());
                add(&hub, &format!("{kind}/{owner}/{name}"), &repo.path(), "")?;
            }
        }
    }
    let mut output = std::io::stdout();
    writeln!(output, "{}", hub.url())?;
    output.flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
