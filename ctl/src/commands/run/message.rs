//! `message`: sends a message to runs. A live run gets it; a finished one continues as a new run.

use harness_protocol::rpc::{MessageParams, method};

use crate::cli::runs::MessageArgs;
use crate::cli::select::{FilterArgs, SelectArgs};
use crate::commands::run::run_each::each;
use crate::commands::run::submit::{key_of, only_one};
use crate::context::Ctx;
use crate::error::Failure;
use crate::progress::after_submit;
use crate::select::{choose, confirm, only_name};
use crate::session::submit_once;
use crate::spec;

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &MessageArgs) -> Result<u8, Failure> {
    after_submit::check(&args.then)?;
    let Some((text, runs)) = args.words.split_last() else { return Err(Failure::usage("the message is missing")) };
    if text == "-" && runs.iter().any(|run| run == "-") {
        return Err(Failure::usage("the runs and the message cannot both come from standard input"));
    }
    let FilterArgs { labels, states, waiting_for, all } = &args.filter;
    let filter =
        FilterArgs { labels: labels.clone(), states: states.clone(), waiting_for: waiting_for.clone(), all: *all };
    let select = SelectArgs { runs: runs.to_vec(), filter };
    if runs.is_empty() && select.filter.selector(&[]) == Default::default() {
        return Err(Failure::usage_hint("a run or the message is missing", "harnessctl message RUN TEXT"));
    }
    let text = spec::text(text, "the message")?;
    let tell = |ctx: &mut Ctx, run: String| {
        let (key, first) = key_of(args.once.again)?;
        let params = MessageParams { run, text: text.clone(), submit_key: Some(key), first };
        submit_once::one::<method::RunMessage>(&mut ctx.session, params, args.once.retry_for)
    };
    if let Some(name) = only_name(&select) {
        let submitted = tell(ctx, name.to_owned())?;
        return after_submit::go_on(ctx, &submitted, &args.then, false);
    }
    only_one(args.once.again)?;
    let runs = choose(ctx, &select)?.runs;
    confirm(&select.filter.selector(&[]), runs.len(), args.yes, "tell")?;
    each(ctx, &runs, &args.then, "told", tell)
}
