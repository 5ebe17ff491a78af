//! `stockade`: the thin binary over the library.

fn main() -> std::process::ExitCode {
    stockade::cli::main()
}
