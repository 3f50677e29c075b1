//! Converts the recorded answers of a run's model to a script. A submit of that script makes the same calls and gives
//! the same answer.
//!
//! Pure. The only place that decides how a recorded answer becomes a turn of a script. A script cannot express that a
//! model said something, called nothing and was told to go on; such a turn is left out, because the run would end
//! there.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use harness_protocol::event::EventBody;
use harness_protocol::run::{CallRequest, RunView, exit};
use harness_protocol::script::{Script, ScriptedCall, Turn};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::Failure;
use crate::render::text::first_line;

/// A script that is being built from events.
#[derive(Debug, Default)]
pub(in crate::commands) struct Exported {
    turns: Vec<Turn>,
    /// Scripts of the children that the run spawns.
    scripts: BTreeMap<String, Arc<Script>>,
    /// The arguments of a call contain a null, which TOML does not have.
    has_null: bool,
}

impl Exported {
    /// Adds the next event.
    pub(in crate::commands) fn take(&mut self, body: &EventBody) {
        match body {
            EventBody::RunSubmitted { spec, .. } => {
                self.scripts = spec.script.as_ref().map(|script| script.scripts.clone()).unwrap_or_default();
            }
            EventBody::InferenceFinished { text, calls, .. } => {
                let calls = calls.iter().map(|call| self.call(call)).collect();
                self.turns.push(Turn { text: escaped(text), calls, ..Turn::default() });
            }
            _ => {}
        }
    }

    fn call(&mut self, request: &CallRequest) -> ScriptedCall {
        // Unusable arguments were refused; as a text they are refused again.
        let useful = request.unusable.is_none().then(|| serde_json::from_str(&request.args).ok()).flatten();
        let args = useful.unwrap_or_else(|| Value::String(request.args.to_string()));
        ScriptedCall { ask: request.ask.clone(), ..ScriptedCall::new(&*request.tool, self.argument(args)) }
    }

    fn argument(&mut self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(escaped(&text)),
            Value::Array(values) => {
                let written = values.into_iter().filter_map(|value| self.unless_null(value));
                Value::Array(written.collect())
            }
            Value::Object(map) => {
                let written = map.into_iter().filter_map(|(key, value)| Some((key, self.unless_null(value)?)));
                Value::Object(written.collect::<Map<_, _>>())
            }
            // Too large for an integer of TOML.
            Value::Number(number) if number.is_u64() && !number.is_i64() => number.as_f64().into(),
            other => other,
        }
    }

    fn unless_null(&mut self, value: Value) -> Option<Value> {
        self.has_null |= value.is_null();
        (!value.is_null()).then(|| self.argument(value))
    }

    /// Number of turns of the model.
    pub(in crate::commands) fn turns(&self) -> usize {
        self.turns.len()
    }

    /// The script as TOML.
    ///
    /// # Errors
    /// If the text would be read back as a different script.
    pub(in crate::commands) fn text(mut self, run: &RunView) -> Result<String, Failure> {
        let mut text = self.head(run);
        let last = self.turns.len().saturating_sub(1);
        let (mut kept, mut step) = (Vec::new(), 0);
        for turn in std::mem::take(&mut self.turns) {
            step += 1;
            if turn.calls.is_empty() && step <= last {
                let _written = write!(
                    text,
                    "\n# In its answer {step} the model called nothing, and went on because of a message; \
                     a script cannot.\n"
                );
                continue;
            }
            write_turn(&mut text, &turn).map_err(|why| cannot(&why))?;
            kept.push(turn);
        }
        if !self.scripts.is_empty() {
            let children = Children { script: &self.scripts };
            text += "\n# What children say.\n";
            text += &toml::to_string(&children).map_err(|error| cannot(&error.to_string()))?;
        }
        let meant = Script { turns: kept, scripts: self.scripts };
        match toml::from_str::<Script>(&text) {
            Ok(read) if read == meant => Ok(text),
            Ok(_) => Err(cannot("it reads as another one")),
            Err(error) => Err(cannot(&error.to_string())),
        }
    }

    fn head(&self, run: &RunView) -> String {
        let name = run.name.as_deref().map(|name| format!(" ({})", first_line(name))).unwrap_or_default();
        let mut text = format!(
            "# What the model of run {}{name} said. Who submits it has the same calls and the same answer, whatever \
             the calls bring:\n\
             #   harnessctl submit --script script.toml -C {}\n",
            run.id,
            first_line(&run.workdir)
        );
        if self.has_null {
            text += "# A null in the arguments of a call has no form here, and was left out.\n";
        }
        if let Some(error) = &run.error {
            let _written = writeln!(text, "# The run has no answer, it {}: {}", run.state, first_line(error));
        }
        text
    }
}

