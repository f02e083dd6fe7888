//! Tests of shell words, including random scripts.

use proptest::prelude::*;

use super::*;

fn words(command: &Command) -> Vec<&str> {
    command
        .words
        .iter()
        .map(|word| word.text.as_str())
        .collect()
}

fn only_command(text: &str) -> Command {
    let mut commands_found = commands(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(commands_found.len(), 1, "{text}: {commands_found:?}");
    commands_found.remove(0)
}

#[test]
fn words_match_those_of_a_shell() {
    for (text, expected) in [
        ("a 'b c' \"d e\" f\\ g", vec!["a", "b c", "d e", "f g"]),
        (
            "a \"x \\\"y\\\" \\z \\$q\" ''",
            vec!["a", "x \"y\" \\z $q", ""],
        ),
        ("a lon\\\nger b \\\n c # d", vec!["a", "longer", "b", "c"]),
        ("a b#c # \"open", vec!["a", "b#c"]),
        ("# no \\\na b", vec!["a", "b"]),
        ("a $'x\\ty\\u00e9\\''", vec!["a", "x\ty\u{e9}'"]),
        (
            "X='b c'\na $X \"$X\" ${X}d",
            vec!["a", "b", "c", "b c", "b", "cd"],
        ),
        (
            "A=(--r 8 'x y')\nA+=(--z)\na \"${A[@]}\"",
            vec!["a", "--r", "8", "x y", "--z"],
        ),
        ("M=org; N=\"$M/tiny\"\na $N", vec!["a", "org/tiny"]),
        ("a cost$ 5", vec!["a", "cost$", "5"]),
        (
            "a {b} '{\"c\": 1, \"d\": 2}'",
            vec!["a", "{b}", "{\"c\": 1, \"d\": 2}"],
        ),
    ] {
        let command = commands(text).unwrap().pop().unwrap();
        assert_eq!(words(&command), expected, "{text}");
        assert!(
            command.words.iter().all(|word| word.unknown.is_none()),
            "{text}: {command:?}"
        );
    }
}

#[test]
fn redirections_pipes_and_environments_are_not_words() {
    let command = only_command(
        "WANDB_MODE=off CUDA_VISIBLE_DEVICES=0,1 a --x y > out.log 2>&1 | tee -a log &\n",
    );
    assert_eq!(words(&command), ["a", "--x", "y"]);
    assert_eq!(
        command.environment,
        ["WANDB_MODE=off", "CUDA_VISIBLE_DEVICES=0,1"]
    );
    assert_eq!(
        command.redirections,
        ["> out.log", "2>&1", "|", "tee -a log", "&"]
    );
    let command = only_command("a --n 2 >log --m 3 < /dev/null");
    assert_eq!(words(&command), ["a", "--n", "2", "--m", "3"]);
    assert_eq!(command.redirections, ["> log", "< /dev/null"]);
    let all = commands("cat > c.yaml <<'EOF'\nlora_r: $8 'open\nEOF\na b <<< x").unwrap();
    assert_eq!(words(&all[1]), ["a", "b"]);
    assert_eq!(all.len(), 2);
}

#[test]
fn commands_are_split_as_in_a_shell() {
    let all = commands("cd x && a b; c d || e\nf\n").unwrap();
    let all: Vec<(usize, Vec<&str>)> = all.iter().map(|one| (one.line, words(one))).collect();
    let expected = [
        (1, vec!["cd", "x"]),
        (1, vec!["a", "b"]),
        (1, vec!["c", "d"]),
        (1, vec!["e"]),
        (2, vec!["f"]),
    ];
    assert_eq!(all, expected);
    for (text, inside) in [
        ("for r in 8 16; do\n  a --r $r\ndone", Some("for")),
        ("if [ -e x ]; then a b; fi", Some("if")),
        ("run() { a b; }", Some("{")),
        ("(a b)", Some("(")),
        ("while true; do x; done\na b", None),
        ("case $1 in x) y;; esac\na b", None),
    ] {
        let all = commands(text).unwrap();
        let a = all.iter().find(|one| one.words[0].text == "a");
        assert_eq!(a.unwrap().inside.as_deref(), inside, "{text}: {all:?}");
    }
}

#[test]
fn unknown_shell_values_are_named() {
    for (text, what) in [
        ("a $HOME/x", "$HOME"),
        ("a ${X:-8}", "${X:-8}"),
        ("a $(date \"+%F )\")", "$(date \"+%F )\")"),
        ("a `date`", "`date`"),
        ("a \"$@\"", "$@"),
        ("a $1", "$1"),
        ("a data/*.jsonl", "data/*.jsonl"),
        ("a {x,y}", "{x,y}"),
        ("a ~/x", "~/x"),
        ("test -e x && X=1\na $X", "$X"),
        ("for X in 1 2; do Y=$X; done; a $Y", "$Y"),
        ("X=$Z\na $X", "$X"),
    ] {
        let all = commands(text).unwrap();
        let command = all.iter().find(|one| one.words[0].text == "a").unwrap();
        let unknown = command.words.iter().find_map(|word| word.unknown.clone());
        assert_eq!(unknown.as_deref(), Some(what), "{text}: {command:?}");
    }
}

#[test]
fn unterminated_quotes_are_errors() {
    for text in [
        "a 'x", "a \"x", "a x\\", "a $(x", "a ${x", "a `x", "a $'x", "a \"x\\",
    ] {
        assert_eq!(commands(text), Err(ShellError::Open { line: 1 }), "{text}");
    }
    // Variables that double their value are not expanded endlessly.
    let doubles: String = (0..200)
        .map(|i| format!("X{}=\"$X{i}$X{i}\"\n", i + 1))
        .collect();
    let all = commands(&format!("X0=xxxxxxxxxx\n{doubles}a $X200")).unwrap();
    assert!(all[0].words[1].unknown.is_some());
    let many = format!("X={}\na {}", "x".repeat(1000), "$X".repeat(100_000));
    let word = commands(&many).unwrap().remove(0).words.remove(1);
    assert!(word.unknown.is_some() && word.text.len() < 1 << 21);
    assert_eq!(
        commands(&"a\n".repeat(MOST_COMMANDS + 2)),
        Err(ShellError::TooLong)
    );
}

proptest! {
    /// Words quoted by a reference implementation are read unchanged.
    #[test]
    fn quoted_words_are_read_unchanged(texts in proptest::collection::vec("[^\0]{0,12}", 1..6)) {
        let quoted: Vec<_> = texts.iter().map(|text| shlex::try_quote(text).unwrap()).collect();
        let text = format!("run {}", quoted.join(" "));
        // A carriage return before a line feed belongs to a Windows line end.
        prop_assume!(!text.contains("\r\n"));
        let command = only_command(&text);
        prop_assert_eq!(&words(&command)[1..], &texts[..]);
        prop_assert!(command.words.iter().all(|word| word.unknown.is_none()));
    }

    /// Any text is parsed or refused with an error.
    #[test]
    fn any_text_is_commands_or_an_error(text in "[ \\na$`'\"\\\\(){}<>|&;#=~*@-]{0,40}") {
        let _ = commands(&text);
    }
}
