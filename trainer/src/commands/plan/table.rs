//! The table that a plan prints above the memory.

use std::path::PathBuf;

use comfy_table::Table;
use tooltune_terminal::duration_text;

use crate::commands::run_summary::{device_text, dtype_text, kept_blocks_text};
use crate::commands::{plain_table, print_line};
use crate::config::{Config, RunLength};
use crate::error::Error;
use crate::models::DecoderConfig;
use crate::models::load::Quantization;
use crate::plan::disk::disk_of_run;
use crate::plan::{
    Connection, EvaluationWork, Needs, Outline, Pace, PaceSource, Plan, RanksPlan,
    RetrieverOutline, RetrieverPlan, StepTime, TextShape, size,
};
use crate::recipes::preparation::Preparation;

/// The table of names and values that is printed above the memory.
pub(super) struct PlanTable(Table);

impl PlanTable {
    pub(super) fn new() -> Self {
        Self(plain_table())
    }

    pub(super) fn add(&mut self, name: &str, text: String) {
        self.0.add_row([name.to_owned(), text]);
    }

    /// Prints the table. If training would resume, the last row is the step it resumes from.
    pub(super) fn print(mut self, config: &Config, resume_step: Option<u64>) -> Result<(), Error> {
        if let Some(step) = resume_step {
            let dir = config.train.output_dir.display();
            let resumption = format!("training resumes from step {step} of {dir}");
            self.add("run", resumption);
        }
        print_line(&self.0.trim_fmt())
    }

    fn add_model(&mut self, config: &Config) {
        let model = config.model.as_ref().map(|model| &model.model_name_or_path);
        self.path("model", model);
    }

    pub(super) fn add_retriever(&mut self, config: &Config) {
        let retriever = config.retriever.as_ref();
        self.path(
            "retriever",
            retriever.map(|retriever| &retriever.model_name_or_path),
        );
    }

    fn path(&mut self, name: &str, path: Option<&PathBuf>) {
        if let Some(path) = path {
            self.add(name, path.display().to_string());
        }
    }

    fn weights(&mut self, needs: &Needs) {
        let (n_frozen, n_trained) = (needs.n_weights, needs.n_trained);
        let stored = match needs.quantization {
            Quantization::None => "",
            Quantization::Nf4 => ", linear layers in nf4",
        };
        let text = format!("{n_frozen} frozen, {n_trained} trained{stored}");
        self.add("weights", text);
    }

    pub(super) fn checkpoints(&mut self, config: &Config, needs: &Needs) {
        let dir = config.train.output_dir.display();
        let (each, all) = (size(needs.checkpoint_bytes), size(needs.disk_bytes));
        let free = disk_of_run(config, needs.disk_bytes).free;
        let free = free.map_or_else(String::new, |free| format!("; {} free", size(free)));
        self.add(
            "checkpoints",
            format!("{each} each, at most {all} in {dir}{free}"),
        );
    }

    pub(super) fn retriever(&mut self, retriever: &RetrieverPlan) {
        let RetrieverPlan {
            pairs,
            queries,
            documents,
            parameters,
            ..
        } = retriever;
        self.add(
            "retriever data",
            format!("{pairs} pairs of {queries} queries and {documents} documents"),
        );
        self.add(
            "retriever steps",
            format!(
                "{}, of at most {} tokens",
                retriever.steps, retriever.largest_step_tokens
            ),
        );
        self.add("retriever weights", format!("{parameters}, all trained"));
        self.add(
            "retriever memory",
            format!(
                "{} permanently, {} more during its steps",
                size(retriever.resident_bytes),
                size(retriever.step_bytes)
            ),
        );
    }

