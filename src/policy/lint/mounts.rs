//! Mounts and the root: what their sources give away, and whether their targets can be.

use super::places::{self, Judged, Kind, Known, Reached, Relation};
use super::{Code, Is, Linter, Severity, Sight, Spot, some};
use crate::base::{HostPath, RelPath, SandboxPath};
use crate::policy::{InsideUser, MountEntry, Policy};
use std::path::{Path, PathBuf};

pub(super) fn lint(linter: &mut Linter<'_>, policy: &Policy) {
    let known = places::known(linter.around, &usual_names());
    if let Some(dir) = &policy.root.dir {
        let spot = linter.key("root.dir");
        let source = Judged::new(dir, linter.around);
        exposure(linter, &source, How::ReadOnly, &spot, &known);
        fitness(linter, &source, false, true, &spot);
    }
    for entry in &policy.mounts {
        let (source, how, optional) = match entry {
            MountEntry::Bind { source, writable: true, optional, .. } => (source, How::Writable, *optional),
            MountEntry::Bind { source, optional, .. } => (source, How::ReadOnly, *optional),
            MountEntry::Overlay { source, .. } => (source, How::Overlay, false),
            _ => continue,
        };
        let spot = linter.mount(entry.target(), "source");
        let source = Judged::new(source, linter.around);
        exposure(linter, &source, how, &spot, &known);
        fitness(linter, &source, optional, how == How::Overlay, &spot);
    }
    for name in &policy.root.etc {
        let Ok(path) = HostPath::new(Path::new("/etc").join(name.as_path())) else { continue };
        let judged = Judged { said: path, others: Vec::new(), sight: Sight::Unknown };
        let mut secrets = places::reached(&judged, &known);
        secrets.retain(|r| r.kind == Kind::Secret);
        if !secrets.is_empty() {
            let spot = linter.entry("root.etc", name.as_bytes());
            let message = format!("`/etc/{name}` {}", said_of(&secrets));
            linter.report(Code::Secret, spot, message);
        }
    }
    contents(linter, policy);
    targets(linter, policy);
    undone(linter, policy);
}

/// How a source is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    ReadOnly,
    Writable,
    /// Writes go elsewhere, and a socket seen through it is another one.
    Overlay,
}

/// Names that a workspace protects or hides mean the same in a home.
fn usual_names() -> Vec<(String, Kind, &'static str)> {
    let Some(usual) = super::reference() else { return Vec::new() };
    let below_home = |path: &RelPath| format!("~/{}", path.as_path().to_string_lossy());
    let runs = usual.workspace.protect.iter().map(|p| (below_home(p), Kind::Runs, "a start file or hook"));
    let hidden = usual.workspace.hide.iter().map(|p| (below_home(p), Kind::Secret, "a secret"));
    runs.chain(hidden).collect()
}

/// "is …" or "holds …".
fn said_of(reached: &[Reached]) -> String {
    // The last is the most particular: places stand before what lies below them.
    if let Some(one) = reached.iter().rev().find(|r| r.relation == Relation::In) {
        let verb = match one.kind {
            Kind::Engine | Kind::Session => "is a socket of",
            Kind::Runs => "belongs to",
            _ => "is or holds",
        };
        return format!("{verb} {}", one.what);
    }
    let (here, elsewhere): (Vec<&Reached>, Vec<&Reached>) = reached.iter().partition(|r| r.here);
    let named = |list: &[&Reached]| some(list.iter().map(|r| format!("`{}` ({})", r.place, r.what)));
    match (&here[..], &elsewhere[..]) {
        ([], all) => format!("is where {} would be", named(all)),
        (here, []) => format!("holds {}", named(here)),
        (here, more) => {
            format!("holds {}, and is where {} more places of the kind would be", named(here), more.len())
        }
    }
}

