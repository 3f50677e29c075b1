//! Reads a batch: one run specification a line, in JSON, over the defaults of the command line.
//!
//! All lines are read and checked before the first is submitted: a wrong line means that no run is submitted. It must
//! not submit a run itself.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use harness_protocol::MAX_FRAME_BYTES;
use harness_protocol::rpc::SubmitParams;
use harness_protocol::spec::RunSpec;
use harness_protocol::submit_key::SubmitKey;
use serde_json::{Map, Value};

use crate::error::Failure;
use crate::spec::{script, workdir};

/// One run of a batch.
#[derive(Debug)]
pub(crate) struct Item {
    /// Number of the line, from 1.
    pub(crate) line: usize,
    /// The submit that results from the line and the defaults.
    pub(crate) params: SubmitParams,
}

/// The random key of the first line, and whether it is sent for the first time. The keys of the other lines are derived
/// from it.
pub(crate) type OwnKey = (SubmitKey, bool);

/// Reads a batch from a file, or from standard input for `-`.
pub(crate) fn read(path: &Path, defaults: &RunSpec, key: Option<&str>, own: OwnKey) -> Result<Vec<Item>, Failure> {
    let failed = |source| Failure::Read { path: path.to_owned(), source };
    let items = if path == Path::new("-") {
        parse(io::stdin().lock(), defaults, key, own)
    } else {
        parse(BufReader::new(std::fs::File::open(path).map_err(failed)?), defaults, key, own)
    };
    let items = items.map_err(|(line, error)| match error {
        LineError::Io(source) => failed(source),
        LineError::Wrong(why) => Failure::usage_hint(
            format!("{}:{line}: {why}", path.display()),
            "nothing was submitted; a line is a JSON object such as {\"prompt\":\"…\"}",
        ),
    })?;
    if items.is_empty() {
        return Err(Failure::usage(format!("{}: there is not a single run in it", path.display())));
    }
    Ok(items)
}

#[derive(Debug)]
enum LineError {
    Io(io::Error),
    Wrong(String),
}

fn parse(
    reader: impl BufRead,
    defaults: &RunSpec,
    key: Option<&str>,
    (own, first): OwnKey,
) -> Result<Vec<Item>, (usize, LineError)> {
    let base = match serde_json::to_value(defaults) {
        Ok(Value::Object(base)) => base,
        _ => Map::new(),
    };
    let mut items = Vec::new();
    for (index, line) in reader.split(b'\n').enumerate() {
        let number = index + 1;
        let line = line.map_err(|e| (number, LineError::Io(e)))?;
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let wrong = |why| (number, LineError::Wrong(why));
        if line.len() > MAX_FRAME_BYTES {
            return Err(wrong(format!("the line is larger than {} MiB", MAX_FRAME_BYTES >> 20)));
        }
        let mut params = run_of(&line, &base, defaults).map_err(wrong)?;
        if params.idempotency_key.is_none() {
            params.idempotency_key = key.map(|key| format!("{key}/{}", items.len() + 1).into());
        }
        if params.idempotency_key.is_none() {
            (params.submit_key, params.first) = (Some(own.of_line(items.len() as u64)), first);
        }
        items.push(Item { line: number, params });
    }
    Ok(items)
}