#[derive(Serialize)]
struct Children<'a> {
    script: &'a BTreeMap<String, Arc<Script>>,
}

fn write_turn(text: &mut String, turn: &Turn) -> Result<(), String> {
    text.push_str("\n[[turn]]\n");
    if !turn.text.is_empty() {
        let _written = writeln!(text, "text = {}", value(&turn.text)?);
    }
    for call in &turn.calls {
        let _written = writeln!(text, "[[turn.call]]\ntool = {}\nargs = {}", value(&call.tool)?, value(&call.args)?);
        if let Some(ask) = &call.ask {
            let _written = writeln!(text, "ask = {}", value(ask)?);
        }
    }
    Ok(())
}

/// A value in TOML, on the line of its key.
fn value<T: Serialize>(value: &T) -> Result<String, String> {
    toml::Value::try_from(value).map(|value| value.to_string()).map_err(|error| error.to_string())
}

/// A text in which no part is taken for the name of a capture.
fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}

fn cannot(why: &str) -> Failure {
    Failure::Other {
        code: exit::INTERNAL,
        message: format!("what the model said cannot be written as a script: {}", first_line(why)),
        hint: None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::render::run::tests::sample;
    use harness_protocol::id::CallId;
    use harness_protocol::run::Usage;
    use harness_protocol::spec::RunSpec;

    fn said(text: &str, calls: &[&str]) -> EventBody {
        let request = |args: &&str| CallRequest::new(CallId::from_u64(1), "shell", *args);
        let calls = calls.iter().map(request).collect();
        EventBody::InferenceFinished {
            step: 1,
            text: text.into(),
            calls,
            usage: Usage::default(),
            carried: None,
            cut: false,
        }
    }

    fn written(bodies: &[EventBody]) -> (String, Script) {
        let mut script = Exported::default();
        bodies.iter().for_each(|body| script.take(body));
        let text = script.text(&sample()).unwrap();
        let read = toml::from_str(&text).unwrap();
        (text, read)
    }

    #[test]
    fn texts_of_all_kinds_come_back_and_none_of_them_names_a_capture() {
        let hard = "a\"b\"\n\t\u{1}\u{7f}'''\"\"\" \\ é 日 ${x} $${y} $$${z} ${";
        let args = serde_json::json!({"command": hard, "n": [1, 2.5, true, {"${k}": "${v}"}]}).to_string();
        let (text, read) = written(&[said(hard, &[&args]), said("done", &[])]);
        let filled = |text: &str| text.replace("$${", "${");
        assert_eq!(filled(&read.turns[0].text), hard);
        assert_eq!(filled(read.turns[0].calls[0].args["command"].as_str().unwrap()), hard);
        assert_eq!(read.turns[0].calls[0].args["n"][3], serde_json::json!({"${k}": "$${v}"}));
        assert!(text.starts_with("# What the model of run 0123456789abc (nightly) said."), "{text}");
    }

    #[test]
    fn a_turn_in_the_middle_without_calls_would_end_the_run_and_is_left_out() {
        let (text, read) = written(&[said("one", &["{}"]), said("two", &[]), said("three", &[])]);
        let texts: Vec<&str> = read.turns.iter().map(|turn| turn.text.as_str()).collect();
        assert_eq!(texts, ["one", "three"]);
        assert!(text.contains("answer 2 the model called nothing"), "{text}");
    }

    #[test]
    fn arguments_without_a_form_are_told_and_broken_ones_stay_broken() {
        let (text, read) = written(&[said("", &[r#"{"a":null,"b":[null,1],"c":18446744073709551615}"#, "{broken"])]);
        assert!(text.contains("# A null in the arguments"), "{text}");
        assert_eq!(read.turns[0].calls[0].args, serde_json::json!({"b": [1], "c": 18_446_744_073_709_551_615.0}));
        assert_eq!(read.turns[0].calls[1].args, "{broken");
    }

    #[test]
    fn scripts_of_children_come_along() {
        let child = Script { turns: vec![Turn { text: "child\nsays".into(), ..Turn::default() }], ..Script::default() };
        let script = Script { scripts: BTreeMap::from([("a b".to_owned(), Arc::new(child))]), ..Script::default() };
        let spec = Arc::new(RunSpec { script: Some(Arc::new(script.clone())), ..RunSpec::default() });
        let submitted = EventBody::RunSubmitted {
            number: 1,
            owner: 0,
            parent: None,
            retry_of: None,
            continues: None,
            idempotency_key: None,
            submit_key: None,
            spec,
            earlier: Arc::default(),
        };
        assert_eq!(written(&[submitted, said("x", &[])]).1.scripts, script.scripts);
    }
}
