//! From candidates to the policy: the chain of `extends`, then the project, then `--set`.

use super::error::{Fault, LibraryError, Place, PolicyError, near_profiles};
use super::merge::{Input, Mode, apply, blank, check_whole};
use super::types::{Origin, Policy};
use super::{EXTENDS_DEPTH_MAX, FLOOR_PROFILE, Setting, embedded, embedded_names, is_profile_name, shipped};
use crate::base::HostPath;
use crate::manifest::{ProfileFile, Spans, parse_profile};
use std::borrow::Cow;

/// A profile's bytes and where they came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Where from.
    pub origin: Origin,
    /// The file's content.
    pub bytes: Cow<'static, [u8]>,
    /// Which of the built-in ones it is.
    built_in: Option<&'static str>,
}

/// Finds profiles by name, in the order of [`super::search_path`]. The built-in ones need not be found:
/// they are what is looked at last.
pub trait Library {
    /// The profile called `name`, if there is one.
    ///
    /// # Errors
    /// When there is one but it can't be read.
    fn find(&self, name: &str) -> Result<Option<Candidate>, LibraryError>;
}

/// A library of the built-in profiles alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct EmbeddedOnly;

impl Library for EmbeddedOnly {
    fn find(&self, _: &str) -> Result<Option<Candidate>, LibraryError> {
        Ok(None)
    }
}

impl Candidate {
    /// What a file says.
    pub fn new(origin: Origin, bytes: Vec<u8>) -> Self {
        Self { origin, bytes: Cow::Owned(bytes), built_in: None }
    }

    /// The built-in profile of that name.
    pub fn embedded(name: &str) -> Option<Self> {
        let name = *embedded_names().iter().find(|n| **n == name)?;
        Some(Self {
            origin: Origin::Embedded,
            bytes: Cow::Borrowed(embedded(name)?.as_bytes()),
            built_in: Some(name),
        })
    }
}

/// One file that a policy was made from.
pub(super) struct Link {
    pub(super) origin: Origin,
    /// The name by which it was found; tells the built-in ones apart.
    pub(super) found_as: Option<String>,
    pub(super) file: ProfileFile,
}

/// A policy and the files that it was made from, the one that has the last word first.
pub(super) struct Layers {
    pub(super) links: Vec<Link>,
    pub(super) policy: Policy,
}

/// The files that extend one another, the caller's first, and the policy that they stand on: that of a built-in
/// profile, as it was merged beforehand, or the blank one.
struct Chain {
    links: Vec<Link>,
    base: Policy,
    built_in: Option<&'static str>,
}

/// The policy of `root` (the profile that the caller chose, or the default one), with what it extends below
/// it and `project` and `sets` on top, which may only narrow.
///
/// # Errors
/// The first fault, with its place, key and remedy.
pub fn load(
    root: Candidate,
    library: &dyn Library,
    project: Option<Candidate>,
    sets: &[Setting],
) -> Result<Policy, PolicyError> {
    let mut policy = merged(&chain(root, library, shipped::policy)?)?;
    if let Some(candidate) = project {
        policy = narrow_by_project(policy, candidate)?.0;
    }
    if !sets.is_empty() {
        // One by one, and looked at as a whole when all are in: two may make sense together only.
        for set in sets {
            policy = narrow(policy, &Input::set(&set.key, &set.doc))?;
        }
        check_whole(&policy, |_| Place::Set)?;
    }
    Ok(policy)
}

/// [`load`] without settings, with all files kept, those of the built-in profiles too.
pub(super) fn layers(
    root: Candidate,
    library: &dyn Library,
    project: Option<Candidate>,
) -> Result<Layers, PolicyError> {
    let chain = chain(root, library, |_| None)?;
    let mut policy = merged(&chain)?;
    let mut links = chain.links;
    if let Some(candidate) = project {
        let (narrowed, link) = narrow_by_project(policy, candidate)?;
        policy = narrowed;
        links.insert(0, link);
    }
    Ok(Layers { links, policy })
}

/// What a project's file may not say.
pub(super) const NOT_FOR_PROJECTS: [&str; 5] = ["name", "extends", "grants", "root.dir", "env.set"];

fn narrow_by_project(policy: Policy, candidate: Candidate) -> Result<(Policy, Link), PolicyError> {
    let Candidate { origin, bytes, .. } = candidate;
    let file = parse_profile(&bytes).map_err(|e| PolicyError::of_manifest(&origin, e))?;
    if let Some(key) = NOT_FOR_PROJECTS.into_iter().find(|key| file.spans.contains(key)) {
        return Err(PolicyError {
            place: place(&origin, &file.spans, key),
            key: Some(key.to_owned()),
            fault: Box::new(Fault::NotForProjects),
        });
    }
    let mut policy = narrow(policy, &Input::file(&origin, &file))?;
    check_whole(&policy, |key| place(&origin, &file.spans, key))?;
    policy.origins.push(origin.clone());
    Ok((policy, Link { origin, found_as: None, file }))
}

/// `base` with `input` on top, when that is within `base`.
pub(super) fn narrow(base: Policy, input: &Input<'_>) -> Result<Policy, PolicyError> {
    let result = apply(base.clone(), input, Mode::Narrow)?;
    match result.widenings(&base).into_iter().next() {
        None => Ok(result),
        Some(wider) => Err(PolicyError {
            place: input.place(&wider.key),
            key: Some(wider.key),
            fault: Box::new(Fault::Widens { profile: base.name, base: wider.base, asked: wider.asked }),
        }),
    }
}

