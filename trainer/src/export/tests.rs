//! Checks that merged GGUF models are prompted as in training: BOS, ends of turns, and variables of
//! the template.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use tooltune_checkpoints::model_files::{ModelFiles, TokenizerSource};
use tooltune_checkpoints::weights::{GgufDtype, HostTensor};
use tooltune_rows::text::{Row, prompt_ids};
use tooltune_template::{ChatTemplate, Conversation, GenerationPrompt, Message, Role};

use super::gguf::{GgufTarget, export_whole_gguf};
use super::served::adapter_lines;
use super::*;
use crate::config::LoadedConfig;
use crate::modelfile::tests::rendered_by_ollama;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");
const F32: GgufDtype = GgufDtype::Float(FloatDtype::F32);
const PLAIN: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                     {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The tiny chat model with modified tokenizer files.
#[derive(Debug, Clone, Copy)]
struct Tiny<'a> {
    template: &'a str,
    bos: &'a str,
    eos: &'a str,
    /// Whether the tokenizer adds `bos` before plain text.
    adds_bos: bool,
    stops: &'a [u32],
}

const TINY: Tiny<'_> = Tiny {
    template: PLAIN,
    bos: "<|endoftext|>",
    eos: "<|im_end|>",
    adds_bos: false,
    stops: &[2],
};

impl Tiny<'_> {
    fn write(&self, folder: &Path) -> BaseModel {
        fs::create_dir(folder).unwrap();
        let fixture = Path::new(FIXTURES).join("tiny_chat_model");
        for file in ["config.json", "model.safetensors"] {
            fs::copy(fixture.join(file), folder.join(file)).unwrap();
        }
        let json = |file: &str| -> Value {
            serde_json::from_slice(&fs::read(fixture.join(file)).unwrap()).unwrap()
        };
        let write =
            |file: &str, value: Value| fs::write(folder.join(file), value.to_string()).unwrap();
        let mut settings = json("tokenizer_config.json");
        settings["bos_token"] = self.bos.into();
        settings["eos_token"] = self.eos.into();
        write("tokenizer_config.json", settings);
        write(
            "generation_config.json",
            json!({"eos_token_id": self.stops}),
        );
        let mut tokenizer = json("tokenizer.json");
        if self.adds_bos {
            let added = tokenizer["added_tokens"].as_array().unwrap();
            let bos = added
                .iter()
                .find(|token| token["content"] == self.bos)
                .unwrap();
            let ids = json!({self.bos: {"id": self.bos, "ids": [bos["id"]], "tokens": [self.bos]}});
            let special = json!({"SpecialToken": {"id": self.bos, "type_id": 0}});
            let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
            tokenizer["post_processor"] = json!({
                "type": "TemplateProcessing",
                "single": [special, sequence("A")],
                "pair": [sequence("A"), sequence("B")],
                "special_tokens": ids,
            });
        }
        write("tokenizer.json", tokenizer);
        fs::write(folder.join("chat_template.jinja"), self.template).unwrap();
        BaseModel::open(folder, None).unwrap()
    }
}

/// An adapter of one projection, with the chat template of training.
fn addition(base: &BaseModel) -> Addition {
    let tensor = |rows: usize, columns: usize| HostTensor {
        shape: vec![rows, columns],
        values: (0..rows * columns)
            .map(|i| (i % 7) as f32 * 0.01 - 0.03)
            .collect(),
    };
    let module = "model.layers.0.self_attn.o_proj";
    let shape = base
        .files
        .weights
        .shape(&format!("{module}.weight"))
        .unwrap()
        .to_vec();
    let adapter = Adapter {
        config: PeftConfig::new(2, 4.0, TargetModules::Names(vec!["o_proj".to_owned()])),
        tensors: BTreeMap::from([
            (format!("{module}.lora_A.weight"), tensor(2, shape[1])),
            (format!("{module}.lora_B.weight"), tensor(shape[0], 2)),
        ]),
    };
    Addition {
        scalings: peft_rules(&adapter).unwrap(),
        adapter,
        prompts: PromptFiles {
            chat_template: Some(base.template.served_source()),
            slot_prompt: None,
        },
    }
}

