//! Decides whether a run may be made, and builds its specification. If not, the caller gets a refusal
//! (`crate::refusal`), and nothing changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use harness_protocol::event::EventBody;
use harness_protocol::id::RunId;
use harness_protocol::json_size::{text_bytes, value_bytes};
use harness_protocol::limit::CallLimits;
use harness_protocol::rpc::Submitted;
use harness_protocol::run::Entry;
use harness_protocol::spec::{Limits, RunSpec};
use harness_protocol::terminal_safe;
use harness_protocol::time::Span;
use harness_protocol::variable;

use super::inherit::inherit;
use super::select;
use crate::blob;
use crate::config::Config;
use crate::refusal::{NewRunRefusal, Refusal, SpecRefusal, Text};
use crate::world::api::{Finished, KeySpace, MadeRun, Sent, ToolsTold};
use crate::world::inference::budget;
use crate::world::inference::prepare::prepare_like;
use crate::world::model::components::{Children, Spec};
use crate::world::model::ids::Ids;
use crate::world::model::indexes::{Daemon, Runs, Setup, Texts};
use crate::world::name_or_id::short;
use crate::world::tx::Tx;

/// Bytes of a specification as JSON, so that the event that has it fits into a frame.
const MOST_SPEC: usize = harness_protocol::MAX_FRAME_BYTES - 128 * 1024;
/// Bytes of a working directory: no path of Linux is longer.
const MOST_WORKDIR: usize = 4096;
/// Bytes of the name of a model.
const MOST_MODEL: usize = 512;
/// Labels of one run.
const MOST_LABELS: usize = 64;

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
    /// What the run was prepared with from which it comes.
    pub(crate) prepared: Option<ToolsTold>,
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
pub(crate) fn submit(tx: &mut Tx<'_>, spec: &RunSpec, descent: Descent) -> Result<Submitted, Refusal> {
    if let Some(made) = made(tx, &descent)? {
        return Ok(made);
    }
    if let Some(key) = &descent.idempotency_key {
        if key.is_empty() || key.len() > 256 {
            return Err(NewRunRefusal::KeyLength.into());
        }
        check_characters(|| Text::IdempotencyKey, key)?;
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
    blob::name(&mut spec);
    tx.res::<Texts>().share(&mut spec);
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
    prepare_like(tx, id, descent.prepared);
    Ok(Submitted { id, seq, existing: false })
}

/// Asks the client to send the values of the variables that are passed to tools. The values come from the client alone,
/// because the daemon's own environment is that of the user or program that started the daemon.
fn ask_for_variables(names: &[Arc<str>]) -> Result<(), NewRunRefusal> {
    if names.is_empty() { Ok(()) } else { Err(NewRunRefusal::PassVariables { names: names.to_vec() }) }
}

/// The run that this very submit has made already: its reply was lost, and it was sent again.
fn made(tx: &Tx<'_>, descent: &Descent) -> Result<Option<Submitted>, NewRunRefusal> {
    let Some(key) = descent.sent.key else { return Ok(None) };
    if descent.idempotency_key.is_some() {
        return Err(NewRunRefusal::TwoKeys);
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
        Some(_) => Err(NewRunRefusal::SubmitKeyTaken),
    }
}

fn existing(
    tx: &Tx<'_>,
    key: &Arc<str>,
    spec: &RunSpec,
    descent: &Descent,
) -> Result<Option<Submitted>, NewRunRefusal> {
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
        return Err(NewRunRefusal::KeyTaken { run });
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
        let mut spec = RunSpec {
            on_interaction: Default::default(),
            workdir_id: None,
            // Runs of older journals have no such names.
            prompt_blob: None,
            script_blob: None,
            ..spec.clone()
        };
        spec.env.remove("PATH");
        spec
    };
    without_surroundings(one) == without_surroundings(other)
}

/// What stands against any new run now, whatever it is.
pub(crate) fn closed(daemon: &Daemon, runs: &Runs, setup: &Setup) -> Option<NewRunRefusal> {
    if daemon.draining {
        return Some(NewRunRefusal::Draining);
    }
    let most = setup.config.limits.live_runs;
    (runs.live.len() >= most as usize).then_some(NewRunRefusal::TooManyLive { most })
}

