//! PiSSA, DoRA and whole trained modules compared with PEFT: logits, gradients, five steps, and
//! saved files.

use std::path::{Path, PathBuf};

use tooltune::config::{LoraConfig, PrincipalInit};
use tooltune::lora::LoraLayout as _;
use tooltune::lora::{AdapterSlot, Adapters, adapter_slots, principal_factors, subtract_initial};
use tooltune::models::load::{LoadOptions, Placement, Projections, load_decoder};
use tooltune::models::{BatchContext, Decoder, DecoderConfig};
use tooltune::optim::{BackwardOptions, backward, reference};
use tooltune_checkpoints::adapter::{
    Adapter, GgufBase, PeftConfig, ServedBase, TargetModules, compatibility, load_adapter,
    peft_rules, write_gguf_adapter,
};
use tooltune_checkpoints::merged::{MergeOptions, save_merged};
use tooltune_checkpoints::model_files::ModelFiles;
use tooltune_checkpoints::weights::{FloatDtype, HostTensor, Weights};
use tooltune_kernels::ComputeDtype;

use super::peft::replay;
use crate::support::bounds::Quantity;
use crate::support::{
    Tensors, attach_adapter, fixture, load_base, max_abs_difference, micro_batch,
    relative_difference, test_device,
};

fn model() -> PathBuf {
    fixture("models/llama31")
}

/// Replays the five recorded steps of a fixture.
fn replay_five_steps(
    decoder: &mut Decoder,
    adapters: &mut Adapters,
    folder: &Path,
    batches: &Path,
) {
    let losses = replay(decoder, adapters, &folder.join("steps.json"), batches);
    assert_eq!(losses.len(), 5);
}

/// The settings of the fixtures.
fn settings() -> LoraConfig {
    LoraConfig {
        r: 4,
        lora_alpha: 8.0,
        init_weights: Some("pissa".to_owned()),
        ..LoraConfig::default()
    }
}

/// PiSSA's initial factors on the tiny Llama.
fn initial_model(init: PrincipalInit) -> (Decoder, Adapters) {
    let config = ModelFiles::read_config(&model()).unwrap();
    let config = DecoderConfig::from_json(&config).unwrap();
    let weights = Weights::open(&model()).unwrap();
    let slots = settings().slots(&config).unwrap();
    let values = principal_factors(init, &slots, &weights, 42).unwrap();
    let adapters = Adapters::new_pissa(slots, values, &test_device());
    let decoder = decoder_without(&config, &weights, &adapters);
    (decoder, adapters)
}

fn decoder_without(config: &DecoderConfig, weights: &Weights, adapters: &Adapters) -> Decoder {
    let (slots, initial) = (&adapters.slots, adapters.initial.as_ref().unwrap());
    let change = |name: &str, weight: &mut HostTensor| {
        subtract_initial(slots, initial, name, weight);
    };
    let options = LoadOptions {
        compute_dtype: ComputeDtype::F32,
        projections: Projections::Changed(&change),
        placement: Placement::Resident,
    };
    let mut decoder = load_decoder(config, weights, options, &test_device()).unwrap();
    adapters.attach(&mut decoder);
    decoder
}

/// `B A` of a module.
fn product(a: &HostTensor, b: &HostTensor) -> Vec<f32> {
    let (rank, columns) = (a.shape[0], a.shape[1]);
    let mut product = vec![0.0; b.shape[0] * columns];
    for (row, factors) in product
        .chunks_exact_mut(columns)
        .zip(b.values.chunks_exact(rank))
    {
        for (factor, a) in factors.iter().zip(a.values.chunks_exact(columns)) {
            row.iter_mut()
                .zip(a)
                .for_each(|(sum, a)| *sum += factor * a);
        }
    }
    product
}

fn host(tensors: &Tensors, name: &str) -> HostTensor {
    HostTensor {
        shape: tensors.shape(name),
        values: tensors.floats(name),
    }
}

/// The largest relative difference of the products of two adapters.
fn difference_of_products(
    slots: &[AdapterSlot],
    ours: impl Fn(&str) -> HostTensor,
    theirs: impl Fn(&str) -> HostTensor,
) -> f64 {
    let differences = slots.iter().map(|slot| {
        let [a, b] = slot.factors().map(|(name, _, _)| name);
        let [ours, theirs] = [
            product(&ours(&a), &ours(&b)),
            product(&theirs(&a), &theirs(&b)),
        ];
        relative_difference(&ours, &theirs)
    });
    differences.fold(0.0, f64::max)
}

