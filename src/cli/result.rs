//! The result of `exec` as a document: `stockade.result/1`. A view of [`Report`] and of what was known when it was
//! made; `docs/result.schema.json` describes it, and a document of a later 1.x may have further members.

use crate::base::canon::b64;
use crate::base::{Digest, Enforcement};
use crate::plan::{CachePlan, Mode, Plan};
use crate::policy::{Origin, Policy};
use crate::supervise::denied::Denials;
use crate::supervise::enforce;
use crate::supervise::outcome::{
    Cancelled, Drain, LimitHit, Outcome, ProtectedCreated, Reaping, Report, Verified,
};
use crate::supervise::output::Kept;
use crate::supervise::record::{Recording, Told};
use schemars::JsonSchema;
use serde::Serialize;

/// Its name and version.
pub const SCHEMA: &str = "stockade.result/1";

/// What was known about the request, as far as it came.
#[derive(Debug, Default)]
pub struct About {
    /// The profile.
    pub profile: Option<Profile>,
    /// What it asks for.
    pub policy_digest: Option<Digest>,
    /// Whether the network namespace is the command's own.
    pub own_network: bool,
    /// Whether the output was kept rather than passed on.
    pub captured: bool,
    /// Package caches.
    pub caches: Vec<CachePlan>,
    /// What was granted by intent.
    pub granted: Vec<Granted>,
}

/// Something granted by intent.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Granted {
    /// Its name.
    pub name: &'static str,
    /// What it opened.
    pub opens: &'static str,
}

impl About {
    /// Notes the profile.
    pub fn profile(&mut self, policy: &Policy) {
        self.profile =
            policy.origins.first().map(|o| Profile { name: policy.name.clone(), origin: o.clone() });
    }

    /// Notes what the plan came to.
    pub fn plan(&mut self, plan: &Plan) {
        let c = &plan.containment;
        self.policy_digest = Some(c.policy_digest);
        self.own_network = c.own_network;
        self.caches.clone_from(&c.caches);
        self.granted = c.intents.iter().map(|i| Granted { name: i.name(), opens: i.opens() }).collect();
    }

    /// Whether everything that was asked for was in force; `None` when nothing was built.
    pub fn assurance(&self, report: &Report) -> Option<Assurance> {
        let reduced = || enforce::reduced(&report.enforcement, self.own_network) || !self.granted.is_empty();
        let built = !report.enforcement.is_empty();
        built.then(|| if reduced() { Assurance::Reduced } else { Assurance::Full })
    }
}

/// The profile that won.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// The file, or the binary.
    pub origin: Origin,
}

/// Whether everything that was asked for was in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Assurance {
    /// It was.
    Full,
    /// A preferred protection was missing, the host's network was shared, or something was granted by intent.
    Reduced,
}

impl Assurance {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Reduced => "reduced",
        }
    }
}

/// Bytes as text when they are UTF-8, else in base64.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Body<'a> {
    /// UTF-8.
    Text(&'a str),
    /// Base64.
    B64(String),
}

impl<'a> Body<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        std::str::from_utf8(bytes).map_or_else(|_| Self::B64(b64(bytes)), Self::Text)
    }
}

/// The parts of a stream that are kept.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Ends<'a> {
    /// The first bytes.
    head: Body<'a>,
    /// The last bytes.
    tail: Body<'a>,
    /// How many are missing between them.
    omitted_bytes: u64,
}

/// What is kept of a stream.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Kind<'a> {
    /// All of it.
    Whole(Body<'a>),
    /// Its ends.
    Ends(Ends<'a>),
    /// Nothing: it was passed on.
    Passed {},
}

/// One output stream.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Stream<'a> {
    /// How many bytes the command wrote.
    total_bytes: u64,
    /// Whether some of them are neither here nor were passed on.
    truncated: bool,
    /// What is here.
    #[serde(flatten)]
    kept: Kind<'a>,
}

