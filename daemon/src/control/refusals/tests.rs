//! Compares every refusal with what a client gets of it: code, reason, subject, message.
#![cfg(test)]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use harness_protocol::blob::BlobHash;
use harness_protocol::id::{CallId, InteractionId, ReliefId, RunId, Seq, SubscriptionId};
use harness_protocol::interaction::{InteractionKind, Resolution};
use harness_protocol::limit::CallLimit;
use harness_protocol::rpc::{ConfigProblem, Reason, RpcError};
use harness_protocol::time::{Span, Timestamp};
use harness_protocol::variable::VariableError;
use serde_json::json;

use crate::refusal::{
    ConfigurationFault, Fault, HeldRequest, JournalRefusal as J, LaneRefusal as L, NameRefusal as N,
    NewRunRefusal as W, QuestionRefusal as Q, Refusal as R, RunRefusal as U, SpecRefusal as S,
    SubscriptionRefusal as B, Text, WorkdirRefusal as D,
};

/// A configuration with a mistake in line 3 of a file.
fn configuration(fault: ConfigurationFault) -> R {
    let problem = ConfigProblem { file: "/c.toml".to_owned(), line: Some(3), reason: "a mistake".to_owned() };
    R::Configuration { fault, why: "line 3".to_owned(), problems: vec![problem] }
}

#[test]
fn a_configuration_that_is_refused_tells_file_and_line_to_programs() {
    let error = RpcError::from(configuration(ConfigurationFault::Wrong));
    let told: Vec<_> = error.data.problems.iter().map(|problem| (problem.file.as_str(), problem.line)).collect();
    assert_eq!(told, [("/c.toml", Some(3))]);
}

/// A refusal, and what a client gets.
struct Row {
    refusal: R,
    code: i32,
    reason: &'static str,
    /// Its kind and its text; both are empty where there is none.
    subject: (&'static str, &'static str),
    message: &'static str,
}

/// Rows for all variants of one type. A variant without a row does not compile.
macro_rules! rows {
    ($type:ty: $($pattern:pat = $sample:expr => $code:literal $reason:literal $subject:expr, $message:expr;)+) => {{
        #[allow(unreachable_patterns, reason = "a variant may have several rows")]
        fn has_a_row(refusal: &$type) {
            match refusal {
                $($pattern => {})+
            }
        }
        vec![$({
            let sample: $type = $sample;
            has_a_row(&sample);
            assert!(matches!(&sample, $pattern), "{sample:?} is in another variant's row");
            Row { refusal: sample.into(), code: $code, reason: $reason, subject: $subject, message: $message }
        }),+]
    }};
}

const NONE: (&str, &str) = ("", "");
const TEXT: (&str, &str) = ("text", "abababababababababababababababababababababababababababababababab");
const RUN: (&str, &str) = ("run", "0000000000007");

const fn run() -> RunId {
    RunId::from_u64(7)
}

fn known() -> Vec<std::sync::Arc<str>> {
    vec!["a".into(), "b".into()]
}