fn place(origin: &Origin, spans: &Spans, key: &str) -> Place {
    Place::File { origin: origin.clone(), at: spans.at(key) }
}

/// What the files of a chain make of what they stand on.
fn merged(files: &Chain) -> Result<Policy, PolicyError> {
    let Chain { links, base, built_in } = files;
    let mut policy = base.clone();
    for link in links.iter().rev() {
        policy = apply(policy, &Input::file(&link.origin, &link.file), Mode::Extend)?;
    }
    if let Some(first) = links.first() {
        policy.name = profile_name(first)?;
    }
    policy.origins.splice(..0, links.iter().map(|link| link.origin.clone()));
    check_whole(&policy, |key| {
        // Only now are the built-in ones worth reading.
        let below = built_in.and_then(Candidate::embedded);
        let below = below.and_then(|root| chain(root, &EmbeddedOnly, |_| None).ok());
        let all = || links.iter().chain(below.iter().flat_map(|b| &b.links));
        // The file nearest to the caller that says something about it.
        match all().find(|l| l.file.spans.contains(key)).or_else(|| all().next()) {
            Some(link) => place(&link.origin, &link.file.spans, key),
            None => Place::File { origin: Origin::Embedded, at: None },
        }
    })?;
    Ok(policy)
}

fn chain(
    root: Candidate,
    library: &dyn Library,
    ready: fn(&str) -> Option<Policy>,
) -> Result<Chain, PolicyError> {
    let mut links: Vec<Link> = Vec::new();
    let mut next = Some((root, None::<String>));
    while let Some((candidate, found_as)) = next.take() {
        let Candidate { origin, bytes, built_in } = candidate;
        if let Some(name) = built_in
            && let Some(base) = ready(name)
            && links.len() + base.origins.len() <= EXTENDS_DEPTH_MAX
        {
            return Ok(Chain { links, base, built_in });
        }
        let file = parse_profile(&bytes).map_err(|e| PolicyError::of_manifest(&origin, e))?;
        let found_as = found_as.or_else(|| file.doc.name.clone());
        links.push(Link { origin, found_as, file });
        next = below(&links, library)?;
    }
    Ok(Chain { links, base: blank(), built_in: None })
}

/// A built-in profile as its file and those below it say; what `shipped` keeps.
#[cfg(test)]
pub(super) fn from_files(name: &str) -> Policy {
    merged(&chain(Candidate::embedded(name).unwrap(), &EmbeddedOnly, |_| None).unwrap()).unwrap()
}

/// What the last link of `chain` extends.
fn below(chain: &[Link], library: &dyn Library) -> Result<Option<(Candidate, Option<String>)>, PolicyError> {
    let Some(link) = chain.last() else { return Ok(None) };
    let fail = |fault| PolicyError {
        place: place(&link.origin, &link.file.spans, "extends"),
        key: Some("extends".to_owned()),
        fault: Box::new(fault),
    };
    let built_in = link.origin == Origin::Embedded;
    let name = match link.file.doc.extends.as_deref() {
        Some(name) if is_profile_name(name) => name,
        Some(name) => return Err(fail(Fault::ProfileName { name: super::check::shown(name) })),
        // A built-in profile without `extends` is complete. A file's gaps are filled by the strictest one.
        None if built_in => return Ok(None),
        None => {
            let floor = Candidate::embedded(FLOOR_PROFILE).map(|c| (c, Some(FLOOR_PROFILE.to_owned())));
            return Ok(floor);
        }
    };
    // Built-in profiles stand on built-in ones alone, so that a file called `offline` can't change `strict`.
    let mut found = if built_in { None } else { library.find(name).map_err(|e| fail(e.into()))? };
    if found.as_ref().is_some_and(|c| c.origin == link.origin) {
        // A file that extends its own name means the built-in profile that it shadows.
        found = None;
        if embedded(name).is_none() {
            return Err(fail(Fault::ExtendsCycle { name: name.to_owned() }));
        }
    }
    let found = found
        .or_else(|| Candidate::embedded(name))
        .ok_or_else(|| fail(Fault::UnknownProfile { name: name.to_owned(), near: near_profiles(name) }))?;
    let again = |l: &Link| {
        l.origin == found.origin && (l.origin != Origin::Embedded || l.found_as.as_deref() == Some(name))
    };
    if chain.iter().any(again) {
        return Err(fail(Fault::ExtendsCycle { name: name.to_owned() }));
    }
    if chain.len() >= EXTENDS_DEPTH_MAX {
        return Err(fail(Fault::ExtendsTooDeep));
    }
    Ok(Some((found, Some(name.to_owned()))))
}

fn profile_name(link: &Link) -> Result<String, PolicyError> {
    let fail = |fault| PolicyError {
        place: place(&link.origin, &link.file.spans, "name"),
        key: Some("name".to_owned()),
        fault: Box::new(fault),
    };
    if let Some(name) = &link.file.doc.name {
        return if is_profile_name(name) {
            Ok(name.clone())
        } else {
            Err(fail(Fault::ProfileName { name: super::check::shown(name) }))
        };
    }
    let stem = |path: &HostPath| path.as_path().file_stem().and_then(|s| s.to_str()).map(str::to_owned);
    match &link.origin {
        Origin::Embedded => None,
        Origin::System(path) | Origin::User(path) | Origin::File(path) | Origin::Project(path) => stem(path),
    }
    .filter(|name| is_profile_name(name))
    .ok_or_else(|| fail(Fault::ProfileNameMissing))
}
