//! `completions` and `man`: shell completions and man pages, generated from the command-line
//! definitions.

use clap::CommandFactory;
use tooltune_disk::atomic::write_atomic;

use super::print_line;
use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::error::Error;

pub(super) fn completions(args: &CompletionsArgs) -> Result<(), Error> {
    let mut command = Cli::command();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "tooltune", &mut script);
    print_line(String::from_utf8_lossy(&script).trim_end())
}

pub(super) fn pages(args: &ManArgs) -> Result<(), Error> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder).map_err(Error::io(folder, "make"))?;
    let mut command = Cli::command();
    command.build();
    let n = write_pages(&command, args)?;
    print_line(&format!("{n} pages in {}", folder.display()))
}

/// Writes the page of a command and the pages of its subcommands. Returns the number of pages.
fn write_pages(command: &clap::Command, args: &ManArgs) -> Result<usize, Error> {
    let page = clap_mangen::Man::new(command.clone());
    let path = args.folder.join(page.get_filename());
    let mut text = Vec::new();
    page.render(&mut text).map_err(Error::io(&path, "write"))?;
    write_atomic(&path, &text)?;
    let verbs = command.get_subcommands();
    let verbs = verbs.filter(|verb| verb.get_name() != "help");
    let pages = verbs.map(|verb| write_pages(verb, args));
    Ok(1 + pages.sum::<Result<usize, Error>>()?)
}
