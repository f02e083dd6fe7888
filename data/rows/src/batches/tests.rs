//! Properties of orders and batches over generated data sets.

use std::num::NonZeroUsize;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
struct Document {
    id: String,
    input_ids: Vec<u32>,
    loss_weights: Vec<f32>,
}

impl Document {
    fn example(&self) -> Example<'_> {
        Example {
            id: &self.id,
            input_ids: &self.input_ids,
            loss_weights: &self.loss_weights,
        }
    }
}

fn step_order(lengths: &[usize], options: OrderOptions) -> Result<StepOrder, BatchError> {
    StepOrder::new(lengths.iter().map(|&n| n as u32).collect(), options)
}

fn documents() -> impl Strategy<Value = Vec<Document>> {
    let tokens = vec(
        (
            1_u32..500,
            prop_oneof![Just(0.0_f32), Just(1.0), 0.0_f32..4.0],
        ),
        1..30,
    );
    vec(tokens, 1..40).prop_map(|documents| {
        let document = |(i, tokens): (usize, Vec<(u32, f32)>)| {
            let (input_ids, loss_weights) = tokens.into_iter().unzip();
            Document {
                id: format!("row-{i}"),
                input_ids,
                loss_weights,
            }
        };
        documents.into_iter().enumerate().map(document).collect()
    })
}

fn paddings() -> impl Strategy<Value = Padding> {
    let multiple = (1_usize..70).prop_filter_map("above zero", NonZeroUsize::new);
    prop_oneof![
        Just(Padding::None),
        multiple.prop_map(Padding::ToMultipleOf)
    ]
}

/// The pack length is 30 tokens: the longest document of [`documents`] fits.
fn options() -> impl Strategy<Value = OrderOptions> {
    let layout = prop_oneof![
        Just((Packing::None, GroupByLength::Off)),
        Just((Packing::None, GroupByLength::On)),
        Just((
            Packing::BlockDiagonal { max_length: 30 },
            GroupByLength::Off
        )),
    ];
    let shuffle = prop_oneof![3 => Just(Shuffle::On), 1 => Just(Shuffle::Off)];
    (any::<u64>(), 1_usize..6, 1_usize..4, layout, shuffle).prop_map(
        |(seed, batch_size, accumulation, (packing, group_by_length), shuffle)| OrderOptions {
            seed,
            per_device_train_batch_size: batch_size,
            gradient_accumulation_steps: accumulation,
            packing,
            group_by_length,
            shuffle,
        },
    )
}

fn shuffled_options(packing: Packing, group_by_length: GroupByLength) -> OrderOptions {
    OrderOptions {
        seed: 17,
        per_device_train_batch_size: 4,
        gradient_accumulation_steps: 2,
        packing,
        group_by_length,
        shuffle: Shuffle::On,
    }
}

fn epoch(order: &StepOrder, epoch: u64) -> Vec<Vec<Vec<usize>>> {
    (0..order.steps_in_epoch(epoch))
        .map(|step| order.step(epoch, step))
        .collect()
}

fn collate_all(documents: &[Document], padding: Padding) -> MicroBatch {
    let examples: Vec<Example> = documents.iter().map(Document::example).collect();
    collate(&examples, padding).expect("generated documents are well formed")
}