fn names() -> Vec<Row> {
    let interaction = InteractionId::from_u64(9);
    let name = || "x\n".to_owned();
    rows! { N:
        N::NoRun { .. } = N::NoRun { name: name() } => -32001 "unknown-run" ("name", "x\n"), r#"no run "x\n""#;
        N::NoRunInTree { .. } = N::NoRunInTree { name: name() } => -32001 "unknown-run" ("name", "x\n"),
            r#"no run "x\n" in the caller's own tree, and a run sees no other"#;
        N::ChildName { .. } = N::ChildName { name: name(), runs: vec![run(), RunId::from_u64(8)] } =>
            -32001 "unknown-run" ("name", "x\n"),
            "a child run has the name \"x\\n\", and a name means only runs that operators submitted: use its id, \
             0000000000007, 0000000000008";
        N::NoRunYet = N::NoRunYet => -32001 "unknown-run" ("name", "@last"), "you have submitted no run";
        N::SeveralRuns { .. } = N::SeveralRuns { name: name(), runs: vec![run(), RunId::from_u64(8)] } =>
            -32002 "ambiguous-name" ("name", "x\n"), r#""x\n" may be any of 0000000000007, 0000000000008"#;
        N::NameAndId { .. } = N::NameAndId { name: "7".to_owned(), named: run(), other: RunId::from_u64(8) } =>
            -32002 "ambiguous-name" ("name", "7"),
            "\"7\" is the name of run 0000000000007 and the beginning of the id of run 0000000000008; give the \
             whole id";
        N::NameAndInteraction { .. } = N::NameAndInteraction { name: "7".to_owned(), interaction } =>
            -32002 "ambiguous-name" ("name", "7"),
            "\"7\" is the name of a run and the beginning of the id of the interaction 0000000000009; give the \
             whole id";
        N::SeveralInteractions { .. } =
            N::SeveralInteractions { name: "7".to_owned(), interactions: vec![interaction] } =>
            -32002 "ambiguous-name" ("name", "7"), r#""7" may be any of 0000000000009"#;
        N::NoInteraction { .. } = N::NoInteraction { name: "7".to_owned() } =>
            -32001 "unknown-interaction" ("name", "7"), r#"no interaction "7""#;
        N::NoCall { .. } = N::NoCall { run: run(), call: CallId::from_u64(3) } =>
            -32001 "unknown-call" ("call", "0000000000003"), "run 0000000000007 has no call 0000000000003";
        N::NoText { .. } = N::NoText { hash: BlobHash::new([0xab; 32]) } =>
            -32001 "unknown-text" TEXT,
            "there is no text abababababababababababababababababababababababababababababababab";
        N::NoProvider { .. } = N::NoProvider { provider: "p".to_owned(), known: known() } =>
            -32001 "unknown-provider" ("provider", "p"), r#"no provider "p" is configured; there are: a, b"#;
        N::NothingSelected = N::NothingSelected => -32602 "nothing-selected" NONE,
            "name the runs, or select them by label, by state, by what they wait for, or all";
        N::NothingToPrune = N::NothingToPrune => -32602 "nothing-selected" NONE,
            "name the runs, or select them by label, state or age, or all";
    }
}

