//! Tests what all tools have in common.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness_protocol::script::Script;
use harness_protocol::spec::RunSpec;
use serde_json::Value;

use super::*;
use crate::config::Config;

fn plan(tool: &str, args: &str, spec: &RunSpec) -> Result<Plan, Refused> {
    let config = Config::default();
    catalogue().get(tool).unwrap().plan(args, &Facts { spec, shell: &config.shell })
}

/// What is wrong with a schema that goes to providers.
fn wrong(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for keyword in ["$ref", "$schema", "$defs", "title", "format", "default", "oneOf", "anyOf", "allOf"] {
        if schema.get(keyword).is_some() {
            found.push(format!("has {keyword}"));
        }
    }
    match schema["type"].as_str() {
        None => found.push(format!("has no single type: {schema}")),
        Some("object") => {
            let properties = schema["properties"].as_object().unwrap();
            if schema["additionalProperties"] != false {
                found.push("takes any properties".to_owned());
            }
            for (name, property) in properties {
                if !property["description"].is_string() {
                    found.push(format!("{name} is not described"));
                }
                found.extend(wrong(property).into_iter().map(|what| format!("{name} {what}")));
            }
            let required = schema["required"].as_array().into_iter().flatten();
            found
                .extend(required.filter(|name| !properties.contains_key(name.as_str().unwrap())).map(Value::to_string));
        }
        Some("array") => found.extend(wrong(&schema["items"])),
        Some(_) => {}
    }
    found
}

#[test]
fn a_model_is_told_of_every_tool_with_a_schema_that_every_provider_takes() {
    let catalogue = catalogue();
    assert!(catalogue.specs().iter().map(|spec| &*spec.name).eq(catalogue.names()));
    for spec in catalogue.specs().iter() {
        let schema: Value = serde_json::from_str(&spec.parameters).unwrap();
        assert_eq!((&schema["type"], wrong(&schema)), (&Value::from("object"), Vec::new()), "{}", spec.name);
        assert!(!spec.description.contains("  "), "{}", spec.name);
    }
}

#[test]
fn what_a_model_is_told_changes_on_purpose_only() {
    let told = catalogue().specs().iter().fold(String::new(), |told, spec| {
        let schema: Value = serde_json::from_str(&spec.parameters).unwrap();
        format!("{told}{}: {}\n{}\n\n", spec.name, spec.description, serde_json::to_string_pretty(&schema).unwrap())
    });
    let snapshots = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools");
    insta::with_settings!({ snapshot_path => snapshots, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("tools", told);
    });
}

#[test]
fn every_tool_says_of_bad_arguments_what_it_takes() {
    for name in catalogue().names() {
        for args in ["", "7", r#"{"no such argument": 1}"#] {
            let refusal = plan(name, args, &RunSpec::default()).unwrap_err().to_string();
            let usage = catalogue().get(name).unwrap().usage().to_owned();
            assert!(refusal.starts_with(&format!("bad arguments of {name}: ")), "{refusal}");
            assert!(refusal.ends_with(&format!("; it takes {usage}")), "{refusal}");
        }
    }
}

#[test]
fn a_plan_is_of_the_kind_that_its_tool_says() {
    for (name, args) in [
        ("ask_user", r#"{"question": "?"}"#),
        ("shell", r#"{"command": "true"}"#),
        ("spawn_agent", r#"{"prompt": "go"}"#),
        ("wait_for_agent", "{}"),
    ] {
        let is_world = matches!(plan(name, args, &RunSpec::default()).unwrap(), Plan::World(_));
        assert_eq!(is_world, catalogue().kind(name) == Some(ToolKind::World), "{name}");
    }
}

#[test]
fn a_child_plays_a_script_of_its_parent_and_no_other() {
    let child = Arc::new(Script::default());
    let scripts = [("child".to_owned(), Arc::clone(&child))].into();
    let spec = RunSpec { script: Some(Arc::new(Script { scripts, ..Script::default() })), ..RunSpec::default() };
    let planned = plan("spawn_agent", r#"{"script": "child", "labels": {"a": "b"}}"#, &spec).unwrap();
    let Plan::World(Transition::Spawn(spawn)) = planned else { panic!("{planned:?}") };
    assert_eq!((spawn.script, spawn.labels["a"].as_str(), spawn.prompt), (Some(child), "b", None));
    let refused = plan("spawn_agent", r#"{"script": "other"}"#, &spec).unwrap_err();
    assert_eq!(refused.to_string(), "There is no script \"other\" for a child here.");
}

#[test]
fn agents_are_named_one_by_one_or_in_a_list() {
    for (args, agents, any) in [
        ("{}", &[][..], false),
        (r#"{"agent": "a"}"#, &["a"], false),
        (r#"{"agents": ["a", "b"], "mode": "any"}"#, &["a", "b"], true),
    ] {
        let planned = plan("wait_for_agent", args, &RunSpec::default()).unwrap();
        let agents = agents.iter().map(|&agent| agent.to_owned()).collect();
        assert_eq!(planned, Plan::World(Transition::Wait(Wait { agents, any })), "{args}");
    }
}
