//! Executes inferences: asks the provider, or plays a script with the delays and faults that it names.

use std::time::Duration;

use harness_protocol::run::Usage;
use harness_protocol::script::Fault;
use harness_protocol::time::Span;
use tokio::time::sleep;

use super::deltas::Deltas;
use super::scripts::Scripts;
use crate::inference::dialects::Piece;
use crate::inference::http::{Client, Providers, Question};
use crate::process::Cancel;
use crate::prompt::{Completion, ErrorClass, InferenceError};
use crate::world::api::InferenceTask;

/// What a provider that refuses for its rate limit asks for.
const RATE_LIMIT: Span = Span::from_secs(1);
/// How long a provider that stalls is listened to.
const STALL: Duration = Duration::from_secs(60);

/// Asks the model. A cancel drops whatever is under way.
pub(super) async fn execute(
    (providers, scripts): (&Providers, &Scripts),
    task: &InferenceTask,
    attempt: u32,
    cancel: &mut Cancel,
    deltas: &mut Deltas,
) -> Result<Completion, InferenceError> {
    tokio::select! {
        biased;
        // How far it was is not known; the prompt is paid for.
        _ = cancel.wanted() => Err(InferenceError { answered: 1, ..error(ErrorClass::Never, "cancelled") }),
        answer = ask((providers, scripts), task, attempt, deltas) => answer,
    }
}

async fn ask(
    (providers, scripts): (&Providers, &Scripts),
    task: &InferenceTask,
    attempt: u32,
    deltas: &mut Deltas,
) -> Result<Completion, InferenceError> {
    let Some(served) = providers.get(&task.provider) else {
        return Err(error(ErrorClass::Never, format!("no provider is configured as {:?}", task.provider)));
    };
    let price = served.price(task.model.as_deref());
    let priced = |usage: Usage| Usage { cost_usd: price.map(|price| price.cost(&usage)), ..usage };
    let Some(client) = &served.client else {
        let mut completion = play(scripts, task, attempt, deltas).await?;
        // A script is free, unless the configuration gives the scripted provider a price.
        if price.is_some() {
            completion.usage = priced(completion.usage);
        }
        return Ok(completion);
    };
    match stream(client, task, deltas).await {
        Ok(completion) => Ok(Completion { usage: priced(completion.usage), ..completion }),
        Err(error) => Err(InferenceError { usage: error.usage.map(priced), ..error }),
    }
}

async fn stream(client: &Client, task: &InferenceTask, deltas: &mut Deltas) -> Result<Completion, InferenceError> {
    let question = Question {
        model: task.model.as_deref(),
        prompt: &task.prompt,
        tools: &task.tools,
        max_output_tokens: task.max_output_tokens,
        is_budgeted: task.is_budgeted,
    };
    let mut show = |piece: Piece<'_>| match piece {
        // What it notes for itself is not what it says.
        _ if task.is_summary => {}
        Piece::Text(text) => deltas.text(text),
        Piece::Reasoning(text) => deltas.reasoning(text),
    };
    client.ask(&question, &mut show).await
}

async fn play(
    scripts: &Scripts,
    task: &InferenceTask,
    attempt: u32,
    deltas: &mut Deltas,
) -> Result<Completion, InferenceError> {
    let Some(script) = &task.script else {
        let text =
            format!("provider {:?} plays scripts, and the run has none: submit it with --script FILE", task.provider);
        return Err(error(ErrorClass::Never, text));
    };
    let answer = scripts.answer(script, &task.prompt).await?;
    if let Some(fault) = answer.fault.filter(|_| attempt == 1) {
        return Err(suffer(fault, &answer.completion.text, deltas).await);
    }
    if answer.delay > Span::ZERO {
        sleep(answer.delay.to_std()).await;
    }
    deltas.text(&answer.completion.text);
    Ok(answer.completion)
}

async fn suffer(fault: Fault, text: &str, deltas: &mut Deltas) -> InferenceError {
    match fault {
        Fault::RateLimit => error(ErrorClass::RateLimit(Some(RATE_LIMIT)), "the script's provider refused: rate limit"),
        Fault::Overloaded => error(ErrorClass::Retry, "the script's provider refused: overloaded"),
        Fault::Cut => {
            let half = text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at);
            deltas.text(&text[..half]);
            error(ErrorClass::Retry, "the script's provider broke off in the middle of its answer")
        }
        Fault::Stall => {
            sleep(STALL).await;
            error(ErrorClass::Retry, "the script's provider said nothing for 60 s")
        }
    }
}

fn error(class: ErrorClass, message: impl Into<String>) -> InferenceError {
    InferenceError::new(class, message)
}