fn specs() -> Vec<Row> {
    let provider = || "p".into();
    rows! { S:
        S::TextTooLarge { .. } = S::TextTooLarge { text: Text::Prompt, bytes: 9, most: 8 } =>
            -32602 "too-large" ("field", "prompt"),
            "the prompt has 9 bytes as JSON; at most 8 are taken (limits.text_bytes)";
        S::TooLong { .. } = S::TooLong { text: Text::ModelName, bytes: 9, most: 8 } =>
            -32602 "too-large" ("field", "model"), "the name of the model has 9 bytes; at most 8 are taken";
        S::SpecTooLarge { .. } = S::SpecTooLarge { bytes: 9, most: 8 } => -32602 "too-large" ("field", "spec"),
            "the specification takes 9 bytes as JSON; at most 8 are taken";
        S::Character { .. } = S::Character { text: Text::LabelValue("k".to_owned()), character: '\u{202e}' } =>
            -32602 "control-characters" ("field", "labels"),
            "the value of the label \"k\" has the character U+202E: no control characters, no changes of direction, \
             nothing invisible";
        S::Empty { .. } = S::Empty { text: Text::Message } =>
            -32602 "text-missing" ("field", "text"), "the message is empty";
        S::NoPrompt = S::NoPrompt => -32602 "text-missing" ("field", "prompt"), "a run needs a prompt, or a script";
        S::NameIsId { .. } = S::NameIsId { name: "0000000000007".to_owned() } =>
            -32602 "bad-name" ("name", "0000000000007"),
            r#""0000000000007" is an id, and cannot be a name"#;
        S::NameBeginsId { .. } = S::NameBeginsId { name: "0000".to_owned(), run: run() } =>
            -32602 "bad-name" ("name", "0000"),
            r#""0000" is the beginning of the id of run 0000000000007, and cannot be a name"#;
        S::NameForm { .. } = S::NameForm { name: "-".to_owned() } => -32602 "bad-name" ("name", "-"),
            "\"-\" cannot be a name: 1 to 63 letters, digits, dots, dashes and underscores, the first a letter \
             or digit";
        S::TooManyLabels { .. } = S::TooManyLabels { most: 64 } => -32602 "bad-label" ("field", "labels"),
            "a run has at most 64 labels";
        S::Label { .. } = S::Label { key: "a=".to_owned() } => -32602 "bad-label" ("label", "a="),
            r#"the label "a=" does not do: keys have 1 to 63 bytes without '=' and ',', values at most 255"#;
        S::NoSteps { .. } = S::NoSteps { field: "max_steps" } => -32602 "bad-limit" ("field", "max_steps"),
            "a limit on steps or tokens is at least 1";
        S::NoTime { .. } = S::NoTime { field: "deadline_seconds" } =>
            -32602 "bad-limit" ("field", "deadline_seconds"),
            "a limit on time is more than 0 seconds";
        S::Cost = S::Cost => -32602 "bad-limit" ("field", "max_cost_usd"),
            "a limit on cost is a number of USD, more than 0";
        S::CallLimit { .. } = S::CallLimit { limit: CallLimit::OpenFiles } =>
            -32602 "bad-limit" ("field", "open_files"),
            "the limit open_files is a number from 16 to 1048576";
        S::DeadlinePassed = S::DeadlinePassed => -32602 "deadline-passed" ("field", "deadline_at"),
            "its deadline has passed already";
        S::NoShare { .. } = S::NoShare { share: "s".to_owned(), known: known() } =>
            -32602 "unknown-share" ("share", "s"),
            r#"no share "s" is configured; there are: a, b"#;
        S::OtherShare { .. } = S::OtherShare { share: "s".to_owned(), of_parent: "t".to_owned() } =>
            -32602 "other-share" ("field", "share"),
            r#"a run inside another one is of that one's share, "t"; it cannot be of "s""#;
        S::NoProvider { .. } = S::NoProvider { provider: "p".to_owned(), known: known() } =>
            -32602 "unknown-provider" ("provider", "p"), r#"no provider "p" is configured; there are: a, b"#;
        S::NoTool { .. } = S::NoTool { tool: "t".to_owned(), known: known() } =>
            -32602 "unknown-tool" ("field", "tools"),
            r#"there is no tool "t"; there are: a, b"#;
        S::NoScript { .. } = S::NoScript { provider: provider() } => -32602 "script-missing" ("provider", "p"),
            r#"the provider "p" is scripted: give it a script (--script FILE)"#;
        S::NoModel { .. } = S::NoModel { provider: provider() } => -32602 "model-missing" ("provider", "p"),
            "no model is named: --model, or `model` in [provider.p]";
        S::NoPrice { .. } = S::NoPrice { provider: provider(), model: Some("m".into()) } =>
            -32602 "price-missing" ("provider", "p"),
            "the provider \"p\" has no price for the model \"m\", so --max-cost cannot be kept; set `price` in \
             [provider.p]";
        S::NoPrice { .. } = S::NoPrice { provider: provider(), model: None } =>
            -32602 "price-missing" ("provider", "p"),
            r#"the provider "p" has no price, so --max-cost cannot be kept; set `price` in [provider.p]"#;
        S::NoPriceOfFallback { .. } = S::NoPriceOfFallback { provider: provider(), fallback: "q".into() } =>
            -32602 "price-missing" ("provider", "q"),
            r#"the provider "q", which stands in for "p", has no price, so --max-cost cannot be kept"#;
        S::WorkdirNotAbsolute { .. } = S::WorkdirNotAbsolute { path: "here".to_owned() } =>
            -32602 "bad-workdir" ("path", "here"), r#"the working directory "here" is not absolute"#;
        S::Variable(_) = S::Variable(VariableError::Name("\"=\"".to_owned())) =>
            -32602 "bad-variable" ("field", "env"),
            r#""=" cannot be the name of an environment variable"#;
        S::Script { .. } = S::Script {
            reason: Reason::BadPattern, place: "turn 2".to_owned(), fault: "it is open".to_owned()
        } => -32602 "bad-pattern" ("script-place", "turn 2"), "turn 2: it is open";
        S::Script { .. } = S::Script {
            reason: Reason::PatternTooLarge, place: "turn 2".to_owned(), fault: "it is large".to_owned()
        } => -32602 "pattern-too-large" ("script-place", "turn 2"), "turn 2: it is large";
        S::Script { .. } = S::Script {
            reason: Reason::BadScript, place: "turn 2".to_owned(), fault: "it says nothing".to_owned()
        } => -32602 "bad-script" ("script-place", "turn 2"), "turn 2: it says nothing";
    }
}

