//! Makes the JSON Schema (draft 2020-12) of the protocol from the types themselves.
//!
//! Requests and replies differ: a field with a default may be missing in a request, and is always present in a reply.
//! So each side has definitions of its own. Pure. It must not add a rule that the types do not have.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::event::Event;
use crate::rpc::{METHODS, Notification, RpcError, described};
use crate::{PROTOCOL_MAJOR, PROTOCOL_MINOR};

/// Value of `$schema`.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// The whole protocol: methods, each with `params` and `result`; `event`, `notification` and `error`.
pub fn protocol() -> Value {
    let mut sides = Sides::new();
    let methods: Map<String, Value> =
        METHODS.iter().filter_map(|name| Some(((*name).to_owned(), sides.method(name)?))).collect();
    let event = sides.received.subschema_for::<Event>();
    let notification = sides.received.subschema_for::<Notification>();
    let error = sides.received.subschema_for::<RpcError>();
    json!({
        "$schema": DIALECT,
        "title": format!("harness control protocol {PROTOCOL_MAJOR}.{PROTOCOL_MINOR}"),
        "description": "JSON-RPC 2.0, one object a line. A request has one of the methods and its params; its reply \
            has the method's result, or an error. What comes unasked is a notification.",
        "methods": methods,
        "event": event,
        "notification": notification,
        "error": error,
        "$defs": sides.definitions(),
    })
}

/// One method, with its definitions; `None` for an unknown name.
pub fn of_method(name: &str) -> Option<Value> {
    let mut sides = Sides::new();
    let Value::Object(mut method) = sides.method(name)? else { return None };
    let error = sides.received.subschema_for::<RpcError>();
    let head = json!({ "$schema": DIALECT, "title": name, "error": error, "$defs": sides.definitions() });
    if let Value::Object(head) = head {
        method.extend(head);
    }
    Some(Value::Object(method))
}

/// The definitions of requests, and those of replies.
struct Sides {
    sent: SchemaGenerator,
    received: SchemaGenerator,
}

impl Sides {
    fn new() -> Self {
        let settings = |mut settings: SchemaSettings, path: &'static str| {
            settings.definitions_path = path.into();
            settings.meta_schema = None;
            settings
        };
        let sent = settings(SchemaSettings::draft2020_12().for_deserialize(), "/$defs/sent");
        let received = settings(SchemaSettings::draft2020_12().for_serialize(), "/$defs/received");
        Self { sent: sent.into_generator(), received: received.into_generator() }
    }

    fn method(&mut self, name: &str) -> Option<Value> {
        let (does, params, result): (&str, Schema, Schema) = described(name, &mut self.sent, &mut self.received)?;
        Some(json!({ "description": does, "params": params, "result": result }))
    }

    fn definitions(mut self) -> Value {
        let mut received = self.received.take_definitions(true);
        for definition in received.values_mut().filter_map(Value::as_object_mut) {
            // Clients must accept fields that a newer daemon adds.
            if definition.get("additionalProperties") == Some(&Value::Bool(false)) {
                definition.remove("additionalProperties");
            }
        }
        json!({ "sent": self.sent.take_definitions(true), "received": received })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every `$ref` of a document.
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str));
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_method_is_there_and_every_reference_leads_somewhere() {
        let documents = METHODS.iter().map(|name| of_method(name).unwrap()).chain([protocol()]);
        for document in documents {
            let mut found = Vec::new();
            references(&document, &mut found);
            assert!(!found.is_empty());
            for reference in found {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{reference}");
            }
        }
        let methods = protocol()["methods"].as_object().unwrap().len();
        assert_eq!(methods, METHODS.len());
        assert_eq!(of_method("run.party"), None);
    }

    #[test]
    fn a_field_that_is_optional_in_a_request_is_present_in_a_reply() {
        let document = of_method("run.list").unwrap();
        let required = |pointer: &str| document.pointer(pointer).cloned().unwrap_or_default();
        assert_eq!(required("/$defs/sent/ListParams/required"), Value::Null);
        assert_eq!(required("/$defs/received/RunPage/required"), json!(["runs", "cursor"]));
        assert_eq!(required("/$defs/sent/ListParams/additionalProperties"), json!(false));
    }
}
