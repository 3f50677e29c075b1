//! Decides whether a run may be made, and builds its specification. A refusal is data with a reason.

use std::collections::BTreeMap;
use std::sync::Arc;

use bevy_ecs::world::World;
use harness_protocol::event::EventBody;
use harness_protocol::id::RunId;
use harness_protocol::json_size::{quoted, text_bytes, value_bytes};
use harness_protocol::limit::CallLimits;
use harness_protocol::rpc::{ErrorKind, Reason, RpcError, Submitted};
use harness_protocol::run::Entry;
use harness_protocol::spec::{Limits, RunSpec};
use harness_protocol::terminal_safe;
use harness_protocol::time::Span;
use harness_protocol::variable;

use super::inherit::inherit;
use super::select;
use crate::config::Config;
use crate::world::api::{Finished, KeySpace, MadeRun, Sent};
use crate::world::inference::budget;
use crate::world::model::components::{Children, Spec};
use crate::world::model::ids::Ids;
use crate::world::model::indexes::{Daemon, Runs, Setup};
use crate::world::tx::Tx;

/// Bytes of a specification as JSON, so that the event that has it fits into a frame.
const MOST_SPEC: usize = harness_protocol::MAX_FRAME_BYTES - 128 * 1024;
/// Bytes of a working directory: no path of Linux is longer.
const MOST_WORKDIR: usize = 4096;
/// Bytes of the name of a model.
const MOST_MODEL: usize = 512;

/// What a new run comes from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Descent {
    pub(crate) owner: u32,
    pub(crate) parent: Option<RunId>,
    pub(crate) retry_of: Option<RunId>,
    pub(crate) continues: Option<RunId>,
    /// The transcript that it goes on from.
    pub(crate) earlier: Arc<[Entry]>,
    pub(crate) idempotency_key: Option<Arc<str>>,
    /// The run that was made under that key, where it has left the world.
    pub(crate) known: Option<Box<Finished>>,
    /// What the client said of the submit itself.
    pub(crate) sent: Sent,
}

impl Descent {
    /// The root of the tree that the run is to belong to; none for one that an operator submits. Of a parent that is
    /// gone it is that parent: nothing is made below it.
    fn root(&self, tx: &Tx<'_>) -> Option<RunId> {
        self.parent.map(|parent| tx.identity(parent).map_or(parent, |above| above.root))
    }
}

/// One part in so many of `limits.live_runs` is not for children.
const KEPT: u32 = 8;

/// Makes a run, or finds the one that the same key made.
pub(crate) fn submit(tx: &mut Tx<'_>, spec: &RunSpec, descent: Descent) -> Result<Submitted, RpcError> {
    if let Some(made) = made(tx, &descent)? {
        return Ok(made);
    }
    if let Some(key) = &descent.idempotency_key {
        if key.is_empty() || key.len() > 256 {
            return Err(invalid("an idempotency key has 1 to 256 bytes"));
        }
        check_characters("the idempotency key", "idempotency_key", key)?;
        if let Some(existing) = existing(tx, key, spec, &descent)? {
            return Ok(existing);
        }
    }
    if descent.sent.asks_variables {
        ask_for_variables(&tx.setup().config.shell.pass)?;
    }
    let mut spec = with_defaults(tx, spec, &descent)?;
    admit(tx, &spec, &descent)?;
    if let Some(refusal) = descent.sent.refused {
        return Err(*refusal);
    }
    // A tree shares what its runs have in common: most children have their parent's texts.
    intern(tx, &mut spec, descent.parent);
    let (number, id) = tx.res::<Ids>().next_run();
    let body = EventBody::RunSubmitted {
        number,
        owner: descent.owner,
        parent: descent.parent,
        retry_of: descent.retry_of,
        continues: descent.continues,
        idempotency_key: descent.idempotency_key,
        submit_key: descent.sent.key,
        spec: Arc::new(spec),
        earlier: descent.earlier,
    };
    let seq = tx.emit(Some(id), body);
    Ok(Submitted { id, seq, existing: false })
}

fn invalid(message: impl Into<String>) -> RpcError {
    RpcError::new(ErrorKind::Invalid, message)
}