/// What a source gives away.
fn exposure(linter: &mut Linter<'_>, source: &Judged, how: How, spot: &Spot, known: &[Known]) {
    let (writable, sockets) = (how == How::Writable, how != How::Overlay);
    let shown = source.shown();
    let whole = whole(linter, source);
    if let Some(what) = whole {
        linter.report(Code::WholeHome, spot.clone(), format!("{shown} is {what}"));
    }
    let mut reached = places::reached(source, known);
    if whole.is_some() {
        // A whole home or host holds everything; saying what would bury the point.
        reached.retain(|r| r.relation == Relation::In);
    }
    let of = |kind: Kind| reached.iter().filter(|r| r.kind == kind).cloned().collect::<Vec<_>>();
    for (kind, code) in [(Kind::Engine, Code::ContainerEngine), (Kind::Session, Code::Session)] {
        let found = of(kind);
        if sockets && !found.is_empty() {
            linter.report(code, spot.clone(), format!("{shown} {}", said_of(&found)));
        }
    }
    let named = reached.iter().any(|r| matches!(r.kind, Kind::Engine | Kind::Session | Kind::Own));
    if sockets && source.is() == Some(Is::Socket) && !named {
        linter.report(Code::UnknownSocket, spot.clone(), format!("{shown} is a socket"));
    }
    own(linter, source, writable, spot, &of(Kind::Own));
    kernel(linter, source, writable, spot, &of(Kind::Kernel));
    let secrets = of(Kind::Secret);
    if !secrets.is_empty() {
        linter.report(Code::Secret, spot.clone(), format!("{shown} {}", said_of(&secrets)));
    }
    if writable {
        on_path(linter, source, spot, whole.is_some());
        let runs = of(Kind::Runs);
        if !runs.is_empty() {
            linter.report(
                Code::RunsOutside,
                spot.clone(),
                format!("{shown} is writable and {}", said_of(&runs)),
            );
        }
    }
    let temporary =
        source.forms().any(|form| places::TEMPORARY.iter().any(|t| form.as_path() == Path::new(t)));
    let dev = source
        .forms()
        .any(|form| form.as_path().starts_with("/dev") && !form.as_path().starts_with("/dev/shm"));
    if temporary {
        linter.report(
            Code::Temporary,
            spot.clone(),
            format!("{shown} is shared with every program of the host"),
        );
    } else if (dev || source.is() == Some(Is::Device)) && !named {
        linter.report(Code::Device, spot.clone(), format!("{shown} is a device, or holds them"));
    }
}