/// Whether there is room, and nothing stands against it.
fn admit(tx: &Tx<'_>, spec: &RunSpec, descent: &Descent) -> Result<(), Refusal> {
    if let Some(refusal) = closed(tx.res(), tx.res(), tx.setup()) {
        return Err(refusal.into());
    }
    let bounds = &tx.setup().config.limits;
    let runs = tx.res::<Runs>();
    if let Some(root) = descent.root(tx) {
        may_keep_more(runs, root, bounds.finished_runs as usize)?;
    }
    // What runs submit takes the last place from no operator.
    if descent.parent.is_some() && runs.live.len() >= (bounds.live_runs - bounds.live_runs / KEPT) as usize {
        return Err(NewRunRefusal::TooManyLiveForChildren { live: runs.live.len() }.into());
    }
    if spec.limits.deadline_at.is_some_and(|deadline| deadline <= tx.now()) {
        return Err(SpecRefusal::DeadlinePassed.into());
    }
    // To a child nothing is told of runs that are not of its tree.
    let is_known = |run| descent.root(tx).is_none_or(|root| tx.identity(run).is_some_and(|it| it.root == root));
    if let Some(name) = &spec.name
        && let Some(other) = match descent.root(tx) {
            Some(root) => runs.names.in_tree(name, root),
            None => runs.names.top(name),
        }
    {
        return Err(NewRunRefusal::NameTaken { name: short(name), run: other }.into());
    }
    if let Some(name) = &spec.name
        && let Some(run) = select::with_id_like(runs, name, is_known)
    {
        return Err(SpecRefusal::NameBeginsId { name: short(name), run }.into());
    }
    let Some(parent) = descent.parent else { return Ok(()) };
    let Some(identity) = tx.identity(parent) else {
        return Err(NewRunRefusal::ParentGone { parent }.into());
    };
    if !runs.live.contains_key(&identity.number) {
        return Err(NewRunRefusal::ParentEnded { parent }.into());
    }
    if tx.life(parent).is_some_and(|life| life.stopping.is_some()) {
        return Err(NewRunRefusal::ParentBeingEnded { parent }.into());
    }
    if identity.depth >= bounds.depth {
        return Err(NewRunRefusal::TooManyLevels { most: bounds.depth }.into());
    }
    let children = tx.entity(parent).and_then(|entity| tx.get::<Children>(entity)).map_or(0, |c| c.runs().len());
    if children >= bounds.children as usize {
        return Err(NewRunRefusal::TooManyChildren { most: bounds.children }.into());
    }
    Ok(())
}

/// Whether a tree may get one more run. What of it has ended stays here as long as something of it lives: where that is
/// too much altogether, the trees that keep more than their part get no more, and all others go on.
fn may_keep_more(runs: &Runs, root: RunId, bound: usize) -> Result<(), NewRunRefusal> {
    let kept = runs.kept.get(&root).copied().unwrap_or(0);
    if runs.finished.len() <= runs.by_end.len() + bound || kept <= bound / KEPT as usize {
        return Ok(());
    }
    Err(NewRunRefusal::TooManyKept { root, kept })
}