/// A model whose template begins with the bos token, which its tokenizer also adds.
fn bos_first_model(dir: &TempDir) -> BaseModel {
    let template = format!("{{{{ bos_token }}}}{PLAIN}");
    let tiny = Tiny {
        template: &template,
        adds_bos: true,
        ..TINY
    };
    tiny.write(&dir.path().join("model"))
}

/// Writes the same model as a GGUF file.
fn as_gguf(base: &BaseModel, path: &Path) -> BaseModel {
    export_whole_gguf(
        &Addition::none(),
        base,
        F32.into(),
        2048,
        GgufTarget::File,
        path,
    )
    .unwrap();
    BaseModel::open(path, None).unwrap()
}

/// The model with a different chat template, as set by `data.chat_template`.
fn with_template(base: BaseModel, source: &str) -> BaseModel {
    let special = base.template.special_tokens().clone();
    BaseModel {
        template: ChatTemplate::new(source, special).unwrap(),
        ..base
    }
}

const CHAT: [(Role, &str); 4] = [
    (Role::System, "Be brief."),
    (Role::User, "When is the meeting?"),
    (Role::Assistant, "On Monday."),
    (Role::User, "Where?"),
];

/// The prompt tokens of training.
fn training_ids(base: &BaseModel, chat: &[(Role, &str)]) -> Vec<u32> {
    let row = Row {
        id: "row".to_owned(),
        conversation: conversation(chat),
        weight: 1.0,
        slot: None,
    };
    prompt_ids(&row, &base.template, &base.tokenizer).unwrap()
}

fn conversation(chat: &[(Role, &str)]) -> Conversation {
    let messages = chat.iter().map(|(role, text)| Message::new(*role, *text));
    Conversation::new(messages.collect())
}

/// The prompt tokens of a server, with the settings in a file.
fn read(file: &Path, prompt: &str) -> Vec<u32> {
    let TokenizerSource::Gguf(vocabulary) = ModelFiles::open(file).unwrap().tokenizer else {
        panic!("{} holds no vocabulary", file.display());
    };
    let bos = vocabulary
        .bos_token_id
        .filter(|_| vocabulary.add_bos == Some(true));
    let tokenizer = BaseModel::open_tokenizer(file).unwrap();
    let ids = tokenizer.encode(prompt).unwrap().ids;
    bos.into_iter().chain(ids).collect()
}

/// The tokens that llama.cpp computes for a chat with the chat template of a file. If llama.cpp
/// adds `bos` itself, it removes the `bos` that the template writes.
fn llama_cpp_ids(file: &Path, chat: &[(Role, &str)]) -> Vec<u32> {
    let model = BaseModel::open(file, None).unwrap();
    let prompt = model
        .template
        .render(&conversation(chat), GenerationPrompt::Add)
        .unwrap();
    let bos = model
        .tokenizer
        .adds_bos()
        .then(|| model.files.special_tokens.bos_token.clone());
    let bos = bos.flatten().unwrap_or_default();
    read(file, prompt.strip_prefix(&bos).unwrap_or(&prompt))
}

/// Exports the model for llama.cpp and Ollama, and compares the tokens of chats with the tokens in
/// training.
fn check_prompts(base: &BaseModel, dir: &Path, name: &str) {
    let addition = addition(base);
    let file = dir.join(format!("{name}.gguf"));
    let folder = dir.join(format!("{name}-ollama"));
    let ollama = GgufTarget::Ollama {
        card: None,
        system: None,
    };
    export_whole_gguf(&addition, base, F32.into(), 2048, GgufTarget::File, &file).unwrap();
    export_whole_gguf(&addition, base, F32.into(), 2048, ollama, &folder).unwrap();
    let modelfile = fs::read_to_string(folder.join("Modelfile")).unwrap();
    for chat in [&CHAT[..], &CHAT[1..], &CHAT[1..2], &CHAT[..2]] {
        let expected = training_ids(base, chat);
        assert_eq!(llama_cpp_ids(&file, chat), expected, "{name}");
        let ollama_ids = read(
            &folder.join("model.gguf"),
            &rendered_by_ollama(&modelfile, chat),
        );
        assert_eq!(ollama_ids, expected, "{name}\n{modelfile}");
    }
    // Loaded as a base, the exported model has the same stop tokens as in training.
    for file in [file, folder.join("model.gguf")] {
        let reloaded = BaseModel::open(&file, None).unwrap();
        let sorted = |base: &BaseModel| {
            let mut ids = base.stop_ids.clone();
            ids.sort_unstable();
            ids
        };
        assert_eq!(sorted(&reloaded), sorted(base), "{name}");
    }
}

