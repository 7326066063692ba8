//! Passes the memory map of the target's machine to the linker.

use std::path::Path;
use std::{env, fs};

fn main() {
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let machine = match target.as_str() {
        "thumbv6m-none-eabi" => "microbit",
        "thumbv8m.main-none-eabi" => "mps2-an505",
        other => panic!("no machine for target {other}"),
    };
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let map = format!("memory/{machine}.x");
    fs::copy(&map, Path::new(&out).join("memory.x")).expect("the memory map can be copied");
    println!("cargo:rerun-if-changed={map}");
    println!("cargo:rustc-link-search={out}");
    println!("cargo:rustc-link-arg=-Tlink.x");
    println!("cargo:rustc-check-cfg=cfg(machine, values(\"microbit\", \"mps2-an505\"))");
    println!("cargo:rustc-cfg=machine=\"{machine}\"");
}