fn new_runs() -> Vec<Row> {
    let parent = run();
    rows! { W:
        W::KeyLength = W::KeyLength => -32602 "bad-key" ("field", "idempotency_key"),
            "an idempotency key has 1 to 256 bytes";
        W::TwoKeys = W::TwoKeys => -32602 "bad-key" ("field", "submit_key"),
            "a submit has an idempotency key or a submit key, not both";
        W::SubmitKeyTaken = W::SubmitKeyTaken => -32003 "submit-key-taken" ("field", "submit_key"),
            "another caller has sent this submit key";
        W::KeyTaken { .. } = W::KeyTaken { run: run() } => -32003 "key-taken" RUN,
            "run 0000000000007 was submitted under this idempotency key with another specification";
        W::PassVariables { .. } = W::PassVariables { names: known() } => -32602 "pass-variables" ("variables", "a,b"),
            "the configuration wants variables of the client's environment sent along (tool.shell.pass)";
        W::NameTaken { .. } = W::NameTaken { name: "n".to_owned(), run: run() } => -32003 "name-taken" RUN,
            r#"the live run 0000000000007 has the name "n""#;
        W::Draining = W::Draining => -32006 "draining" NONE,
            "the daemon is draining; it takes new runs after `daemon undrain`";
        W::TooManyLive { .. } = W::TooManyLive { most: 2 } => -32006 "too-many-runs" ("setting", "limits.live_runs"),
            "2 runs are live already (limits.live_runs); try again when some have ended";
        W::TooManyLiveForChildren { .. } = W::TooManyLiveForChildren { live: 2 } =>
            -32006 "too-many-runs" ("setting", "limits.live_runs"),
            "2 runs are live already, and the rest of limits.live_runs is kept for operators; try again when some \
             have ended";
        W::TooManyKept { .. } = W::TooManyKept { root: run(), kept: 3 } => -32006 "too-many-kept" RUN,
            "3 finished runs are kept for what is live of the tree of run 0000000000007 (limits.finished_runs); \
             it gets more when that has ended";
        W::ParentGone { .. } = W::ParentGone { parent } =>
            -32004 "parent-ended" RUN, "the parent 0000000000007 is gone";
        W::ParentEnded { .. } = W::ParentEnded { parent } => -32004 "parent-ended" RUN,
            "the parent 0000000000007 has ended";
        W::ParentBeingEnded { .. } = W::ParentBeingEnded { parent } => -32004 "parent-ended" RUN,
            "the parent 0000000000007 is being ended";
        W::TooManyLevels { .. } = W::TooManyLevels { most: 8 } =>
            -32602 "too-many-levels" ("setting", "limits.depth"),
            "a tree of runs has at most 8 levels (limits.depth)";
        W::TooManyChildren { .. } = W::TooManyChildren { most: 8 } =>
            -32602 "too-many-children" ("setting", "limits.children"), "a run has at most 8 children (limits.children)";
    }
}

