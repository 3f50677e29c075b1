//! Validates JSON against a JSON Schema: the part that our own schema uses, and stricter than the standard in two ways.
//!
//! A keyword that it does not know is an error, and so is a property that the schema does not name: every sent field
//! must be described.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// A document with schemas that refer to each other.
pub struct Schemas(pub Value);

/// Properties of an object that a schema has names for.
type Named = BTreeSet<String>;

impl Schemas {
    /// Asserts that `value` is what the schema at `pointer` describes.
    ///
    /// # Panics
    /// Where it is not.
    #[track_caller]
    pub fn check(&self, pointer: &str, value: &Value) {
        let schema = self.0.pointer(pointer).unwrap_or_else(|| panic!("no schema at {pointer}"));
        if let Err(why) = self.describes(schema, value, "$") {
            panic!("{pointer}: {why}\n{value:#}");
        }
    }

    /// Whether `value` is what the schema at `pointer` describes.
    pub fn fits(&self, pointer: &str, value: &Value) -> bool {
        self.0.pointer(pointer).is_some_and(|schema| self.describes(schema, value, "$").is_ok())
    }

    fn describes(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let named = self.named(schema, value, at)?;
        match value.as_object().and_then(|map| map.keys().find(|key| !named.contains(*key))) {
            Some(key) if !named.contains("*") => Err(format!("{at}: the schema does not name {key:?}")),
            _ => Ok(()),
        }
    }

    /// Checks a value, and tells which of its properties have names here; `*` stands for all.
    fn named(&self, schema: &Value, value: &Value, at: &str) -> Result<Named, String> {
        let schema = match schema {
            Value::Bool(true) => return Ok(Named::from(["*".to_owned()])),
            Value::Object(schema) => schema,
            other => return Err(format!("{at}: no schema: {other}")),
        };
        // A schema without a statement about properties accepts everything.
        if !["$ref", "type", "const", "enum", "properties", "oneOf", "anyOf"]
            .iter()
            .any(|word| schema.contains_key(*word))
        {
            return Ok(Named::from(["*".to_owned()]));
        }
        let mut named = Named::new();
        for (keyword, rule) in schema {
            match keyword.as_str() {
                "description" | "title" | "default" | "format" | "contentEncoding" => {}
                "$ref" => {
                    let pointer = rule.as_str().and_then(|text| text.strip_prefix('#')).unwrap_or_default();
                    let target = self.0.pointer(pointer).ok_or_else(|| format!("{at}: {rule} leads nowhere"))?;
                    named.extend(self.named(target, value, at)?);
                }
                "type" if !is_of(rule, value) => return Err(format!("{at}: {value} is no {rule}")),
                "const" if rule != value => return Err(format!("{at}: {value} is not {rule}")),
                "enum" if !rule.as_array().is_some_and(|all| all.contains(value)) => {
                    return Err(format!("{at}: {value} is not in {rule}"));
                }
                "minimum" if value.is_number() && value.as_f64() < rule.as_f64() => {
                    return Err(format!("{at}: {value} < {rule}"));
                }
                "maximum" if value.is_number() && value.as_f64() > rule.as_f64() => {
                    return Err(format!("{at}: {value} > {rule}"));
                }
                "type" | "const" | "enum" | "minimum" | "maximum" => {}
                // Of patterns there are those of ids and of hashes only, told apart by their length.
                "pattern" if value.as_str().is_none_or(|text| text.len() == length(rule)) => {}
                "pattern" => return Err(format!("{at}: {value} does not match {rule}")),
                "minItems" | "maxItems" => {
                    let items = value.as_array().map_or(0, Vec::len) as u64;
                    let bound = rule.as_u64().unwrap_or_default();
                    if (keyword == "minItems" && items < bound) || (keyword == "maxItems" && items > bound) {
                        return Err(format!("{at}: {items} items"));
                    }
                }
                "required" => {
                    let missing = rule
                        .as_array()
                        .into_iter()
                        .flatten()
                        .find(|key| value.get(key.as_str().unwrap_or("")).is_none());
                    if let (Some(key), true) = (missing, value.is_object()) {
                        return Err(format!("{at}: {key} is missing"));
                    }
                }
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.describes(rule, item, &format!("{at}[{index}]"))?;
                    }
                }
                "properties" => {
                    for (key, rule) in rule.as_object().into_iter().flatten() {
                        if let Some(value) = value.get(key) {
                            // Where alternatives describe the same one, the type is told here and the rest there.
                            self.describes(rule, value, &format!("{at}.{key}"))?;
                            named.insert(key.clone());
                        }
                    }
                }
                "additionalProperties" => named.extend(self.additional(schema, rule, value, at)?),
                "oneOf" | "anyOf" => {
                    let tried: Vec<_> =
                        rule.as_array().into_iter().flatten().map(|rule| self.named(rule, value, at)).collect();
                    let fitting: Vec<_> = tried.iter().flatten().collect();
                    if fitting.is_empty() || (keyword == "oneOf" && fitting.len() > 1) {
                        return Err(format!("{at}: {} of {keyword} fit {value}: {tried:?}", fitting.len()));
                    }
                    named.extend(fitting.into_iter().flatten().cloned());
                }
                other => return Err(format!("{at}: the validator does not know {other:?}")),
            }
        }
        Ok(named)
    }

    fn additional(&self, schema: &Map<String, Value>, rule: &Value, value: &Value, at: &str) -> Result<Named, String> {
        let known = |key: &String| schema.get("properties").is_some_and(|properties| properties.get(key).is_some());
        let mut named = Named::new();
        for (key, value) in value.as_object().into_iter().flatten().filter(|(key, _)| !known(key)) {
            if *rule == Value::Bool(false) {
                return Err(format!("{at}: there is no {key:?}"));
            }
            self.describes(rule, value, &format!("{at}.{key}"))?;
            named.insert(key.clone());
        }
        Ok(named)
    }
}

fn is_of(rule: &Value, value: &Value) -> bool {
    let is = |word: &Value| match word.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => false,
    };
    rule.as_array().map_or_else(|| is(rule), |words| words.iter().any(is))
}

/// Length of the texts that a pattern describes.
fn length(pattern: &Value) -> usize {
    let is_of_a_hash = pattern.as_str().is_some_and(|pattern| pattern.contains("{64}"));
    if is_of_a_hash { 64 } else { 13 }
}
