//! `doctor`: checks that this machine has everything a run needs, and times the connections between
//! the processes of a run.

mod preflight;

use tooltune_ranks::Role;

use super::train::ranks;
use super::{DeviceOption, plain_table, print_line};
use crate::cli::DoctorArgs;
use crate::config::{Config, Device, LoadedConfig};
use crate::doctor::{Finding, Verdict, check_machine};
use crate::error::Error;

pub(super) fn run(args: &DoctorArgs, device_option: &DeviceOption) -> Result<(), Error> {
    match ranks::role(args.ranks)? {
        Role::Start(node) => ranks::start(&node),
        Role::Rank(launch) if launch.world_size > 1 => preflight::run(args, device_option, &launch),
        Role::Rank(_) | Role::Alone => check_alone(args, device_option),
    }
}

fn check_alone(args: &DoctorArgs, device_option: &DeviceOption) -> Result<(), Error> {
    let given = [
        ("--wait", args.wait.is_some()),
        ("--megabytes", args.megabytes.is_some()),
    ];
    if let Some((option, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        return Err(Error::Usage(format!(
            "{option} is about several processes, but there is only one; add --ranks 2, or use a \
             launcher"
        )));
    }
    let (config, device) = load(args, device_option)?;
    let findings = check_machine(config.as_ref(), device);
    print_findings(&findings)?;
    match list_problems(&findings) {
        problems if problems.is_empty() => print_line("this machine is ready"),
        problems => Err(Error::Usage(format!(
            "this machine is not ready:\n{problems}"
        ))),
    }
}

/// The config, if one is given, with the device of the option.
fn load(
    args: &DoctorArgs,
    device_option: &DeviceOption,
) -> Result<(Option<Config>, Device), Error> {
    let mut config = match &args.config {
        Some(path) => Some(LoadedConfig::load(path, &[])?.config),
        None => None,
    };
    let device = device_option.name(config.as_ref().map_or(Device::Cpu, |config| config.device))?;
    if let Some(config) = &mut config {
        config.device = device;
    }
    Ok((config, device))
}

fn print_findings(findings: &[Finding]) -> Result<(), Error> {
    let mut table = plain_table();
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Good => "ok",
            Verdict::Note => "note",
            Verdict::Bad(_) => "MISSING",
        };
        table.add_row([mark, finding.subject, &finding.detail]);
    }
    print_line(&table.trim_fmt())
}

fn list_problems(findings: &[Finding]) -> String {
    let line = |finding: &Finding| match &finding.verdict {
        Verdict::Bad(fix) => Some(format!("  {}: {}; {fix}", finding.subject, finding.detail)),
        Verdict::Good | Verdict::Note => None,
    };
    findings
        .iter()
        .filter_map(line)
        .collect::<Vec<_>>()
        .join("\n")
}
