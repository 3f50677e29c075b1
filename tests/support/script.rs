//! Builds scripts for the scripted provider, in words that read like the script.

use serde_json::{Map, Value, json};

/// A script: turns, and scripts for children.
#[derive(Debug, Clone, Default)]
pub struct Script {
    turns: Vec<Value>,
    children: Map<String, Value>,
}

/// A script that begins with a turn.
pub fn turn(text: &str) -> Script {
    Script::default().turn(text)
}

/// A script that answers at once.
pub fn says(text: &str) -> Script {
    turn(text)
}

/// A script that runs a command and then is done.
pub fn runs(command: &str) -> Script {
    turn("").shell(command).turn("done")
}

impl Script {
    /// The next turn. Without calls it ends the run, and its text is the answer.
    pub fn turn(mut self, text: &str) -> Self {
        self.turns.push(json!({"text": text}));
        self
    }

    fn last(&mut self) -> &mut Map<String, Value> {
        self.turns.last_mut().and_then(Value::as_object_mut).expect("a script begins with a turn")
    }

    fn push(mut self, key: &str, value: Value) -> Self {
        match self.last().entry(key).or_insert_with(|| json!([])) {
            Value::Array(list) => list.push(value),
            other => panic!("{other}"),
        }
        self
    }

    /// The turn calls a tool.
    pub fn call(self, tool: &str, args: Value) -> Self {
        self.push("call", json!({"tool": tool, "args": args}))
    }

    /// The turn runs a command.
    pub fn shell(self, command: &str) -> Self {
        self.call("shell", json!({"command": command}))
    }

    /// A person is asked this about the last call of the turn.
    pub fn asking(mut self, ask: Value) -> Self {
        let calls = self.last().get_mut("call").and_then(Value::as_array_mut);
        let call = calls.and_then(|calls| calls.last_mut()).and_then(Value::as_object_mut);
        call.expect("a person is asked about a call").insert("ask".to_owned(), ask);
        self
    }

    /// The turn asks a person.
    pub fn ask(self, question: &str) -> Self {
        self.call("ask_user", json!({"question": question}))
    }

    /// The turn starts a child that says what the script of this name says.
    pub fn spawn(self, script: &str) -> Self {
        self.call("spawn_agent", json!({"script": script}))
    }

    /// The turn starts a child with a name.
    pub fn spawn_as(self, name: &str, script: &str) -> Self {
        self.call("spawn_agent", json!({"script": script, "name": name}))
    }

    /// The turn waits for all children.
    pub fn wait_for_all(self) -> Self {
        self.call("wait_for_agent", json!({}))
    }

    /// The turn waits for a run of its tree.
    pub fn wait_for(self, name: &str) -> Self {
        self.call("wait_for_agent", json!({"agent": name}))
    }

    /// The results before the turn must contain this.
    pub fn expect(self, text: &str) -> Self {
        self.push("expect", text.into())
    }

    /// The turn takes something out of the results before it.
    pub fn capture(mut self, name: &str, pattern: &str) -> Self {
        self.last().entry("capture").or_insert_with(|| json!({}))[name] = pattern.into();
        self
    }

    /// The turn takes so long, in seconds.
    pub fn after(mut self, seconds: f64) -> Self {
        self.last().insert("delay".to_owned(), seconds.into());
        self
    }

    /// A script for children.
    pub fn child(mut self, name: &str, script: &Self) -> Self {
        self.children.insert(name.to_owned(), script.json());
        self
    }

    /// As it stands in a specification.
    pub fn json(&self) -> Value {
        json!({"turn": self.turns, "script": self.children})
    }

    /// As it stands in a file.
    pub fn toml(&self) -> String {
        let Value::Object(script) = self.json() else { return String::new() };
        script.iter().map(|(key, value)| format!("{key} = {}\n", inline(value))).collect()
    }
}

/// A value on one line. JSON's texts are TOML's, too.
fn inline(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("[{}]", list.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let pairs: Vec<String> =
                map.iter().map(|(key, value)| format!("{} = {}", json!(key), inline(value))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        plain => plain.to_string(),
    }
}
