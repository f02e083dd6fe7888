//! Exit codes of commands whose input, output or server fails.

use std::process::Stdio;

use crate::support::fixture;
use crate::workplace::{CommandOutput, Workplace, tooltune};

#[test]
fn a_closed_output_ends_commands_that_write_rows_silently() {
    let workplace = Workplace::new();
    let line = "{\"op\": \"slot.parse\", \"input\": {\"raw\": \"1\"}}\n";
    workplace.write("lines.jsonl", line.repeat(20_000));
    for arguments in [
        "score lines.jsonl",
        "data synth slot --rows 2000",
        "data synth goat --rows 500",
    ] {
        let mut command = tooltune();
        command.current_dir(workplace.folder());
        command.args(arguments.split(' '));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.code(), &*errors),
            (Some(0), ""),
            "{arguments}"
        );
    }
}

#[test]
fn text_that_is_not_utf8_is_refused_with_its_byte() {
    let workplace = Workplace::new();
    workplace.write("axolotl.yml", b"base_model: x\nname: \xff\n");
    let expected = "invalid UTF-8 at byte 20; save the file as UTF-8";
    let translated = workplace.run(["init", "--from", "axolotl.yml"]);
    let mut command = tooltune();
    command.current_dir(workplace.folder());
    command.args("generate config.toml --checkpoint base --message -".split(' '));
    command.stdin(std::fs::File::open(workplace.path("axolotl.yml")).unwrap());
    for answer in [translated, CommandOutput::from_command(&mut command)] {
        assert_eq!(answer.status, Some(3), "{}", answer.stderr);
        assert!(answer.stderr.contains(expected), "{}", answer.stderr);
    }
    let chat = "generate config.toml --checkpoint base --message Hi --tools gone.json";
    let answer = workplace.run(chat.split(' '));
    assert_eq!(answer.status, Some(1), "{}", answer.stderr);
    assert!(
        answer.stderr.contains("gone.json: cannot read"),
        "{}",
        answer.stderr
    );
}

#[test]
fn a_failing_tool_server_is_not_an_invalid_option() {
    let workplace = Workplace::new();
    let server = fixture("mcp_server.py");
    for (command, status, expected) in [
        (
            format!("python3 {} old", server.display()),
            1,
            "uses revision \"1999-01-01\"",
        ),
        (
            format!("python3 {} toolless", server.display()),
            1,
            "the MCP server",
        ),
        (
            "python3 -c exit(3)".to_owned(),
            1,
            "the MCP server ended (exit status: 3)",
        ),
        (
            "no-such-program".to_owned(),
            2,
            "cannot start the MCP server",
        ),
    ] {
        let arguments = [
            "data",
            "import",
            "mcp",
            "--output",
            "tools.jsonl",
            "--command",
        ];
        let answer = workplace.run(arguments.into_iter().chain([command.as_str()]));
        assert_eq!(answer.status, Some(status), "{}", answer.stderr);
        let expected = [format!("--command: {expected}"), expected.to_owned()];
        assert!(
            expected.iter().any(|part| answer.stderr.contains(part)),
            "{}",
            answer.stderr
        );
    }
}
