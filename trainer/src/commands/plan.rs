//! `plan`: prints the predicted memory, disk use and time of a run, as text or JSON.

mod room;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use comfy_table::Table;
use serde_json::{Value, json};
use tooltune_checkpoints::ModelFiles;

use super::train::say_remarks;
use super::{DeviceOption, load_config, plain_table, print_line, print_result, say};
use crate::base_model::BaseModel;
use crate::cli::{OutputFormat, PlanArgs};
use crate::commands::plan::room::{print_memory, refuse_too_large, refuse_too_large_offline};
use crate::commands::reading_report::{
    learning_rate_lines, report_rows, retriever_learning_rate_line,
};
use crate::commands::run_summary::{
    device_text, dtype_text, kept_blocks_text, say_refusals, unusual_lines,
};
use crate::config::{Config, Device, LoadedConfig, Names, RunLength};
use crate::error::Error;
use crate::export::{refusals, refusals_of_shape};
use crate::models::DecoderConfig;
use crate::models::load::Quantization;
use crate::plan::disk::disk_of_run;
use crate::plan::{
    self, EvaluationWork, Needs, Outline, Pace, PaceInput, Plan, Probe, RetrieverOutline,
    RetrieverPlan, TextShape, size,
};
use crate::process::available_memory_bytes;
use crate::recipes::preparation::{Preparation, prepare_run};
use crate::recipes::{retriever, run_files};
use crate::settings;
use tooltune_terminal::duration_text;

pub(super) fn run(args: &PlanArgs, device_option: &DeviceOption) -> Result<(), Error> {
    if args.offline {
        return offline(args, device_option);
    }
    let mut config = load_config(&args.config)?;
    config.device = device_option.name(config.device)?;
    let resume_step = run_files::pin_run_settings(&mut config)?;
    if config.model.is_none() {
        return plan_retriever_run(&config, resume_step, args, device_option);
    }
    let device = device_option.open(config.device)?;
    let preparation = prepare_run(&config, &device)?;
    let plan = plan::plan(&config, &preparation, &device)?;
    let probe = if args.probe {
        let batch = &plan.training.longest_batch;
        Some(plan::probe(&config, &preparation, batch, &device)?)
    } else {
        None
    };
    let pace = Pace::estimate(&PaceInput {
        config: &config,
        plan: &plan,
        model: &preparation.training.base.config,
        probe: probe.as_ref(),
        device: &device,
    });
    match args.format {
        OutputFormat::Text => {
            let mut rows = PlanTable::new();
            rows.counts(&config, &preparation, &plan);
            rows.setup(&config, &plan, &device)?;
            if let Some(pace) = &pace {
                rows.time(pace, &plan);
            }
            rows.print(&config, resume_step)?;
            report_rows(&config, &preparation)?;
            if let Some(retriever) = &preparation.retriever {
                say_remarks(retriever)?;
            }
            let planned = plan.retriever.as_ref();
            if let Some(line) = planned.and_then(RetrieverPlan::mini_batch_line) {
                say(&line)?;
            }
            let warnings = learning_rate_lines(&config, &preparation).into_iter();
            for line in warnings.chain(unusual_lines(&config)) {
                say(&line)?;
            }
            say_refusals(refusals(&config, &preparation.training.base)?)?;
            print_memory(&config, &plan.needs.memory, available_memory_bytes())?;
            probe.map_or(Ok(()), |probe| print_probe(&plan, &probe))?;
        }
        OutputFormat::Json => {
            let mut answer = as_json(&config, &preparation, &plan, probe.as_ref());
            answer["learning_rate_warnings"] = json!(learning_rate_lines(&config, &preparation));
            answer["unusual"] = json!(unusual_lines(&config));
            answer["refused_exports"] = json!(refusals(&config, &preparation.training.base)?);
            answer["device"] = json!(device_text(&config, &device));
            answer["time"] = json!(pace.map(|pace| json!({
                "training_seconds": pace.seconds(plan.training.n_tokens),
                "tokens_per_second": pace.tokens_per_second,
                "source": pace.source,
            })));
            print_json(answer, resume_step)?;
        }
    }
    refuse_too_large(&config, &plan.needs)
}

