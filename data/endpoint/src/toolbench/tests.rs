//! Tests with a local server that has the benchmark's interface, and a cache in its layout.

use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::http::test_server::{Answer, CLOSED_PORT, Received, TestServer};

fn catalogue() -> ApiCatalogue {
    let document = json!({
        "category_name": "News, Media", "tool_name": "24 Sata", "api_name": "List Items",
        "required_parameters": [{"name": "ID", "type": "NUMBER"}],
        "optional_parameters": [{"name": "Page size", "type": "NUMBER"}],
    });
    let document = ApiDocument::try_from(document).expect("a document");
    ApiCatalogue::new(vec![document]).expect("one name")
}

fn options(server: Option<&TestServer>, cache: Option<&Path>) -> ToolBenchOptions {
    ToolBenchOptions {
        service_url: server.map(|server| format!("{}/virtual", server.url())),
        key_variable: Some("TOOLBENCH_KEY".to_owned()),
        cache: cache.map(Path::to_owned),
        connect_timeout_secs: 2.0,
        timeout_secs: 2.0,
        ..ToolBenchOptions::default()
    }
}

fn executor(options: &ToolBenchOptions) -> Result<ToolBenchExecutor, HttpConfigError> {
    let environment = |name: &str| (name == "TOOLBENCH_KEY").then(|| "sesame-open-42".to_owned());
    ToolBenchExecutor::with_environment(catalogue(), options, Arc::default(), &environment)
}

fn call(executor: &mut ToolBenchExecutor, arguments: Value) -> CallResult {
    executor.call(
        "24 Sata/List Items",
        arguments.as_object().expect("an object"),
    )
}

fn request_body(request: &Received) -> Value {
    serde_json::from_str(&request.body).expect("JSON")
}

#[test]
fn a_call_follows_the_benchmarks_protocol() {
    let server = TestServer::start(|request, _| {
        let request_body = request_body(request);
        assert_eq!(
            (request.method.as_str(), request.target.as_str()),
            ("POST", "/virtual")
        );
        let key = &request.headers["toolbench_key"];
        let response = format!("{{'items': [1, None], 'key': '{key}'}}");
        match request_body["tool_input"].as_str() {
            Some("{\"is_id\":7}") => Answer::json(200, &json!({"error": "", "response": response})),
            Some("{\"is_id\":8}") => {
                Answer::json(200, &json!({"error": "no such id", "response": ""}))
            }
            _ => Answer::json(200, &json!({"error": "", "response": "plain words"})),
        }
    });
    let mut executor = executor(&options(Some(&server), None)).expect("opens");
    let result = call(&mut executor, json!({"ID": 7, "Page size": null}));
    // The key that the server repeats is removed from the result.
    let expected = json!({"items": [1, null], "key": "***"});
    assert_eq!(result, CallResult::success(expected));
    assert_eq!(
        request_body(&server.received()[0]),
        json!({
            "category": "News, Media", "tool_name": "get_24_sata", "api_name": "list_items",
            "tool_input": "{\"is_id\":7}", "strip": "", "toolbench_key": "sesame-open-42",
        })
    );
    let failed = call(&mut executor, json!({"ID": 8}));
    assert_eq!(
        failed,
        CallResult::new("".into(), Some("no such id".to_owned()))
    );
    let worded = call(&mut executor, json!({"Page size": 2}));
    assert_eq!(worded, CallResult::success("plain words".into()));
    assert_eq!(
        request_body(&server.received()[2])["tool_input"],
        "{\"page_size\":2}"
    );
    let unknown = executor.call("24 Sata/List", &Map::new());
    assert!(
        unknown
            .exception
            .is_some_and(|text| text.contains("unknown API"))
    );
    assert_eq!(server.received().len(), 3);
}