fn run_of(line: &[u8], base: &Map<String, Value>, defaults: &RunSpec) -> Result<SubmitParams, String> {
    let value: Value = serde_json::from_slice(line).map_err(|e| format!("no JSON: {e}"))?;
    let Value::Object(mut own) = value else { return Err("no JSON object".to_owned()) };
    let mut take = |name: &str| match own.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{name} is no text")),
    };
    let (script_file, key) = (take("script_file")?, take("idempotency_key")?);
    if script_file.is_some() && own.contains_key("script") {
        return Err("script and script_file are there, and one is enough".to_owned());
    }
    let mut whole = base.clone();
    // The script of a line replaces that of the command line, so the latter need not be copied through JSON.
    whole.remove("script");
    for (name, value) in own {
        match (whole.get_mut(&name), value) {
            // Labels, environment and limits are merged; any other value is replaced.
            (Some(Value::Object(old)), Value::Object(new)) if name != "script" => old.extend(new),
            (_, value) => drop(whole.insert(name, value)),
        }
    }
    let mut spec: RunSpec = serde_json::from_value(Value::Object(whole)).map_err(|e| e.to_string())?;
    if let Some(file) = script_file {
        spec.script = Some(Arc::new(script::read_file(Path::new(&file)).map_err(|e| e.to_string())?));
    }
    if spec.script.is_none() {
        spec.script.clone_from(&defaults.script);
    }
    match spec.prompt.as_deref().map(str::trim) {
        Some("") => return Err("the prompt is empty".to_owned()),
        None if spec.script.is_none() => return Err("there is no prompt and no script".to_owned()),
        _ => {}
    }
    // The directory of the command line was checked already.
    if let Some(dir) = spec.workdir.as_deref().filter(|dir| Some(*dir) != defaults.workdir.as_deref()) {
        let found = workdir(Path::new(dir)).map_err(|e| e.to_string())?;
        (spec.workdir, spec.workdir_id) = (Some(found.path), Some(found.id));
    }
    let idempotency_key = key.map(Arc::from);
    Ok(SubmitParams { spec, idempotency_key, asks_variables: true, ..SubmitParams::default() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use harness_protocol::spec::{Limits, Priority};

    const OWN: OwnKey = (SubmitKey::from_u128(41), true);

    fn defaults() -> RunSpec {
        RunSpec {
            labels: [("team".to_owned(), "a".to_owned())].into(),
            workdir: Some("/srv".into()),
            limits: Limits { max_steps: Some(3), ..Limits::default() },
            ..RunSpec::default()
        }
    }

    fn wrong(text: &str) -> (usize, String) {
        match parse(text.as_bytes(), &defaults(), None, OWN) {
            Err((line, LineError::Wrong(why))) => (line, why),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_line_goes_over_the_defaults() {
        let text = "{\"prompt\":\"one\"}\n\n{\"prompt\":\"two\",\"labels\":{\"n\":\"2\"},\"limits\":{\"max_tokens\":9},\
            \"priority\":\"high\",\"workdir\":\"/tmp\",\"idempotency_key\":\"own\"}\n";
        let items = parse(text.as_bytes(), &defaults(), Some("k"), OWN).unwrap();
        let [one, two] = items.as_slice() else { panic!("{items:?}") };
        assert_eq!((one.line, one.params.idempotency_key.as_deref()), (1, Some("k/1")));
        assert_eq!((one.params.spec.workdir.as_deref(), one.params.spec.limits.max_steps), (Some("/srv"), Some(3)));
        assert_eq!((two.line, two.params.idempotency_key.as_deref()), (3, Some("own")));
        let spec = &two.params.spec;
        assert_eq!(spec.labels.len(), 2);
        assert_eq!((spec.limits.max_steps, spec.limits.max_tokens), (Some(3), Some(9)));
        assert_eq!((spec.priority, spec.workdir.as_deref()), (Priority::High, Some("/tmp")));
    }

    #[test]
    fn each_line_without_a_key_of_its_users_has_one_of_its_own() {
        let text = "{\"prompt\":\"one\"}\n\n{\"prompt\":\"two\",\"idempotency_key\":\"own\"}\n{\"prompt\":\"three\"}\n";
        let items = parse(text.as_bytes(), &defaults(), None, OWN).unwrap();
        let keys: Vec<_> = items.iter().map(|item| (item.params.submit_key, item.params.first)).collect();
        let own = |number| (Some(SubmitKey::from_u128(number)), true);
        assert_eq!(keys, [own(41), (None, false), own(43)]);
    }

    #[test]
    fn an_error_names_its_line() {
        assert_eq!(wrong("{\"prompt\":\"a\"}\n{\"promt\":\"b\"}\n").0, 2);
        assert_eq!(wrong("\n[1]").0, 2);
        assert_eq!(wrong("{}"), (1, "there is no prompt and no script".to_owned()));
        assert_eq!(wrong("{\"prompt\":\" \"}"), (1, "the prompt is empty".to_owned()));
        assert!(wrong("{\"prompt\":").1.starts_with("no JSON"));
        assert_eq!(wrong("{\"prompt\":\"a\",\"script_file\":3}"), (1, "script_file is no text".to_owned()));
    }

    #[test]
    fn a_script_of_the_command_line_serves_lines_without_one() {
        let mut base = defaults();
        base.script = Some(Arc::default());
        let items = parse("{}\n{\"name\":\"x\"}".as_bytes(), &base, None, OWN).unwrap();
        assert!(items.iter().all(|item| item.params.spec.script.is_some()));
    }
}