/// Plans a run that trains only a retriever.
fn plan_retriever_run(
    config: &Config,
    resume_step: Option<u64>,
    args: &PlanArgs,
    device_option: &DeviceOption,
) -> Result<(), Error> {
    if args.probe {
        return Err(Error::Usage(
            "--probe runs a training step of a language model, but the config has none; omit \
             --probe"
                .to_owned(),
        ));
    }
    let device = device_option.open(config.device)?;
    let preparation = retriever::prepare_run(config)?;
    let Some(training) = config.trained_retriever() else {
        return Err(Error::Usage(
            "the config does not train a retriever".to_owned(),
        ));
    };
    let dtype = settings::compute_dtype(training.compute_dtype, &device)?;
    let retriever = plan::plan_retriever(training, &preparation, dtype);
    let needs = retriever.needs_alone(config);
    if args.format == OutputFormat::Json {
        let mut answer = retriever_as_json(config, &retriever, &needs);
        answer["device"] = json!(device_text(config, &device));
        answer["unusual"] = json!(unusual_lines(config));
        print_json(answer, resume_step)?;
        return refuse_too_large(config, &needs);
    }
    let mut rows = PlanTable::new();
    rows.add_retriever(config);
    rows.retriever(&retriever);
    rows.checkpoints(config, &needs);
    rows.add("device", device_text(config, &device));
    rows.add(
        "matmuls",
        dtype_text(training.compute_dtype, dtype).replace("model.", "retriever."),
    );
    rows.print(config, resume_step)?;
    say_remarks(&preparation)?;
    retriever
        .mini_batch_line()
        .map_or(Ok(()), |line| say(&line))?;
    let warning = retriever_learning_rate_line(config, &preparation);
    for line in warning.into_iter().chain(unusual_lines(config)) {
        say(&line)?;
    }
    print_memory(config, &needs.memory, available_memory_bytes())?;
    refuse_too_large(config, &needs)
}

/// Plans a config whose files are on another machine.
fn offline(args: &PlanArgs, device_option: &DeviceOption) -> Result<(), Error> {
    let config = &args.config;
    let loaded = LoadedConfig::load_with(&config.config, &config.overrides, Names::Shapes)?;
    let mut config = loaded.config.clone();
    config.device = device_option.name(config.device)?;
    loaded.check_output_dir()?;
    let resume_step = run_files::pin_run_settings(&mut config)?;
    let Some(model) = &config.model else {
        return Err(Error::Usage(
            "--offline plans a language model, but the config has none; omit --offline, or add \
             [model] with model_name_or_path"
                .to_owned(),
        ));
    };
    let path = &model.model_name_or_path;
    if let Some(missing) = missing_shape(path) {
        let help = "copy the model's config.json there; --offline needs no other file of the model";
        let setting = "model.model_name_or_path";
        return Err(loaded.refuse_without(setting, &missing, help).into());
    }
    let model = BaseModel::open_shape(path)?;
    let is_quantised = ModelFiles::describes_nf4(path)?;
    let outline = plan::outline(&config, &model, is_quantised)?;
    let refusals = refusals_of_shape(&config, path)?;
    if args.format == OutputFormat::Json {
        let mut answer = outline_as_json(&config, &outline);
        answer["refused_exports"] = json!(refusals);
        print_json(answer, resume_step)?;
        return refuse_too_large_offline(&config, &outline.needs);
    }
    let mut rows = PlanTable::new();
    rows.outline(&config, &model, &outline);
    rows.print(&config, resume_step)?;
    // The planned GPU may be in another machine, so its memory is unknown.
    let available = match config.device {
        Device::Cpu => available_memory_bytes(),
        Device::Cuda(_) => None,
    };
    print_memory(&config, &outline.needs.memory, available)?;
    say("\nNot included: the rows, which need 18 bytes per token.")?;
    say_refusals(refusals)?;
    say("run plan without --offline to find exports that the tokenizer or chat template prevents")?;
    refuse_too_large_offline(&config, &outline.needs)
}

