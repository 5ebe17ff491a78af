//! A home, a tree and a state directory for tests of what the command line says: the binary runs there and nothing in a
//! sandbox.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The binary under test.
pub fn bin() -> PathBuf {
    std::env::var_os("STOCKADE_TEST_BIN")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_stockade")), PathBuf::from)
}

/// A home, a workspace and a state directory of one's own.
pub struct Place(tempfile::TempDir);

impl Place {
    /// Empty.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["home", "tree"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        Self(dir)
    }

    /// A path in it.
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    /// Makes a file and the directories above it.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.at(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// The binary with these arguments, in the tree, with little of an environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(bin());
        command
            .args(args)
            .current_dir(self.at("tree"))
            .env_clear()
            .env("HOME", self.at("home"))
            .env("PATH", "/usr/bin:/bin")
            .env("STOCKADE_STATE", self.at("state"))
            .stdin(Stdio::null());
        command
    }

    /// Runs it.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Exit code, output and messages with this place's own path replaced.
    pub fn transcript(&self, output: &Output) -> String {
        let text = |bytes: &[u8]| {
            String::from_utf8(bytes.to_vec()).unwrap().replace(&*self.at("").to_string_lossy(), "[PLACE]/")
        };
        format!(
            "exit {}\n---- stdout\n{}---- stderr\n{}",
            output.status.code().unwrap(),
            text(&output.stdout),
            text(&output.stderr)
        )
    }

    /// The transcript of a run.
    pub fn says(&self, args: &[&str]) -> String {
        self.transcript(&self.run(args))
    }

    /// Whether this host can plan the default profile; where it cannot, what it says is the doctor's business.
    pub fn plans(&self) -> bool {
        self.run(&["exec", "--dry-run", "--", "true"]).status.code() == Some(0)
    }
}

/// A document.
pub fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).unwrap()
}