    pub(super) fn counts(&mut self, config: &Config, preparation: &Preparation, plan: &Plan) {
        let report = &preparation.report;
        let training = &plan.training;
        self.add_model(config);
        self.weights(&plan.needs);
        self.add(
            "examples",
            format!(
                "{} of {} rows, {} dropped{}",
                preparation.training.examples.len(),
                report.n_rows,
                report.n_dropped(),
                preparation.weighted_suffix()
            ),
        );
        self.add(
            "steps",
            format!(
                "{} ({:.2} epochs, {} micro-batches)",
                plan.steps, training.epochs, training.n_micro_batches
            ),
        );
        self.add(
            "tokens",
            format!(
                "{} in all epochs, {} of them supervised",
                training.n_tokens, training.n_trained_tokens
            ),
        );
        let largest = training.largest.iter().map(|shape| shape.n_tokens).max();
        if let Some(n_tokens) = largest {
            self.add("largest micro-batch", format!("{n_tokens} tokens"));
        }
        self.add(
            "evaluations",
            plan.evaluation
                .as_ref()
                .map_or("none".to_owned(), evaluations),
        );
        if let Some(retriever) = &plan.retriever {
            self.retriever(retriever);
        }
        self.checkpoints(config, &plan.needs);
    }

    pub(super) fn setup(
        &mut self,
        config: &Config,
        plan: &Plan,
        device: &burn::tensor::Device,
    ) -> Result<(), Error> {
        let configured = config.language_model()?.compute_dtype;
        self.add("device", device_text(config, device));
        self.add("matmuls", dtype_text(configured, plan.compute_dtype));
        let kept_blocks = kept_blocks_text(config, plan.kept_blocks, plan.n_blocks);
        self.add("activations", kept_blocks);
        Ok(())
    }

    /// Adds the ranks: how long they wait for each other, and how long they exchange gradients.
    pub(super) fn ranks(&mut self, ranks: &RanksPlan) {
        self.add("ranks", ranks.world_size.to_string());
        let share = 100.0 * ranks.busy_share;
        let busy = if ranks.is_upper_bound {
            format!("at most {share:.0} % of a step, with micro-batches of equal length")
        } else if ranks.packing_helps {
            format!(
                "{share:.0} % of a step; a rank waits for the slowest one for the rest: set \
                 data.packing = \"block-diagonal\" for micro-batches of similar length"
            )
        } else {
            format!("{share:.0} % of a step; a rank waits for the slowest one for the rest")
        };
        self.add("busy", busy);
        let bytes = ranks.bytes_per_step / 1e6;
        let (what, assumed) = match ranks.connection {
            Connection::Tcp => ("MB through rank 0 by TCP", "one machine"),
            Connection::Nccl => (
                "MB sent by each rank with NCCL",
                "NVLink in a host, 400 Gb/s per GPU between hosts",
            ),
        };
        let assumed = match ranks.is_rate_assumed {
            true => format!(", assumed for {assumed}; set --bandwidth"),
            false => String::new(),
        };
        self.add(
            "communication",
            format!(
                "{bytes:.1} {what} per step, {:.1} ms at {} GB/s{assumed}",
                1e3 * ranks.seconds_per_step,
                ranks.gb_per_second
            ),
        );
        if let Some(gathers) = &ranks.gathers {
            self.add(
                "gathers",
                format!(
                    "{:.1} GB of weights received by each GPU per micro-batch, {:.0} ms at {} GB/s",
                    gathers.bytes_per_micro_batch / 1e9,
                    1e3 * gathers.seconds_per_micro_batch,
                    ranks.gb_per_second
                ),
            );
        }
    }

    /// Adds the predicted time of a step, and of all steps if their number is known.
    pub(super) fn step_time(
        &mut self,
        time: &StepTime,
        steps: Option<u64>,
        ranks: Option<&RanksPlan>,
    ) {
        let all = steps.map(|steps| {
            let time = duration_text(steps as f64 * time.seconds);
            format!(", {time} for {steps} steps")
        });
        let assumed = match time.is_rate_assumed {
            true => ", assumed for an H100; set --tflops",
            false => "",
        };
        let gathers = match ranks.and_then(|ranks| ranks.gathers.as_ref()) {
            None => String::new(),
            Some(_) if time.gather_seconds == 0.0 => "; computation hides the gathers".to_owned(),
            Some(_) => format!("; {:.2} s of it wait for the gathers", time.gather_seconds),
        };
        self.add(
            "time",
            format!(
                "at most about {:.2} s per step{}: {:.1} TFLOP at {} TFLOP/s per rank{assumed}{gathers}",
                time.seconds,
                all.unwrap_or_default(),
                time.tflop,
                time.tflops
            ),
        );
    }

