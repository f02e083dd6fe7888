//! Tests of the judge with a server that judges the cases it receives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tooltune_agents::{EndReason, Method};
use tooltune_endpoint::chat_server::{chat_server, completion, environment, last_content, options};
use tooltune_endpoint::http::test_server::{Answer, TestServer};
use tooltune_endpoint::{ChatEndpoint, EndpointProgress};

use super::*;
use crate::llm_judge::{
    JudgeError, JudgeOptions, JudgeVerdict, judge_samples, n_unanswered, n_unparsed,
};

fn sample(id: &str, answer: &str) -> JudgeSample {
    JudgeSample {
        id: id.to_owned(),
        query: "When is low water?".to_owned(),
        executions: vec![json!({"name": "Tides/Low", "output": {"at": "06:10"}})],
        answer: answer.to_owned(),
    }
}

fn endpoint(server: &TestServer) -> ChatEndpoint {
    ChatEndpoint::with_environment(&options(&server.url()), &environment).expect("options")
}

/// A strict judge: the query is solved if the answer contains the time that the tool returned.
fn judge_by_marker(request: &Value) -> Answer {
    let case = last_content(request);
    let (details, answer) = case.split_once("Final answer:\n").expect("the layout");
    let time = details.split("\"at\": \"").nth(1).expect("an execution");
    let status = if answer.contains(&time[..5]) {
        "Solved"
    } else {
        "Unsolved"
    };
    completion(&format!("I looked. {{\"answer_status\": \"{status}\"}}"))
}

#[test]
fn verdicts_keep_the_order_and_the_replies() {
    let server = chat_server(|request, _| judge_by_marker(request));
    let samples: Vec<JudgeSample> = (0..20)
        .map(|n| {
            sample(
                &n.to_string(),
                if n % 3 == 0 { "At 06:10." } else { "At noon." },
            )
        })
        .collect();
    let mut last = None;
    let mut watch = |progress| {
        last = Some(progress);
        true
    };
    let verdicts = judge_samples(
        &endpoint(&server),
        &samples,
        &JudgeOptions::default(),
        &mut watch,
    )
    .expect("all judged");
    for (n, verdict) in verdicts.iter().enumerate() {
        assert_eq!(
            (verdict.id.clone(), verdict.is_solved()),
            (n.to_string(), n % 3 == 0)
        );
        assert_eq!(verdict.replies.len(), 1);
        assert!(verdict.replies[0].starts_with("I looked."));
    }
    assert_eq!(n_unparsed(&verdicts), 0);
    let done = EndpointProgress {
        n_done: 20,
        n_failed: 0,
        n_all: 20,
    };
    assert_eq!(last, Some(done));
    let line = serde_json::to_string(&verdicts[0]).expect("written");
    assert_eq!(
        serde_json::from_str::<JudgeVerdict>(&line).expect("read"),
        verdicts[0]
    );
}

#[test]
fn a_reply_without_a_verdict_is_requested_again_and_then_unsolved() {
    let server = chat_server(|request, number| {
        let is_first = request["temperature"] == 0.0;
        match last_content(request).contains("hopeless") {
            true => completion(&format!("Well, number {number}")),
            false if is_first => completion("{\"answer_status\": \"Unsure\"}"),
            false => judge_by_marker(request),
        }
    });
    let samples = [sample("a", "At 06:10."), sample("b", "hopeless")];
    let options = JudgeOptions {
        concurrency: 1,
        ..JudgeOptions::default()
    };
    let verdicts = judge_samples(&endpoint(&server), &samples, &options, &mut |_| true);
    let verdicts = verdicts.expect("both judged");
    assert_eq!(
        (verdicts[0].verdict, verdicts[0].replies.len()),
        (Some(true), 2)
    );
    assert_eq!(verdicts[1].verdict, None);
    let replies = ["Well, number 2", "Well, number 3", "Well, number 4"];
    assert_eq!(verdicts[1].replies, replies);
    assert!(!verdicts[1].is_solved());
    assert_eq!(n_unparsed(&verdicts), 1);
}

#[test]
fn a_reply_without_a_text_is_an_attempt_without_a_verdict() {
    let empty_reply =
        json!({"choices": [{"message": {"content": null}, "finish_reason": "length"}]});
    let server = chat_server(move |request, _| {
        if request["temperature"] == 0.0 {
            Answer::json(200, &empty_reply)
        } else {
            judge_by_marker(request)
        }
    });
    let samples = [sample("a", "At 06:10.")];
    let options = JudgeOptions::default();
    let verdicts = judge_samples(&endpoint(&server), &samples, &options, &mut |_| true);
    let verdicts = verdicts.expect("judged");
    assert_eq!(
        (verdicts[0].verdict, verdicts[0].replies[0].as_str()),
        (Some(true), "")
    );
    assert_eq!(verdicts[0].replies.len(), 2);
}

