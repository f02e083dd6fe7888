//! Prints the memory and disk space that a plan needs, compared with the available space.

use comfy_table::{CellAlignment, Table};

use crate::commands::{plain_table, say};
use crate::config::{Config, Device};
use crate::error::Error;
use crate::plan::disk::disk_of_run;
use crate::plan::{self, MemoryPlan, Needs, RanksSetup, size};
use crate::process::available_memory_bytes;

/// Fails with [`Error::DoesNotFit`] if the run needs more memory than is available, and with the
/// error of a failed save if it needs more disk space.
///
/// The memory of a GPU is not checked, because the prediction is for the CPU.
pub(in crate::commands) fn refuse_too_large(config: &Config, needs: &Needs) -> Result<(), Error> {
    refuse_memory(config, &needs.memory)?;
    disk_of_run(config, needs.disk_bytes).check()
}

/// Like [`refuse_too_large`], for a run that may be on another machine. Nothing is checked for a
/// GPU.
pub(in crate::commands) fn refuse_too_large_offline(
    config: &Config,
    needs: &Needs,
) -> Result<(), Error> {
    match config.device {
        Device::Cpu => refuse_too_large(config, needs),
        Device::Cuda(_) => Ok(()),
    }
}

fn refuse_memory(config: &Config, memory: &MemoryPlan) -> Result<(), Error> {
    let available = match config.device {
        Device::Cpu => available_memory_bytes(),
        Device::Cuda(_) => None,
    };
    match available {
        Some(available) if available < memory.peak_bytes => Err(Error::DoesNotFit {
            needed: size(memory.peak_bytes),
            available: size(available),
            advice: plan::advice(config, memory),
        }),
        _ => Ok(()),
    }
}

pub(in crate::commands) fn print_memory(
    config: &Config,
    memory: &MemoryPlan,
    available: Option<u64>,
) -> Result<(), Error> {
    say(&format!(
        "\nmemory: predicted peak {}, in the phase {:?}{}",
        size(memory.peak_bytes),
        memory.peak_phase,
        available.map_or(String::new(), |bytes| format!(
            "; {} available",
            size(bytes)
        ))
    ))?;
    for phase in &memory.phases {
        let mut table = plain_table();
        for part in &phase.parts {
            table.add_row(["  ".to_string() + &part.name, size(part.bytes)]);
        }
        align_right(&mut table, 1);
        say(&format!(
            "\n{}: {}\n{}",
            phase.name,
            size(phase.bytes),
            table.trim_fmt()
        ))?;
    }
    if let Device::Cuda(_) = config.device {
        say("\nThe prediction is for the CPU; on a GPU most of it is device memory.")?;
    }
    Ok(())
}

/// Reports the memory of all ranks together. Ranks on other hosts use other memory, so this does
/// not refuse the plan.
pub(in crate::commands) fn say_memory_of_ranks(
    config: &Config,
    memory: &MemoryPlan,
    ranks: Option<RanksSetup>,
) -> Result<(), Error> {
    let Some(RanksSetup { world_size, .. }) = ranks.filter(|ranks| ranks.world_size > 1) else {
        return Ok(());
    };
    match config.device {
        Device::Cpu => {
            let all = memory.peak_bytes.saturating_mul(world_size as u64);
            say(&format!(
                "\nThe memory is per rank; {world_size} ranks on one machine need {}.",
                size(all)
            ))
        }
        Device::Cuda(_) => say("\nThe memory is per rank."),
    }
}

fn align_right(table: &mut Table, column: usize) {
    if let Some(column) = table.column_mut(column) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