fn workdirs() -> Vec<Row> {
    const FIELD: (&str, &str) = ("field", "workdir");
    let path = || "/w".to_owned();
    let folder = |inode| Box::new(harness_protocol::folder::FolderId { device: 1, inode, boot: None });
    rows! { D:
        D::Other { .. } = D::Other { path: path(), found: folder(2), wanted: folder(3) } =>
            -32602 "other-folder" FIELD,
            "\"/w\" is another folder for the daemon than for you (here: device 1, inode 2; yours: device 1, inode \
             3): the daemon runs in another mount namespace (a container? a sandbox? a service with a /tmp of its \
             own?), or the folder was replaced at this moment; start a daemon where you are, with a socket and a \
             state directory of its own (HARNESS_SOCKET, HARNESS_STATE_DIR), or submit from where the daemon runs";
        D::NotThere { .. } = D::NotThere { path: path(), why: "does not exist".to_owned(), there: false } =>
            -32602 "no-workdir" FIELD, "the working directory \"/w\" does not exist (as the daemon sees it)";
        D::NotThere { .. } = D::NotThere { path: path(), why: "may not be entered".to_owned(), there: true } =>
            -32602 "no-workdir" FIELD,
            "the working directory \"/w\" may not be entered for the daemon, though it is there for you: the daemon \
             runs as another user, or in another mount namespace (a container? a sandbox?); start a daemon where you \
             are, with a socket and a state directory of its own (HARNESS_SOCKET, HARNESS_STATE_DIR)";
        D::Silent { .. } = D::Silent { path: path(), why: "gives no answer for 5 s".to_owned() } =>
            -32006 "workdir-silent" FIELD,
            "the working directory \"/w\" gives no answer for 5 s; try again later, or submit from another folder";
        D::StillLooking = D::StillLooking => -32006 "workdir-silent" FIELD,
            "an earlier look of this connection at a working directory has not ended yet: it gives no answer; use \
             another connection";
        D::NoDescriptor = D::NoDescriptor => -32602 "no-descriptor" FIELD,
            "the request says that its working directory comes beside it as a descriptor, and none came";
        D::NoFolderPassed = D::NoFolderPassed => -32602 "no-descriptor" FIELD,
            "the descriptor that came beside the request is none of a directory";
    }
}

fn runs() -> Vec<Row> {
    let run = run();
    rows! { U:
        U::Gone { .. } = U::Gone { run } => -32004 "run-gone" RUN, "run 0000000000007 is gone";
        U::NotHere { .. } = U::NotHere { run } => -32001 "run-gone" RUN, "run 0000000000007 is gone";
        U::Pruned { .. } = U::Pruned { run } => -32001 "run-gone" RUN, "run 0000000000007 was pruned";
        U::NotEnded { .. } = U::NotEnded { run } => -32602 "not-ended" RUN,
            "run 0000000000007 has not ended; a retry is of a finished one";
        U::OfAnotherRun { .. } = U::OfAnotherRun { run, parent: RunId::from_u64(8) } => -32602 "child-run" RUN,
            "run 0000000000007 was submitted by the run 0000000000008, and a retry of it is a run of yours: where \
             that is meant, name it by its whole id, or say --children where it is to get variables of your \
             environment";
        U::TooManyMessages { .. } = U::TooManyMessages { run } => -32006 "too-many-messages" RUN,
            "run 0000000000007 has too many messages that its model has not read yet";
        U::BeingEnded { .. } = U::BeingEnded { run } => -32004 "being-ended" RUN, "run 0000000000007 is being ended";
        U::NoTranscript { .. } = U::NoTranscript { run } => -32602 "no-transcript" RUN,
            "run 0000000000007 has no transcript to go on from";
        U::Live { .. } = U::Live { run } => -32004 "not-ended" RUN, "run 0000000000007 is live; cancel it first";
        U::TreeLive { .. } = U::TreeLive { run } => -32004 "tree-live" RUN,
            "run 0000000000007 stays: something of its tree is live and may ask for its answer";
        U::PartOfTree { .. } = U::PartOfTree { run: RunId::from_u64(8), root: run } => -32602 "part-of-tree" RUN,
            "run 0000000000008 belongs to the tree of 0000000000007, which goes as a whole: prune that";
    }
}

