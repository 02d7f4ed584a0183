//! Builds the crate again after a change of the migrations, which a macro embeds.

fn main() {
    println!("cargo::rerun-if-changed=../../../migrations");
}
