//! The plain binary, without Python.

fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(unisono_cli::run(std::env::args_os()))
}
