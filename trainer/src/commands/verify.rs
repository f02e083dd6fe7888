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
use tooltune_rows::text::{TokenizedExample, prompt_ids};
use tooltune_terminal::count_noun;

use super::export::nf4::projections;
use super::target::{attach, attach_adapter};
use super::{DeviceOption, print_line};
use crate::base_model::BaseModel;
use crate::cli::{Reader, VerifyArgs};
use crate::config::Config;
use crate::encoder::Role;
use crate::error::Error;
use crate::eval::in_loop::prepared_rows;
use crate::eval::loss::mean_loss;
use crate::eval::ranked_texts::RankedTexts;
use crate::export::{MergeBase, Nf4Projections};
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

/// How an export rounds the weights of a merge, or the factors of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rounding {
    F32,
    Bits16,
    /// To NF4, which changes weights by about a tenth of their size.
    Nf4,
}

/// The largest logit difference that rounding explains; `None` for weights of 4 bits, for which no
/// difference is too large.
fn bound(largest_logit: f32, rounding: Rounding) -> Option<f32> {
    match rounding {
        Rounding::F32 => Some(F32_BOUND.max(F32_SHARE * largest_logit)),
        Rounding::Bits16 => Some(ROUNDED_SHARE * largest_logit),
        Rounding::Nf4 => None,
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
/// rules of its format. If the adapter was trained with NF4 weights, a merged model is compared with
/// both bases that it can be merged onto, and the loss of the rows is printed for each.
fn compare_logits(
    config: &Config,
    checkpoint: &Path,
    reader: Reader,
    export: &Path,
    n_rows: usize,
    device: &Device,
) -> Result<(), Error> {
    let base = BaseModel::from_config(config)?;
    let choices = match reader {
        Reader::Merged => MergeBase::choices(&base),
        _ => &[],
    };
    let projections = projections(config, &base, choices.first().copied(), false)?;
    let base = base.without_quantization();
    let prompts = prompts(config, &base, n_rows, device)?;
    let held_out = match choices.is_empty() {
        true => None,
        false => Some(held_out(config, &base, n_rows, device)?),
    };
    let measured = |decoder: &Decoder| -> Result<Measured, Error> {
        Ok(Measured {
            logits: prompts
                .iter()
                .map(|ids| (ids.len(), logits_of(decoder, ids)))
                .collect(),
            loss: match held_out.as_deref() {
                Some(examples @ [_, ..]) => mean_loss(decoder, examples, None, &mut |_| true)?,
                _ => None,
            },
        })
    };
    let mut expected = Vec::new();
    if choices.is_empty() {
        let trained = trained_decoder(config, &base, checkpoint, None, device)?;
        expected.push((None, measured(&trained)?));
    }
    for &onto in choices {
        let nf4 = projections.as_ref();
        let nf4 = nf4.filter(|_| onto == MergeBase::Dequantised);
        let trained = trained_decoder(config, &base, checkpoint, nf4, device)?;
        expected.push((Some(onto), measured(&trained)?));
    }
    refuse_unloadable(reader, export)?;
    let (exported, rounding) = load_export(reader, export, &base, device)?;
    let actual = measured(&exported)?;
    drop(exported);
    if let Some(examples) = &held_out {
        print_losses(&expected, &actual, examples.len())?;
    }
    report(&expected, &actual, rounding, reader, export, checkpoint)
}

/// Logits of prompts, and the loss of held-out rows if it is measured.
struct Measured {
    /// Number of tokens `n` and logits `[n, v]` of each prompt.
    logits: Vec<(usize, Vec<f32>)>,
    loss: Option<f64>,
}

/// Prints the loss of the trained adapter on each base, and of the export.
fn print_losses(
    expected: &[(Option<MergeBase>, Measured)],
    actual: &Measured,
    n_rows: usize,
) -> Result<(), Error> {
    let of_bases = expected.iter().map(|(onto, measured)| {
        let name = onto.map_or("base", MergeBase::name);
        (format!("the adapter on the {name}"), measured.loss)
    });
    let losses = of_bases.chain([("the export".to_owned(), actual.loss)]);
    for (name, loss) in losses {
        let loss = loss.map_or_else(
            || "not measured, because no row has supervised tokens".to_owned(),
            |loss| format!("{loss:.4}"),
        );
        print_line(&format!(
            "loss of {name}: {loss} ({})",
            count_noun(n_rows, "held-out row")
        ))?;
    }
    Ok(())
}

/// Reports the difference between the logits of an export and the logits of the nearest base, or fails
/// if rounding does not explain it.
fn report(
    expected: &[(Option<MergeBase>, Measured)],
    actual: &Measured,
    rounding: Rounding,
    reader: Reader,
    export: &Path,
    checkpoint: &Path,
) -> Result<(), Error> {
    let differences = expected.iter().map(|(onto, expected)| {
        let difference = Difference::new(&expected.logits, &actual.logits);
        (*onto, difference)
    });
    let nearest = differences.reduce(|nearest, other| match other.1.worst < nearest.1.worst {
        true => other,
        false => nearest,
    });
    let Some((onto, difference)) = nearest else {
        return Ok(());
    };
    let onto = onto.map_or_else(String::new, |onto| format!(" on the {}", onto.name()));
    let bound = bound(difference.largest, rounding);
    let n_prompts = actual.logits.len();
    let found = difference.describe(n_prompts, bound);
    // Infinite logits are never explained by rounding and would make the bound infinite.
    let is_finite = difference.worst.is_finite() && difference.largest.is_finite();
    let names = format!(
        "{} matches {}{onto}",
        export.display(),
        checkpoint.display()
    );
    match bound {
        Some(bound) if bound.is_finite() && difference.worst <= bound => {
            print_line(&format!("{names}: {found}"))
        }
        None if is_finite => print_line(&format!(
            "{} is rounded to 4 bits, so compare its loss with that of {}{onto}: {found}",
            export.display(),
            checkpoint.display()
        )),
        _ => Err(Error::ExportDiffers {
            export: export.to_owned(),
            found,
            fix: fix(reader),
        }),
    }
}

/// The difference between the logits of two models.
struct Difference {
    worst: f32,
    /// The largest expected logit.
    largest: f32,
    /// Positions with the same most likely token, of `n_positions`.
    n_same: usize,
    n_positions: usize,
}

impl Difference {
    fn new(expected: &[(usize, Vec<f32>)], actual: &[(usize, Vec<f32>)]) -> Self {
        let mut all = Self {
            worst: 0.0,
            largest: 0.0,
            n_same: 0,
            n_positions: 0,
        };
        for ((n_tokens, expected), (_, actual)) in expected.iter().zip(actual) {
            let vocabulary = actual.len() / (*n_tokens).max(1);
            for (actual, expected) in actual.chunks(vocabulary).zip(expected.chunks(vocabulary)) {
                let differences = actual.iter().zip(expected).map(|(a, b)| (a - b).abs());
                // NaN counts as the largest difference.
                all.worst =
                    differences.fold(all.worst, |worst, d| if d <= worst { worst } else { d });
                all.largest = expected.iter().fold(all.largest, |l, x| l.max(x.abs()));
                all.n_same += usize::from(most_likely(actual) == most_likely(expected));
                all.n_positions += 1;
            }
        }
        all
    }

    fn describe(&self, n_prompts: usize, bound: Option<f32>) -> String {
        let bound = bound.map_or_else(String::new, |bound| format!("bound {bound:.2e}, "));
        format!(
            "{n_prompts} prompts: largest logit difference {:.2e} ({bound}largest logit {:.1}); the \
             most likely token is the same at {} of {} positions",
            self.worst, self.largest, self.n_same, self.n_positions
        )
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

/// Loads the exported model onto `base`. Also returns how the export rounded its weights.
fn load_export(
    reader: Reader,
    export: &Path,
    base: &BaseModel,
    device: &Device,
) -> Result<(Decoder, Rounding), Error> {
    let plain = PeftConfig::new(1, 1.0, TargetModules::Names(Vec::new()));
    let as_adapter = |tensors: &BTreeMap<String, HostTensor>, scalings: &Scalings| {
        neutral(&plain, tensors, scalings)
    };
    let (adapter, is_rounded) = match reader {
        Reader::Merged => {
            let merged = BaseModel::open(export, None)?;
            let weights = &merged.files.weights;
            let is_f32 = |name| weights.stored_as(name) == Some("F32");
            let rounding = match weights.n_nf4() {
                0 if weights.names().all(is_f32) => Rounding::F32,
                0 => Rounding::Bits16,
                _ => Rounding::Nf4,
            };
            return Ok((merged.decoder(ComputeDtype::F32, device)?, rounding));
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
    let rounding = match is_rounded {
        true => Rounding::Bits16,
        false => Rounding::F32,
    };
    Ok((decoder, rounding))
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

/// The first rows of data.eval as training examples.
fn held_out(
    config: &Config,
    base: &BaseModel,
    n: usize,
    device: &Device,
) -> Result<Vec<TokenizedExample>, Error> {
    let mut rows = eval_rows(config, device, &mut ReadingReport::default())?;
    rows.truncate(n);
    Ok(prepared_rows(config, base, &rows)?.examples)
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

/// The decoder of `base` in f32 with the adapter of the checkpoint. Exports are made from the files
/// of the base model, so the weights come from these files; with `nf4`, they are replaced by their NF4
/// values.
fn trained_decoder(
    config: &Config,
    base: &BaseModel,
    checkpoint: &Path,
    nf4: Option<&Nf4Projections>,
    device: &Device,
) -> Result<Decoder, Error> {
    let is_plain = base.files.weights.n_nf4() == 0;
    let mut decoder = match nf4.filter(|_| is_plain) {
        Some(nf4) => base.changed_decoder(ComputeDtype::F32, device, &|name, weight| {
            nf4.dequantise(name, weight)
        })?,
        None => base.decoder(ComputeDtype::F32, device)?,
    };
    let model = &config.language_model()?.model_name_or_path;
    attach(&mut decoder, checkpoint, model, device)?;
    Ok(decoder)
}

fn logits(
    config: &Config,
    checkpoint: &Path,
    path: &Path,
    rows: usize,
    device: &Device,
) -> Result<(), Error> {
    let base = BaseModel::from_config(config)?.without_quantization();
    let decoder = trained_decoder(config, &base, checkpoint, None, device)?;
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
    use super::{Reader, Rounding, bound, refuse_unloadable};

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
        assert_eq!(bound(4.0, Rounding::F32), Some(1e-4));
        // A correct merge of SmolLM2-135M differed by this much.
        let large = bound(40.3, Rounding::F32).expect("a bound");
        assert!(large > 2.16e-4 && large < 1e-3);
        assert_eq!(bound(50.0, Rounding::Bits16), Some(1.0));
        assert_eq!(bound(50.0, Rounding::Nf4), None);
    }
}