impl<'a> Stream<'a> {
    fn of(kept: &'a Kept, captured: bool, bodies: bool) -> Self {
        let truncated = if captured { kept.omitted > 0 } else { kept.exceeded.is_some() };
        let kind = if !(captured && bodies) {
            Kind::Passed {}
        } else if kept.omitted == 0 {
            Kind::Whole(Body::of(&kept.head))
        } else {
            // A character that the cut went through belongs to what is missing, not to base64.
            let head = whole_characters(&kept.head);
            let tail = &kept.tail[continuation_bytes(&kept.tail)..];
            let cut = (kept.head.len() - head.len() + kept.tail.len() - tail.len()) as u64;
            Kind::Ends(Ends { head: Body::of(head), tail: Body::of(tail), omitted_bytes: kept.omitted + cut })
        };
        Self { total_bytes: kept.total, truncated, kept: kind }
    }
}

/// `head` without a UTF-8 character that it ends in the middle of.
fn whole_characters(head: &[u8]) -> &[u8] {
    match std::str::from_utf8(head) {
        Err(e) if e.error_len().is_none() => &head[..e.valid_up_to()],
        _ => head,
    }
}

/// How many bytes at the start of `tail` belong to a UTF-8 character before it.
fn continuation_bytes(tail: &[u8]) -> usize {
    let n = tail.iter().take(3).take_while(|b| **b & 0xc0 == 0x80).count();
    if std::str::from_utf8(&tail[n..]).is_ok() { n } else { 0 }
}

/// What was used; numbers that nobody measured are null, and `sources` says why.
#[derive(Debug, Serialize, JsonSchema)]
pub struct UsageDoc {
    /// Milliseconds from the clone to the end of the tree.
    wall_ms: Option<u64>,
    /// Microseconds of CPU time.
    cpu_us: Option<u64>,
    /// Peak bytes.
    memory_peak_bytes: Option<u64>,
    /// Most processes and threads at once.
    processes_peak: Option<u64>,
    /// Starts of a process or thread that `limits.processes` refused; this ends nothing by itself.
    processes_denied: Option<u64>,
    /// Where each comes from, or why it is missing.
    sources: Sources,
}

/// Where numbers come from.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Sources {
    cpu_us: &'static str,
    memory_peak_bytes: &'static str,
    processes_peak: &'static str,
    processes_denied: &'static str,
}

impl UsageDoc {
    fn of(report: &Report) -> Self {
        let Some(u) = &report.usage else {
            let why = "nothing ran";
            return Self {
                wall_ms: None,
                cpu_us: None,
                memory_peak_bytes: None,
                processes_peak: None,
                processes_denied: None,
                sources: Sources {
                    cpu_us: why,
                    memory_peak_bytes: why,
                    processes_peak: why,
                    processes_denied: why,
                },
            };
        };
        Self {
            wall_ms: Some(u.wall_ms),
            cpu_us: u.cpu_us.value,
            memory_peak_bytes: u.memory_peak_bytes.value,
            processes_peak: u.processes_peak.value,
            processes_denied: u.processes_denied.value,
            sources: Sources {
                cpu_us: u.cpu_us.from,
                memory_peak_bytes: u.memory_peak_bytes.from,
                processes_peak: u.processes_peak.from,
                processes_denied: u.processes_denied.from,
            },
        }
    }
}

/// The document.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "Result of `stockade exec`, version 1")]
pub struct Document<'a> {
    /// `stockade.result/1`.
    schema: &'static str,
    /// The run; null when there was none.
    run_id: Option<&'a str>,
    /// How it ended.
    outcome: &'a Outcome,
    /// The exit code of `stockade exec`.
    exit_code: u8,
    /// The limit that ended it.
    limit: Option<&'a LimitHit>,
    /// The cancel that ended it.
    cancelled: Option<&'a Cancelled>,
    /// What was used.
    usage: UsageDoc,
    /// Standard output.
    stdout: Stream<'a>,
    /// Standard error.
    stderr: Stream<'a>,
    /// Each protection: asked, got, gap.
    enforcement: &'a [Enforcement],
    /// Null when nothing was built.
    assurance: Option<Assurance>,
    /// Where the verdicts come from.
    verified: &'a Verified,
    /// How the end of the tree was established.
    reaping: Option<&'a Reaping>,
    /// Whether the output was passed on to its end.
    drain: Drain,
    /// Protected names that the command created, and where they are now.
    protected_created: &'a [ProtectedCreated],
    /// Whether the sandbox is why it failed; null when nothing of the command ran to its end. Safe to show to a model.
    denials: Option<&'a Denials>,
    /// Which way the sandbox was built.
    mode: Option<Mode>,
    /// What contained the command.
    plan_digest: Option<Digest>,
    /// What was asked for.
    policy_digest: Option<Digest>,
    /// What was run.
    command_digest: Option<Digest>,
    /// The profile that won.
    profile: Option<&'a Profile>,
    /// Package caches: where they are, and what becomes of what the command wrote to them.
    caches: &'a [CachePlan],
    /// What the profile or the caller granted by intent: each is something that the sandbox closes otherwise.
    granted: &'a [Granted],
    /// What could not be cleaned up.
    leftovers: &'a [String],
    /// What became of the run's record: `stockade runs show` has it.
    record: &'a Recording,
}