/// Invariant: PiSSA, DoRA and whole trained modules match PEFT.
#[test]
fn pissa_factors_and_five_steps_agree_with_peft() {
    let folder = model().join("pissa");
    let (mut decoder, mut adapters) = initial_model(PrincipalInit::Exact);
    let theirs = tensors_of(&folder.join("adapter/adapter_model.safetensors"));
    let ours = adapters.to_tensors();
    let slots = adapters.slots.clone();
    let initial_difference = difference_of_products(&slots, |name| ours[name].clone(), &theirs);
    assert!(
        initial_difference < Quantity::PrincipalFactors.bound(),
        "{initial_difference}"
    );
    // The factors are equal up to the sign of each singular vector.
    for (name, tensor) in &ours {
        let theirs = theirs(name);
        let squares = |tensor: &HostTensor| tensor.values.iter().map(|x| x * x).collect::<Vec<_>>();
        let difference = relative_difference(&squares(tensor), &squares(&theirs));
        assert!(
            difference < Quantity::PrincipalFactors.bound(),
            "{name}: {difference}"
        );
    }
    let batches = model().join("lora/batches.safetensors");
    replay_five_steps(&mut decoder, &mut adapters, &folder, &batches);
    let trained = adapters.to_tensors();
    let theirs = tensors_of(&folder.join("final.safetensors"));
    let trained_difference = difference_of_products(&slots, |name| trained[name].clone(), &theirs);
    assert!(
        trained_difference < Quantity::TrainedAdapter.bound(),
        "{trained_difference}"
    );

    // The saved adapter equals the one that PEFT's conversion writes.
    let converted = load_adapter(&folder.join("converted")).unwrap();
    let saved = settings().to_saved_peft("");
    let rank_and_alpha = |config: &PeftConfig| (config.r, config.lora_alpha);
    assert_eq!(rank_and_alpha(&saved), rank_and_alpha(&converted.config));
    let config = decoder.config.clone();
    let doubled = adapter_slots(&saved, &config).unwrap();
    let saved = adapters.to_saved_tensors();
    let difference = difference_of_products(
        &doubled,
        |name| saved[name].clone(),
        |name| converted.tensors[name].clone(),
    );
    assert!(
        difference < Quantity::ParameterChange.bound(),
        "{difference}"
    );

    // The reloaded adapter equals the trained one, and the same initial product is subtracted from
    // the base.
    let again = Adapters::from_doubled(slots, &saved, &test_device());
    assert_eq!(again.to_values(), adapters.to_values());
    assert_eq!(again.initial, adapters.initial);
}

/// Returns a function from the name of a module's tensor to the tensor in PEFT's file.
fn tensors_of(file: &Path) -> impl Fn(&str) -> HostTensor + use<> {
    let tensors = Tensors::open(file);
    move |name| host(&tensors, &format!("base_model.model.{name}"))
}

/// The Euclidean norm of the adapted weights after subtracting the initial products of `adapters`.
fn residual_norm(adapters: &Adapters) -> f64 {
    let weights = Weights::open(&model()).unwrap();
    let initial = adapters.initial.as_ref().unwrap();
    let squares = adapters.slots.iter().map(|slot| {
        let name = slot.weight();
        let mut weight = weights.read_f32(&name).unwrap();
        subtract_initial(&adapters.slots, initial, &name, &mut weight);
        let squares = weight.values.iter().map(|x| f64::from(*x).powi(2));
        squares.sum::<f64>()
    });
    squares.sum::<f64>().sqrt()
}

#[test]
fn a_sketch_approximates_the_singular_values() {
    let residual = |init| residual_norm(&initial_model(init).1);
    let exact = residual(PrincipalInit::Exact);
    let more = |iterations| residual(PrincipalInit::Sketched(iterations)) / exact - 1.0;
    let (few, many) = (more(1), more(200));
    // The exact singular values give the smallest residual for this rank.
    let bound = Quantity::SketchedFactors.bound();
    assert!(few > many && many.abs() < bound, "{few} {many}");
}

#[test]
fn a_rank_beyond_the_singular_values_is_refused() {
    let config = ModelFiles::read_config(&model()).unwrap();
    let config = DecoderConfig::from_json(&config).unwrap();
    let settings = LoraConfig {
        r: 33,
        target_modules: TargetModules::Names(vec!["v_proj".to_owned()]),
        ..settings()
    };
    let error = settings.check_principal_ranks(&config).unwrap_err();
    assert!(error.to_string().contains("lower lora.r"), "{error}");
}

/// Invariant: PiSSA, DoRA and whole trained modules match PEFT.
#[test]
fn dora_logits_and_training_agree_with_peft() {
    learns_as_in_peft("llama31", "dora");
}

/// Invariant: PiSSA, DoRA and whole trained modules match PEFT.
#[test]
fn whole_trained_modules_agree_with_peft() {
    learns_as_in_peft("mistral_window", "modules_to_save");
}