    pub(super) fn time(&mut self, pace: &Pace, plan: &Plan, ranks: Option<&RanksPlan>) {
        let on_top = plan
            .evaluation
            .as_ref()
            .map(|_| "; evaluations take extra time");
        let time = duration_text(pace.training_seconds(plan, ranks));
        let with = match (ranks, &pace.source) {
            (None, _) => "",
            (Some(_), PaceSource::Recorded(_)) => " with the ranks of those steps",
            (Some(_), _) => " if no ranks share a processor",
        };
        self.add(
            "time",
            format!(
                "about {time} for training{with}{}",
                on_top.unwrap_or_default()
            ),
        );
        self.add("estimated from", pace.describe_source());
    }

    pub(super) fn outline(&mut self, config: &Config, model: &DecoderConfig, outline: &Outline) {
        self.add_model(config);
        self.add(
            "shape",
            format!(
                "{}, {} blocks of {}, {} tokens",
                model.family.files.model_type,
                model.num_hidden_layers,
                model.hidden_size,
                model.vocab_size
            ),
        );
        self.weights(&outline.needs);
        self.add(
            "matmuls",
            format!("in {:?} on {}", outline.compute_dtype, config.device).to_lowercase(),
        );
        self.add("steps", steps(outline.steps, config.train.length()));
        self.add(
            "largest micro-batch",
            format!(
                "{} tokens: {} rows of {}, all tokens supervised",
                outline.largest.n_tokens,
                config.train.per_device_train_batch_size,
                config.data.max_length
            ),
        );
        let training = config.trained_retriever();
        if let Some((retriever, training)) = outline.retriever.as_ref().zip(training) {
            self.retriever_outline(config, retriever, training.length());
        }
        self.checkpoints(config, &outline.needs);
    }

    fn retriever_outline(
        &mut self,
        config: &Config,
        retriever: &RetrieverOutline,
        length: RunLength,
    ) {
        self.add_retriever(config);
        let assumed = if retriever.is_assumed {
            ", assuming the size of all-MiniLM-L6-v2: its folder does not exist"
        } else {
            ""
        };
        let n = retriever.n_parameters;
        self.add("retriever weights", format!("{n}, all trained{assumed}"));
        self.add("retriever steps", steps(retriever.steps, length));
        let TextShape { n_texts, n_tokens } = retriever.texts;
        self.add(
            "retriever texts",
            format!("{n_texts} at a time, {n_tokens} tokens"),
        );
    }
}

/// Describes how often a run evaluates, and the work of each evaluation.
pub(super) fn evaluations(evaluation: &EvaluationWork) -> String {
    let loss = match evaluation.n_loss_rows {
        0 => None,
        n => Some(format!("the loss of {n} rows")),
    };
    let suites = evaluation.suites.iter();
    let suites = suites.map(|(name, n)| format!("{name} ({n} prompts)"));
    let works: Vec<String> = loss.into_iter().chain(suites).collect();
    let limit = if evaluation.batches.is_empty() {
        String::new()
    } else {
        format!(
            ", at most {} new tokens per prompt",
            evaluation.max_new_tokens
        )
    };
    format!("{}: {}{limit}", evaluation.n_evaluations, works.join(", "))
}

fn steps(known: Option<u64>, length: RunLength) -> String {
    match (known, length) {
        (Some(steps), _) => steps.to_string(),
        (None, RunLength::Epochs(epochs)) => {
            format!("{epochs} epochs; the number of steps depends on the data")
        }
        (None, RunLength::Steps(_)) => "depends on the data".to_owned(),
    }
}
