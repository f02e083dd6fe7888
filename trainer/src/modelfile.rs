//! The `Modelfile` of Ollama: how turns are written, where answers end, what stands before them.
//!
//! Ollama has templates of its own, in Go's language, and runs no Jinja. A chat template that writes
//! turns one after another, as nearly all do, is said in them: its parts are found by rendering
//! conversations whose texts are known, and count only if they make the same text of others.

use tooltune_rows::text::{ChatTemplate, Conversation, GenerationPrompt, Message, Role};

use crate::base_model::BaseModel;
use crate::error::Error;

/// Its name in the folder.
pub const MODELFILE: &str = "Modelfile";

/// Texts that no template writes by itself.
const TEXTS: [&str; 4] = ["Zq0system", "Zq1asked", "Zq2answered", "Zq3again"];

/// What stands around the text of a turn.
#[derive(Debug, Clone, Default, PartialEq)]
struct Around {
    before: String,
    behind: String,
}

/// A chat template as a sequence of turns.
#[derive(Debug, Clone, Default, PartialEq)]
struct Turns {
    /// Before a conversation without a system message.
    opening: String,
    system: Around,
    user: Around,
    assistant: Around,
    /// Before the answer.
    generation: String,
}

/// A `Modelfile`, and what it lacks, for the user to be told.
#[derive(Debug)]
pub struct Modelfile {
    /// Its text.
    pub text: String,
    /// Why there is no `TEMPLATE` in it.
    pub lacks_template: Option<String>,
}

/// The `Modelfile` beside the merged model `model`; `system` is the system message of training.
///
/// # Errors
///
/// A text that a `Modelfile` cannot hold.
pub fn modelfile(base: &BaseModel, model: &str, system: Option<&str>) -> Result<Modelfile, Error> {
    let bos = base.template.special_tokens().bos_token.as_deref();
    let turns = Turns::of(&base.template);
    let mut text = format!("FROM ./{model}\n");
    let lacks_template = match turns {
        Ok(turns) => {
            let template = turns.without_beginning(bos).go_template();
            text.push_str(&format!("TEMPLATE {}\n", quoted(&template)?));
            None
        }
        Err(reason) => Some(reason),
    };
    if let Some(system) = system {
        text.push_str(&format!("SYSTEM {}\n", quoted(system)?));
    }
    let stops = base.stop_ids.iter();
    for stop in stops.filter_map(|id| base.tokenizer.id_to_token(*id)) {
        text.push_str(&format!("PARAMETER stop {}\n", quoted(&stop)?));
    }
    // As evaluations write texts.
    text.push_str("PARAMETER temperature 0\n");
    Ok(Modelfile {
        text,
        lacks_template,
    })
}

/// A text in the quotes of a `Modelfile`, which know no escape.
fn quoted(text: &str) -> Result<String, Error> {
    if text.contains("\"\"\"") || text.ends_with('"') {
        return Err(Error::Usage(format!(
            "a Modelfile cannot hold this text, because of its quotes: {text:?}"
        )));
    }
    Ok(format!("\"\"\"{text}\"\"\""))
}

impl Turns {
    /// The parts of a template; what it does beside writing turns one after another is told.
    fn of(template: &ChatTemplate) -> Result<Self, String> {
        let [system, asked, answered, again] = TEXTS;
        let known = [
            (Role::System, system),
            (Role::User, asked),
            (Role::Assistant, answered),
            (Role::User, again),
        ];
        let whole = rendered(template, &known, GenerationPrompt::Add)?;
        let before_answer = rendered(template, &known, GenerationPrompt::Omit)?;
        let ended = rendered(template, &known[..3], GenerationPrompt::Omit)?;
        let alone = rendered(template, &known[1..2], GenerationPrompt::Add)?;
        let turns = Self::cut(&whole, &before_answer, &ended, &alone);
        let turns = turns.ok_or("it does not write each text once, in turn")?;
        for conversation in [&known[..], &known[..2], &known[1..], &known[1..2]] {
            let theirs = rendered(template, conversation, GenerationPrompt::Add)?;
            if turns.written(conversation) != theirs {
                return Err("it writes turns otherwise in other places".to_owned());
            }
        }
        Ok(turns)
    }