/// Asks the client to send the values of the variables that are passed to tools. The values come from the client alone,
/// because the daemon's own environment is that of the user or program that started the daemon.
fn ask_for_variables(names: &[Arc<str>]) -> Result<(), RpcError> {
    if names.is_empty() {
        return Ok(());
    }
    let message = "the configuration wants variables of the client's environment sent along (tool.shell.pass)";
    Err(invalid(message).because(Reason::PassVariables, names.join(",")))
}

/// The run that this very submit has made already: its reply was lost, and it was sent again.
fn made(tx: &Tx<'_>, descent: &Descent) -> Result<Option<Submitted>, RpcError> {
    let Some(key) = descent.sent.key else { return Ok(None) };
    if descent.idempotency_key.is_some() {
        return Err(invalid("a submit has an idempotency key or a submit key, not both"));
    }
    let here = tx.res::<Runs>().submit_keys.get(&key).and_then(|&run| {
        let identity = tx.identity(run)?;
        Some(MadeRun { id: run, seq: identity.seq, parent: identity.parent })
    });
    match here.or(descent.sent.made) {
        None => Ok(None),
        Some(made) if made.parent == descent.parent => {
            Ok(Some(Submitted { id: made.id, seq: made.seq, existing: true }))
        }
        Some(_) => Err(RpcError::new(ErrorKind::Conflict, "another caller has sent this submit key")),
    }
}

fn existing(tx: &Tx<'_>, key: &Arc<str>, spec: &RunSpec, descent: &Descent) -> Result<Option<Submitted>, RpcError> {
    let space = KeySpace::of(descent.root(tx), descent.owner);
    let here = tx.res::<Runs>().keys.get(&(space, Arc::clone(key))).and_then(|&run| {
        let (identity, spec) = (tx.identity(run)?, tx.spec(run)?);
        Some((run, identity.seq, identity.parent, &*spec.0))
    });
    let left = descent.known.as_ref().map(|known| (known.id, known.seq, known.parent, &*known.spec));
    let Some((run, seq, parent, existing)) = here.or(left) else { return Ok(None) };
    let asked = filled(spec, existing, parent);
    let inherited = parent.and_then(|parent| tx.spec(parent)).and_then(|above| {
        let mut inherited = asked.clone();
        inherit(&mut inherited, &above.0, tx.setup().config.shell.limits).ok().map(|()| inherited)
    });
    let is_same = is_same(existing, &asked) || inherited.is_some_and(|inherited| is_same(existing, &inherited));
    if parent != descent.parent || !is_same {
        let message = format!("run {run} was submitted under this idempotency key with another specification");
        return Err(RpcError::new(ErrorKind::Conflict, message));
    }
    Ok(Some(Submitted { id: run, seq, existing: true }))
}

/// A specification as it was asked for, with what was left out as the run under its key has it: the configuration, from
/// which that came, may be another one by now.
fn filled(spec: &RunSpec, from: &RunSpec, parent: Option<RunId>) -> RunSpec {
    let mut spec = spec.clone();
    for (left_out, there) in [
        (&mut spec.share, &from.share),
        (&mut spec.provider, &from.provider),
        (&mut spec.model, &from.model),
        (&mut spec.workdir, &from.workdir),
    ] {
        if left_out.is_none() {
            left_out.clone_from(there);
        }
    }
    spec.limits.max_steps = spec.limits.max_steps.or(from.limits.max_steps);
    if parent.is_some() {
        // What a child was not given is what its parent has.
        let theirs = CallLimits::from(&from.limits);
        spec.limits.set_of_calls(CallLimits::from(&spec.limits).or(theirs));
    }
    spec
}

/// Whether two specifications ask for the same. Where the caller's PATH pointed, whether a terminal was there, and
/// which folder was at the path of the working directory are circumstances: the same command repeated by cron is the
/// same command.
fn is_same(one: &RunSpec, other: &RunSpec) -> bool {
    let without_surroundings = |spec: &RunSpec| {
        let mut spec = RunSpec { on_interaction: Default::default(), workdir_id: None, ..spec.clone() };
        spec.env.remove("PATH");
        spec
    };
    without_surroundings(one) == without_surroundings(other)
}