proptest! {
    #[test]
    fn all_token_vectors_have_one_length(docs in documents(), padding in paddings()) {
        let batch = collate_all(&docs, padding);
        let n = batch.input_ids.len();
        prop_assert_eq!(batch.position_ids.len(), n);
        prop_assert_eq!(batch.targets.len(), n);
        prop_assert_eq!(batch.loss_weights.len(), n);
        prop_assert_eq!(batch.cu_seqlens.len(), docs.len() + 1);
        prop_assert_eq!(batch.n_documents(), docs.len());
        prop_assert_eq!(batch.n_tokens(), docs.iter().map(|d| d.input_ids.len()).sum::<usize>());
        if let Padding::ToMultipleOf(multiple) = padding {
            prop_assert_eq!(n % multiple.get(), 0);
            prop_assert!(n - batch.n_tokens() < multiple.get());
        } else {
            prop_assert_eq!(n, batch.n_tokens());
        }
    }

    /// Invariant: Padding is never supervised.
    #[test]
    fn padding_is_never_supervised(docs in documents(), padding in paddings()) {
        let batch = collate_all(&docs, padding);
        let n_tokens = batch.n_tokens();
        prop_assert!(batch.loss_weights[n_tokens..].iter().all(|weight| *weight == 0.0));
        for ends in batch.cu_seqlens.windows(2) {
            prop_assert_eq!(batch.loss_weights[ends[1] - 1], 0.0);
            prop_assert_eq!(batch.targets[ends[1] - 1], 0);
        }
    }

    /// Invariant: Targets are shifted in one function, once per document.
    #[test]
    fn the_first_token_of_a_document_is_never_a_target(docs in documents()) {
        let batch = collate_all(&docs, Padding::None);
        for (document, ends) in docs.iter().zip(batch.cu_seqlens.windows(2)) {
            let inner = ends[0]..ends[1] - 1;
            prop_assert_eq!(&batch.targets[inner.clone()], &document.input_ids[1..]);
            prop_assert_eq!(&batch.loss_weights[inner], &document.loss_weights[1..]);
            let positions: Vec<u32> = (0..document.input_ids.len() as u32).collect();
            prop_assert_eq!(&batch.position_ids[ends[0]..ends[1]], &positions[..]);
        }
    }

    #[test]
    fn the_weight_of_a_step_is_the_sum_of_its_examples(docs in documents(), options in options()) {
        let lengths: Vec<usize> = docs.iter().map(|d| d.input_ids.len()).collect();
        let order = step_order(&lengths, options).unwrap();
        for micro_batches in epoch(&order, 0) {
            let expected: f64 = micro_batches.iter().flatten()
                .flat_map(|&idx| &docs[idx].loss_weights[1..]).copied().map(f64::from).sum();
            let micro_batches = micro_batches.iter().map(|indices| {
                let examples: Vec<Example> = indices.iter().map(|&i| docs[i].example()).collect();
                collate(&examples, Padding::None).unwrap()
            }).collect();
            let step = StepBatch { micro_batches };
            prop_assert!((step.sum_loss_weights() - expected).abs() < 1e-9);
            prop_assert!(step.n_trained_tokens() < step.n_tokens());
        }
    }

    /// Invariant: Each example occurs once per epoch, and a resumed run continues the same order.
    #[test]
    fn each_example_occurs_once_per_epoch(
        lengths in vec(1_usize..31, 1..3_000), options in options(), number in 0_u64..5,
    ) {
        let order = step_order(&lengths, options).unwrap();
        let steps = epoch(&order, number);
        let mut indices: Vec<usize> = steps.iter().flatten().flatten().copied().collect();
        indices.sort_unstable();
        prop_assert_eq!(indices, (0..lengths.len()).collect::<Vec<_>>());
        for (i, step) in steps.iter().enumerate() {
            prop_assert!(!step.is_empty() && step.iter().all(|batch| !batch.is_empty()));
            if i + 1 < steps.len() {
                prop_assert_eq!(step.len(), options.gradient_accumulation_steps);
            }
        }
    }

    #[test]
    fn rows_of_a_micro_batch_keep_to_their_limits(
        lengths in vec(1_usize..31, 1..3_000), options in options(),
    ) {
        let order = step_order(&lengths, options).unwrap();
        let rows = options.per_device_train_batch_size;
        for batch in epoch(&order, 1).iter().flatten() {
            match options.packing {
                Packing::None => prop_assert!(batch.len() <= rows),
                Packing::BlockDiagonal { max_length } => {
                    let n_tokens: usize = batch.iter().map(|&idx| lengths[idx]).sum();
                    prop_assert!(n_tokens <= rows * max_length);
                }
            }
        }
    }

    #[test]
    fn packs_never_exceed_their_length(lengths in vec(1_u32..31, 1..500)) {
        let window: Vec<u32> = (0..lengths.len() as u32).collect();
        let packs = packing::pack(&window, &lengths, 30);
        for pack in &packs {
            prop_assert!(pack.iter().map(|&idx| lengths[idx as usize]).sum::<u32>() <= 30);
        }
        let mut indices = packs.concat();
        indices.sort_unstable();
        prop_assert_eq!(indices, window);
    }

    #[test]
    fn the_same_seed_and_epoch_give_the_same_order(
        lengths in vec(1_usize..31, 1..300), options in options(),
    ) {
        let order = step_order(&lengths, options).unwrap();
        let again = step_order(&lengths, options).unwrap();
        let _ = epoch(&again, 7);
        prop_assert_eq!(epoch(&order, 3), epoch(&again, 3));
    }

    /// Invariant: Each example occurs once per epoch, and a resumed run continues the same order.
    #[test]
    fn resuming_within_an_epoch_continues_the_same_order(
        lengths in vec(1_usize..31, 1..100), options in options(), n_before in 0_usize..40,
    ) {
        let walk = |order: &StepOrder, mut cursor: Cursor, n_steps: usize| {
            let mut steps = Vec::new();
            for _ in 0..n_steps {
                let (step, after) = order.next(cursor);
                steps.push(step);
                cursor = after;
            }
            (steps, cursor)
        };
        let order = step_order(&lengths, options).unwrap();
        let (all, _) = walk(&order, Cursor::default(), n_before + 40);
        let (_, cursor) = walk(&order, Cursor::default(), n_before);
        let saved = serde_json::to_string(&cursor).unwrap();
        let fresh = step_order(&lengths, options).unwrap();
        let (rest, _) = walk(&fresh, serde_json::from_str(&saved).unwrap(), 40);
        prop_assert_eq!(&all[n_before..], &rest[..]);
    }
}

