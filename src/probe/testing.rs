//! Values and trees for this module's tests.

use crate::base::{ByteSize, HostPath, Millis, RelPath};
use crate::plan::Request;
use crate::policy::*;
use std::collections::BTreeMap;

pub(super) fn rel(path: &str) -> RelPath {
    RelPath::new(path).unwrap()
}

/// A directory with these files (empty) and directories (with a trailing slash).
pub(super) fn tree(names: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in names {
        let path = dir.path().join(name);
        if name.ends_with('/') {
            std::fs::create_dir_all(path).unwrap();
        } else {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
    }
    dir
}

pub(super) fn request(workspace: Option<&HostPath>) -> Request {
    Request {
        grants: Vec::new(),
        argv: vec!["true".into()],
        workspace: workspace.cloned(),
        workspace_explicit: true,
        at: None,
        cwd: None,
        binds: Vec::new(),
        tmpfs: Vec::new(),
        env: BTreeMap::new(),
        caller_env: Default::default(),
        root: None,
        tty: false,
        timeout: false,
    }
}

pub(super) fn policy() -> Policy {
    Policy {
        name: "test".into(),
        summary: String::new(),
        origins: Vec::new(),
        needs: BTreeMap::new(),
        user: InsideUser::Agent,
        hostname: "h".into(),
        time_namespace: false,
        root: RootPolicy { dir: None, etc: Vec::new(), toolchains: false },
        workspace: WorkspacePolicy {
            access: Access::Rw,
            protect: Vec::new(),
            protect_missing: ProtectMissing::Quarantine,
            hide: Vec::new(),
        },
        mounts: Vec::new(),
        caches: CachesPolicy { tools: Vec::new(), layer: CacheLayer::Throwaway, size: ByteSize(1 << 20) },
        env: EnvPolicy { pass: Vec::new(), set: BTreeMap::new(), heap_hints: false },
        network: NetworkPolicy { posture: Posture::Disabled, loopback: true, share_host: false },
        seccomp: SeccompPolicy { sets: Vec::new(), allow: Vec::new() },
        limits: Limits {
            memory: None,
            processes: None,
            cpu: None,
            wall: None,
            grace: Millis(0),
            output: None,
            output_action: OutputAction::Truncate,
            open_files: 1024,
            file_size: None,
            locked_memory: ByteSize(0),
            stack: ByteSize(8 << 20),
            scratch: ByteSize(1 << 20),
            scratch_inodes: 100,
            disk: None,
        },
        intents: Vec::new(),
        grants: Grants {
            intents: Vec::new(),
            ro: Vec::new(),
            rw: Vec::new(),
            env: Vec::new(),
            tmpfs: false,
            root: false,
            workspace: true,
        },
    }
}