/// What stands against any new run now, whatever it is.
pub(crate) fn closed(world: &World) -> Option<RpcError> {
    if world.resource::<Daemon>().draining {
        let error = RpcError::new(ErrorKind::Busy, "the daemon is draining; it takes new runs after `daemon undrain`");
        return Some(error.retry_after(Span::from_secs(30)));
    }
    let (runs, bounds) = (world.resource::<Runs>(), &world.resource::<Setup>().config.limits);
    if runs.live.len() >= bounds.live_runs as usize {
        let message =
            format!("{} runs are live already (limits.live_runs); try again when some have ended", bounds.live_runs);
        return Some(RpcError::new(ErrorKind::Busy, message).retry_after(Span::from_secs(5)));
    }
    None
}

/// Whether there is room, and nothing stands against it.
fn admit(tx: &Tx<'_>, spec: &RunSpec, descent: &Descent) -> Result<(), RpcError> {
    if let Some(refusal) = closed(tx.world()) {
        return Err(refusal);
    }
    let bounds = &tx.setup().config.limits;
    let runs = tx.res::<Runs>();
    if let Some(root) = descent.root(tx) {
        may_keep_more(runs, root, bounds.finished_runs as usize)?;
    }
    // What runs submit takes the last place from no operator.
    if descent.parent.is_some() && runs.live.len() >= (bounds.live_runs - bounds.live_runs / KEPT) as usize {
        let message = format!(
            "{} runs are live already, and the rest of limits.live_runs is kept for operators; \
             try again when some have ended",
            runs.live.len()
        );
        return Err(RpcError::new(ErrorKind::Busy, message).retry_after(Span::from_secs(5)));
    }
    if spec.limits.deadline_at.is_some_and(|deadline| deadline <= tx.now()) {
        return Err(invalid("its deadline has passed already"));
    }
    if let Some(name) = &spec.name
        && let Some(other) = match descent.root(tx) {
            Some(root) => runs.names.in_tree(name, root),
            None => runs.names.top(name),
        }
    {
        return Err(RpcError::new(ErrorKind::Conflict, format!("the live run {other} has the name {name:?}")));
    }
    if let Some(name) = &spec.name
        && let Some(other) = select::with_id_like(tx.world(), name)
    {
        // To a child nothing is told of runs that are not of its tree.
        let of = if descent.parent.is_some() { "a run".to_owned() } else { format!("run {other}") };
        return Err(invalid(format!("{name:?} is the beginning of the id of {of}, and cannot be a name")));
    }
    let Some(parent) = descent.parent else { return Ok(()) };
    let Some(identity) = tx.identity(parent) else {
        return Err(RpcError::new(ErrorKind::NoLongerApplies, format!("the parent {parent} is gone")));
    };
    if !runs.live.contains_key(&identity.number) {
        return Err(RpcError::new(ErrorKind::NoLongerApplies, format!("the parent {parent} has ended")));
    }
    if tx.life(parent).is_some_and(|life| life.stopping.is_some()) {
        return Err(RpcError::new(ErrorKind::NoLongerApplies, format!("the parent {parent} is being ended")));
    }
    if identity.depth >= bounds.depth {
        return Err(invalid(format!("a tree of runs has at most {} levels (limits.depth)", bounds.depth)));
    }
    let children = tx.entity(parent).and_then(|entity| tx.get::<Children>(entity)).map_or(0, |c| c.0.len());
    if children >= bounds.children as usize {
        return Err(invalid(format!("a run has at most {} children (limits.children)", bounds.children)));
    }
    Ok(())
}

/// Whether a tree may get one more run. What of it has ended stays here as long as something of it lives: where that is
/// too much altogether, the trees that keep more than their part get no more, and all others go on.
fn may_keep_more(runs: &Runs, root: RunId, bound: usize) -> Result<(), RpcError> {
    let kept = runs.kept.get(&root).copied().unwrap_or(0);
    if runs.finished.len() <= runs.by_end.len() + bound || kept <= bound / KEPT as usize {
        return Ok(());
    }
    let message = format!(
        "{kept} finished runs are kept for what is live of the tree of run {root} (limits.finished_runs); \
         it gets more when that has ended"
    );
    Err(RpcError::new(ErrorKind::Busy, message).retry_after(Span::from_secs(30)))
}