#[test]
fn each_epoch_and_seed_has_its_own_order() {
    let lengths: Vec<usize> = (0..200).map(|i| 1 + i * 7 % 30).collect();
    for (packing, group) in [
        (Packing::None, GroupByLength::Off),
        (Packing::None, GroupByLength::On),
        (
            Packing::BlockDiagonal { max_length: 64 },
            GroupByLength::Off,
        ),
    ] {
        let options = shuffled_options(packing, group);
        let order = step_order(&lengths, options).unwrap();
        let other = step_order(
            &lengths,
            OrderOptions {
                seed: 18,
                ..options
            },
        )
        .unwrap();
        assert_ne!(epoch(&order, 0), epoch(&order, 1));
        assert_ne!(epoch(&order, 0), epoch(&other, 0));
    }
}

#[test]
fn without_shuffling_examples_keep_the_order_of_the_data_set() {
    let options = OrderOptions {
        shuffle: Shuffle::Off,
        ..shuffled_options(Packing::None, GroupByLength::Off)
    };
    let order = step_order(&[3; 10], options).unwrap();
    let expected = [vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]], vec![vec![8, 9]]];
    assert_eq!(epoch(&order, 0), expected);
    assert_eq!(epoch(&order, 9), expected);
}

#[test]
fn grouped_micro_batches_have_even_lengths_and_the_largest_comes_first() {
    let mut random = SeededRandom::new(1, 1);
    let lengths: Vec<usize> = (0..403).map(|_| 1 + random.below(500)).collect();
    let spread = |order: &StepOrder| -> usize {
        let batches = epoch(order, 0).concat();
        let spread_of = |batch: &Vec<usize>| {
            let batch_lengths = || batch.iter().map(|&idx| lengths[idx]);
            batch_lengths().max().unwrap_or(0) - batch_lengths().min().unwrap_or(0)
        };
        batches.iter().map(spread_of).sum::<usize>() / batches.len()
    };
    let grouped = step_order(&lengths, shuffled_options(Packing::None, GroupByLength::On)).unwrap();
    let mixed = step_order(
        &lengths,
        shuffled_options(Packing::None, GroupByLength::Off),
    )
    .unwrap();
    assert!(spread(&grouped) * 5 < spread(&mixed));
    let tokens = |batch: &Vec<usize>| batch.iter().map(|&idx| lengths[idx]).sum::<usize>();
    let batches = epoch(&grouped, 0).concat();
    assert_eq!(
        batches.iter().map(tokens).max(),
        batches.first().map(tokens)
    );
}

