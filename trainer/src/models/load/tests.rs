//! Matrices of loaded decoders, by the way that their files and stacks are stored.

use std::collections::BTreeMap;
use std::path::Path;

use tooltune_checkpoints::ModelFiles;
use tooltune_checkpoints::weights::{FloatDtype, Nf4Tensor, write_tensors_as};

use super::*;

fn bits(weight: &FrozenWeight) -> Vec<u32> {
    let values = weight.to_tensor().into_data();
    values.iter::<f32>().map(f32::to_bits).collect()
}

fn load_resident(
    config: &DecoderConfig,
    weights: &Weights,
    compute_dtype: ComputeDtype,
    projections: Projections<'_>,
) -> Result<Decoder, LoadError> {
    let options = LoadOptions {
        compute_dtype,
        projections,
        placement: Placement::Resident,
    };
    load_decoder(config, weights, options, &Device::flex())
}

/// All matrices of a decoder, with their biases.
fn matrices(decoder: &Decoder) -> Vec<(Vec<u32>, Option<Vec<f32>>)> {
    let stacks = decoder.blocks.iter().flat_map(|block| &block.stacks);
    let stacks = stacks.map(|stack| {
        let bias = stack.bias.clone();
        let bias = bias.map(|bias| bias.into_data().iter::<f32>().collect());
        (bits(&stack.weight), bias)
    });
    let tables = [&decoder.embed_tokens, &decoder.lm_head];
    stacks
        .chain(tables.map(|table| (bits(table), None)))
        .collect()
}

#[test]
fn bf16_loading_equals_conversion_from_f32() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models");
    // Stacks of three projections and of one; tied and untied heads; biases; linear attention;
    // a GGUF file in which some tensors have a different order; NF4.
    for family in [
        "llama31",
        "qwen2",
        "phi3",
        "qwen3_5_text",
        "mistral",
        "granite",
        "../../../checkpoints/tests/fixtures/nf4/model",
    ] {
        let folder = fixtures.join(family);
        let config = ModelFiles::read_config(&folder.join("config.json")).expect("a config");
        let config = DecoderConfig::from_json(&config).expect("a decoder");
        let in_f32 = Weights::open(&folder).expect("weights");
        let read = |name: &str| Ok((name.to_owned(), in_f32.read_f32(name)?));
        let tensors = in_f32
            .names()
            .map(read)
            .collect::<Result<BTreeMap<_, _>, CheckpointError>>();
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("model.safetensors");
        write_tensors_as(&file, FloatDtype::BF16, &tensors.expect("tensors")).expect("written");
        let mut files = vec![in_f32, Weights::open(dir.path()).expect("weights")];
        let gguf = folder.join("model.gguf");
        files.extend(
            gguf.exists()
                .then(|| Weights::open(&gguf).expect("weights")),
        );
        for weights in files {
            let [as_bf16, as_f32] = [
                Projections::AsIs,
                Projections::Changed(&|_: &str, _: &mut HostTensor| {}),
            ]
            .map(|projections| load_resident(&config, &weights, ComputeDtype::Bf16, projections))
            .map(|decoder| matrices(&decoder.expect("a decoder")));
            assert!(as_bf16 == as_f32, "{}", weights.origin().display());
        }
    }
}

fn open(folder: &str) -> (DecoderConfig, Weights) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models");
    let folder = fixtures.join(folder);
    let config = ModelFiles::read_config(&folder.join("config.json")).expect("a config");
    let config = DecoderConfig::from_json(&config).expect("a decoder");
    (config, Weights::open(&folder).expect("weights"))
}

fn n_quantised(decoder: &Decoder) -> usize {
    let stacks = decoder.blocks.iter().flat_map(|block| &block.stacks);
    stacks.filter(|stack| stack.weight.is_quantised()).count()
}

const DTYPES: [ComputeDtype; 2] = [ComputeDtype::F32, ComputeDtype::Bf16];

#[test]
fn codes_of_a_folder_are_kept_with_their_values() {
    let (config, weights) = open("../../../checkpoints/tests/fixtures/nf4/model");
    for dtype in DTYPES {
        let [kept, dense] = [Projections::Nf4, Projections::AsIs].map(|projections| {
            load_resident(&config, &weights, dtype, projections).expect("a decoder")
        });
        // One of eight stacks has a module that the folder does not quantise.
        assert_eq!([n_quantised(&kept), n_quantised(&dense)], [7, 0]);
        assert!(matrices(&kept) == matrices(&dense), "{dtype:?}");
    }
}

#[test]
fn plain_weights_get_the_codes_of_bitsandbytes() {
    for family in ["llama31", "phi3", "qwen3_5_text"] {
        let (config, weights) = open(family);
        for dtype in DTYPES {
            let decoder = load_resident(&config, &weights, dtype, Projections::Nf4);
            let decoder = decoder.expect("a decoder");
            assert_eq!(n_quantised(&decoder), 4 * config.num_hidden_layers);
            for (layer, block) in decoder.blocks.iter().enumerate() {
                let projections = config.projections(layer);
                for (stack, range) in block.stacks.iter().zip(&projections.stacks) {
                    let values = range.clone().flat_map(|index| {
                        let path = &projections.paths[index];
                        let name = format!("model.layers.{layer}.{path}.weight");
                        let mut weight = weights.read_f32(&name).expect("a weight");
                        let mut stored_as = FloatDtype::F32;
                        if dtype == ComputeDtype::Bf16 {
                            stored_as = FloatDtype::BF16;
                            for value in &mut weight.values {
                                *value = stored_as.rounded(*value);
                            }
                        }
                        let codes = Nf4Tensor::quantise(&weight, stored_as, true);
                        codes.expect("finite values").dequantise().values
                    });
                    let expected: Vec<u32> = values.map(f32::to_bits).collect();
                    assert!(
                        bits(&stack.weight) == expected,
                        "{family}, {layer}, {dtype:?}"
                    );
                }
            }
        }
    }
}