/// The specification with what was left out, checked.
fn with_defaults(tx: &Tx<'_>, spec: &RunSpec, descent: &Descent) -> Result<RunSpec, RpcError> {
    let config = &tx.setup().config;
    let mut spec = spec.clone();
    let above = descent.parent.and_then(|parent| tx.spec(parent)).map(|above| Arc::clone(&above.0));
    check_call_limits(&spec.limits)?;
    check_tools(tx, &spec)?;
    // A run that is tried again or gone on from was taken once.
    if descent.retry_of.is_none() && descent.continues.is_none() {
        check_what_is_said(&spec)?;
    }
    spec.limits.max_steps.get_or_insert(config.run.max_steps);
    if let Some(above) = &above {
        inherit(&mut spec, above, config.shell.limits)?;
    }
    check_text("the prompt", "prompt", spec.prompt.as_deref(), config.limits.text_bytes)?;
    if let Some(name) = &spec.name {
        check_name(name)?;
    }
    check_labels(&spec.labels)?;
    let known = |names: &mut dyn Iterator<Item = &Arc<str>>| names.map(|n| &**n).collect::<Vec<_>>().join(", ");
    // The configuration's own texts are used, so that a hundred thousand runs do not hold as many copies.
    let share = spec.share.as_deref().unwrap_or("default");
    match config.shares.get_key_value(share) {
        Some((share, _)) => spec.share = Some(Arc::clone(share)),
        // The share of the run above may have gone from the configuration; its children stay with it.
        None if above.is_some() => {}
        None => {
            return Err(invalid(format!(
                "no share {} is configured; there are: {}",
                quoted(share),
                known(&mut config.shares.keys())
            )));
        }
    }
    let by_script = spec.script.is_some() && !config.providers.get(&config.run.provider).is_some_and(is_scripted);
    let wanted = match &spec.provider {
        Some(provider) => provider,
        None if by_script => "scripted",
        None => &config.run.provider,
    };
    let Some((provider, settings)) = config.providers.get_key_value(wanted) else {
        let known = known(&mut config.providers.keys());
        return Err(invalid(format!("no provider {} is configured; there are: {known}", quoted(wanted))));
    };
    let provider = Arc::clone(provider);
    if is_scripted(settings) && spec.script.is_none() {
        return Err(invalid(format!("the provider {provider:?} is scripted: give it a script (--script FILE)")));
    }
    if spec.script.is_none()
        && spec.prompt.as_deref().is_none_or(|prompt| prompt.trim().is_empty())
        && descent.continues.is_none()
    {
        return Err(invalid("a run needs a prompt, or a script"));
    }
    if spec.prompt.as_deref().is_some_and(str::is_empty) {
        return Err(invalid("the prompt is empty"));
    }
    choose_model(config, &provider, &mut spec)?;
    check_cost(tx, &provider, &spec, descent.parent)?;
    spec.provider = Some(provider);
    let workdir = spec.workdir.get_or_insert_with(|| "/".into());
    if !workdir.starts_with('/') || workdir.contains('\0') {
        return Err(invalid(format!("the working directory {} is not absolute", quoted(workdir))));
    }
    if spec.limits.max_steps == Some(0) || spec.limits.max_tokens == Some(0) {
        return Err(invalid("a limit on steps or tokens is at least 1"));
    }
    if [spec.limits.max_time_seconds, spec.limits.deadline_seconds].contains(&Some(Span::ZERO)) {
        return Err(invalid("a limit on time is more than 0 seconds"));
    }
    check_size("the working directory", "workdir", spec.workdir.as_deref(), MOST_WORKDIR)?;
    check_size("the name of the model", "model", spec.model.as_deref(), MOST_MODEL)?;
    check_bytes(&spec)?;
    Ok(spec)
}