/// The specification with what was left out, checked.
fn with_defaults(tx: &Tx<'_>, spec: &RunSpec, descent: &Descent) -> Result<RunSpec, SpecRefusal> {
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
    check_text(Text::Prompt, spec.prompt.as_deref(), config.limits.text_bytes)?;
    if let Some(name) = &spec.name {
        check_name(name)?;
    }
    check_labels(&spec.labels)?;
    // The configuration's own texts are used, so that a hundred thousand runs do not hold as many copies.
    let share = spec.share.as_deref().unwrap_or("default");
    match config.shares.get_key_value(share) {
        Some((share, _)) => spec.share = Some(Arc::clone(share)),
        // The share of the run above may have gone from the configuration; its children stay with it.
        None if above.is_some() => {}
        None => {
            let known = config.shares.keys().cloned().collect();
            return Err(SpecRefusal::NoShare { share: share.to_owned(), known });
        }
    }
    let by_script = spec.script.is_some() && !config.providers.get(&config.run.provider).is_some_and(is_scripted);
    let wanted = match &spec.provider {
        Some(provider) => provider,
        None if by_script => "scripted",
        None => &config.run.provider,
    };
    let Some((provider, settings)) = config.providers.get_key_value(wanted) else {
        let known = config.providers.keys().cloned().collect();
        return Err(SpecRefusal::NoProvider { provider: wanted.to_owned(), known });
    };
    let provider = Arc::clone(provider);
    if is_scripted(settings) && spec.script.is_none() {
        return Err(SpecRefusal::NoScript { provider });
    }
    if spec.script.is_none()
        && spec.prompt.as_deref().is_none_or(|prompt| prompt.trim().is_empty())
        && descent.continues.is_none()
    {
        return Err(SpecRefusal::NoPrompt);
    }
    if spec.prompt.as_deref().is_some_and(str::is_empty) {
        return Err(SpecRefusal::Empty { text: Text::Prompt });
    }
    choose_model(config, &provider, &mut spec)?;
    check_cost(tx, &provider, &spec, descent.parent)?;
    spec.provider = Some(provider);
    let workdir = spec.workdir.get_or_insert_with(|| "/".into());
    if !workdir.starts_with('/') || workdir.contains('\0') {
        return Err(SpecRefusal::WorkdirNotAbsolute { path: workdir.to_string() });
    }
    check_amounts(&spec.limits)?;
    check_size(Text::Workdir, spec.workdir.as_deref(), MOST_WORKDIR)?;
    check_size(Text::ModelName, spec.model.as_deref(), MOST_MODEL)?;
    check_bytes(&spec)?;
    Ok(spec)
}

/// Refuses limits that leave nothing to do.
fn check_amounts(limits: &Limits) -> Result<(), SpecRefusal> {
    let counts = [("max_steps", limits.max_steps == Some(0)), ("max_tokens", limits.max_tokens == Some(0))];
    if let Some((field, _)) = counts.into_iter().find(|(_, is_zero)| *is_zero) {
        return Err(SpecRefusal::NoSteps { field });
    }
    let times = [("max_time_seconds", limits.max_time_seconds), ("deadline_seconds", limits.deadline_seconds)];
    match times.into_iter().find(|(_, time)| *time == Some(Span::ZERO)) {
        Some((field, _)) => Err(SpecRefusal::NoTime { field }),
        None => Ok(()),
    }
}

/// Refuses a specification that does not fit into its event. Most do by far, and are not written to see that.
fn check_bytes(spec: &RunSpec) -> Result<(), SpecRefusal> {
    if spec.approximate_bytes() <= MOST_SPEC / RunSpec::MOST_AS_JSON {
        return Ok(());
    }
    let bytes = value_bytes(spec);
    if bytes > MOST_SPEC {
        return Err(SpecRefusal::SpecTooLarge { bytes, most: MOST_SPEC });
    }
    Ok(())
}

/// The model: the submit's, the default of runs with the provider that is theirs, the provider's own.
fn choose_model(config: &Config, provider: &Arc<str>, spec: &mut RunSpec) -> Result<(), SpecRefusal> {
    let settings = config.providers.get(provider);
    let of_runs = config.run.model.as_ref();
    if spec.model.is_none() {
        let own = settings.and_then(|settings| settings.model.as_ref());
        let by_default = *provider == config.run.provider;
        let (first, second) = if by_default { (of_runs, own) } else { (own, of_runs) };
        spec.model = first.or(second).cloned();
    }
    if spec.model.is_none() && settings.is_some_and(|settings| !is_scripted(settings)) {
        return Err(SpecRefusal::NoModel { provider: Arc::clone(provider) });
    }
    Ok(())
}

/// A budget that cannot be watched is none.
fn check_cost(tx: &Tx<'_>, provider: &Arc<str>, spec: &RunSpec, parent: Option<RunId>) -> Result<(), SpecRefusal> {
    let config = &tx.setup().config;
    if spec.limits.max_cost_usd.is_some_and(|max| !max.is_finite() || max <= 0.0) {
        return Err(SpecRefusal::Cost);
    }
    if spec.limits.max_cost_usd.is_none() && !parent.is_some_and(|parent| budget::has_cost_limit(tx, parent)) {
        return Ok(());
    }
    let Some(settings) = config.providers.get(provider) else { return Ok(()) };
    if settings.price_of(spec.model.as_deref()).is_none() {
        return Err(SpecRefusal::NoPrice { provider: Arc::clone(provider), model: spec.model.clone() });
    }
    let has_no_price = |other: &&Arc<str>| config.providers.get(*other).is_none_or(|other| other.price.is_none());
    if let Some(fallback) = settings.fallbacks.iter().find(has_no_price) {
        let (provider, fallback) = (Arc::clone(provider), Arc::clone(fallback));
        return Err(SpecRefusal::NoPriceOfFallback { provider, fallback });
    }
    Ok(())
}