    fn cut(whole: &str, before_answer: &str, ended: &str, alone: &str) -> Option<Self> {
        let [system, asked, answered, again] = TEXTS;
        let (before_system, rest) = whole.split_once(system)?;
        let (system_to_user, rest) = rest.split_once(asked)?;
        let (user_to_assistant, rest) = rest.split_once(answered)?;
        let (assistant_to_user, user_to_end) = rest.split_once(again)?;
        let behind_user = before_answer.split_once(again)?.1;
        let behind_assistant = ended.split_once(answered)?.1;
        let before_user = assistant_to_user.strip_prefix(behind_assistant)?;
        let opening = alone.split_once(asked)?.0.strip_suffix(before_user)?;
        Some(Self {
            opening: opening.to_owned(),
            system: Around {
                before: before_system.to_owned(),
                behind: system_to_user.strip_suffix(before_user)?.to_owned(),
            },
            user: Around {
                before: before_user.to_owned(),
                behind: behind_user.to_owned(),
            },
            assistant: Around {
                before: user_to_assistant.strip_prefix(behind_user)?.to_owned(),
                behind: behind_assistant.to_owned(),
            },
            generation: user_to_end.strip_prefix(behind_user)?.to_owned(),
        })
    }

    /// What the parts make of a conversation.
    fn written(&self, conversation: &[(Role, &str)]) -> String {
        let has_system = conversation
            .first()
            .is_some_and(|(role, _)| *role == Role::System);
        let mut text = match has_system {
            true => String::new(),
            false => self.opening.clone(),
        };
        for (role, content) in conversation {
            let around = match role {
                Role::System => &self.system,
                Role::Assistant => &self.assistant,
                _ => &self.user,
            };
            text.push_str(&format!("{}{content}{}", around.before, around.behind));
        }
        text + &self.generation
    }

    /// Without the token that begins a text, which Ollama adds where the model's file says so.
    fn without_beginning(mut self: Turns, bos: Option<&str>) -> Self {
        if let Some(bos) = bos {
            for text in [&mut self.opening, &mut self.system.before] {
                if let Some(rest) = text.strip_prefix(bos) {
                    *text = rest.to_owned();
                }
            }
        }
        self
    }

    /// In Go's template language, over the variables that Ollama gives.
    fn go_template(&self) -> String {
        let turn = |around: &Around| {
            let [before, behind] = [&around.before, &around.behind].map(|text| go_text(text));
            format!("{before}{{{{ .Content }}}}{behind}")
        };
        let opening = match self.opening.as_str() {
            "" => String::new(),
            opening => format!(
                "{{{{- $told := false }}}}{{{{- range .Messages }}}}{{{{- if eq .Role \"system\" }}}}\
                 {{{{- $told = true }}}}{{{{- end }}}}{{{{- end }}}}{{{{- if not $told }}}}{}{{{{- end }}}}",
                go_text(opening)
            ),
        };
        format!(
            "{opening}{{{{- range .Messages }}}}{{{{- if eq .Role \"system\" }}}}{}\
             {{{{- else if eq .Role \"user\" }}}}{}{{{{- else if eq .Role \"assistant\" }}}}{}\
             {{{{- end }}}}{{{{- end }}}}{}",
            turn(&self.system),
            turn(&self.user),
            turn(&self.assistant),
            go_text(&self.generation)
        )
    }
}

/// A text as an action of Go's templates, so that no tag beside it takes its blanks away.
fn go_text(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!("{{{{ {} }}}}", serde_json::Value::from(text)),
    }
}

fn rendered(
    template: &ChatTemplate,
    conversation: &[(Role, &str)],
    generation_prompt: GenerationPrompt,
) -> Result<String, String> {
    let messages = conversation.iter();
    let messages = messages.map(|(role, text)| Message::new(*role, *text));
    let conversation = Conversation::new(messages.collect());
    let text = template.render(&conversation, generation_prompt);
    text.map_err(|error| format!("it refuses a conversation: {error}"))
}