/// Invariant: A step is the same step however it is split into micro-batches.
#[test]
fn one_micro_batch_of_eight_and_eight_of_one_have_the_same_weight() {
    let weights = [0.0, 0.1, 0.7, 1.0];
    let example = Example {
        id: "a",
        input_ids: &[1, 2, 3, 4],
        loss_weights: &weights,
    };
    let one = StepBatch {
        micro_batches: vec![collate(&[example; 8], Padding::None).unwrap()],
    };
    let single = collate(&[example], Padding::None).unwrap();
    let eight = StepBatch {
        micro_batches: vec![single; 8],
    };
    assert!((one.sum_loss_weights() - eight.sum_loss_weights()).abs() < 1e-12);
    assert_eq!(one.n_tokens(), eight.n_tokens());
}

#[test]
fn malformed_examples_are_errors_that_name_them() {
    let collated = |input_ids, loss_weights| {
        collate(
            &[Example {
                id: "row-9",
                input_ids,
                loss_weights,
            }],
            Padding::None,
        )
        .map_err(|error| error.to_string())
    };
    assert_eq!(collate(&[], Padding::None), Err(BatchError::NoExamples));
    for message in [
        collated(&[], &[]),
        collated(&[1, 2], &[1.0]),
        collated(&[1, 2], &[1.0, f32::NAN]),
        collated(&[1, 2], &[-1.0, 0.0]),
    ] {
        assert!(message.unwrap_err().contains("row-9"));
    }
}

#[test]
fn a_document_longer_than_a_pack_is_an_error_that_names_it() {
    let options = shuffled_options(Packing::BlockDiagonal { max_length: 8 }, GroupByLength::Off);
    let error = step_order(&[3, 9, 8], options).unwrap_err();
    assert!(
        error.to_string().contains("number 1 (from 0) has 9 tokens"),
        "{error}"
    );
    let message = error
        .with_ids(|idx| format!("train.jsonl:{}", idx + 1))
        .to_string();
    assert!(
        message.contains("\"train.jsonl:2\" has 9 tokens, but a pack can have 8"),
        "{message}"
    );
}

#[test]
fn impossible_options_are_errors() {
    let valid = shuffled_options(Packing::None, GroupByLength::Off);
    let error = |options| step_order(&[3], options).unwrap_err().to_string();
    assert_eq!(step_order(&[], valid).unwrap_err(), BatchError::NoExamples);
    let no_rows = OrderOptions {
        per_device_train_batch_size: 0,
        ..valid
    };
    assert!(error(no_rows).contains("per_device_train_batch_size"));
    let no_batches = OrderOptions {
        gradient_accumulation_steps: 0,
        ..valid
    };
    assert!(error(no_batches).contains("gradient_accumulation_steps"));
    let packing = Packing::BlockDiagonal { max_length: 0 };
    assert!(error(OrderOptions { packing, ..valid }).contains("max_length"));
    let packing = Packing::BlockDiagonal { max_length: 8 };
    let both = OrderOptions {
        packing,
        group_by_length: GroupByLength::On,
        ..valid
    };
    assert!(error(both).contains("group_by_length"));
}

#[test]
fn a_cursor_past_the_end_starts_the_next_epoch() {
    let order = step_order(
        &[3; 20],
        shuffled_options(Packing::None, GroupByLength::Off),
    )
    .unwrap();
    let past = Cursor {
        epoch: 2,
        step_in_epoch: 99,
    };
    assert_eq!(
        order.next(past),
        order.next(Cursor {
            epoch: 3,
            step_in_epoch: 0
        })
    );
}

