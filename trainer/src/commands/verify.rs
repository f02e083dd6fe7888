//! `verify`: compares the logits of an export and its checkpoint.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tooltune_checkpoints::adapter::{
    GgufBase, PeftConfig, Scalings, TargetModules, load_adapter, neutral, peft_rules,
    read_gguf_adapter, vllm_rules,
};
use tooltune_checkpoints::config_types::wrong_types_in;
use tooltune_checkpoints::weights::HostTensor;
use tooltune_disk::atomic::write_atomic;
use tooltune_kernels::ComputeDtype;
use tooltune_rows::text::prompt_ids;

use super::target::{attach, attach_adapter};
use super::{DeviceOption, print_line};
use crate::base_model::BaseModel;
use crate::cli::{Reader, VerifyArgs};
use crate::config::Config;
use crate::encoder::Role;
use crate::error::Error;
use crate::eval::ranked_texts::RankedTexts;
use crate::models::{BatchContext, Decoder};
use crate::recipes::retriever::files;
use crate::recipes::run_lock::{BASE_MODEL, RETRIEVER, RunLock, Used};
use crate::rows::{ReadingReport, eval_rows};

pub(super) fn run(args: &VerifyArgs, device_option: &DeviceOption) -> Result<(), Error> {
    let config = args.model.config(&[])?;
    let device = device_option.open(config.device)?;
    let checkpoint = args.model.adapter(&config)?;
    if let Some(lock) = RunLock::read_for_checkpoint(&checkpoint)? {
        let settings: &[&str] = match (&args.embeddings, &args.logits, args.against) {
            (Some(_), None, None) => &[RETRIEVER],
            (Some(_), _, _) => &[RETRIEVER, BASE_MODEL],
            (None, _, _) => &[BASE_MODEL],
        };
        let used = Used {
            settings,
            hash_all: true,
        };
        lock.check_used(&config, used, &checkpoint)?;
    }
    if let Some(path) = &args.embeddings {
        embeddings(&config, &checkpoint, path, args.rows, &device)?;
    }
    if let Some(path) = &args.logits {
        logits(&config, &checkpoint, path, args.rows, &device)?;
    }
    match (args.against, &args.export) {
        (Some(reader), Some(export)) => {
            compare_logits(&config, &checkpoint, reader, export, args.rows, &device)
        }
        _ => Ok(()),
    }
}

/// Logit difference that f32 rounding explains: sums have a different order, and an export has W +
/// sBA instead of W and sBA separately.
const F32_BOUND: f32 = 1e-4;

/// The bound for large logits, as a share of the largest logit. f32 rounds each number by at most
/// 2⁻²⁴ of its size. A logit is the end of a chain of some hundred sums, so the errors can add up
/// to some hundred times 2⁻²⁴; this bound is 340 times 2⁻²⁴. A merge of SmolLM2-135M (30 blocks)
/// reached a quarter of it.
const F32_SHARE: f32 = 2e-5;

/// The bound for weights rounded to 16 bits, as a share of the largest logit. bf16 rounding changes
/// each weight by at most 2⁻⁹ of its value.
const ROUNDED_SHARE: f32 = 0.02;

/// The largest logit difference that rounding explains.
fn bound(largest_logit: f32, is_rounded: bool) -> f32 {
    if is_rounded {
        ROUNDED_SHARE * largest_logit
    } else {
        F32_BOUND.max(F32_SHARE * largest_logit)
    }
}

/// The remedy for an export that differs.
fn fix(reader: Reader) -> &'static str {
    match reader {
        Reader::PeftRules | Reader::VllmRules => {
            "check `tooltune export RUN --check`, and export with --neutral or in another format"
        }
        Reader::Gguf => {
            "select the exported checkpoint with --checkpoint, or export this \
             checkpoint again with --to gguf"
        }
        Reader::Merged => {
            "select the exported checkpoint with --checkpoint, or export this \
             checkpoint again with --to merged"
        }
    }
}

