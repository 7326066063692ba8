//! Gives the linker the memory of the machine that the target stands for.

use std::path::Path;
use std::{env, fs};

fn main() {
    let target = env::var("TARGET").expect("cargo names the target");
    let machine = match target.as_str() {
        "thumbv6m-none-eabi" => "microbit",
        "thumbv8m.main-none-eabi" => "mps2-an505",
        other => panic!("no machine is known for {other}"),
    };
    let out = env::var("OUT_DIR").expect("cargo names the folder for what is generated");
    let map = format!("memory/{machine}.x");
    fs::copy(&map, Path::new(&out).join("memory.x")).expect("the memory map can be copied");
    println!("cargo:rerun-if-changed={map}");
    println!("cargo:rustc-link-search={out}");
    println!("cargo:rustc-link-arg=-Tlink.x");
    println!("cargo:rustc-check-cfg=cfg(machine, values(\"microbit\", \"mps2-an505\"))");
    println!("cargo:rustc-cfg=machine=\"{machine}\"");
}