fn check_tools(tx: &Tx<'_>, spec: &RunSpec) -> Result<(), SpecRefusal> {
    let known = &tx.setup().tools;
    match spec.tools.iter().flat_map(|tools| tools.iter()).find(|tool| known.get(tool).is_none()) {
        Some(tool) => {
            Err(SpecRefusal::NoTool { tool: tool.to_string(), known: known.names().map(Arc::from).collect() })
        }
        None => Ok(()),
    }
}

/// Checks the limits of calls.
fn check_call_limits(limits: &Limits) -> Result<(), SpecRefusal> {
    let of_calls = CallLimits::from(limits);
    match of_calls.set().find(|(limit, value)| !limit.bounds().contains(value)) {
        Some((limit, _)) => Err(SpecRefusal::CallLimit { limit }),
        None => Ok(()),
    }
}

fn is_scripted(provider: &crate::config::Provider) -> bool {
    provider.is_scripted()
}

/// What is wrong with a message to a run.
pub(crate) fn check_message(text: &str, limit: u32) -> Result<(), SpecRefusal> {
    check_text(Text::Message, Some(text), limit)?;
    if text.trim().is_empty() {
        return Err(SpecRefusal::Empty { text: Text::Message });
    }
    Ok(())
}

/// The texts that a client says itself, in a submit or as changes of a retry: those that name, and the variables of
/// calls.
pub(crate) fn check_what_is_said(spec: &RunSpec) -> Result<(), SpecRefusal> {
    check_all_characters(spec)?;
    // What is too large for a call is told by the call, which has a command beside it.
    Ok(variable::check_all_names(&spec.env)?)
}

/// Checks the characters of texts that identify or group runs: clients display them in lists, and users match them by
/// their appearance.
fn check_all_characters(spec: &RunSpec) -> Result<(), SpecRefusal> {
    let named = [
        (Text::Name, &spec.name),
        (Text::Share, &spec.share),
        (Text::Model, &spec.model),
        (Text::Provider, &spec.provider),
        (Text::Workdir, &spec.workdir),
    ];
    for (text, said) in named {
        check_characters(|| text, said.as_deref().unwrap_or_default())?;
    }
    for (key, value) in &spec.labels {
        check_characters(|| Text::LabelKey, key)?;
        check_characters(|| Text::LabelValue(key.clone()), value)?;
    }
    Ok(())
}

fn check_characters(text: impl FnOnce() -> Text, said: &str) -> Result<(), SpecRefusal> {
    match terminal_safe::refused(said) {
        Some(character) => Err(SpecRefusal::Character { text: text(), character }),
        None => Ok(()),
    }
}

/// Refuses texts that are too long. What goes into a frame is JSON, and so its bytes are counted as JSON.
pub(crate) fn check_text(text: Text, said: Option<&str>, most: u32) -> Result<(), SpecRefusal> {
    let bytes = said.map_or(0, text_bytes);
    if bytes > most as usize { Err(SpecRefusal::TextTooLarge { text, bytes, most }) } else { Ok(()) }
}

fn check_size(text: Text, said: Option<&str>, most: usize) -> Result<(), SpecRefusal> {
    match said {
        Some(said) if said.len() > most => Err(SpecRefusal::TooLong { text, bytes: said.len(), most }),
        _ => Ok(()),
    }
}

fn check_name(name: &str) -> Result<(), SpecRefusal> {
    let fits = name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if name.parse::<RunId>().is_ok() {
        return Err(SpecRefusal::NameIsId { name: name.to_owned() });
    }
    if fits { Ok(()) } else { Err(SpecRefusal::NameForm { name: short(name) }) }
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), SpecRefusal> {
    if labels.len() > MOST_LABELS {
        return Err(SpecRefusal::TooManyLabels { most: MOST_LABELS });
    }
    match labels.iter().find(|(k, v)| k.is_empty() || k.len() > 63 || v.len() > 255 || k.contains(['=', ',', '\n'])) {
        Some((key, _)) => Err(SpecRefusal::Label { key: short(key) }),
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