/// Compares the logits of an export with the logits of the checkpoint. The export is loaded by the
/// rules of its format.
fn compare_logits(
    config: &Config,
    checkpoint: &Path,
    reader: Reader,
    export: &Path,
    n_rows: usize,
    device: &Device,
) -> Result<(), Error> {
    let (base, trained) = trained_model(config, checkpoint, device)?;
    let prompts = prompts(config, &base, n_rows, device)?;
    let expected: Vec<Vec<f32>> = prompts.iter().map(|ids| logits_of(&trained, ids)).collect();
    drop(trained);
    refuse_unloadable(reader, export)?;
    let (exported, is_rounded) = load_export(reader, export, &base, device)?;
    let (mut worst, mut largest) = (0.0f32, 0.0f32);
    let (mut n_same, mut n_positions) = (0, 0);
    for (ids, expected) in prompts.iter().zip(&expected) {
        let actual = logits_of(&exported, ids);
        let vocabulary = actual.len() / ids.len().max(1);
        for (actual, expected) in actual.chunks(vocabulary).zip(expected.chunks(vocabulary)) {
            let differences = actual.iter().zip(expected).map(|(a, b)| (a - b).abs());
            // NaN counts as the largest difference.
            worst = differences.fold(worst, |worst, d| if d <= worst { worst } else { d });
            largest = expected.iter().fold(largest, |l, x| l.max(x.abs()));
            n_same += usize::from(most_likely(actual) == most_likely(expected));
            n_positions += 1;
        }
    }
    let bound = bound(largest, is_rounded);
    let difference = format!(
        "{} prompts: largest logit difference {worst:.2e} (bound {bound:.2e}, largest logit \
         {largest:.1}); the most likely token is the same at {n_same} of {n_positions} positions",
        prompts.len()
    );
    // Infinite logits are never explained by rounding and would make the bound infinite.
    if bound.is_finite() && worst <= bound {
        print_line(&format!(
            "{} matches {}: {difference}",
            export.display(),
            checkpoint.display()
        ))
    } else {
        Err(Error::ExportDiffers {
            export: export.to_owned(),
            found: difference,
            fix: fix(reader),
        })
    }
}

/// Rejects a merged folder whose `config.json` transformers cannot load, even if its weights are
/// correct.
fn refuse_unloadable(reader: Reader, export: &Path) -> Result<(), Error> {
    if reader != Reader::Merged {
        return Ok(());
    }
    let wrong = wrong_types_in(export)?;
    if wrong.is_empty() {
        return Ok(());
    }
    let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
    Err(Error::ExportUnloadable {
        export: export.to_owned(),
        wrong: wrong.join(", "),
    })
}

/// Loads the exported model onto `base`. Also returns whether the export rounded its weights to 16
/// bits.
fn load_export(
    reader: Reader,
    export: &Path,
    base: &BaseModel,
    device: &Device,
) -> Result<(Decoder, bool), Error> {
    let plain = PeftConfig::new(1, 1.0, TargetModules::Names(Vec::new()));
    let as_adapter = |tensors: &BTreeMap<String, HostTensor>, scalings: &Scalings| {
        neutral(&plain, tensors, scalings)
    };
    let (adapter, is_rounded) = match reader {
        Reader::Merged => {
            let merged = BaseModel::open(export, None)?;
            let weights = &merged.files.weights;
            let is_rounded = weights
                .names()
                .any(|name| weights.stored_as(name) != Some("F32"));
            return Ok((merged.decoder(ComputeDtype::F32, device)?, is_rounded));
        }
        Reader::PeftRules => {
            let adapter = load_adapter(export)?;
            let is_rounded = has_16_bits(adapter.tensors.values());
            let scalings = peft_rules(&adapter)?;
            // DoRA and fully trained weights are loaded as the config describes.
            let mut config = plain.clone();
            config.use_dora = adapter.config.use_dora;
            config.modules_to_save = adapter.config.modules_to_save.clone();
            let neutral = neutral(&config, &adapter.tensors, &scalings)?;
            (neutral, is_rounded)
        }
        Reader::VllmRules => {
            let adapter = load_adapter(export)?;
            let load = vllm_rules(&adapter, None)?;
            let is_rounded = has_16_bits(adapter.tensors.values());
            (as_adapter(&adapter.tensors, &load.scalings)?, is_rounded)
        }
        Reader::Gguf => {
            let gguf_base = GgufBase::from_config(&base.path, &base.files.config)?;
            let adapter = read_gguf_adapter(export, gguf_base.architecture)?;
            let is_rounded = has_16_bits(adapter.tensors.values());
            (as_adapter(&adapter.tensors, &adapter.scalings)?, is_rounded)
        }
    };
    let mut decoder = base.decoder(ComputeDtype::F32, device)?;
    attach_adapter(&mut decoder, &adapter, export, device)?;
    Ok((decoder, is_rounded))
}

