//! Describes a chat template as a sequence of turns: the text around each message.
//!
//! The parts are found by rendering conversations with known messages. They are accepted only if
//! they reproduce the prompts of other conversations, with quotes, whitespace and several turns.

use tooltune_template::{ChatTemplate, Conversation, GenerationPrompt, Message, Role};

/// Messages that no template contains.
const TEXTS: [&str; 4] = ["Zq0system", "Zq1asked", "Zq2answered", "Zq3again"];

/// A message that templates must not change.
const VERBATIM: &str = "Zq4 \"one\" 'two' \\n\n\n<three> & {{ four }}  ü \u{a0}five";

/// Characters that Python's `str.strip` removes.
const BLANKS: [char; 29] = [
    '\t', '\n', '\u{b}', '\u{c}', '\r', '\u{1c}', '\u{1d}', '\u{1e}', '\u{1f}', ' ', '\u{85}',
    '\u{a0}', '\u{1680}', '\u{2000}', '\u{2001}', '\u{2002}', '\u{2003}', '\u{2004}', '\u{2005}',
    '\u{2006}', '\u{2007}', '\u{2008}', '\u{2009}', '\u{200a}', '\u{2028}', '\u{2029}', '\u{202f}',
    '\u{205f}', '\u{3000}',
];

/// Characters that a template strips from both ends of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Stripped {
    /// Stripped from the start.
    pub(super) start: Vec<char>,
    /// Stripped from the end.
    pub(super) end: Vec<char>,
}

impl Stripped {
    /// Whether nothing is stripped.
    pub(super) fn is_nothing(&self) -> bool {
        self.start.is_empty() && self.end.is_empty()
    }

    /// Strips `text` like the template.
    pub(super) fn apply<'t>(&self, text: &'t str) -> &'t str {
        let text = text.trim_start_matches(&*self.start);
        text.trim_end_matches(&*self.end)
    }
}

/// The text that the template writes around a message, and the characters that it strips from the
/// message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) before: String,
    pub(super) after: String,
    pub(super) stripped: Stripped,
}

/// A chat template as a sequence of turns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Turns {
    /// Text before a conversation without a system message.
    pub(super) opening: String,
    pub(super) system: Turn,
    pub(super) user: Turn,
    /// The user turn directly after the system message, if it differs from other user turns.
    pub(super) user_after_system: Option<Turn>,
    pub(super) assistant: Turn,
    /// Text before the answer.
    pub(super) generation: String,
}

impl Turns {
    /// Parses a template into its parts.
    ///
    /// # Errors
    ///
    /// The template does more than write one turn after another; the error describes what.
    pub(super) fn parse(template: &ChatTemplate) -> Result<Self, String> {
        let [system, asked, answered, again] = TEXTS;
        let known = [
            (Role::System, system),
            (Role::User, asked),
            (Role::Assistant, answered),
            (Role::User, again),
        ];
        let rendered_chat = prompt(template, &known)?;
        let before_answer = render_turns(template, &known, GenerationPrompt::Omit)?;
        let ended = render_turns(template, &known[..3], GenerationPrompt::Omit)?;
        let alone = prompt(template, &known[1..2])?;
        let turns = Self::split(&rendered_chat, &before_answer, &ended, &alone);
        let mut turns = turns.ok_or("it does not write each text exactly once, in order")?;
        let stripped = |idx: usize| stripped_characters(template, &known, idx, &rendered_chat);
        turns.system.stripped = stripped(0)?;
        turns.assistant.stripped = stripped(2)?;
        turns.user.stripped = stripped(3)?;
        let after_system = Turn {
            stripped: stripped(1)?,
            ..turns.user_after_system.take().unwrap_or(turns.user.clone())
        };
        turns.user_after_system = Some(after_system).filter(|turn| *turn != turns.user);
        turns.check(template)?;
        Ok(turns)
    }

    fn split(rendered: &str, before_answer: &str, ended: &str, alone: &str) -> Option<Self> {
        let [system, asked, answered, again] = TEXTS;
        let (before_system, rest) = rendered.split_once(system)?;
        let (system_to_user, rest) = rest.split_once(asked)?;
        let (user_to_assistant, rest) = rest.split_once(answered)?;
        let (assistant_to_user, user_to_end) = rest.split_once(again)?;
        let after_user = before_answer.split_once(again)?.1;
        let after_assistant = ended.split_once(answered)?.1;
        let before_user = assistant_to_user.strip_prefix(after_assistant)?;
        let turn = |before: &str, after: &str| Turn {
            before: before.to_owned(),
            after: after.to_owned(),
            stripped: Stripped::default(),
        };
        let (after_system, user_after_system) = match system_to_user.strip_suffix(before_user) {
            Some(after_system) => (after_system, None),
            // The system message is part of the first user turn.
            None => (system_to_user, Some(turn("", after_user))),
        };
        Some(Self {
            opening: alone
                .split_once(asked)?
                .0
                .strip_suffix(before_user)?
                .to_owned(),
            system: turn(before_system, after_system),
            user: turn(before_user, after_user),
            user_after_system,
            assistant: turn(user_to_assistant.strip_prefix(after_user)?, after_assistant),
            generation: user_to_end.strip_prefix(after_user)?.to_owned(),
        })
    }