impl<'a> Document<'a> {
    /// The document of `report`, with the kept output or without.
    pub fn of(report: &'a Told, about: &'a About, bodies: bool) -> Self {
        Self {
            schema: SCHEMA,
            run_id: Some(report.run_id.as_str()).filter(|id| !id.is_empty()),
            outcome: &report.outcome,
            exit_code: report.exit_code(),
            limit: report.limit.as_ref(),
            cancelled: report.cancelled.as_ref(),
            usage: UsageDoc::of(report),
            stdout: Stream::of(&report.stdout, about.captured, bodies),
            stderr: Stream::of(&report.stderr, about.captured, bodies),
            enforcement: &report.enforcement,
            assurance: about.assurance(report),
            verified: &report.verified,
            reaping: report.reaping.as_ref(),
            drain: report.drain,
            protected_created: &report.protected_created,
            denials: report.denials.as_ref(),
            mode: report.mode,
            plan_digest: report.plan_digest,
            policy_digest: about.policy_digest,
            command_digest: report.command_digest,
            profile: about.profile.as_ref(),
            caches: &about.caches,
            granted: &about.granted,
            leftovers: &report.leftovers,
            record: report.recording(),
        }
    }
}

/// The JSON Schema of [`Document`].
pub fn schema() -> serde_json::Value {
    let mut schema = schemars::generate::SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator()
        .into_root_schema_for::<Document<'_>>();
    if let Some(id) = schema.pointer_mut("/properties/schema") {
        *id = serde_json::json!({ "const": SCHEMA });
    }
    schema.to_value()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::text::ForModel;
    use crate::base::{Gap, Got, HostPath, Need, Protection, SandboxPath};
    use crate::plan::CacheLayer;
    use crate::supervise::denied::{
        By, Evidence, Finding, Grant, Kind as Why, Listener, RefusedCall, RefusedCalls, Verdict,
    };
    use crate::supervise::outcome::{Boundary, Fault, Measured, ToolEnd, Usage, Witnessed};
    use crate::supervise::record::Waiver;
    use serde_json::{Value, json};

    pub(crate) fn kept(head: &[u8], tail: &[u8], omitted: u64) -> Kept {
        let total = (head.len() + tail.len()) as u64 + omitted;
        Kept { head: head.to_vec(), tail: tail.to_vec(), omitted, total, exceeded: None, digest: None }
    }

    fn report(outcome: Outcome) -> Report {
        Report {
            run_id: "017f22e2-79b0-7cc3-98c4-dc0c0c07398f".into(),
            outcome,
            limit: None,
            cancelled: None,
            usage: None,
            stdout: kept(b"", b"", 0),
            stderr: kept(b"", b"", 0),
            enforcement: Vec::new(),
            verified: Verified::No,
            reaping: None,
            drain: Drain::Complete,
            protected_created: Vec::new(),
            witnessed: Witnessed::default(),
            denials: None,
            mode: None,
            plan_digest: None,
            command_digest: None,
            leftovers: Vec::new(),
        }
    }

    fn finished() -> (Report, About) {
        let measured = |value, from| Measured { value, from };
        let mut r = report(Outcome::Finished(ToolEnd { exit_code: None, signal: Some(9) }));
        r.limit = Some(LimitHit { name: "memory", configured: 1 << 20, observed: 1 << 20 });
        r.cancelled = Some(Cancelled { signal: "SIGINT" });
        r.usage = Some(Usage {
            wall_ms: 12,
            cpu_us: measured(Some(3400), "cgroup: the whole tree"),
            memory_peak_bytes: measured(Some(1 << 20), "cgroup: the whole tree"),
            processes_peak: measured(None, "no cgroup with a processes limit counted"),
            processes_denied: measured(None, "no cgroup with a processes limit counted"),
        });
        r.stdout = kept("naïve".as_bytes(), b"", 0);
        r.stderr = kept(b"\xffa", b"", 0);
        r.enforcement = vec![Enforcement {
            protection: Protection::Kill,
            asked: Need::Prefer,
            got: Got::Absent,
            by: Vec::new(),
            gap: Some(Gap { what: "no cgroup2".into(), remedy: "delegate one".into() }),
        }];
        r.verified = Verified::Cached { at_unix_ms: 1 };
        r.reaping = Some(Reaping { empty_after_us: 70, by: "pid_namespace", cgroups_removed: true });
        r.protected_created = vec![ProtectedCreated {
            path: ".envrc".into(),
            moved_to: Some(b"q\xff".to_vec().into()),
            replaced: false,
        }];
        r.denials = Some(Denials {
            verdict: Verdict::Sandbox,
            findings: vec![Finding {
                protection: "mounts",
                kind: Why::Protected,
                object: Some(ForModel::new(".git/config")),
                evidence: Evidence::Likely,
                what: ForModel::new("is protected"),
                grant: Some(Grant {
                    by: By::Key,
                    text: ForModel::new("workspace.protect without \".git/config\""),
                }),
            }],
            refused_calls: RefusedCalls {
                total: Some(3),
                first: vec![RefusedCall { call: ForModel::new("mount"), answer: "EPERM" }],
            },
            listener: Listener { held: true, why: None },
            traced: None,
        });
        r.mode = Some(Mode::Rootless);
        r.plan_digest = Some(Digest::of(b"p"));
        r.command_digest = Some(Digest::of(b"c"));
        r.leftovers = vec!["a".into()];
        let origin = Origin::File(HostPath::new("/p.toml").unwrap());
        let about = About {
            granted: vec![Granted { name: "gpu", opens: "devices" }],
            profile: Some(Profile { name: "p".into(), origin }),
            policy_digest: Some(Digest::of(b"a")),
            own_network: true,
            captured: true,
            caches: vec![CachePlan {
                name: "npm",
                at: SandboxPath::new("/home/agent/.npm").unwrap(),
                host: false,
                layer: CacheLayer::Kept,
                note: None,
            }],
        };
        (r, about)
    }

    fn refused() -> (Report, About) {
        let mut r = report(Outcome::Refused(Fault {
            code: "cwd_dangling",
            boundary: Boundary::Configuration,
            stage: "workspace".into(),
            object: None,
            message: "gone".into(),
            hint: Some("come back".into()),
            exit_code: 125,
        }));
        r.run_id = String::new();
        (r, About::default())
    }

    fn truncated() -> (Report, About) {
        let (mut r, about) = finished();
        r.stdout = kept(b"a\xc3", b"\xa9b", 7);
        (r, about)
    }

    fn value(of: &(Report, About), bodies: bool) -> Value {
        let told = Told::waived(of.0.clone(), Waiver::Asked);
        serde_json::to_value(Document::of(&told, &of.1, bodies)).unwrap()
    }

    #[test]
    fn documents() {
        insta::assert_json_snapshot!("finished", value(&finished(), true));
        insta::assert_json_snapshot!("refused", value(&refused(), true));
        let counts = value(&finished(), false);
        assert_eq!(counts["stdout"], json!({ "total_bytes": 6, "truncated": false }));
        assert_eq!(
            value(&truncated(), true)["stdout"],
            json!({ "total_bytes": 11, "truncated": true, "head": { "text": "a" }, "tail": { "text": "b" },
                    "omitted_bytes": 9 })
        );
    }

    #[test]
    fn bytes_that_are_no_text_stay_whole() {
        assert_eq!(whole_characters(b"a\xff"), b"a\xff");
        assert_eq!(continuation_bytes(b"\x80\x80\x80\x80"), 0);
        assert_eq!(continuation_bytes(b"\x80a\xff"), 0);
    }

    #[test]
    fn passed_on_output_is_truncated_by_its_limit_only() {
        let mut all = kept(b"", b"", 10);
        assert!(!Stream::of(&all, false, false).truncated);
        all.exceeded = Some(5);
        assert!(Stream::of(&all, false, false).truncated);
    }

    #[test]
    fn the_schema_is_current_and_every_document_has_it() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/result.schema.json");
        let current = schema();
        let text = serde_json::to_string_pretty(&current).unwrap() + "\n";
        if std::env::var_os("STOCKADE_WRITE_DOCS").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), text, "set STOCKADE_WRITE_DOCS=1 to write it");
        for (of, bodies) in [(finished(), true), (finished(), false), (refused(), true), (truncated(), true)]
        {
            let document = value(&of, bodies);
            valid(&current, &current, &document, "").unwrap();
            for wrong in ["outcome", "usage", "stdout", "verified", "exit_code"] {
                let mut broken = document.clone();
                broken[wrong] = json!("wrong");
                assert!(valid(&current, &current, &broken, "").is_err(), "{wrong}");
            }
            let mut broken = document.clone();
            broken.as_object_mut().unwrap().remove("reaping");
            assert!(valid(&current, &current, &broken, "").is_err());
        }
    }

    /// As much of a JSON Schema validator as the schema needs; a keyword that it does not know is an error.
    fn valid(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let Some(schema) = schema.as_object() else {
            return if schema == &json!(true) { Ok(()) } else { Err(format!("{at}: never")) };
        };
        let fail = |why: &str| Err(format!("{at}: {why}: {value}"));
        for (keyword, want) in schema {
            let all = || want.as_array().unwrap().iter();
            let ok = match keyword.as_str() {
                "$schema" | "title" | "description" | "$defs" | "format" | "pattern" | "contentEncoding" => {
                    true
                }
                "$ref" => {
                    valid(root, root.pointer(&want.as_str().unwrap()[1..]).unwrap(), value, at)?;
                    true
                }
                "type" => {
                    let is = |t: &Value| match t.as_str().unwrap() {
                        "null" => value.is_null(),
                        "boolean" => value.is_boolean(),
                        "integer" => value.is_u64() || value.is_i64(),
                        "string" => value.is_string(),
                        "array" => value.is_array(),
                        "object" => value.is_object(),
                        other => panic!("type {other}"),
                    };
                    want.as_array().map_or_else(|| is(want), |all| all.iter().any(is))
                }
                "const" => value == want,
                "enum" => all().any(|w| w == value),
                "minimum" => value.as_u64().is_none_or(|n| n >= want.as_u64().unwrap()),
                "maximum" => value.as_u64().is_none_or(|n| n <= want.as_u64().unwrap()),
                "minLength" => value.as_str().is_none_or(|s| s.len() as u64 >= want.as_u64().unwrap()),
                "maxLength" => value.as_str().is_none_or(|s| s.len() as u64 <= want.as_u64().unwrap()),
                "anyOf" => all().any(|s| valid(root, s, value, at).is_ok()),
                "oneOf" => all().filter(|s| valid(root, s, value, at).is_ok()).count() == 1,
                "required" => all().all(|k| value.get(k.as_str().unwrap()).is_some() || !value.is_object()),
                "properties" => {
                    for (name, inner) in want.as_object().unwrap() {
                        if let Some(v) = value.get(name) {
                            valid(root, inner, v, &format!("{at}/{name}"))?;
                        }
                    }
                    true
                }
                "additionalProperties" if want == &json!(false) => {
                    let known = schema.get("properties").and_then(Value::as_object);
                    value
                        .as_object()
                        .is_none_or(|o| o.keys().all(|k| known.is_some_and(|p| p.contains_key(k))))
                }
                "items" => {
                    for (n, v) in value.as_array().into_iter().flatten().enumerate() {
                        valid(root, want, v, &format!("{at}/{n}"))?;
                    }
                    true
                }
                other => panic!("keyword {other}"),
            };
            if !ok {
                return fail(keyword);
            }
        }
        Ok(())
    }
}