#[test]
fn an_endpoint_error_names_url_and_sample_and_keeps_earlier_verdicts() {
    let server = chat_server(|request, _| {
        if last_content(request).contains("too long") {
            Answer::json(403, &json!({"error": "quota exceeded"}))
        } else {
            judge_by_marker(request)
        }
    });
    let mut samples: Vec<JudgeSample> = (0..40).map(|n| sample(&n.to_string(), "x")).collect();
    samples[3].answer = "too long".to_owned();
    let options = JudgeOptions {
        concurrency: 1,
        ..JudgeOptions::default()
    };
    let error = judge_samples(&endpoint(&server), &samples, &options, &mut |_| true);
    let error = error.expect_err("sample 3");
    let message = error.to_string();
    for part in [
        "cannot judge sample \"3\" (",
        &server.url(),
        "403",
        "quota exceeded",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let JudgeError::Endpoint { judged, .. } = error else {
        panic!("{error}");
    };
    let ids: Vec<&str> = judged.iter().map(|verdict| verdict.id.as_str()).collect();
    assert_eq!(ids, ["0", "1", "2"]);
    // No request is sent after the refusal.
    assert_eq!(server.received().len(), 4);
}

#[test]
fn a_refused_sample_has_no_verdict_and_the_others_are_judged() {
    let server = chat_server(|request, _| {
        let case = last_content(request);
        let too_long = json!({"error": {"message": "maximum context length is 10 tokens"}});
        match () {
            () if case.contains("too long") => Answer::json(400, &too_long),
            () if case.contains("odd") => Answer::json(500, &json!({"error": "oops"})),
            () => judge_by_marker(request),
        }
    });
    let mut samples: Vec<JudgeSample> = (0..20).map(|n| sample(&n.to_string(), "x")).collect();
    samples[0].answer = "too long".to_owned();
    samples[7].answer = "odd".to_owned();
    let options = JudgeOptions::default();
    let judged = judge_samples(&endpoint(&server), &samples, &options, &mut |_| true);
    let judged = judged.expect("all but two");
    assert_eq!((judged.len(), n_unanswered(&judged)), (20, 2));
    assert_eq!(n_unparsed(&judged), 2);
    for (n, message) in [(0, "maximum context length"), (7, "oops")] {
        let error = judged[n].error.as_deref().expect("no answer");
        assert!(error.contains(message), "{error}");
        assert!(!judged[n].is_solved());
    }
    // A judge that rejects every sample is an error.
    let one_sample = &samples[..1];
    let error = judge_samples(&endpoint(&server), one_sample, &options, &mut |_| true);
    assert!(
        matches!(error, Err(JudgeError::Endpoint { .. })),
        "{error:?}"
    );
}

#[test]
fn the_caller_can_stop_judging_and_invalid_options_are_refused_first() {
    // After its first answers, the server waits until some time after the work was stopped.
    let is_ended = Arc::new(AtomicBool::new(false));
    let ended = is_ended.clone();
    let server = chat_server(move |request, number| {
        while number >= 2 && !ended.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if number >= 2 {
            std::thread::sleep(Duration::from_millis(200));
        }
        judge_by_marker(request)
    });
    let samples: Vec<JudgeSample> = (0..40).map(|n| sample(&n.to_string(), "x")).collect();
    let mut watch = |progress: EndpointProgress| {
        is_ended.fetch_or(progress.n_done >= 2, Ordering::SeqCst);
        progress.n_done < 2
    };
    let options = JudgeOptions {
        concurrency: 2,
        ..JudgeOptions::default()
    };
    let error = judge_samples(&endpoint(&server), &samples, &options, &mut watch);
    let Err(JudgeError::Stopped { judged }) = error else {
        panic!("{error:?}");
    };
    assert!((2..10).contains(&judged.len()), "{}", judged.len());
    let n_before = server.received().len();
    let no_attempts = JudgeOptions {
        attempts: 0,
        ..JudgeOptions::default()
    };
    let error = judge_samples(&endpoint(&server), &samples, &no_attempts, &mut |_| true);
    assert_eq!(error, Err(JudgeError::Attempts { attempts: 0 }));
    assert_eq!(server.received().len(), n_before);
}

#[test]
fn the_judge_sees_the_failed_calls_of_a_loop() {
    let call = |name: Option<&str>, exception: Option<&str>| AttemptedCall {
        name: name.map(str::to_owned),
        arguments: name.map(|_| json!({"port": "Emden"}).as_object().expect("one").clone()),
        raw: name.is_none().then(|| "call Emden".to_owned()),
        output: json!({"at": "06:10"}),
        exception: exception.map(str::to_owned),
    };
    let outcome = Outcome {
        method: Method::React,
        plan: Vec::new(),
        sub_queries: Vec::new(),
        path: Vec::new(),
        calls: vec![
            call(Some("Tides/Low"), None),
            call(Some("Tides/Low"), Some("no row")),
            call(None, Some("no call")),
        ],
        response: "At 06:10.".to_owned(),
        retrievals: Vec::new(),
        failures: Vec::new(),
        end: EndReason::Answered,
        texts: Vec::new(),
    };
    let judge_sample = JudgeSample::from_outcome("1", "q", &outcome);
    assert_eq!(
        judge_sample.executions,
        [
            json!({"name": "Tides/Low", "arguments": {"port": "Emden"}, "output": {"at": "06:10"}}),
            json!({"name": "Tides/Low", "arguments": {"port": "Emden"}, "error": "no row"}),
            json!({"name": null, "text": "call Emden", "error": "no call"}),
        ]
    );
    assert_eq!(judge_sample.answer, "At 06:10.");
}
