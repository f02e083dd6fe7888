//! `doctor`: checks that this machine has everything a run needs.

use super::{DeviceOption, plain_table, print_line};
use crate::cli::DoctorArgs;
use crate::config::{Device, LoadedConfig};
use crate::doctor::{Finding, Verdict, check_machine};
use crate::error::Error;

pub(super) fn doctor(args: &DoctorArgs, device_option: &DeviceOption) -> Result<(), Error> {
    let mut config = match &args.config {
        Some(path) => Some(LoadedConfig::load(path, &[])?.config),
        None => None,
    };
    let device = device_option.name(config.as_ref().map_or(Device::Cpu, |config| config.device))?;
    if let Some(config) = &mut config {
        config.device = device;
    }
    let findings = check_machine(config.as_ref(), device);
    let mut table = plain_table();
    for finding in &findings {
        let mark = match finding.verdict {
            Verdict::Good => "ok",
            Verdict::Note => "note",
            Verdict::Bad(_) => "MISSING",
        };
        table.add_row([mark, finding.subject, &finding.detail]);
    }
    print_line(&table.trim_fmt())?;
    match list_problems(&findings) {
        problems if problems.is_empty() => print_line("this machine is ready"),
        problems => Err(Error::Usage(format!(
            "this machine is not ready:\n{problems}"
        ))),
    }
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
