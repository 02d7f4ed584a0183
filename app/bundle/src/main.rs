//! Makes the modules that browsers load from the compiled web app: one for each page that is loaded when it is first
//! visited, one for the rest, and the JavaScript that joins them.
//!
//! The libraries behind the programs `wasm-split-cli` and `wasm-bindgen` do the work. As dependencies they have the
//! versions of Cargo.lock, which wasm-bindgen's two halves must agree on.
use std::{error::Error, fs, path::PathBuf};

use clap::Parser;
use wasm_bindgen_cli_support::Bindgen;
use wasm_split_cli_support::Options;

/// Splits a compiled web app into modules for browsers.
#[derive(Parser)]
struct Arguments {
    /// The module that rustc made, linked with `--emit-relocs`.
    input: PathBuf,
    /// The folder to write to. It is made where it does not exist.
    output: PathBuf,
    /// The name of the main module, without an extension.
    #[arg(long, default_value = "berth_app")]
    name: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Arguments { input, output, name } = Arguments::parse();
    fs::create_dir_all(&output)?;
    let whole = fs::read(&input)?;
    let rest = output.join(format!("{name}.wasm"));
    let main_module = format!("./{name}.js");
    let mut options = Options::new(&whole);
    options.output_dir = &output;
    options.main_out_path = &rest;
    options.main_module = &main_module;
    // The report of all parts is of no use here.
    let _ = wasm_split_cli_support::transform(options)?;
    Bindgen::new()
        .web(true)?
        .input_path(&rest)
        .typescript(false)
        .keep_lld_exports(true)
        .demangle(false)
        .remove_name_section(true)
        .out_name(&name)
        .generate(&output)?;
    fs::remove_file(&rest)?;
    Ok(())
}