#[test]
fn chats_begin_as_in_training_for_any_template_and_tokenizer() {
    let dir = TempDir::new().unwrap();
    let bos_first = format!("{{{{ bos_token }}}}{PLAIN}");
    let with_eos = PLAIN.replace("<|im_end|>", "{{ eos_token }}");
    for (name, bos, template) in [
        ("none", "<|endoftext|>", PLAIN),
        ("first", "<|endoftext|>", &bos_first),
        ("opens", "<|im_start|>", PLAIN),
        ("variable", "<|endoftext|>", &with_eos),
    ] {
        for adds_bos in [false, true] {
            let tiny = Tiny {
                template,
                bos,
                adds_bos,
                ..TINY
            };
            let name = format!("{name}-{adds_bos}");
            let folder = tiny.write(&dir.path().join(&name));
            check_prompts(&folder, dir.path(), &format!("{name}-folder"));
            let gguf = as_gguf(&folder, &dir.path().join(format!("{name}.base.gguf")));
            check_prompts(&gguf, dir.path(), &format!("{name}-gguf"));
            // Use a template that differs from the template of the base.
            let other = if template == PLAIN {
                &*bos_first
            } else {
                PLAIN
            };
            let other_gguf = with_template(gguf, other);
            if bos == "<|endoftext|>" {
                check_prompts(&other_gguf, dir.path(), &format!("{name}-other"));
            }
        }
    }
}

#[test]
fn an_adapter_export_warns_of_the_token_that_llama_cpp_adds() {
    let dir = TempDir::new().unwrap();
    let folder = bos_first_model(&dir);
    assert_eq!(adapter_lines(&folder, 2048).unwrap(), [""; 0]);
    let gguf = as_gguf(&folder, &dir.path().join("base.gguf"));
    assert_eq!(adapter_lines(&gguf, 2048).unwrap(), [""; 0]);
    let lines = adapter_lines(&with_template(gguf, PLAIN), 2048).unwrap();
    assert_eq!(lines.len(), 1);
    assert!(lines[0].contains("add_bos_token=bool:false"), "{lines:?}");
}

#[test]
fn a_base_for_adapters_begins_chats_with_both_templates() {
    let dir = TempDir::new().unwrap();
    let base = bos_first_model(&dir);
    let adds_bos = |base: &BaseModel, name: &str| {
        let path = dir.path().join(name);
        match as_gguf(base, &path).files.tokenizer {
            TokenizerSource::Gguf(vocabulary) => vocabulary.add_bos,
            TokenizerSource::Json(path) => panic!("{path:?}"),
        }
    };
    assert_eq!(adds_bos(&base, "own.gguf"), Some(true));
    assert_eq!(
        adds_bos(&with_template(base, PLAIN), "other.gguf"),
        Some(false)
    );
}