fn questions() -> Vec<Row> {
    const ASKED: (&str, &str) = ("interaction", "0000000000009");
    let (interaction, run) = (InteractionId::from_u64(9), run());
    rows! { Q:
        Q::AsksNothing { .. } = Q::AsksNothing { run } => -32004 "asks-nothing" RUN, "run 0000000000007 asks nothing";
        Q::Answered { .. } = Q::Answered { interaction, by: Some(5), at: Timestamp::default() } =>
            -32004 "already-answered" ASKED, "user 5 answered 0000000000009 first, at 1970-01-01T00:00:00.000000Z";
        Q::Answered { .. } = Q::Answered { interaction, by: None, at: Timestamp::default() } =>
            -32004 "already-answered" ASKED, "somebody answered 0000000000009 first, at 1970-01-01T00:00:00.000000Z";
        Q::NoLongerAsked { .. } = Q::NoLongerAsked { interaction, run } => -32004 "no-longer-asked" ASKED,
            "0000000000009 is no longer asked: run 0000000000007 has ended";
        Q::Expired { .. } = Q::Expired { interaction, at: Timestamp::default() } => -32004 "no-longer-asked" ASKED,
            "0000000000009 is no longer asked: its time was up at 1970-01-01T00:00:00.000000Z";
        Q::Unfit { .. } = Q::Unfit {
            interaction, kind: InteractionKind::Approval, resolution: Resolution::Answered
        } => -32602 "resolution-unfit" ASKED,
            "0000000000009 is of the kind approval, which is not settled as answered: harnessctl reply 0000000000009 \
             --allow (or --deny)";
        Q::NoScope { .. } = Q::NoScope { interaction } => -32602 "resolution-unfit" ASKED,
            "an answer to 0000000000009 has no scope: only what is allowed or denied has one";
        Q::Gone { .. } = Q::Gone { interaction } =>
            -32004 "unknown-interaction" ASKED, "no interaction 0000000000009";
    }
}

fn lanes() -> Vec<Row> {
    const LANE: (&str, &str) = ("lane", "l");
    let lane = || "l".into();
    rows! { L:
        L::NoLane { .. } = L::NoLane { lane: lane(), known: known() } => -32001 "unknown-lane" LANE,
            r#"no lane "l"; there are: a, b"#;
        L::ReliefForNoTime { .. } = L::ReliefForNoTime { lane: lane() } => -32602 "bad-relief" LANE,
            "a relief lasts for more than 0 seconds, or for good";
        L::ReliefTooLong { .. } = L::ReliefTooLong { lane: lane(), days: 366 } => -32602 "bad-relief" LANE,
            "a relief lasts for at most 366 days; leave the time out for one that is to stay";
        L::ReliefTooWide { .. } = L::ReliefTooWide { lane: lane(), most: 4 } => -32602 "bad-relief" LANE,
            "a relief adds at most 4 permits";
        L::TooManyReliefs { .. } = L::TooManyReliefs { lane: lane(), most: 64 } => -32006 "too-many-reliefs" LANE,
            "lane l has 64 reliefs in force; undo some, or resize it";
        L::NoRelief { .. } = L::NoRelief { lane: lane(), relief: ReliefId::from_u64(5) } =>
            -32004 "unknown-relief" ("relief", "0000000000005"), "no relief 0000000000005 of lane l is in force";
        L::TooWide { .. } = L::TooWide { lane: lane(), most: 4 } =>
            -32602 "bad-width" LANE, "a lane is at most 4 wide";
        L::TooNarrow { .. } = L::TooNarrow { lane: lane() } => -32602 "bad-width" LANE,
            "a lane is at least 1 wide; to stop granting: harnessctl lane pause l";
    }
}