    /// Builds other conversations from the parts and compares them with the output of the template.
    fn check(&self, template: &ChatTemplate) -> Result<(), String> {
        let blanks = |text: &str| format!(" \n\t{text}\r\n \u{3000}");
        let chats_with = |make: &dyn Fn(&str) -> String| {
            let roles = [Role::System, Role::User, Role::Assistant, Role::User];
            let roles = roles.into_iter().chain([Role::Assistant, Role::User]);
            let texts = roles.enumerate().map(|(idx, role)| (role, idx));
            let texts = texts.map(|(role, idx)| (role, make(TEXTS[idx % TEXTS.len()])));
            texts.collect::<Vec<(Role, String)>>()
        };
        for (texts, reason) in [
            (chats_with(&str::to_owned), "its turns differ by position"),
            (
                chats_with(&|_| VERBATIM.to_owned()),
                "it changes the texts of messages",
            ),
            (
                chats_with(&blanks),
                "it strips texts differently by position",
            ),
        ] {
            let texts: Vec<(Role, &str)> =
                texts.iter().map(|(role, text)| (*role, &**text)).collect();
            // With and without a system message, and one to three user turns.
            for conversation in [
                &texts[..2],
                &texts[..4],
                &texts[..6],
                &texts[1..2],
                &texts[1..4],
                &texts[1..6],
            ] {
                if self.build(conversation) != prompt(template, conversation)? {
                    return Err(reason.to_owned());
                }
            }
        }
        Ok(())
    }

    /// Builds the prompt of a conversation from the parts.
    fn build(&self, conversation: &[(Role, &str)]) -> String {
        let mut text = match conversation.first() {
            Some((Role::System, _)) => String::new(),
            _ => self.opening.clone(),
        };
        let mut previous = None;
        for (role, content) in conversation {
            let turn = match (role, previous) {
                (Role::System, _) => &self.system,
                (Role::Assistant, _) => &self.assistant,
                (_, Some(Role::System)) => self.user_after_system.as_ref().unwrap_or(&self.user),
                _ => &self.user,
            };
            let content = turn.stripped.apply(content);
            text.extend([&turn.before, content, &turn.after]);
            previous = Some(*role);
        }
        text + &self.generation
    }

    /// Whether the first part of each conversation begins with `text`.
    pub(super) fn begin_with(&self, text: &str) -> bool {
        self.opening.starts_with(text) && self.system.before.starts_with(text)
    }

    /// Removes `text` from the start of conversations that begin with it.
    pub(super) fn strip_beginning(mut self, text: &str) -> Self {
        for part in [&mut self.opening, &mut self.system.before] {
            if let Some(rest) = part.strip_prefix(text) {
                *part = rest.to_owned();
            }
        }
        self
    }
}

/// Finds the characters that the template strips from message `idx`, by testing each of them.
/// `rendered` is the prompt without additional characters.
fn stripped_characters(
    template: &ChatTemplate,
    known: &[(Role, &str)],
    idx: usize,
    rendered: &str,
) -> Result<Stripped, String> {
    let text = known[idx].1;
    let is_stripped = |padded: &str| -> Result<bool, String> {
        let mut conversation = known.to_vec();
        conversation[idx].1 = padded;
        let theirs = prompt(template, &conversation)?;
        match theirs == rendered {
            true => Ok(true),
            false if theirs == rendered.replacen(text, padded, 1) => Ok(false),
            false => Err("it changes the texts of messages".to_owned()),
        }
    };
    let mut stripping = Stripped::default();
    for blank in BLANKS {
        if is_stripped(&format!("{blank}{text}"))? {
            stripping.start.push(blank);
        }
        if is_stripped(&format!("{text}{blank}"))? {
            stripping.end.push(blank);
        }
    }
    Ok(stripping)
}

/// Renders the prompt of a conversation, as in training and evaluations.
fn prompt(template: &ChatTemplate, conversation: &[(Role, &str)]) -> Result<String, String> {
    let text = template.render_answer_prompt(&to_conversation(conversation));
    text.map_err(describe_error)
}

fn render_turns(
    template: &ChatTemplate,
    conversation: &[(Role, &str)],
    generation_prompt: GenerationPrompt,
) -> Result<String, String> {
    let text = template.render(&to_conversation(conversation), generation_prompt);
    text.map_err(describe_error)
}

fn to_conversation(conversation: &[(Role, &str)]) -> Conversation {
    let messages = conversation.iter();
    let messages = messages.map(|(role, text)| Message::new(*role, *text));
    Conversation::new(messages.collect())
}

fn describe_error(error: tooltune_template::TemplateError) -> String {
    format!("it refuses a conversation: {error}")
}