#[test]
fn stop_tokens_match_training_and_missing_ones_are_named() {
    let dir = TempDir::new().unwrap();
    let with_eos = PLAIN.replace("<|im_end|>", "{{ eos_token }}");
    for (name, stops, eos, template) in [
        ("one", &[2][..], "<|im_end|>", PLAIN),
        ("two", &[2, 0], "<|im_end|>", PLAIN),
        ("three", &[0, 2, 900], "<|im_end|>", PLAIN),
        ("another", &[900], "<|im_end|>", PLAIN),
        ("no-end", &[900, 901], "<|im_end|>", &with_eos),
    ] {
        let tiny = Tiny {
            stops,
            eos,
            template,
            ..TINY
        };
        let base = tiny.write(&dir.path().join(name));
        check_prompts(&base, dir.path(), &format!("{name}-folder"));
        let gguf = as_gguf(&base, &dir.path().join(format!("{name}.gguf")));
        check_prompts(&gguf, dir.path(), &format!("{name}-gguf"));
    }
    let tiny = Tiny {
        stops: &[2, 0, 900, 901, 902],
        ..TINY
    };
    let base = tiny.write(&dir.path().join("five"));
    let output = dir.path().join("five.gguf");
    let lines = export_whole_gguf(
        &addition(&base),
        &base,
        F32.into(),
        2048,
        GgufTarget::File,
        &output,
    );
    let lines = lines.unwrap();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("(901)") && lines[0].contains("(902)"),
        "{lines:?}"
    );
    assert!(!lines[0].contains("(900)"), "{lines:?}");
    assert_eq!(
        BaseModel::open(&output, None).unwrap().stop_ids,
        [2, 0, 900]
    );
}

#[test]
fn the_base_of_a_gguf_file_is_written_as_a_folder() {
    let dir = TempDir::new().unwrap();
    let folder = TINY.write(&dir.path().join("model"));
    let gguf = as_gguf(&folder, &dir.path().join("base.gguf"));
    let output = dir.path().join("base");
    export_merged(
        &Addition::none(),
        &gguf,
        MergedFolder {
            gguf_dtype: FloatDtype::F32,
            max_shard_bytes: u64::MAX,
            card: None,
            dequantised: None,
            quantised: None,
        },
        &output,
    )
    .unwrap();
    let reloaded = BaseModel::open(&output, None).unwrap();
    assert!(!reloaded.files.is_gguf());
    let names: Vec<&str> = folder.files.weights.names().collect();
    assert_eq!(reloaded.files.weights.names().collect::<Vec<_>>(), names);
    for name in names {
        let [ours, theirs] =
            [&reloaded, &folder].map(|base| base.files.weights.read_f32(name).unwrap());
        assert_eq!(ours, theirs, "{name}");
    }
    assert_eq!(training_ids(&reloaded, &CHAT), training_ids(&folder, &CHAT));
    assert_eq!(reloaded.template.source(), folder.template.source());
}

#[test]
fn export_refusals_are_known_before_training() {
    let dir = TempDir::new().unwrap();
    let refused_exports = |name: &str, tiny: Tiny<'_>, data: &str| -> Vec<(&'static str, String)> {
        let base = tiny.write(&dir.path().join(name));
        let text = format!(
            "[model]\nmodel_name_or_path = \"{}\"\n[lora]\n[data]\ntrain = [\"-\"]\n{data}\n[train]\n\
             output_dir = \"run\"\n[eval]\neval_strategy = \"no\"\n",
            base.path.display()
        );
        let source = crate::config::Source {
            name: "test".to_owned(),
            text,
        };
        let config = LoadedConfig::parse(source, &[]).unwrap().config;
        let refused = refusals(&config, &base).unwrap().into_iter();
        refused
            .map(|refusal| (refusal.exports, refusal.reason))
            .collect()
    };
    assert_eq!(refused_exports("plain", TINY, ""), []);
    let stops = Tiny {
        stops: &[2, 0, 900, 901],
        ..TINY
    };
    let [(export, line)] = &refused_exports("stops", stops, "")[..] else {
        panic!();
    };
    assert!(export.contains("gguf") && line.contains("(901)"), "{line}");
    let counts = Tiny {
        template: "{{ messages | length }}{% for m in messages %}{{ m.content | upper }}{% endfor %}",
        ..TINY
    };
    let [(export, line)] = &refused_exports("counts", counts, "")[..] else {
        panic!();
    };
    assert!(
        *export == "--to ollama" && line.contains("TEMPLATE"),
        "{line}"
    );
    let [(export, line)] = &refused_exports("system", counts, "system = \"one\\u00a0two\"")[..]
    else {
        panic!();
    };
    assert!(
        *export == "--to ollama" && line.contains("data.system"),
        "{line}"
    );
}