#[test]
fn a_server_with_another_protocol_is_a_failed_call() {
    let server = TestServer::start(|_, number| match number {
        0 => Answer::json(422, &json!({"detail": "field required"})),
        1 => Answer::html(200, "<html>hello</html>"),
        2 => Answer::json(429, &json!({"error": "slow down"})),
        3 => Answer::Hang,
        4 => Answer::json(200, &json!({"error": ""})),
        _ => Answer::Reply(
            302,
            vec![("Location".into(), "http://x/".into())],
            Vec::new(),
        ),
    });
    let mut executor = executor(&options(Some(&server), None)).expect("opens");
    for (expected, is_unanswered) in [
        ("422 Unprocessable", false),
        ("hello", false),
        ("429", true),
        ("no complete answer within", true),
        ("without a response", false),
        ("302 Found", false),
    ] {
        let result = call(&mut executor, json!({"ID": 1}));
        let message = result.exception.expect(expected);
        assert!(message.contains(expected), "{message}");
        assert_eq!(result.is_unanswered, is_unanswered, "{message}");
    }
    let mut unreachable = options(None, None);
    unreachable.service_url = Some(format!("http://127.0.0.1:{CLOSED_PORT}/virtual"));
    let mut unreachable = super::tests::executor(&unreachable).expect("opens");
    assert!(call(&mut unreachable, json!({"ID": 1})).is_unanswered);
}

/// A cache with one file.
fn cache(text: &str) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let tool = folder.path().join("News_Media/get_24_sata_for_News_Media");
    std::fs::create_dir_all(&tool).expect("made");
    std::fs::write(tool.join("list_items.json"), text).expect("written");
    folder
}

#[test]
fn the_cache_is_queried_before_the_server_with_normalised_arguments() {
    let text = json!({
        "{'is_id': '7', 'page_size': 2}": {"error": "", "response": "{\"a\": 1}"},
        "{'is_id': 9, 'q': \"it's\"}": {"error": "gone", "response": ""},
        "nonsense": {"error": "", "response": "never"},
    });
    let folder = cache(&text.to_string());
    let server = TestServer::start(|_, _| {
        Answer::json(200, &json!({"error": "", "response": "of the server"}))
    });
    let both = options(Some(&server), Some(folder.path()));
    let mut both = executor(&both).expect("opens");
    let cached = CallResult::success(json!({"a": 1}));
    assert_eq!(call(&mut both, json!({"Page size": 2.0, "ID": 7})), cached);
    assert!(call(&mut both, json!({"ID": 9, "q": "it's"})).is_failure());
    assert!(server.received().is_empty());
    let served = call(&mut both, json!({"ID": 8}));
    assert_eq!(served, CallResult::success("of the server".into()));

    let mut cache_only = executor(&options(None, Some(folder.path()))).expect("opens");
    assert_eq!(
        call(&mut cache_only, json!({"ID": "7", "Page size": 2})),
        cached
    );
    for (arguments, expected) in [
        (json!({"ID": 8}), "gives nothing for these arguments"),
        (json!({}), "needs \"ID\""),
    ] {
        let message = call(&mut cache_only, arguments).exception.expect(expected);
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(cache_only.fault(), None);
}

#[test]
fn a_damaged_cache_is_an_error() {
    for text in ["{\"{}\": ", "[]"] {
        let folder = cache(text);
        let mut executor = executor(&options(None, Some(folder.path()))).expect("opens");
        assert!(call(&mut executor, json!({"ID": 1})).is_unanswered);
        let message = executor.fault().expect("a fault");
        assert!(
            message.contains("list_items.json") && message.contains("unpack it again"),
            "{message}"
        );
    }
}

#[test]
fn invalid_options_are_reported_before_any_request() {
    let refusal = |options: &ToolBenchOptions, catalogue: ApiCatalogue| {
        ToolBenchExecutor::with_environment(catalogue, options, Arc::default(), &|_| None)
            .expect_err("refused")
            .to_string()
    };
    let without_source = refusal(&options(None, None), catalogue());
    assert!(
        without_source.contains("service_url is missing"),
        "{without_source}"
    );
    let mut no_key = options(None, None);
    no_key.service_url = Some("http://localhost/virtual".to_owned());
    let no_key = refusal(&no_key, catalogue());
    assert!(no_key.contains("TOOLBENCH_KEY"), "{no_key}");
    let plain = ApiCatalogue::new(vec![ApiDocument::new("", "Town")]).expect("one name");
    let folder = TempDir::new().expect("a folder");
    let plain = refusal(&options(None, Some(folder.path())), plain);
    assert!(plain.contains("tool and category of \"Town\""), "{plain}");
}
