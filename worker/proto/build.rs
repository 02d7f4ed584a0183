//! Compiles the contract without a protoc binary.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=worker.proto");
    let files = protox::compile(["worker.proto"], ["."])?;
    tonic_prost_build::configure()
        .bytes(".berth.worker.v1.Log.data")
        // Written by hand, without the value.
        .skip_debug([".berth.worker.v1.Secret", ".berth.worker.v1.RegistryAuth"])
        .compile_fds(files)?;
    Ok(())
}
