//! Exit statuses of data pipelines.

use tooltune_pipelines::PipelineError;
use tooltune_synth::graph::GraphError;

/// Exit status of a failed data pipeline.
pub(super) fn exit_code(error: &PipelineError) -> u8 {
    match error {
        PipelineError::DifferentSettings { .. }
        | PipelineError::PromptFolder { .. }
        | PipelineError::NoStage { .. }
        | PipelineError::StageBefore { .. }
        | PipelineError::Usage(_) => 2,
        PipelineError::Graph(GraphError::File(error)) | PipelineError::Input(error)
            if error.is_system_error() =>
        {
            1
        }
        PipelineError::Data(error) if error.is_system_error() => 1,
        PipelineError::Template(error) if error.is_system_error() => 1,
        PipelineError::Graph(GraphError::File(_)) => 3,
        PipelineError::Graph(_) => 2,
        PipelineError::Data(_)
        | PipelineError::Template(_)
        | PipelineError::Input(_)
        | PipelineError::Item { .. }
        | PipelineError::JournalHead { .. } => 3,
        PipelineError::Stopped { .. } => 75,
        _ => 1,
    }
}
