//! `stockade`: the thin binary over the library.
fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