/// Refuses a specification that does not fit into its event. Most do by far, and are not written to see that.
fn check_bytes(spec: &RunSpec) -> Result<(), RpcError> {
    if spec.approximate_bytes() <= MOST_SPEC / RunSpec::MOST_AS_JSON {
        return Ok(());
    }
    let bytes = value_bytes(spec);
    if bytes > MOST_SPEC {
        let message = format!("the specification takes {bytes} bytes as JSON; at most {MOST_SPEC} are taken");
        return Err(invalid(message).because(Reason::TooLarge, "spec"));
    }
    Ok(())
}

/// The model: the submit's, the default of runs with the provider that is theirs, the provider's own.
fn choose_model(config: &Config, provider: &Arc<str>, spec: &mut RunSpec) -> Result<(), RpcError> {
    let settings = config.providers.get(provider);
    let of_runs = config.run.model.as_ref();
    if spec.model.is_none() {
        let own = settings.and_then(|settings| settings.model.as_ref());
        let by_default = *provider == config.run.provider;
        let (first, second) = if by_default { (of_runs, own) } else { (own, of_runs) };
        spec.model = first.or(second).cloned();
    }
    if spec.model.is_none() && settings.is_some_and(|settings| !is_scripted(settings)) {
        let message = format!("no model is named: --model, or `model` in [provider.{provider}]");
        return Err(invalid(message));
    }
    Ok(())
}

/// A budget that cannot be watched is none.
fn check_cost(tx: &Tx<'_>, provider: &Arc<str>, spec: &RunSpec, parent: Option<RunId>) -> Result<(), RpcError> {
    let config = &tx.setup().config;
    if spec.limits.max_cost_usd.is_some_and(|max| !max.is_finite() || max <= 0.0) {
        return Err(invalid("a limit on cost is a number of USD, more than 0"));
    }
    if spec.limits.max_cost_usd.is_none() && !parent.is_some_and(|parent| budget::has_cost_limit(tx, parent)) {
        return Ok(());
    }
    let Some(settings) = config.providers.get(provider) else { return Ok(()) };
    if settings.price_of(spec.model.as_deref()).is_none() {
        let model = spec.model.as_deref().map(|model| format!(" for the model {model:?}")).unwrap_or_default();
        let message = format!(
            "the provider {provider:?} has no price{model}, so --max-cost cannot be kept; set `price` in [provider.{provider}]"
        );
        return Err(invalid(message));
    }
    let has_no_price = |other: &&Arc<str>| config.providers.get(*other).is_none_or(|other| other.price.is_none());
    if let Some(fallback) = settings.fallbacks.iter().find(has_no_price) {
        let message = format!(
            "the provider {fallback:?}, which stands in for {provider:?}, has no price, so --max-cost cannot be kept"
        );
        return Err(invalid(message));
    }
    Ok(())
}

fn check_tools(tx: &Tx<'_>, spec: &RunSpec) -> Result<(), RpcError> {
    let known = &tx.setup().tools;
    match spec.tools.iter().flat_map(|tools| tools.iter()).find(|tool| known.get(tool).is_none()) {
        Some(tool) => {
            let names: Vec<&str> = known.names().collect();
            let message = format!("there is no tool {}; there are: {}", quoted(tool), names.join(", "));
            Err(invalid(message).because(Reason::UnknownTool, "tools"))
        }
        None => Ok(()),
    }
}

/// Checks the limits of calls.
fn check_call_limits(limits: &Limits) -> Result<(), RpcError> {
    let of_calls = CallLimits::from(limits);
    if let Some((limit, _)) = of_calls.set().find(|(limit, value)| !limit.bounds().contains(value)) {
        let (least, most) = limit.bounds().into_inner();
        return Err(invalid(format!("the limit {} is a number from {least} to {most}", limit.name())));
    }
    Ok(())
}

fn is_scripted(provider: &crate::config::Provider) -> bool {
    provider.is_scripted()
}

/// What is wrong with a message to a run.
pub(crate) fn check_message(text: &str, limit: u32) -> Result<(), RpcError> {
    check_text("the message", "text", Some(text), limit)?;
    if text.trim().is_empty() {
        return Err(invalid("the message is empty"));
    }
    Ok(())
}