/// Whether all values are exactly representable in one 16-bit format.
fn has_16_bits<'a>(tensors: impl Iterator<Item = &'a HostTensor> + Clone) -> bool {
    let all = |is_exact: fn(f32) -> bool| {
        let mut values = tensors.clone().flat_map(|tensor| &tensor.values);
        values.all(|&value| is_exact(value))
    };
    all(|value| bf16::from_f32(value).to_f32() == value)
        || all(|value| f16::from_f32(value).to_f32() == value)
}

fn most_likely(logits: &[f32]) -> Option<usize> {
    let order = |a: &(usize, &f32), b: &(usize, &f32)| a.1.total_cmp(b.1);
    logits.iter().enumerate().max_by(order).map(|(id, _)| id)
}

/// Token IDs of the first rows of data.eval.
fn prompts(
    config: &Config,
    base: &BaseModel,
    n: usize,
    device: &Device,
) -> Result<Vec<Vec<u32>>, Error> {
    let rows = eval_rows(config, device, &mut ReadingReport::default())?;
    rows.iter()
        .take(n)
        .map(|row| Ok(prompt_ids(row, &base.template, &base.tokenizer)?))
        .collect()
}

/// Logits of every position, `[n, v]`.
fn logits_of(decoder: &Decoder, ids: &[u32]) -> Vec<f32> {
    let positions: Vec<u32> = (0..ids.len() as u32).collect();
    let context = BatchContext::new(decoder, &positions, &[0, ids.len()]);
    let logits = decoder.logits(decoder.forward(ids, &context));
    logits.into_data().iter::<f32>().collect()
}

/// Writes the texts of the retrieval suite with their roles and embeddings, one JSON object per
/// line.
fn embeddings(
    config: &Config,
    checkpoint: &Path,
    path: &Path,
    rows: usize,
    device: &Device,
) -> Result<(), Error> {
    let encoder = files::encoder(config, checkpoint, device)?.ok_or_else(|| {
        let checkpoint = checkpoint.display();
        Error::Usage(format!(
            "{checkpoint} does not contain a retriever: the run did not train one"
        ))
    })?;
    let ranked = RankedTexts::open(config)?;
    let mut lines = String::new();
    let mut n_texts = 0;
    for (name, role, texts) in [
        ("query", Role::Query, ranked.queries()),
        ("document", Role::Document, ranked.documents()),
    ] {
        let texts = &texts[..rows.min(texts.len())];
        n_texts += texts.len();
        for (text, embedding) in texts.iter().zip(encoder.embed(role, texts)?) {
            let line = serde_json::json!({"role": name, "text": text, "embedding": embedding});
            lines.push_str(&format!("{line}\n"));
        }
    }
    write_atomic(path, lines.as_bytes())?;
    print_line(&format!(
        "embeddings of {n_texts} texts in {}",
        path.display()
    ))
}

