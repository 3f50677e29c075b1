//! Makes the JSON schema of a tool's arguments from the type that reads them, in a form that all known providers
//! accept.
//!
//! Providers differ in what they refuse: references, `$schema`, unknown formats, types with `null`. So none of these is
//! in it: an optional field is merely not listed in `required`.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// Keywords that say nothing to a model, or are refused.
const LEFT_OUT: [&str; 4] = ["$schema", "title", "default", "format"];

/// The schema of this type, as text.
pub(super) fn of<Args: JsonSchema>() -> String {
    let mut settings = SchemaSettings::draft2020_12();
    settings.meta_schema = None;
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<Args>().to_value();
    tidy(&mut schema);
    schema.to_string()
}

fn tidy(schema: &mut Value) {
    let Value::Object(keywords) = schema else { return };
    for keyword in LEFT_OUT {
        keywords.remove(keyword);
    }
    if let Some(Value::Array(types)) = keywords.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_mut_slice() {
            let only = only.take();
            keywords.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Object(properties)) = keywords.get_mut("properties") {
        properties.values_mut().for_each(tidy);
    }
    if let Some(items) = keywords.get_mut("items") {
        tidy(items);
    }
}
