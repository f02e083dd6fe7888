//! Tests stop tokens and sampling settings of `generation_config.json`.

use super::*;

#[test]
fn stop_ids_come_from_the_generation_config_first() {
    let config = ("config.json", json!({"eos_token_id": 2}));
    assert_eq!(
        open(std::slice::from_ref(&config)).unwrap().eos_token_ids,
        [2]
    );
    let generation = (
        "generation_config.json",
        json!({"eos_token_id": [128001, 128009]}),
    );
    assert_eq!(
        open(&[config.clone(), generation]).unwrap().eos_token_ids,
        [128001, 128009]
    );
    let silent = ("generation_config.json", json!({"temperature": 0.6}));
    assert_eq!(open(&[config, silent]).unwrap().eos_token_ids, [2]);
    let error = open(&[("config.json", json!({"eos_token_id": "</s>"}))])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("config.json: eos_token_id: \"</s>\" must be a token id"),
        "{error}"
    );
}

#[test]
fn sampling_settings_of_a_generation_config_are_reported() {
    let generation = json!({"do_sample": true, "temperature": 0.7, "top_p": 1.0, "top_k": null,
        "repetition_penalty": 1.1, "num_beams": 1, "suppress_tokens": [], "eos_token_id": 2});
    let model = open(&[("generation_config.json", generation)]).unwrap();
    let expected = [
        "do_sample = true",
        "temperature = 0.7",
        "repetition_penalty = 1.1",
    ];
    assert_eq!(model.choices, expected);
}