/// The base model, and its decoder in f32 with the adapter of the checkpoint. Exports are made from
/// the files of the base model, so the weights come from these files.
fn trained_model(
    config: &Config,
    checkpoint: &Path,
    device: &Device,
) -> Result<(BaseModel, Decoder), Error> {
    let model = &config.language_model()?.model_name_or_path;
    let base = BaseModel::from_config(config)?.without_quantization();
    let mut decoder = base.decoder(ComputeDtype::F32, device)?;
    attach(&mut decoder, checkpoint, model, device)?;
    Ok((base, decoder))
}

fn logits(
    config: &Config,
    checkpoint: &Path,
    path: &Path,
    rows: usize,
    device: &Device,
) -> Result<(), Error> {
    let (base, decoder) = trained_model(config, checkpoint, device)?;
    let prompts: Vec<(Vec<u32>, Vec<f32>)> = prompts(config, &base, rows, device)?
        .into_iter()
        .map(|ids| {
            let logits = logits_of(&decoder, &ids);
            (ids, logits)
        })
        .collect();
    write_logits(path, &prompts)?;
    print_line(&format!(
        "logits of {} prompts in {}",
        prompts.len(),
        path.display()
    ))
}

/// Writes `promptN.input_ids` `[n]`, i64, and `promptN.logits` `[n, v]`, f32.
fn write_logits(path: &Path, prompts: &[(Vec<u32>, Vec<f32>)]) -> Result<(), Error> {
    let bytes: Vec<(Vec<u8>, Vec<u8>)> = prompts
        .iter()
        .map(|(ids, logits)| {
            (
                ids.iter()
                    .flat_map(|&id| i64::from(id).to_le_bytes())
                    .collect(),
                logits
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect(),
            )
        })
        .collect();
    let mut views = Vec::with_capacity(2 * prompts.len());
    for (i, ((ids, logits), (id_bytes, logit_bytes))) in prompts.iter().zip(&bytes).enumerate() {
        let n = ids.len();
        let parts = [
            ("input_ids", Dtype::I64, vec![n], id_bytes),
            ("logits", Dtype::F32, vec![n, logits.len() / n], logit_bytes),
        ];
        for (name, dtype, shape, data) in parts {
            let view = TensorView::new(dtype, shape, data);
            views.push((
                format!("prompt{i}.{name}"),
                view.map_err(write_error(path))?,
            ));
        }
    }
    let file = safetensors::serialize(views, None).map_err(write_error(path))?;
    Ok(write_atomic(path, &file)?)
}

fn write_error(path: &Path) -> impl Fn(safetensors::SafeTensorError) -> Error {
    move |error| Error::Usage(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{Reader, bound, refuse_unloadable};

    #[test]
    fn a_folder_that_transformers_cannot_load_fails() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |scalar: &str| {
            let config =
                format!("{{\"model_type\": \"gemma3_text\", \"query_pre_attn_scalar\": {scalar}}}");
            std::fs::write(dir.path().join("config.json"), config).expect("written");
            refuse_unloadable(Reader::Merged, dir.path()).map_err(|error| error.to_string())
        };
        write("256").expect("an int");
        let error = write("256.0").expect_err("a float");
        let expected = "query_pre_attn_scalar is 256.0, but transformers requires int";
        assert!(
            error.contains(expected) && error.contains("cannot load this folder"),
            "{error}"
        );
        refuse_unloadable(Reader::Gguf, dir.path()).expect("not a folder of this kind");
    }

    #[test]
    fn the_rounding_tolerance_grows_with_the_logits() {
        assert_eq!(bound(4.0, false), 1e-4);
        // A correct merge of SmolLM2-135M differed by this much.
        assert!(bound(40.3, false) > 2.16e-4);
        assert!(bound(40.3, false) < 1e-3);
        assert_eq!(bound(50.0, true), 1.0);
    }
}