/// The texts that a client says itself, in a submit or as changes of a retry: those that name, and the variables of
/// calls.
pub(crate) fn check_what_is_said(spec: &RunSpec) -> Result<(), RpcError> {
    check_all_characters(spec)?;
    // What is too large for a call is told by the call, which has a command beside it.
    variable::check_all_names(&spec.env).map_err(|error| invalid(error.to_string()).because(Reason::BadVariable, "env"))
}

/// Checks the characters of texts that identify or group runs: clients display them in lists, and users match them by
/// their appearance.
fn check_all_characters(spec: &RunSpec) -> Result<(), RpcError> {
    let named = [
        ("the name", "name", &spec.name),
        ("the share", "share", &spec.share),
        ("the model", "model", &spec.model),
        ("the provider", "provider", &spec.provider),
        ("the working directory", "workdir", &spec.workdir),
    ];
    for (what, subject, text) in named {
        check_characters(what, subject, text.as_deref().unwrap_or_default())?;
    }
    for (key, value) in &spec.labels {
        check_characters("a label", "labels", key)?;
        check_characters(&format!("the value of the label {}", quoted(key)), "labels", value)?;
    }
    Ok(())
}

fn check_characters(what: &str, subject: &str, text: &str) -> Result<(), RpcError> {
    match terminal_safe::refused(text) {
        Some(c) => {
            let message = format!(
                "{what} has the character U+{:04X}: no control characters, no changes of direction, nothing invisible",
                u32::from(c)
            );
            Err(invalid(message).because(Reason::ControlCharacters, subject))
        }
        None => Ok(()),
    }
}

/// Refuses texts that are too long. What goes into a frame is JSON, and so its bytes are counted as JSON.
pub(crate) fn check_text(what: &str, subject: &str, text: Option<&str>, max: u32) -> Result<(), RpcError> {
    let bytes = text.map_or(0, text_bytes);
    if bytes > max as usize {
        let message = format!("{what} has {bytes} bytes as JSON; at most {max} are taken (limits.text_bytes)");
        return Err(invalid(message).because(Reason::TooLarge, subject));
    }
    Ok(())
}

fn check_size(what: &str, subject: &str, text: Option<&str>, most: usize) -> Result<(), RpcError> {
    match text {
        Some(text) if text.len() > most => {
            let message = format!("{what} has {} bytes; at most {most} are taken", text.len());
            Err(invalid(message).because(Reason::TooLarge, subject))
        }
        _ => Ok(()),
    }
}

fn check_name(name: &str) -> Result<(), RpcError> {
    let fits = name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if name.parse::<RunId>().is_ok() {
        return Err(invalid(format!("{name:?} is an id, and cannot be a name")));
    }
    if fits {
        return Ok(());
    }
    let short: String = name.chars().take(80).collect();
    Err(invalid(format!(
        "{short:?} cannot be a name: 1 to 63 letters, digits, dots, dashes and underscores, the first a letter or digit"
    )))
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), RpcError> {
    if labels.len() > 64 {
        return Err(invalid("a run has at most 64 labels"));
    }
    match labels.iter().find(|(k, v)| k.is_empty() || k.len() > 63 || v.len() > 255 || k.contains(['=', ',', '\n'])) {
        Some((key, _)) => {
            let short: String = key.chars().take(80).collect();
            Err(invalid(format!(
                "the label {short:?} does not do: keys have 1 to 63 bytes without '=' and ',', values at most 255"
            )))
        }
        None => Ok(()),
    }
}

/// Lets a child share its parent's texts instead of having copies of them.
fn intern(tx: &Tx<'_>, spec: &mut RunSpec, parent: Option<RunId>) {
    let Some(Spec(above)) = parent.and_then(|parent| tx.spec(parent)) else { return };
    for (mine, theirs) in [
        (&mut spec.share, &above.share),
        (&mut spec.provider, &above.provider),
        (&mut spec.model, &above.model),
        (&mut spec.workdir, &above.workdir),
    ] {
        if mine == theirs {
            mine.clone_from(theirs);
        }
    }
}
