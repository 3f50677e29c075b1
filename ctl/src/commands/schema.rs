//! `schema`: prints the JSON Schema of the control protocol. Asks no daemon.

use clap::Args;
use harness_protocol::rpc::METHODS;
use harness_protocol::schema;

use crate::context::Ctx;
use crate::error::Failure;

/// Arguments of `schema`.
#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {
    /// Only this method, with its parameters and its result
    #[arg(value_name = "METHOD")]
    pub(crate) method: Option<String>,
}

pub(super) fn run(ctx: &mut Ctx, args: &SchemaArgs) -> Result<u8, Failure> {
    use std::io::Write;
    let document = match &args.method {
        None => schema::protocol(),
        Some(name) => schema::of_method(name).ok_or_else(|| {
            Failure::usage_hint(format!("there is no method {name:?}"), format!("the methods: {}", METHODS.join(" ")))
        })?,
    };
    if ctx.json {
        ctx.json(&document)?;
    } else {
        serde_json::to_writer_pretty(&mut ctx.out, &document).map_err(std::io::Error::from)?;
        writeln!(ctx.out)?;
    }
    ctx.done()
}