/// Whether it is a home, or more.
fn whole(linter: &Linter<'_>, source: &Judged) -> Option<&'static str> {
    if source.forms().any(|form| form.as_path() == Path::new("/")) {
        return Some("the whole host");
    }
    let is = |form: &HostPath, home: &Path| {
        places::relation(form.as_path(), home).is_some_and(|r| {
            r == Relation::Holds || form.as_path().components().count() == home.components().count()
        })
    };
    let home = linter.around.home.as_ref().map(|home| Judged::new(home, linter.around));
    let own = home.is_some_and(|home| {
        home.forms().any(|home| {
            source.forms().any(|form| form.as_path().starts_with("/") && is(form, home.as_path()))
        })
    });
    let any = places::homes(linter.around).iter().any(|home| source.forms().any(|form| is(form, home)));
    (own || any).then_some("a whole home, or holds one")
}

fn own(linter: &mut Linter<'_>, source: &Judged, writable: bool, spot: &Spot, known: &[Reached]) {
    let around = linter.around;
    let state = around.state.as_ref().map(|state| Judged::new(state, around));
    // What lies above the state directory is shown with a mask over it.
    let state =
        state.is_some_and(|state| state.forms().any(|s| source.relation(s.as_path()) == Some(Relation::In)));
    let profiles = || {
        let system = HostPath::new("/etc/stockade").ok();
        let dirs =
            around.profiles.iter().chain(&system).map(|dir| Judged::new(dir, around)).collect::<Vec<_>>();
        dirs.iter().any(|dir| dir.forms().any(|d| source.relation(d.as_path()).is_some()))
    };
    let shown = source.shown();
    if let Some(one) = known.iter().find(|r| r.relation == Relation::In) {
        linter.report(Code::Own, spot.clone(), format!("{shown} is {}", one.what));
    } else if state {
        linter.report(Code::Own, spot.clone(), format!("{shown} is Stockade's state"));
    } else if writable && profiles() {
        linter.report(
            Code::Own,
            spot.clone(),
            format!("{shown} is writable and is where Stockade's profiles lie"),
        );
    }
}

fn kernel(linter: &mut Linter<'_>, source: &Judged, writable: bool, spot: &Spot, known: &[Reached]) {
    let mounted = match &source.sight {
        Sight::There(seen) => places::kernel_file_system(seen.fs_magic),
        _ => None,
    };
    let named = known.iter().rev().find(|r| r.relation == Relation::In).map(|r| r.what.as_str());
    if let Some(what) = mounted.or(named) {
        let severity = if writable { Severity::Error } else { Severity::Warning };
        let how = if writable { "writable" } else { "read-only" };
        let message = format!("{} is {what}, {how}", source.shown());
        linter.report_as(Code::KernelInterface, severity, spot.clone(), message);
    }
}

fn on_path(linter: &mut Linter<'_>, source: &Judged, spot: &Spot, whole: bool) {
    let usual = places::PATH.iter().flat_map(|dir| places::expanded(dir, linter.around));
    let callers = linter.around.path.iter().flat_map(|dir| {
        Judged::new(dir, linter.around).forms().map(|f| f.as_path().to_path_buf()).collect::<Vec<_>>()
    });
    let mut hit: Vec<String> = callers
        .chain(usual)
        .filter(|dir| source.relation(dir).is_some_and(|r| !(whole && r == Relation::Holds)))
        .map(|dir: PathBuf| crate::base::text::visible(dir.as_os_str().as_encoded_bytes()))
        .collect();
    hit.sort();
    hit.dedup();
    if !hit.is_empty() {
        let message = format!(
            "{} is writable, and so {} of a PATH",
            source.shown(),
            some(hit.iter().map(|h| format!("`{h}`")))
        );
        linter.report(Code::OnPath, spot.clone(), message);
    }
}

/// Whether the source is there and of the right type.
fn fitness(linter: &mut Linter<'_>, source: &Judged, optional: bool, directory: bool, spot: &Spot) {
    let wrong = match &source.sight {
        Sight::Absent if !optional => "is not there",
        Sight::There(seen) if directory && seen.is != Is::Dir => "is not a directory",
        _ => return,
    };
    linter.report(Code::Source, spot.clone(), format!("{} {wrong}", source.shown()));
}

/// Secrets that the profile itself carries, or shows under a name that gives them away.
fn contents(linter: &mut Linter<'_>, policy: &Policy) {
    for entry in &policy.mounts {
        if let MountEntry::File { target, content, .. } = entry
            && let Some(what) = places::credential(content.as_bytes())
        {
            let spot = linter.mount(target, "content");
            linter.report(
                Code::SecretValue,
                spot,
                format!("the content for `{target}` has what looks like {what}"),
            );
        }
    }
}

/// Top-level names of the base root.
const TOP: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Those that a host always has.
const TOP_ALWAYS: [&str; 4] = ["/usr", "/bin", "/sbin", "/lib"];
/// Files that are made for the executor.
const MADE: [&str; 7] = [
    "/etc/passwd",
    "/etc/group",
    "/etc/hosts",
    "/etc/hostname",
    "/etc/resolv.conf",
    "/etc/nsswitch.conf",
    "/etc/machine-id",
];

fn targets(linter: &mut Linter<'_>, policy: &Policy) {
    let at = |entry: &MountEntry| entry.target().as_path().to_path_buf();
    let is_mask = |entry: &&MountEntry| matches!(entry, MountEntry::Mask { .. });
    for entry in &policy.mounts {
        let target = entry.target();
        if let Some(why) = refused(linter, policy, entry) {
            let spot = linter.mount(target, "target");
            linter.report(Code::MountRefused, spot, format!("nothing can be mounted at `{target}`: {why}"));
        }
        if is_mask(&entry) && covers_nothing(linter, policy, target) {
            let spot = linter.mount(target, "target");
            linter.report(Code::MaskOfNothing, spot, format!("the root has nothing at `{target}`"));
        }
        let above = policy
            .mounts
            .iter()
            .filter(is_mask)
            .find(|m| target != m.target() && at(entry).starts_with(at(m)));
        if let Some(mask) = above {
            let spot = linter.mount(target, "target");
            linter.report(
                Code::BelowMask,
                spot,
                format!("`{target}` lies below the mask of `{}`", mask.target()),
            );
        }
    }
}

/// Whether nothing is known to be where a mask is.
fn covers_nothing(linter: &Linter<'_>, policy: &Policy, target: &SandboxPath) -> bool {
    let path = target.as_path();
    let Ok(on_host) = HostPath::new(path) else { return false };
    let mounted = policy.mounts.iter().any(|m| m.target() != target && target.is_within(m.target()));
    let workspace = linter.around.workspace.as_ref().is_some_and(|w| path.starts_with(w.as_path()));
    // Another root may have anything.
    if policy.root.dir.is_some() || mounted || workspace {
        return false;
    }
    let listed =
        policy.root.etc.iter().any(|name| places::covers(&Path::new("/etc").join(name.as_path()), path));
    if TOP.iter().any(|top| path.starts_with(top)) || listed {
        return linter.around.look.look(&on_host) == Sight::Absent;
    }
    !MADE.iter().chain(&["/etc", "/tmp", "/run", "/home", "/root"]).any(|made| path == Path::new(made))
}

/// Why a mount at this target is always refused.
fn refused(linter: &Linter<'_>, policy: &Policy, entry: &MountEntry) -> Option<String> {
    let target = entry.target().as_path();
    // A directory where a directory is asks for nothing.
    let taken = taken(linter, policy, entry.target()).filter(|_| !matches!(entry, MountEntry::Dir { .. }));
    taken.or_else(|| behind(linter, policy, target))
}

/// Who has the target already, before any mount of the profile's.
fn taken(linter: &Linter<'_>, policy: &Policy, target: &SandboxPath) -> Option<String> {
    let look = |path: &HostPath| linter.around.look.look(path);
    let is = |path: &&str| target.as_path() == Path::new(path);
    let home = match policy.user {
        InsideUser::Agent => "/home/agent",
        InsideUser::Root => "/root",
    };
    let own = || Some("the executor's root has something of its own there".to_owned());
    if ["/tmp", "/run", home].iter().any(is) {
        return own();
    }
    // What another root has in its /etc is its own; where it has none, one is made.
    let lacks = match (&policy.root.dir, RelPath::new("etc")) {
        (Some(dir), Ok(etc)) => look(&dir.join(&etc)) == Sight::Absent,
        _ => true,
    };
    if MADE.iter().any(is) && lacks {
        return own();
    }
    if let Some(dir) = &policy.root.dir {
        // Each of its top-level names is a mount of its own.
        let name = target.below(&SandboxPath::root()).filter(|name| name.depth() == 1)?;
        let there = matches!(look(&dir.join(&name)), Sight::There(_));
        return there.then(|| format!("the root `{dir}` has something there"));
    }
    let there = HostPath::new(target.as_path()).map_or(Sight::Unknown, |path| look(&path));
    if TOP.iter().any(is) {
        return match there {
            Sight::There(_) => own(),
            Sight::Unknown if TOP_ALWAYS.iter().any(is) => own(),
            _ => None,
        };
    }
    let listed =
        policy.root.etc.iter().any(|name| Path::new("/etc").join(name.as_path()) == target.as_path());
    let shown = listed && matches!(there, Sight::There(_));
    shown.then(|| "`root.etc` shows the host's there".to_owned())
}

/// What stands on the way to the target and is no directory.
fn behind(linter: &Linter<'_>, policy: &Policy, target: &Path) -> Option<String> {
    let look = |path: &HostPath| linter.around.look.look(path);
    let strictly_below = |path: &Path| target != path && target.starts_with(path);
    let is_link = |name: &&str| {
        let sight = HostPath::new(name).map_or(Sight::Unknown, |path| look(&path));
        matches!(sight, Sight::There(seen) if seen.real.as_path() != Path::new(name))
    };
    let links = TOP.into_iter().filter(is_link);
    let mut links = links.filter(|link| policy.root.dir.is_none() && strictly_below(Path::new(link)));
    if let Some(link) = links.next() {
        return Some(format!("`{link}` is a symbolic link inside: name the directory that it leads to"));
    }
    policy.mounts.iter().find_map(|other| {
        let kind = match other {
            MountEntry::Symlink { .. } => "a symbolic link",
            MountEntry::File { .. } => "a file",
            MountEntry::Bind { source, .. } => match look(source) {
                Sight::There(seen) if seen.is != Is::Dir => "not a directory",
                _ => return None,
            },
            _ => return None,
        };
        strictly_below(other.target().as_path()).then(|| format!("`{}` is {kind}", other.target()))
    })
}

/// Read-only binds whose source is writable under another name.
fn undone(linter: &mut Linter<'_>, policy: &Policy) {
    let binds: Vec<(Judged, &SandboxPath, bool)> = policy
        .mounts
        .iter()
        .filter_map(|entry| match entry {
            MountEntry::Bind { source, target, writable, .. } => {
                Some((Judged::new(source, linter.around), target, *writable))
            }
            _ => None,
        })
        .collect();
    for (source, target, _) in binds.iter().filter(|(.., writable)| !writable) {
        let other = binds.iter().find(|(wide, wide_at, writable)| {
            // Where the read-only one is mounted over its own place in the writable one, it holds.
            let held = source.forms().any(|s| {
                wide.forms().any(|w| match s.below(w) {
                    Some(rest) => wide_at.join(&rest) == **target,
                    None => s == w && wide_at == target,
                })
            });
            let same = source.forms().any(|s| wide.forms().any(|w| s.is_within(w)));
            *writable && same && !held
        });
        if let Some((wide, wide_at, _)) = other {
            let message = format!(
                "{} is read-only at `{target}` and writable as part of {} at `{wide_at}`",
                source.shown(),
                wide.shown()
            );
            let spot = linter.mount(target, "target");
            linter.report(Code::ReadOnlyUndone, spot, message);
        }
    }
}
