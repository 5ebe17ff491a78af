//! Grants by intent as data: things of the caller's that a command may be given by a name that says what for, instead of
//! by the paths, variables and system calls that they come to. Each opens something that the sandbox closes otherwise.

use super::caches::Word;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! intents {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $opens:literal;)+) => {
        /// What may be granted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Intent { $($(#[$doc])* $variant),+ }

        impl Intent {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in profiles and of `--grant`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// What it opens, in one line for whoever grants it.
            pub fn opens(self) -> &'static str {
                match self { $(Self::$variant => $opens),+ }
            }
        }
    };
}

intents! {
    /// Chromium's own sandbox.
    Browser = "browser",
        "user, PID and network namespaces of the command's own, in which it has every capability, and chroot: what a browser builds its sandbox of, and more of the kernel than any other command reaches";
    /// The caller's `ssh-agent`.
    SshAgent = "ssh-agent",
        "the caller's ssh-agent: the command can sign with every key in it, add, remove and lock keys; it cannot read one";
    /// What `git credential-store` holds.
    GitCredentials = "git-credentials",
        "the files in which git stores user names and passwords, to read: all of them, for every host";
    /// Render nodes and their kin.
    Gpu = "gpu",
        "the graphics devices of the host (render nodes, NVIDIA and AMD compute nodes): their drivers are a large part of the kernel, and what other programs left in their memory may be readable";
    /// The X server.
    X11 = "x11",
        "the X server: its clients see, and type into, each other's windows, the caller's terminals among them";
    /// The Wayland compositor.
    Wayland = "wayland",
        "the Wayland compositor: windows, the clipboard, and whatever further protocols it offers to its clients";
}

impl Word for Intent {
    const ALL: &'static [Self] = Intent::ALL;
    const WHAT: &'static str = "something that can be granted";

    fn name(self) -> &'static str {
        Intent::name(self)
    }
}

impl std::str::FromStr for Intent {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|i| i.name() == name).ok_or(())
    }
}

impl Serialize for Intent {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Intent {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?
            .parse()
            .map_err(|()| serde::de::Error::custom("not something that can be granted"))
    }
}