/// Compares logits, gradients and five steps of a PEFT adapter.
fn learns_as_in_peft(family: &str, kind: &str) {
    let base = fixture(&format!("models/{family}"));
    let folder = base.join(kind);
    let mut decoder = load_base(&base);
    let mut adapters = attach_adapter(&mut decoder, &folder.join("adapter"));
    let before = adapters.to_values();
    let expected = Tensors::open(&folder.join("expected.safetensors"));
    let difference = max_abs_difference(
        &logits(&decoder, &expected.ids("input_ids")),
        &expected.floats("logits"),
    );
    assert!(
        difference < Quantity::Logits.bound(),
        "{kind}: {difference}"
    );

    let batches = base.join("lora/batches.safetensors");
    let batch = micro_batch(&Tensors::open(&batches), "step01");
    let gradients = Tensors::open(&folder.join("gradients.safetensors"));
    for n_kept_blocks in [0, 2] {
        let options = BackwardOptions {
            gradient_scale: 1.0 / batch.sum_loss_weights(),
            dropout: None,
            noise: None,
            n_kept_blocks,
            offloads_inputs: false,
            chunk_rows: 7,
            distillation: None,
        };
        let ours = backward::backward(&decoder, &adapters.slots, &batch, options).unwrap();
        let ours: Vec<f32> = ours.gradient.into_data().iter::<f32>().collect();
        let plain = reference::backward(&decoder, &batch, options).unwrap();
        let plain: Vec<f32> = plain.gradient.into_data().iter::<f32>().collect();
        let difference = relative_difference(&ours, &plain);
        assert!(
            difference < Quantity::OtherPieces.bound(),
            "{kind}: {difference}"
        );
        for (name, _, range) in adapters.tensors() {
            let theirs = gradients.floats(&format!("base_model.model.{name}"));
            let difference = relative_difference(&ours[range], &theirs);
            assert!(
                difference < Quantity::Gradient.bound(),
                "{kind}, {name}: {difference}"
            );
        }
    }

    replay_five_steps(&mut decoder, &mut adapters, &folder, &batches);
    let theirs = tensors_of(&folder.join("final.safetensors"));
    for (name, tensor) in adapters.to_tensors() {
        let difference = relative_difference(&tensor.values, &theirs(&name).values);
        assert!(
            difference < Quantity::TrainedAdapter.bound(),
            "{kind}, {name}: {difference}"
        );
    }
    assert!(relative_difference(&adapters.to_values(), &before) > 1e-3);

    // The merged model computes the same logits as base and adapter.
    let adapter = load_adapter(&folder.join("adapter")).unwrap();
    let merged = tempfile::tempdir().unwrap();
    merge_weights(&base, &adapter, merged.path());
    let difference = max_abs_difference(
        &logits(&load_base(merged.path()), &expected.ids("input_ids")),
        &expected.floats("logits"),
    );
    let bound = match family {
        "llama31" => Quantity::Logits.bound(),
        // Its weights are rounded to bf16.
        _ => Quantity::Logits.bound_in(burn::tensor::DType::BF16),
    };
    assert!(difference < bound, "{kind}, merged: {difference}");

    // Fields that llama.cpp does not support are rejected by name.
    let scalings = peft_rules(&adapter).unwrap();
    let config = ModelFiles::read_config(&base).unwrap();
    let gguf_base = GgufBase::from_config(&base, &config).unwrap();
    let to = merged.path().join("adapter.gguf");
    let refused = write_gguf_adapter(&to, &adapter, &scalings, &gguf_base, FloatDtype::F32);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("--to gguf --merged"), "{refused}");
    let table = compatibility(&adapter, ServedBase::default()).unwrap();
    assert!(table.whole.verdicts[0].is_ok() && !table.whole.verdicts[1].is_ok());
}

fn logits(decoder: &Decoder, ids: &[u32]) -> Vec<f32> {
    let positions: Vec<u32> = (0..ids.len() as u32).collect();
    let context = BatchContext::new(decoder, &positions, &[0, ids.len()]);
    let logits = decoder.logits(decoder.forward(ids, &context));
    logits.into_data().iter::<f32>().collect()
}

/// Adds another model's tokenizer, because a merged model needs one and the tiny models have none.
fn merge_weights(base: &Path, adapter: &Adapter, merged: &Path) {
    let with_tokenizer = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(base.join(name), with_tokenizer.path().join(name)).unwrap();
    }
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let from = fixture("tiny_chat_model").join(name);
        std::fs::copy(from, with_tokenizer.path().join(name)).unwrap();
    }
    let to = merged.join("model");
    let scalings = peft_rules(adapter).unwrap();
    let options = MergeOptions::default();
    save_merged(&to, with_tokenizer.path(), adapter, &scalings, &options).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(to.join(name), merged.join(name)).unwrap();
    }
}