#[test]
fn weighted_parts_repeat_by_their_weight_and_others_occur_once_per_epoch() {
    let options = OrderOptions {
        seed: 4,
        per_device_train_batch_size: 3,
        gradient_accumulation_steps: 1,
        packing: Packing::None,
        group_by_length: GroupByLength::Off,
        shuffle: Shuffle::On,
    };
    let part = |n_examples, weight| Part { n_examples, weight };
    let parts = [part(10, 1.0), part(20, 0.25), part(4, 2.5)];
    let order = || step_order(&[3; 34], options).unwrap();
    let weighted = order().with_parts(&parts).unwrap();
    let counts = |epoch: u64| {
        let mut counts = [0; 34];
        for step in 0..weighted.steps_in_epoch(epoch) {
            let step = weighted.step(epoch, step);
            step.concat().into_iter().for_each(|idx| counts[idx] += 1);
        }
        counts
    };
    let mut drawn = std::collections::BTreeSet::new();
    for epoch in 0..40 {
        let counts = counts(epoch);
        assert!(counts[..10].iter().all(|&n| n == 1));
        assert!(counts[10..30].iter().all(|&n| n <= 1));
        assert_eq!(counts[10..30].iter().sum::<usize>(), 5);
        assert!(counts[30..].iter().all(|&n| n == 2 || n == 3));
        assert_eq!(counts[30..].iter().sum::<usize>(), 10);
        drawn.extend((10..30).filter(|&idx| counts[idx] == 1));
    }
    assert_eq!(drawn.len(), 20, "every example occurs in some epoch");
    assert_eq!(counts(7), counts(7));

    // Parts with weight 1 change nothing.
    let plain = order().with_parts(&[part(30, 1.0), part(4, 1.0)]).unwrap();
    for step in 0..plain.steps_in_epoch(1) {
        assert_eq!(plain.step(1, step), order().step(1, step));
    }
    let nothing = order().with_parts(&[part(34, 0.001)]);
    assert_eq!(nothing.unwrap_err(), BatchError::NoExamples);
}

/// Over many epochs, a part with less than half an example per epoch is used as often as its weight
/// specifies.
#[test]
fn fractions_of_examples_are_carried_over_the_epochs() {
    let options = OrderOptions {
        seed: 7,
        per_device_train_batch_size: 2,
        gradient_accumulation_steps: 1,
        packing: Packing::None,
        group_by_length: GroupByLength::Off,
        shuffle: Shuffle::On,
    };
    let part = |n_examples, weight| Part { n_examples, weight };
    // On their own, the last three parts leave most epochs without a step.
    for parts in [
        vec![part(20, 1.0), part(4, 0.1)],
        vec![part(20, 1.0), part(4, 1.1), part(3, 0.01)],
        vec![part(4, 0.1), part(4, 0.1), part(4, 0.1)],
    ] {
        let n: usize = parts.iter().map(|part| part.n_examples).sum();
        let order = || {
            let order = step_order(&vec![3; n], options).unwrap();
            order.with_parts(&parts).unwrap()
        };
        let weighted = order();
        let n_steps = weighted.steps_in_epochs(100.0);
        let (mut cursor, mut counts) = (Cursor::default(), vec![0_u64; n]);
        let mut batches_seen = Vec::new();
        for step in 0..n_steps {
            assert_eq!(weighted.n_seen_of_parts(step), by_part(&parts, &counts));
            let (batches, next) = weighted.next(cursor);
            assert!(!batches.concat().is_empty());
            // A resumed run starts at a cursor with an empty cache.
            assert_eq!(order().next(cursor), (batches.clone(), next));
            batches.concat().iter().for_each(|&idx| counts[idx] += 1);
            batches_seen.push(cursor);
            cursor = next;
        }
        assert!(cursor.epoch <= 100 && cursor.epoch >= 98, "{cursor:?}");
        for (part, n_seen) in parts.iter().zip(by_part(&parts, &counts)) {
            let expected = part.n_examples as f64 * part.weight * 100.0;
            assert!(
                (n_seen as f64 - expected).abs() <= 1.0,
                "{n_seen} of {expected}"
            );
        }
        assert_eq!(by_part(&parts, &counts), weighted.n_seen_of_parts(n_steps));
    }
}

/// Sums counts over the examples of each part.
fn by_part(parts: &[Part], counts: &[u64]) -> Vec<u64> {
    let mut counts = counts.iter();
    let sum = |part: &Part| counts.by_ref().take(part.n_examples).sum();
    parts.iter().map(sum).collect()
}
