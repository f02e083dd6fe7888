//! Replies that cannot be parsed, stages that drop all items, and implausible token counts from
//! servers.

use super::*;

/// Gives the same reply to every prompt, and counts the prompts.
struct FixedReply {
    text: &'static str,
    n_tokens: usize,
    n_sent: Cell<usize>,
}

impl FixedReply {
    fn new(text: &'static str) -> Self {
        Self {
            text,
            n_tokens: 1,
            n_sent: Cell::new(0),
        }
    }
}

impl TestModel for FixedReply {
    fn name(&self) -> &'static str {
        RuleGenerator::default().name()
    }

    fn reply(&self, _: &Prompt) -> Reply {
        self.n_sent.set(self.n_sent.get() + 1);
        Reply {
            text: self.text.to_owned(),
            n_prompt_tokens: self.n_tokens,
            n_tokens: self.n_tokens,
            ..Reply::default()
        }
    }
}

#[test]
fn a_stage_without_a_parsable_reply_fails_and_ask_again_repeats_it() {
    let dir = tempfile::tempdir().unwrap();
    let teapot = FixedReply::new("I am a \u{1b}[2Jteapot");
    let error = run(dir.path(), &teapot, &Setup::default()).unwrap_err();
    let PipelineError::Unreadable { stage, n, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((*stage, *n), ("double", 12));
    let text = error.to_string();
    for part in [
        "for 0:",
        "teapot",
        "--ask-again double",
        "doubled.dropped.jsonl",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(dir.path().join("doubled.dropped.jsonl").exists());
    assert!(read_report(dir.path()).unwrap().stages.is_empty());
    let n_sent = teapot.n_sent.get();
    // The replies are kept, and the same command fails again.
    assert!(run(dir.path(), &teapot, &Setup::default()).is_err());
    assert_eq!(teapot.n_sent.get(), n_sent);
    let setup_again = Setup {
        ask_again: Some("double"),
        ..Setup::default()
    };
    // The server now works.
    let generator = RuleGenerator::default();
    let report = run(dir.path(), &generator, &setup_again).unwrap();
    assert_eq!(report.stage("double").unwrap().n_kept, 11);
    let n_sent = generator.sent_prompts.borrow().len();
    // Parsable replies are not requested again; the unparsable one is.
    let report = run(dir.path(), &generator, &setup_again).unwrap();
    assert_eq!(report.stage("double").unwrap().n_kept, 11);
    assert_eq!(generator.sent_prompts.borrow().len(), n_sent + 2);
    run(dir.path(), &generator, &Setup::default()).unwrap();
    assert_eq!(generator.sent_prompts.borrow().len(), n_sent + 2);
    let complete_dir = tempfile::tempdir().unwrap();
    run(
        complete_dir.path(),
        &RuleGenerator::default(),
        &Setup::default(),
    )
    .unwrap();
    // The report differs, because it counts the repeated requests.
    let without_report = |dir: &Path| {
        let mut files = files(dir);
        files.remove(REPORT_FILE);
        files
    };
    assert_eq!(
        without_report(dir.path()),
        without_report(complete_dir.path())
    );
}

#[test]
fn ask_again_needs_the_stage_that_runs() {
    let dir = tempfile::tempdir().unwrap();
    let setup = |only, ask_again| Setup {
        only,
        ask_again: Some(ask_again),
        ..Setup::default()
    };
    let generator = RuleGenerator::default();
    let error = run(dir.path(), &generator, &setup(None, "some")).unwrap_err();
    assert!(
        error.to_string().starts_with("--ask-again some: "),
        "{error}"
    );
    let error = run(dir.path(), &generator, &setup(Some("sum"), "double")).unwrap_err();
    assert!(error.to_string().contains("omit --stage"), "{error}");
}

#[test]
fn a_stage_without_kept_items_fails_with_the_drop_reasons() {
    let dir = tempfile::tempdir().unwrap();
    let mut watch = |_: &Progress| true;
    let generator = RuleGenerator::default();
    let mut run = Run::open(unlimited(dir.path(), &generator, &mut watch)).unwrap();
    let drop_item = |id: &str| Err::<u64, _>(Dropped::new(id, "below the threshold", "0.1"));
    let result = run.stage("double", |_| {
        Ok(StageResult::from_results(["a", "b"].map(drop_item)))
    });
    let error = result.unwrap_err().to_string();
    assert!(
        error.contains("stage double dropped all 2 items (2 below the threshold)"),
        "{error}"
    );
    // A stage without input keeps no item, which is not an error.
    let result = run.stage("double", |_| Ok(StageResult::<u64>::from_results([])));
    assert_eq!(result.unwrap(), Some(Vec::new()));
}

#[test]
fn token_counts_saturate_instead_of_passing_a_budget() {
    let dir = tempfile::tempdir().unwrap();
    let generator = FixedReply {
        n_tokens: usize::MAX / 2 + 1,
        ..FixedReply::new("{\"n\": 1}")
    };
    let setup = Setup {
        limits: Limits {
            max_tokens: Some(100),
            ..Limits::default()
        },
        ..Setup::default()
    };
    let error = run(dir.path(), &generator, &setup).unwrap_err();
    assert!(matches!(error, PipelineError::Budget { .. }), "{error}");
    let n_sent = generator.n_sent.get();
    assert!(run(dir.path(), &generator, &setup).is_err());
    assert_eq!(generator.n_sent.get(), n_sent);
}