fn subscriptions() -> Vec<Row> {
    // All kinds are listed, which a new event changes.
    let no_kind = Box::leak(B::NoKind { kind: "no-kind".to_owned() }.to_string().into_boxed_str());
    assert!(no_kind.starts_with(r#"no kind of event is called "no-kind"; there are: daemon-started, "#), "{no_kind}");
    rows! { B:
        B::OneOrSeveral = B::OneOrSeveral => -32602 "bad-subscription" NONE,
            "a subscription is of one run, or of several";
        B::TreeTooLarge { .. } = B::TreeTooLarge { most: 4 } => -32602 "tree-too-large" NONE,
            "the tree has more than 4 runs; follow all events, or a part of the tree";
        B::NotHappened { .. } = B::NotHappened { after: Seq(9), last: Seq(3) } =>
            -32004 "event-not-happened" ("event", "9"), "event 9 has not happened; the last one is 3";
        B::NoKind { .. } = B::NoKind { kind: "no-kind".to_owned() } =>
            -32602 "unknown-event-kind" ("event-kind", "no-kind"), no_kind;
        B::TooMany { .. } = B::TooMany { most: 4 } =>
            -32006 "too-many-subscriptions" ("setting", "limits.subscriptions_per_connection"),
            "a connection has at most 4 subscriptions (limits.subscriptions_per_connection)";
        B::NoneSuch { .. } = B::NoneSuch { subscription: SubscriptionId(6) } =>
            -32001 "unknown-subscription" ("subscription", "6"), "no such subscription";
    }
}

fn journal() -> Vec<Row> {
    let held =
        |why: Option<&str>, request| J::Held { why: why.map(str::to_owned), retry: Span::from_secs(10), request };
    rows! { J:
        J::Unreadable { .. } = J::Unreadable { why: "/j is damaged".to_owned() } => -32603 "journal-unreadable" NONE,
            "/j is damaged";
        J::NotRead = J::NotRead => -32603 "journal-unreadable" NONE, "the journal could not be read";
        J::Records { .. } = J::Records { run: run() } => -32603 "journal-unreadable" RUN,
            "the records of run 0000000000007 cannot be read";
        J::Text { .. } = J::Text { hash: BlobHash::new([0xab; 32]), why: "it is missing".to_owned() } =>
            -32603 "journal-unreadable" TEXT, "it is missing";
        J::Output { .. } = J::Output { why: "gone".to_owned() } => -32603 "output-unreadable" NONE,
            "the output cannot be read: gone";
        J::OutputNotRead = J::OutputNotRead => -32603 "output-unreadable" NONE, "the output could not be read";
        J::Held { .. } = held(Some("it is full"), HeldRequest::Refused) =>
            -32007 "journal-held" NONE, "held: it is full";
        J::Held { .. } = held(None, HeldRequest::Refused) =>
            -32007 "journal-held" NONE, "held: the journal cannot commit";
        J::Held { .. } = held(Some("it is full"), HeldRequest::NotRead) => -32007 "journal-held" NONE,
            "held: it is full; what is not in memory is not read";
        J::Held { .. } = held(Some("it is full"), HeldRequest::Undecided) => -32007 "journal-held" NONE,
            "held: it is full; what was asked may still take effect once it commits";
        J::BackupNotAbsolute { .. } = J::BackupNotAbsolute { path: "b".to_owned() } =>
            -32602 "backup-failed" ("path", "b"), r#""b" is not absolute"#;
        J::Backup { .. } = J::Backup { path: "/b".to_owned(), why: "File exists".to_owned() } =>
            -32602 "backup-failed" ("path", "/b"), "/b: File exists";
    }
}

fn whole() -> Vec<Row> {
    let mut rows = rows! { Fault:
        Fault::OtherReply = Fault::OtherReply => -32603 "fault" NONE, "the world answered something else";
        Fault::OtherRequest = Fault::OtherRequest => -32603 "fault" NONE, "this call was not expected here";
        Fault::CheckLost = Fault::CheckLost => -32603 "fault" NONE, "an internal error (bug) ended the check";
    };
    let partly = R::Partly { done: 200, why: Box::new(R::Stopping { undecided: true }) };
    rows.extend(rows! { R:
        R::Name(_) = N::NoRunYet.into() => -32001 "unknown-run" ("name", "@last"), "you have submitted no run";
        R::Spec(_) = S::NoPrompt.into() =>
            -32602 "text-missing" ("field", "prompt"), "a run needs a prompt, or a script";
        R::NewRun(_) = W::KeyTaken { run: run() }.into() => -32003 "key-taken" RUN,
            "run 0000000000007 was submitted under this idempotency key with another specification";
        R::Workdir(_) = D::NoFolderPassed.into() => -32602 "no-descriptor" ("field", "workdir"),
            "the descriptor that came beside the request is none of a directory";
        R::Run(_) = U::Gone { run: run() }.into() => -32004 "run-gone" RUN, "run 0000000000007 is gone";
        R::Question(_) = Q::AsksNothing { run: run() }.into() => -32004 "asks-nothing" RUN,
            "run 0000000000007 asks nothing";
        R::Lane(_) = L::TooWide { lane: "l".into(), most: 4 }.into() => -32602 "bad-width" ("lane", "l"),
            "a lane is at most 4 wide";
        R::Subscription(_) = B::OneOrSeveral.into() => -32602 "bad-subscription" NONE,
            "a subscription is of one run, or of several";
        R::Journal(_) = J::NotRead.into() => -32603 "journal-unreadable" NONE, "the journal could not be read";
        R::Fault(_) = Fault::OtherReply.into() => -32603 "fault" NONE, "the world answered something else";
        R::OwnTreeOnly { .. } = R::OwnTreeOnly { run: Some(run()) } => -32005 "own-tree-only" RUN,
            "this comes from a tool of run 0000000000007, which may only submit children of it and look at its own \
             tree";
        R::OwnTreeOnly { .. } = R::OwnTreeOnly { run: None } => -32005 "own-tree-only" NONE,
            "a tool of a run may submit children of it and look at its own tree, nothing else";
        R::Configuration { .. } = configuration(ConfigurationFault::Wrong) =>
            -32602 "bad-configuration" ("path", "/c.toml"), "the configuration stays as it was: line 3";
        R::Configuration { .. } = configuration(ConfigurationFault::Silent) =>
            -32006 "configuration-silent" ("path", "/c.toml"), "the configuration stays as it was: line 3";
        R::Configuration { .. } = configuration(ConfigurationFault::Ours) =>
            -32603 "fault" ("path", "/c.toml"), "the configuration stays as it was: line 3";
        R::Stopping { .. } = R::Stopping { undecided: false } => -32006 "stopping" NONE,
            "the daemon is stopping; try again";
        R::Partly { .. } = partly => -32006 "stopping" NONE,
            "the daemon is stopping; try again; 200 runs were changed before, the rest is as it was; ask again for \
             those";
    });
    rows
}

fn all() -> Vec<Row> {
    [names(), specs(), new_runs(), workdirs(), runs(), questions(), lanes(), subscriptions(), journal(), whole()]
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn each_refusal_has_its_code_reason_subject_and_message() {
    for Row { refusal, code, reason, subject, message } in all() {
        let told = format!("{refusal:?}");
        let error = serde_json::to_value(RpcError::from(refusal)).unwrap();
        let text = |field: &str| error["data"][field].as_str().unwrap_or_default().to_owned();
        assert_eq!((error["code"].clone(), text("reason")), (json!(code), reason.to_owned()), "{told}");
        assert_eq!((text("subject_kind").as_str(), text("subject").as_str()), subject, "{told}");
        assert_eq!(error["message"], message, "{told}");
    }
}

#[test]
fn a_refusal_that_may_take_effect_or_be_over_soon_says_so() {
    let held = |request| R::from(J::Held { why: None, retry: Span::from_secs(10), request });
    let partly = |why| R::Partly { done: 1, why: Box::new(why) };
    for (refusal, seconds, undecided) in [
        (held(HeldRequest::Refused), Some(10), false),
        (held(HeldRequest::Undecided), Some(10), true),
        (partly(held(HeldRequest::Undecided)), Some(10), true),
        (R::Stopping { undecided: false }, Some(1), false),
        (R::Stopping { undecided: true }, Some(1), true),
        (W::Draining.into(), Some(30), false),
        (W::TooManyLive { most: 1 }.into(), Some(5), false),
        (U::TooManyMessages { run: run() }.into(), Some(5), false),
        (D::StillLooking.into(), Some(30), false),
        (N::NoRunYet.into(), None, false),
    ] {
        let error = RpcError::from(refusal);
        let retry = error.data.retry_after_seconds;
        assert_eq!((retry, error.data.undecided), (seconds.map(Span::from_secs), undecided), "{error}");
    }
}

/// The reasons that the connection itself gives, beside those of this table: `tests/behaviour/refusals.rs` sees them.
const OF_THE_CONNECTION: &[Reason] = &[
    Reason::BadRequest,
    Reason::UnknownMethod,
    Reason::BadParams,
    Reason::OtherVersion,
    Reason::UserNotAllowed,
    Reason::CallerUnknown,
    Reason::TooManyConnections,
    Reason::NoMemory,
    Reason::TooManyWaits,
    Reason::AnswerTooLarge,
];

#[test]
fn every_reason_is_given_by_something() {
    let given = all().into_iter().filter_map(|row| RpcError::from(row.refusal).data.reason);
    let given: BTreeSet<Reason> = given.chain(OF_THE_CONNECTION.iter().copied()).collect();
    assert_eq!(given, Reason::ALL.iter().copied().collect());
}