/// The file with the model's config, if it is missing.
fn missing_shape(path: &Path) -> Option<PathBuf> {
    let file = path.join("config.json");
    let is_gguf = path.extension().is_some_and(|ending| ending == "gguf");
    match (is_gguf, path.is_dir()) {
        (true, false) if path.exists() => None,
        (true, false) => Some(path.to_owned()),
        (_, true) if BaseModel::open_shape(path).is_ok() => None,
        _ => (!file.exists()).then_some(file),
    }
}

/// The table of names and values that is printed above the memory.
struct PlanTable(Table);

impl PlanTable {
    fn new() -> Self {
        Self(plain_table())
    }

    fn add(&mut self, name: &str, text: String) {
        self.0.add_row([name.to_owned(), text]);
    }

    /// Prints the table. If training would resume, the last row is the step it resumes from.
    fn print(mut self, config: &Config, resume_step: Option<u64>) -> Result<(), Error> {
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

    fn add_retriever(&mut self, config: &Config) {
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

    fn checkpoints(&mut self, config: &Config, needs: &Needs) {
        let dir = config.train.output_dir.display();
        let (each, all) = (size(needs.checkpoint_bytes), size(needs.disk_bytes));
        let free = disk_of_run(config, needs.disk_bytes).free;
        let free = free.map_or_else(String::new, |free| format!("; {} free", size(free)));
        self.add(
            "checkpoints",
            format!("{each} each, at most {all} in {dir}{free}"),
        );
    }

    fn retriever(&mut self, retriever: &RetrieverPlan) {
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

    fn counts(&mut self, config: &Config, preparation: &Preparation, plan: &Plan) {
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

    fn setup(
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

    fn time(&mut self, pace: &Pace, plan: &Plan) {
        let on_top = plan
            .evaluation
            .as_ref()
            .map(|_| "; evaluations take extra time");
        let time = duration_text(pace.seconds(plan.training.n_tokens));
        self.add(
            "time",
            format!("about {time} for training{}", on_top.unwrap_or_default()),
        );
        self.add("estimated from", pace.describe_source());
    }

    fn outline(&mut self, config: &Config, model: &DecoderConfig, outline: &Outline) {
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
fn evaluations(evaluation: &EvaluationWork) -> String {
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

fn print_probe(plan: &Plan, probe: &Probe) -> Result<(), Error> {
    say(&format!(
        "\nprobe: one step on the longest micro-batch, {} tokens, {} of them supervised\n\
         {:.2} s, {:.0} tokens/s, loss {:.4}; {:.2} hours of training at this rate",
        probe.n_tokens,
        probe.n_trained_tokens,
        probe.seconds,
        probe.tokens_per_second,
        probe.loss,
        plan.hours(probe).training
    ))?;
    if let Some(evaluation) = &plan.evaluation {
        let work = evaluations(evaluation);
        let read = match evaluation.n_prompt_tokens {
            0 => String::new(),
            n => format!(
                "; {} processes {n} prompt tokens each time",
                evaluation.suite_of_rows
            ),
        };
        say(&format!("not included: evaluations ({work}{read})"))?;
    }
    let Some(measurements) = probe.peak_rss_bytes else {
        return Ok(());
    };
    let predicted = plan.needs.step_bytes;
    say(&format!(
        "peak memory of the step: {} measured, {} predicted ({:+.0} %)",
        size(measurements),
        size(predicted),
        100.0 * (predicted as f64 / measurements as f64 - 1.0)
    ))
}

fn print_json(mut answer: Value, resume_step: Option<u64>) -> Result<(), Error> {
    answer["goes_on_from_step"] = json!(resume_step);
    let text = serde_json::to_string_pretty(&answer);
    print_result(&text.map_err(|error| Error::Usage(error.to_string()))?)
}

fn as_json(
    config: &Config,
    preparation: &Preparation,
    plan: &Plan,
    probe: Option<&Probe>,
) -> Value {
    let training = &plan.training;
    json!({
        "steps": plan.steps,
        "epochs": training.epochs,
        "micro_batches": training.n_micro_batches,
        "rows": preparation.report.n_rows,
        "examples": preparation.training.examples.len(),
        "weighted_rows": preparation.weighted,
        "dropped": preparation.report.dropped,
        "unlearned_turns": preparation.report.unlearned,
        "without_bos": preparation.report.without_bos,
        "cut": preparation.report.n_cut,
        "not_read": preparation.notes.not_read,
        "tools": preparation.notes.tools,
        "eval_rows": preparation.held_out.as_ref().map(|held_out| json!({
            "dropped": held_out.report.dropped,
            "cut": held_out.report.n_cut,
        })),
        "eval_not_read": preparation.eval_notes.not_read,
        "eval_tools": preparation.eval_notes.tools,
        "flattened": preparation.flattened,
        "tokens": training.n_tokens,
        "trained_tokens": training.n_trained_tokens,
        "largest_micro_batch_tokens":
            training.largest.iter().map(|shape| shape.n_tokens).max(),
        "weights": plan.needs.n_weights,
        "trained_weights": plan.needs.n_trained,
        "quantization": plan.needs.quantization.as_str(),
        "evaluations": plan.evaluation.as_ref().map(|evaluation| json!({
            "n": evaluation.n_evaluations,
            "queries": evaluation.suites.iter().copied().collect::<BTreeMap<_, _>>(),
            "loss_rows": evaluation.n_loss_rows,
            "prompt_tokens": evaluation.n_prompt_tokens,
            "max_new_tokens": evaluation.max_new_tokens,
        })),
        "retriever": plan.retriever,
        "checkpoint_bytes": plan.needs.checkpoint_bytes,
        "disk_bytes": plan.needs.disk_bytes,
        "free_disk_bytes": disk_of_run(config, plan.needs.disk_bytes).free,
        "memory": plan.needs.memory,
        "step_memory_bytes": plan.needs.step_bytes,
        "available_memory_bytes": available_memory_bytes(),
        "probe": probe,
        "hours": probe.map(|probe| plan.hours(probe)),
    })
}

fn retriever_as_json(config: &Config, retriever: &RetrieverPlan, needs: &Needs) -> Value {
    json!({
        "steps": retriever.steps,
        "weights": needs.n_weights,
        "trained_weights": needs.n_trained,
        "retriever": retriever,
        "checkpoint_bytes": needs.checkpoint_bytes,
        "disk_bytes": needs.disk_bytes,
        "free_disk_bytes": disk_of_run(config, needs.disk_bytes).free,
        "memory": needs.memory,
        "step_memory_bytes": needs.step_bytes,
        "available_memory_bytes": available_memory_bytes(),
    })
}

/// The values of a plan that are known offline, with the same keys as in [`as_json`].
fn outline_as_json(config: &Config, outline: &Outline) -> Value {
    json!({
        "offline": true,
        "steps": outline.steps,
        "epochs": match config.train.length() {
            RunLength::Epochs(epochs) => Some(epochs),
            RunLength::Steps(_) => None,
        },
        "largest_micro_batch_tokens": outline.largest.n_tokens,
        "compute_dtype": format!("{:?}", outline.compute_dtype).to_lowercase(),
        "quantization": outline.needs.quantization.as_str(),
        "weights": outline.needs.n_weights,
        "trained_weights": outline.needs.n_trained,
        "retriever": outline.retriever,
        "checkpoint_bytes": outline.needs.checkpoint_bytes,
        "disk_bytes": outline.needs.disk_bytes,
        "memory": outline.needs.memory,
        "available_memory_bytes": available_memory_bytes(),
    })
}
