//! Package caches in the mount table: over the host's own a layer that takes what the command writes, or, where the
//! host has none, an empty directory.

use super::facts::{CachePlace, LayerFact, PathFacts};
use super::resolve::{PlanError, Table, below, check_target, home};
use super::types::{CacheLayer, CachePlan, FsOp, SourceIx};
use crate::base::{HostPath, OsBytes, RelPath, SandboxPath};
use crate::policy::{CACHES, Cache, Policy};

/// Whether the directory at `path` is a cache that gets a layer.
pub(super) fn is_one(paths: &PathFacts, path: &HostPath) -> bool {
    paths.caches.values().any(|c| matches!(c, CachePlace::Host { path: p, .. } if p == path))
}

/// The variables that name them.
pub(super) fn variables(caches: &[CachePlan]) -> impl Iterator<Item = (&'static str, OsBytes)> {
    caches.iter().filter(|c| c.layer != CacheLayer::Absent).filter_map(|plan| {
        let variable = CACHES.iter().find(|c| c.name == plan.name)?.variable?;
        Some((variable, plan.at.as_bytes().to_vec().into()))
    })
}

impl Table {
    /// Adds those of the policy.
    pub(super) fn caches(
        &mut self,
        policy: &Policy,
        paths: &PathFacts,
        layered: bool,
        workspace: Option<&SandboxPath>,
    ) -> Result<Vec<CachePlan>, PlanError> {
        let all = CACHES.iter().filter(|c| policy.caches.tools.contains(&c.tool));
        all.map(|cache| self.cache(cache, policy, paths, layered, workspace)).collect()
    }

    fn cache(
        &mut self,
        cache: &Cache,
        policy: &Policy,
        paths: &PathFacts,
        layered: bool,
        workspace: Option<&SandboxPath>,
    ) -> Result<CachePlan, PlanError> {
        let plan = |at, host, layer, note: Option<&str>| {
            Ok(CachePlan { name: cache.name, at, host, layer, note: note.map(str::to_owned) })
        };
        // A test holds the table to clean paths.
        let inside = RelPath::new(cache.inside).map(|rel| below(&home(policy.user), &rel));
        let inside = inside.map_err(|e| PlanError::Encoding(e.to_string()))?;
        let place = paths.caches.get(cache.name).unwrap_or(&CachePlace::Absent);
        if let (CachePlace::Workspace { rel }, Some(base)) = (place, workspace) {
            return plan(below(base, rel), true, CacheLayer::Workspace, None);
        }
        let (layer, note) = match paths.layers.get(cache.name).filter(|_| layered) {
            Some(LayerFact::Ready { path, fact }) => (Some((path, fact)), None),
            Some(LayerFact::Unavailable { why }) => (None, Some(why.as_str())),
            None => (None, None),
        };
        if let (CachePlace::Host { path, fact, credentials }, true) = (place, layered) {
            let at = if cache.variable.is_some() { path.as_sandbox() } else { inside };
            check_target(&at)?;
            let what = if layer.is_some() { CacheLayer::Kept } else { CacheLayer::Throwaway };
            if let Some(FsOp::Overlay { .. }) = self.ops.get(&(at.depth(), at.clone())) {
                // Two variables may name one directory.
                return plan(at, true, what, note);
            }
            let lower = self.source(path, fact, false, true);
            self.owned(lower);
            self.attached.push((fact.real.clone(), at.clone(), false));
            let layer = layer.map(|(path, fact)| self.source(path, fact, true, true));
            self.put(FsOp::Overlay { lower: Some(lower), layer, at: at.clone() })?;
            for (rel, kind) in credentials {
                self.pin_ancestors(&at, rel);
                let mask = below(&at, rel);
                self.ops.insert((mask.depth(), mask.clone()), FsOp::Mask { at: mask, kind: *kind });
            }
            return plan(at, true, what, note);
        }
        let note = if layered { note } else { Some("overlays do not work here") };
        let left_out = match place {
            CachePlace::LeftOut { path, why } => Some(format!("{path} is not used: {why}")),
            _ => None,
        };
        let note = left_out.as_deref().or(note);
        if let CachePlace::Host { path, .. } = place
            && paths.toolchains.iter().any(|t| t.path == *path)
        {
            return plan(path.as_sandbox(), true, CacheLayer::ReadOnly, note);
        }
        if self.foreign(&inside) {
            let note = "something else is mounted where it would be";
            return plan(inside, false, CacheLayer::Absent, Some(note));
        }
        if let Some((path, fact)) = layer {
            let layer = Some(self.source(path, fact, true, true));
            self.put(FsOp::Overlay { lower: None, layer, at: inside.clone() })?;
            return plan(inside, false, CacheLayer::Kept, note);
        }
        self.put(FsOp::Scratch { at: inside.clone(), mode: 0o755 })?;
        plan(inside, false, CacheLayer::Empty, note)
    }

    /// Notes that the source belongs to whoever it belongs to, which need not be the workspace's owner.
    pub(super) fn owned(&mut self, index: SourceIx) {
        if let Some(source) = self.sources.get_mut(index.0 as usize) {
            source.owner = Some((source.fact.uid, source.fact.gid));
        }
    }

    /// Whether `at` lies in, or is, a mount of the profile's or the caller's, in which nothing can be made.
    fn foreign(&self, at: &SandboxPath) -> bool {
        let over =
            |op: &&FsOp| at.is_within(op.at()) && !matches!(op, FsOp::Dir { .. } | FsOp::Symlink { .. });
        let nearest = self.ops.values().filter(over).max_by_key(|op| op.at().depth());
        nearest.is_some_and(|op| op.at() == at || !matches!(op, FsOp::Scratch { .. }))
    }
}
