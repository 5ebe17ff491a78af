//! One execution, from a plan to a report: the run's record, its cgroups, the executor, its streams, its end, and
//! the proof that nothing is left. One thread, one poll loop; everything that this process learns arrives as a
//! readable descriptor. The caller's descriptors are only read and written, never changed.

use super::cgroup::{self, ExecCgroup, Limit, Reading, Wanted};
use super::denied::TAIL_BYTES;
use super::enforce::{self, ReadBack};
use super::faults;
use super::layers::Held;
use super::outcome::*;
use super::output::{Capture, Kept};
use super::pump::{Inlet, Outlet};
use super::quarantine::Guard;
use super::recover::{Beginning, IdSources, Live, ProcessId};
use super::state_dir::StateDir;
use super::terminal::Terminal;
use crate::base::{Digest, Enforcement, Gap, Need, Protection, RunId};
use crate::plan::seccomp::Refusal;
use crate::plan::{HostFacts, Mode, Plan, resolve::need};
use crate::probe::Store;
use crate::sandbox::launch::{self, Launch, Running};
use crate::sandbox::stage::init::Stdio;
use crate::sandbox::stage::trace;
use crate::sandbox::stage::wire::{Answers, Message, Step};
use crate::sandbox::verify::Seen;
use crate::sandbox::{Mutant, Mutants, idmap};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode as FileMode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the end of a killed tree is awaited before what is left is named.
const DEATH_WAIT: Duration = Duration::from_secs(10);
/// How long the output of a command that was ended waits for its reader.
const DRAIN_WAIT: Duration = Duration::from_secs(2);
/// How long a command may go on after SIGTERM or SIGHUP was passed on to it, unless the profile has its own grace.
const SIGNAL_GRACE: Duration = Duration::from_secs(2);
/// How often a disk limit is looked at.
const DISK_CHECK: Duration = Duration::from_millis(100);

/// How to run, beside the plan.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Keep the output in the report instead of passing it on.
    pub capture: bool,
    /// A terminal of its own.
    pub tty: bool,
    /// Run the canaries even when a verdict is cached.
    pub verify_live: bool,
    /// Give the command an empty standard input.
    pub close_stdin: bool,
    /// Trace the command, to see which paths it is refused: slow.
    pub trace: bool,
    /// Make digests of the output.
    pub digests: bool,
    /// Switched-off protections.
    pub mutants: Mutants,
}

/// A new run's id.
pub fn new_run() -> RunId {
    let unix_ms = unix_ms();
    let mut random = [0u8; 10];
    if rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty()) != Ok(random.len()) {
        random[..8].copy_from_slice(&unix_ms.to_le_bytes());
    }
    RunId::new(unix_ms, random)
}

/// While it lives, the signals that end a run do not end us: what the run came to has yet to be recorded.
#[derive(Debug)]
pub struct Undisturbed(Option<SigSet>);

impl Drop for Undisturbed {
    fn drop(&mut self) {
        if let Some(mask) = &self.0 {
            let _ = mask.thread_set_mask();
        }
    }
}

/// Runs the command of `plan` as run `run`. Every way out of here is a report; nothing of the executor outlives it but
/// what the report names.
///
/// `accept` is called once, while the executor is being built and before anything of the command can run; its error
/// refuses. Signals are held back until the second value is dropped: after that comes only handing over the result,
/// perhaps to somebody who never takes it, and a signal ends that.
pub fn execute(
    plan: &Plan,
    facts: &HostFacts,
    (state, store): (&StateDir, &Store),
    kept: &Held,
    options: &Options,
    run: RunId,
    accept: &mut dyn FnMut() -> Result<(), Fault>,
) -> (Report, Undisturbed) {
    let mut report = empty(plan, run.to_string());
    let undisturbed = Undisturbed(SigSet::thread_get_mask().ok());
    match Drive::start(plan, facts, (state, store), kept, options, run, accept) {
        Ok(drive) => drive.run(&mut report),
        Err(fault) => report.outcome = Outcome::Refused(fault),
    }
    (report, undisturbed)
}

fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

fn empty(plan: &Plan, run_id: String) -> Report {
    Report {
        run_id,
        outcome: Outcome::Refused(faults::sandbox(
            "not_started",
            "starting",
            None,
            "not started".into(),
            None,
        )),
        limit: None,
        cancelled: None,
        usage: None,
        stdout: Kept::nothing(),
        stderr: Kept::nothing(),
        enforcement: Vec::new(),
        verified: Verified::No,
        reaping: None,
        drain: Drain::Complete,
        protected_created: Vec::new(),
        witnessed: Witnessed::default(),
        denials: None,
        mode: Some(plan.containment.mode),
        plan_digest: Some(plan.plan_digest),
        command_digest: Some(plan.command_digest),
        leftovers: Vec::new(),
    }
}

/// Why the tree is being killed, or was.
#[derive(Debug, Clone)]
enum Cause {
    Limit(LimitHit),
    Cancel,
    Broken(Fault),
    Refused(Fault),
}

struct Drive<'a> {
    plan: &'a Plan,
    store: &'a Store,
    options: &'a Options,
    run: RunId,
    live: Live,
    cgroup: Option<ExecCgroup>,
    running: Running,
    signals: SignalFd,
    terminal: Option<Terminal>,
    stdin: Inlet,
    stdout: Outlet,
    stderr: Outlet,
    guard: Guard,
    disk: Option<super::disk::Watch>,
    /// Kept layers of caches, with their limits.
    caches: Vec<(u64, super::disk::Watch)>,
    began: Instant,
    read_backs: Vec<ReadBack>,
    verdict: Digest,
    cached: Option<(Seen, u64)>,
    enforcement: Vec<Enforcement>,
    verified: Verified,
    started: bool,
    /// Who answers what the filter refuses, once the command has started.
    answers: Option<Answers>,
    /// What the filter refused, first of each.
    refused: Vec<Refusal>,
    /// What init keeps of a traced command.
    trace: Option<OwnedFd>,
    /// All of them, once the command has ended.
    refused_total: Option<u64>,
    /// init was told to start the command: from here on it may have run, whatever we hear.
    released: bool,
    /// A signal that came before the command was there to get it.
    held: Option<Signal>,
    control_open: bool,
    ended: Option<(i32, u64, u64)>,
    stats: Option<cgroup::Stats>,
    cause: Option<Cause>,
    killed_at: Option<Instant>,
    grace_until: Option<Instant>,
    first_signal: Option<&'static str>,
    signals_seen: u32,
    /// Output was dropped because its reader did not take it in time.
    drain_cut: bool,
}

impl<'a> Drive<'a> {
    /// Everything up to the point where init builds the root.
    fn start(
        plan: &'a Plan,
        facts: &HostFacts,
        (state, store): (&StateDir, &'a Store),
        kept: &'a Held,
        options: &'a Options,
        run: RunId,
        accept: &mut dyn FnMut() -> Result<(), Fault>,
    ) -> Result<Self, Fault> {
        let c = &plan.containment;
        let (mutants, trace) = (options.mutants, options.trace);
        let wanted = if mutants.off(Mutant::Limits) {
            Wanted::default()
        } else {
            Wanted {
                memory: c.limits.memory,
                processes: c.limits.processes,
                cpu_percent: c.limits.cpu_percent,
            }
        };
        let ids = IdSources::default();
        // The record comes before anything that it names, so that a crash at any later point is cleaned up.
        let mut live = Live::begin(
            state,
            Beginning {
                run,
                boot_id: &facts.boot_id,
                proc: Path::new("/proc"),
                ids: (c.mode == Mode::Privileged).then_some(&ids),
                cgroups: cgroup::names(&facts.cgroup, &run, &wanted),
                temporary: Vec::new(),
            },
        )
        .map_err(|e| faults::store("recording the run", e.to_string()))?;
        let id_base = live.record().ids.map_or(0, |r| r.first);
        let mut read_backs = Vec::new();
        let mut cgroup = match ExecCgroup::create_v2(&facts.cgroup, &run) {
            Ok(cgroup) => Some(cgroup),
            Err(e) => {
                read_backs.push(missing(Protection::Kill, &e.to_string()));
                None
            }
        };
        if let Some(cgroup) = &mut cgroup {
            cgroup.hand_down(&facts.cgroup, &wanted);
        }
        let verdict = verdict_key(plan, facts);
        let cached = if options.verify_live { None } else { load_verdict(store, &verdict) };
        let began = Instant::now();
        let result = (|| {
            let signals =
                block_signals(options.tty).map_err(|e| internal("blocking signals", &e.to_string()))?;
            let (stdio, ours) =
                streams(plan, options, id_base).map_err(|e| internal("making pipes", &e.to_string()))?;
            let clone_dir =
                cgroup.as_ref().and_then(ExecCgroup::clone_dir).filter(|_| facts.cgroup.v2_clone_into);
            let verify = cached.is_none();
            let caller = (facts.uid, facts.gid);
            let locks = kept.locks();
            let launch = Launch { plan, id_base, caller, stdio, verify, trace, locks, mutants };
            let mut running = launch::begin(launch, clone_dir).map_err(|f| faults::explain(plan, f))?;
            // init makes its namespaces meanwhile, and then the root.
            let prepared = running.map_ids(plan, id_base, (facts.uid, facts.gid), mutants).and_then(|()| {
                if let Some(cgroup) = &mut cgroup {
                    for (limit, result) in cgroup.add_limits(&facts.cgroup, &wanted) {
                        read_backs.push(limit_read_back(limit, result));
                    }
                }
                running.limited(&cgroup.as_ref().map(ExecCgroup::task_fds).unwrap_or_default())
            });
            if let Err(fault) = prepared {
                // init waits for what will not come: it is ended first, and what it had to say, which is nearer to
                // the cause than a line that ended, is then read to its end without waiting for more.
                end_now(&running);
                let mut fault = fault;
                while let Ok(Some((message, _))) = running.hear() {
                    if let Message::Fault(inner) = message {
                        fault = inner;
                    }
                }
                return Err(faults::explain(plan, fault));
            }
            let guard = Guard::open(plan).map_err(|e| {
                end_now(&running);
                faults::sandbox(
                    "workspace_changed",
                    "opening the workspace",
                    None,
                    e.to_string(),
                    Some("run the command again"),
                )
            })?;
            Ok((signals, ours, running, guard))
        })();
        let (signals, ours, running, guard) = match result {
            Ok(parts) => parts,
            Err(fault) => {
                clean_up(cgroup, live, &mut Vec::new());
                return Err(fault);
            }
        };
        // Before the command can start: what the next start needs to finish this, should we be killed.
        let recorded = live.update(|r| {
            r.init = ProcessId::of(Path::new("/proc"), running.pid).ok();
            r.places = guard.places();
        });
        // init builds the root meanwhile.
        let accepted =
            recorded.map_err(|e| faults::store("recording the run", e.to_string())).and_then(|()| accept());
        if let Err(fault) = accepted {
            end_now(&running);
            clean_up(cgroup, live, &mut Vec::new());
            return Err(fault);
        }
        let disk = match c.limits.disk {
            Some(limit) => super::disk::Watch::new(plan, limit)
                .map_err(|e| read_backs.push(missing(Protection::LimitDisk, &e.to_string())))
                .ok(),
            None => None,
        };
        if let Some(watch) = &disk {
            read_backs.push(ReadBack {
                protection: Protection::LimitDisk,
                by: "watch",
                gap: watch.blind().cloned(),
                partial: true,
            });
        }
        let caches = match kept.watches() {
            Ok(watches) => watches,
            Err(e) => {
                end_now(&running);
                clean_up(cgroup, live, &mut Vec::new());
                return Err(faults::store("watching the kept layers", e.to_string()));
            }
        };
        let Ours { stdin, stdout, stderr } = ours;
        Ok(Self {
            plan,
            store,
            options,
            run,
            live,
            cgroup,
            running,
            signals,
            terminal: None,
            stdin,
            stdout,
            stderr,
            guard,
            disk,
            caches,
            began,
            read_backs,
            verdict,
            cached,
            enforcement: Vec::new(),
            verified: Verified::No,
            started: false,
            answers: None,
            refused: Vec::new(),
            trace: None,
            refused_total: None,
            released: false,
            held: None,
            control_open: true,
            ended: None,
            stats: None,
            cause: None,
            killed_at: None,
            grace_until: None,
            first_signal: None,
            signals_seen: 0,
            drain_cut: false,
        })
    }

    fn run(mut self, report: &mut Report) {
        let mut dead = false;
        let mut stuck = false;
        while !(stuck || dead && self.stdout.done() && self.stderr.done()) {
            self.turn(&mut dead, &mut stuck);
        }
        self.finish(report, dead);
    }

    /// One round of the loop: wait for something, then take in all that is there.
    fn turn(&mut self, dead: &mut bool, stuck: &mut bool) {
        let mut sources: Vec<Ready> = Vec::with_capacity(10);
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(10);
        {
            let mut add = adder(&mut sources, &mut fds);
            // What init says comes before everything that is judged by it.
            if !*dead {
                add(Ready::Control, self.control_open.then(|| self.running.control.as_fd()), PollFlags::IN);
            }
            add(Ready::Signal, Some(self.signals.as_fd()), PollFlags::IN);
            if !*dead {
                add(Ready::Death, Some(self.running.pidfd.as_fd()), PollFlags::IN);
                if let Some(watch) = self.cgroup.as_ref().and_then(ExecCgroup::oom_watch)
                    && self.killed_at.is_none()
                {
                    let flags = if watch.priority { PollFlags::PRI } else { PollFlags::IN };
                    add(Ready::OutOfMemory, Some(watch.fd), flags);
                }
                if self.started {
                    add(Ready::StdinIn, self.stdin.wants_input(), PollFlags::IN);
                    add(Ready::StdinOut, self.stdin.wants_room(), PollFlags::OUT);
                }
            }
            for (read, write, outlet) in [
                (Ready::StdoutIn, Ready::StdoutOut, &self.stdout),
                (Ready::StderrIn, Ready::StderrOut, &self.stderr),
            ] {
                // Once everything is dead, what is in the pipe is read without waiting for more.
                if !*dead {
                    add(read, outlet.wants_input(), PollFlags::IN);
                }
                add(write, outlet.wants_room(), PollFlags::OUT);
            }
        }
        let timeout = if *dead && (self.stdout.wants_input().is_some() || self.stderr.wants_input().is_some())
        {
            Some(Duration::ZERO)
        } else {
            self.timeout(*dead)
        };
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        let polled = poll(&mut fds, timeout.as_ref());
        let ready: Vec<Ready> =
            fds.iter().zip(&sources).filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, s)| *s).collect();
        drop(fds);
        if let Err(e) = polled
            && e != rustix::io::Errno::INTR
        {
            let fault = faults::sandbox("poll", "supervising", None, e.to_string(), None);
            self.kill(Cause::Broken(fault));
        }
        for source in ready {
            match source {
                Ready::Signal => self.on_signals(*dead),
                Ready::Control => self.on_message(),
                Ready::Death => *dead = true,
                Ready::OutOfMemory => self.on_memory(),
                Ready::StdinIn => self.stdin.read(),
                Ready::StdinOut => self.stdin.write(),
                Ready::StdoutIn => self.on_output(true),
                Ready::StderrIn => self.on_output(false),
                Ready::StdoutOut => self.stdout.write(),
                Ready::StderrOut => self.stderr.write(),
            }
        }
        if *dead {
            // init is gone, and with it every process of its namespace: the last words are in the socket and pipes.
            while self.control_open {
                self.on_message();
            }
            self.stdin.stop();
            for outlet in [&mut self.stdout, &mut self.stderr] {
                if outlet.wants_input().is_some() {
                    outlet.read(true);
                }
            }
        }
        self.on_time(*dead, stuck);
    }

    /// Time until the next thing that happens by itself.
    fn timeout(&self, dead: bool) -> Option<Duration> {
        let now = Instant::now();
        let mut at: Vec<Instant> = Vec::with_capacity(4);
        if dead {
            at.extend(self.drain_until());
        } else if let Some(killed) = self.killed_at {
            at.push(killed + DEATH_WAIT);
        } else {
            at.extend(self.wall_deadline());
            at.extend(self.grace_until);
            if self.disk.is_some() || !self.caches.is_empty() {
                at.push(now + DISK_CHECK);
            }
        }
        at.iter().min().map(|t| t.saturating_duration_since(now))
    }

    /// Until when a dead command's output waits for its reader: as long as that takes after an ordinary end (but not
    /// beyond the wall time), a short while after a limit or a cancel.
    fn drain_until(&self) -> Option<Instant> {
        match (&self.cause, self.first_signal, self.killed_at) {
            (None, None, _) => {
                let ms = self.plan.containment.limits.wall_ms?;
                self.began.checked_add(Duration::from_millis(ms)).map(|t| t + DRAIN_WAIT)
            }
            (_, _, Some(killed)) => Some(killed + DRAIN_WAIT),
            (_, _, None) => Some(self.began + DRAIN_WAIT),
        }
    }

    fn wall_deadline(&self) -> Option<Instant> {
        let ms = self.plan.containment.limits.wall_ms?;
        if self.options.mutants.off(Mutant::Limits) || self.cause.is_some() {
            return None;
        }
        self.began.checked_add(Duration::from_millis(ms))
    }

    fn on_time(&mut self, dead: bool, stuck: &mut bool) {
        let now = Instant::now();
        if dead {
            if self.drain_until().is_some_and(|until| now >= until) {
                self.cut_drain();
            }
            return;
        }
        if self.killed_at.is_some_and(|k| now >= k + DEATH_WAIT) {
            *stuck = true;
            return;
        }
        if self.wall_deadline().is_some_and(|d| now >= d) {
            let configured = self.plan.containment.limits.wall_ms.unwrap_or(0);
            let observed = millis(self.began.elapsed());
            self.end_politely(Cause::Limit(LimitHit { name: "wall", configured, observed }));
        }
        if self.grace_until.is_some_and(|g| now >= g) {
            self.grace_until = None;
            self.kill(Cause::Cancel);
        }
        if self.killed_at.is_none()
            && let Some(disk) = &mut self.disk
        {
            let configured = self.plan.containment.limits.disk.unwrap_or(0);
            if let Some(observed) = disk.exceeded() {
                self.kill(Cause::Limit(LimitHit { name: "disk", configured, observed }));
            } else if let Some(gap) = disk.blind().filter(|_| self.released)
                && need(&self.plan.containment, Protection::LimitDisk) == Need::Require
            {
                let fault = faults::sandbox(
                    "protection_unmet",
                    "supervising",
                    Some(Protection::LimitDisk.key().to_owned()),
                    gap.what.clone(),
                    Some(&gap.remedy),
                );
                self.kill(Cause::Broken(fault));
            }
        }
        if self.killed_at.is_none()
            && let Some((configured, observed)) =
                self.caches.iter_mut().find_map(|(limit, watch)| Some((*limit, watch.exceeded()?)))
        {
            self.kill(Cause::Limit(LimitHit { name: "cache", configured, observed }));
        }
    }

    /// Gives up on output that its reader has not taken.
    fn cut_drain(&mut self) {
        for outlet in [&mut self.stdout, &mut self.stderr] {
            self.drain_cut |= !outlet.done();
            outlet.abandon();
        }
    }

    /// Signals sent to us: the first goes to the command, a second one, of whichever kind, ends it.
    fn on_signals(&mut self, dead: bool) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let Ok(signal) = Signal::try_from(info.ssi_signo as i32) else { continue };
            match signal {
                Signal::SIGWINCH => {
                    if let Some(terminal) = &self.terminal {
                        terminal.resize();
                    }
                    continue;
                }
                Signal::SIGTSTP => {
                    self.stop();
                    continue;
                }
                // After SIGSTOP, which nobody is told of: somebody else may have used the terminal.
                Signal::SIGCONT => {
                    if let Some(terminal) = &mut self.terminal {
                        terminal.resume();
                    }
                    continue;
                }
                _ => {}
            }
            self.signals_seen += 1;
            let name = signal.as_str();
            self.first_signal.get_or_insert(name);
            if dead {
                // Only an unread output is left; whoever insists does not want it.
                self.cut_drain();
            } else {
                match (self.signals_seen, self.started) {
                    (1, true) => self.forward(signal),
                    (1, false) => self.held = Some(signal),
                    _ => self.kill(Cause::Cancel),
                }
            }
        }
    }

    /// Passes a signal on to the command. Whoever sends SIGTERM or SIGHUP wants an end; a command that ignores them
    /// gets one.
    fn forward(&mut self, signal: Signal) {
        if self.running.tell(Message::Signal { number: signal as i32 }).is_err() {
            // An init that takes no more messages is one that is ending.
            self.kill(Cause::Cancel);
        } else if matches!(signal, Signal::SIGTERM | Signal::SIGHUP) {
            let own = Duration::from_millis(self.plan.containment.limits.grace_ms);
            let grace = if own.is_zero() { SIGNAL_GRACE } else { own };
            self.grace_until = Instant::now().checked_add(grace);
        }
    }

    /// init's next message.
    fn on_message(&mut self) {
        match self.running.hear() {
            Ok(Some((message, fds))) => self.take(message, fds),
            Ok(None) => self.control_open = false,
            Err(fault) => {
                self.control_open = false;
                let fault = faults::explain(self.plan, fault);
                self.kill(Cause::Broken(fault));
            }
        }
    }

    fn take(&mut self, message: Message, fds: Vec<OwnedFd>) {
        match message {
            Message::Entered => self.on_entered(),
            Message::Built => self.on_built(),
            Message::Canaries { held, ran } => self.on_canaries(Seen { held, ran }),
            Message::Terminal => {
                if let Some(master) = fds.into_iter().next() {
                    self.on_terminal(master);
                }
            }
            Message::Started { answers } => {
                self.started = true;
                self.answers = Some(answers);
                self.trace = fds.into_iter().next();
                if let Some(signal) = self.held.take() {
                    self.forward(signal);
                }
            }
            Message::Refused(refusal) => self.refused.push(refusal),
            Message::RefusedCalls { total } => {
                self.refused_total = Some(total).filter(|_| self.answers == Some(Answers::Listener));
            }
            Message::Ended { status, cpu_us, max_rss_kib } => {
                self.ended = Some((status, cpu_us, max_rss_kib));
                if self.answers == Some(Answers::Listener) {
                    self.refused_total.get_or_insert(0);
                }
                // Read while init ends: what is left of the tree has less than that to live.
                self.stats = self.cgroup.as_ref().map(ExecCgroup::stats);
                self.killed_at.get_or_insert_with(Instant::now);
            }
            Message::Fault(fault) => {
                let explained = faults::explain(self.plan, fault);
                let broken = self.started || fault.step == Step::MaskLost;
                self.kill(if broken { Cause::Broken(explained) } else { Cause::Refused(explained) });
            }
            // The order of messages lets nothing else through.
            Message::Trees
            | Message::Network
            | Message::Mapped
            | Message::Limited
            | Message::Go { .. }
            | Message::Signal { .. } => {}
        }
    }

    /// init is where it belongs: confirm that. With a verdict of earlier canaries on this very plan all is known, and
    /// the command may start as soon as the root stands.
    fn on_entered(&mut self) {
        let c = &self.plan.containment;
        if let Some(cgroup) = &mut self.cgroup {
            match cgroup.place(self.running.pid) {
                Ok(()) => {
                    if cgroup.clone_dir().is_some() {
                        let by = "cgroup-membership";
                        self.read_backs.push(ReadBack {
                            protection: Protection::Kill,
                            by,
                            gap: None,
                            partial: false,
                        });
                    }
                }
                Err(e) => {
                    for protection in [
                        Protection::Kill,
                        Protection::LimitMemory,
                        Protection::LimitProcesses,
                        Protection::LimitCpu,
                    ] {
                        self.read_backs.push(missing(protection, &e.to_string()));
                    }
                }
            }
        }
        match self.running.namespaces_read_back(c.own_network) {
            Some(true) => {
                let by = "namespace-inodes";
                self.read_backs.push(ReadBack {
                    protection: Protection::Namespaces,
                    by,
                    gap: None,
                    partial: false,
                });
            }
            Some(false) => {
                self.read_backs.push(missing(Protection::Namespaces, "init is in a namespace of ours"))
            }
            None => {}
        }
        if let Some((seen, at_unix_ms)) = self.cached {
            self.verified = Verified::Cached { at_unix_ms };
            if self.judge(seen) {
                self.go(false);
            }
        }
    }

    /// The root stands: without a verdict the canaries have to run.
    fn on_built(&mut self) {
        if self.cached.is_none() {
            self.go(true);
        }
    }

    fn go(&mut self, verify: bool) {
        if !verify {
            if self.held.take().is_some() {
                self.kill(Cause::Cancel);
                return;
            }
            self.released = true;
        }
        if self.running.tell(Message::Go { verify }).is_err() {
            // Its own fault, if it had one, is still in the socket.
            self.control_open = true;
        }
    }

    fn on_canaries(&mut self, seen: Seen) {
        self.verified = Verified::Live;
        if !self.judge(seen) {
            return;
        }
        if seen.held == seen.ran {
            save_verdict(self.store, &self.verdict, seen);
        }
        self.go(false);
    }

    /// Makes the report and decides by it. A requirement that is not met refuses: nothing of the command has run.
    fn judge(&mut self, seen: Seen) -> bool {
        self.enforcement = enforce::report(&self.plan.containment, Some(seen), &self.read_backs);
        if self.options.mutants.off(Mutant::Verify) {
            return true;
        }
        let Some(unmet) = enforce::unmet(&self.enforcement) else { return true };
        let gap = unmet.gap.clone();
        let what = gap.as_ref().map_or_else(|| "not in force".to_owned(), |g| g.what.clone());
        let hint = gap.map(|g| g.remedy);
        let fault = faults::sandbox(
            "protection_unmet",
            "verifying the containment",
            Some(unmet.protection.key().to_owned()),
            what,
            hint.as_deref(),
        );
        self.kill(Cause::Refused(fault));
        false
    }

    fn on_terminal(&mut self, master: OwnedFd) {
        let attached = Terminal::attach(master).and_then(|(terminal, input, output)| {
            self.stdin = Inlet::new(Some(caller(0)?), Some(input));
            self.stdout = outlet(self.plan, self.options, Some(output), 1, TAIL_BYTES)?;
            self.terminal = Some(terminal);
            Ok(())
        });
        if let Err(e) = attached {
            self.kill(Cause::Refused(internal("attaching the terminal", &e.to_string())));
        }
    }

    fn on_output(&mut self, is_stdout: bool) {
        let outlet = if is_stdout { &mut self.stdout } else { &mut self.stderr };
        if outlet.read(false) {
            let observed = outlet.capture.total();
            let configured = self.plan.containment.limits.output.unwrap_or(0);
            self.kill(Cause::Limit(LimitHit { name: "output", configured, observed }));
        }
    }

    /// The kernel killed at the memory limit: on v1 one process, so the rest of the tree is ours to kill.
    fn on_memory(&mut self) {
        let Some(cgroup) = &self.cgroup else { return };
        // Resets an eventfd; a v2 events file has nothing to read here.
        if let Some(watch) = cgroup.oom_watch().filter(|w| !w.priority) {
            let _ = rustix::io::read(watch.fd, &mut [0u8; 8]);
        }
        if cgroup.oom_happened() {
            let hit = self.memory_hit();
            self.kill(Cause::Limit(hit));
        }
    }

    fn memory_hit(&self) -> LimitHit {
        let configured = self.plan.containment.limits.memory.unwrap_or(0);
        let peak = self.cgroup.as_ref().and_then(|c| c.stats().memory_peak.value());
        LimitHit { name: "memory", configured, observed: peak.unwrap_or(configured) }
    }

    /// Ends the command with a signal and some time when the profile wants that, else at once.
    fn end_politely(&mut self, cause: Cause) {
        let grace = self.plan.containment.limits.grace_ms;
        if grace == 0 || !self.started {
            self.kill(cause);
            return;
        }
        self.cause.get_or_insert(cause);
        if self.grace_until.is_none() {
            let told = self.running.tell(Message::Signal { number: libc::SIGTERM });
            self.grace_until =
                if told.is_ok() { Instant::now().checked_add(Duration::from_millis(grace)) } else { None };
            if self.grace_until.is_none() {
                self.kill_tree();
            }
        }
    }

    /// Kills the tree for `cause`; the first cause stands.
    fn kill(&mut self, cause: Cause) {
        self.cause.get_or_insert(cause);
        self.kill_tree();
    }

    fn kill_tree(&mut self) {
        if self.killed_at.is_some() && self.ended.is_none() {
            return;
        }
        self.killed_at = Some(Instant::now());
        end_now(&self.running);
        if let Some(cgroup) = &self.cgroup {
            // init's death alone kills its namespace; this reaches the tree by the other way as well.
            let _ = cgroup.kill(Duration::from_secs(1));
        }
    }

    /// After the last of the output: what the command did to the caller's terminal ends with it.
    fn put_terminal_back(&mut self) {
        let own = self.terminal.take();
        let shown = [&self.stdout, &self.stderr].into_iter().find_map(|outlet| outlet.screen.as_ref());
        match (own, shown) {
            (Some(own), shown) => own.end(&shown.cloned().unwrap_or_default()),
            (None, Some(_)) => {
                for screen in [&self.stdout, &self.stderr].into_iter().filter_map(|o| o.screen.as_ref()) {
                    super::terminal::settle(screen);
                }
            }
            (None, None) => {}
        }
    }

    /// Stopped from outside, as a job is: the caller's shell gets its terminal as it was, and we take it again when we are
    /// continued. The command goes on; without a reader its output waits.
    fn stop(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.suspend();
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
            terminal.resume();
        }
    }

    /// The tree is dead (or will not die): account, clean up, judge.
    fn finish(mut self, report: &mut Report, dead: bool) {
        let wall_ms = millis(self.began.elapsed());
        let killed_at = self.killed_at.unwrap_or_else(Instant::now);
        let mut init_status = None;
        if dead {
            init_status = crate::sys::wait::wait4(self.running.pid, true).ok().flatten();
        } else {
            report.leftovers.push(format!("init {} of run {} does not die", self.running.pid, self.run));
        }
        let empty_after_us = u64::try_from(killed_at.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.put_terminal_back();
        let stats = self.stats.take().or_else(|| self.cgroup.as_ref().map(ExecCgroup::stats));
        // A kill at the limit ends the whole tree; that one process of it was quick enough to end by itself before we
        // heard of the kill makes no difference.
        if self.cause.is_none() && self.cgroup.as_ref().is_some_and(ExecCgroup::oom_happened) {
            self.cause = Some(Cause::Limit(self.memory_hit()));
        }
        if self.released && dead {
            report.protected_created = self.guard.sweep(&self.run.to_string());
        }
        let by = if self.cause.is_some() && self.cgroup.as_ref().is_some_and(|c| c.clone_dir().is_some()) {
            "cgroup.kill"
        } else {
            "pid_namespace"
        };
        let cgroups_removed = if dead {
            clean_up(self.cgroup.take(), self.live, &mut report.leftovers)
        } else {
            // The record stays, and its lock is let go of: the next start finishes this.
            if let Some(cgroup) = &self.cgroup {
                let pids: Vec<String> = cgroup.processes(32).iter().map(ToString::to_string).collect();
                report.leftovers.push(format!("processes {}", pids.join(" ")));
            }
            false
        };
        report.usage = self.started.then(|| usage(wall_ms, stats.as_ref(), self.ended, init_status));
        report.reaping = dead.then_some(Reaping { empty_after_us, by, cgroups_removed });
        if self.enforcement.is_empty() {
            self.enforcement = enforce::report(&self.plan.containment, None, &self.read_backs);
        }
        // What the command made uncountable after the verdict.
        if let Some(gap) = self.disk.as_ref().and_then(super::disk::Watch::blind) {
            enforce::weaken(&mut self.enforcement, Protection::LimitDisk, gap);
        }
        report.enforcement = self.enforcement;
        report.verified = self.verified;
        let undelivered = [("standard output", &self.stdout), ("standard error", &self.stderr)]
            .into_iter()
            .find_map(|(name, outlet)| Some((name, outlet.failed()?)));
        report.drain = if self.drain_cut { Drain::Cut } else { Drain::Complete };
        report.stdout = self.stdout.capture.finish();
        report.stderr = self.stderr.capture.finish();
        report.witnessed = Witnessed {
            answers: self.answers,
            refused: self.refused,
            refused_total: self.refused_total,
            traced: self.trace.as_ref().map(trace::kept),
        };
        report.cancelled = self.first_signal.map(|signal| Cancelled { signal });
        let end = |status: i32| ToolEnd {
            exit_code: (status & 0x7f == 0).then_some((status >> 8) as u8),
            signal: (status & 0x7f != 0).then_some((status & 0x7f) as u8),
        };
        let killed = ToolEnd { exit_code: None, signal: Some(libc::SIGKILL as u8) };
        let finished = match self.ended {
            Some((status, ..)) => end(status),
            None => killed,
        };
        report.outcome = match self.cause {
            Some(Cause::Broken(fault)) => Outcome::Broken(fault),
            Some(Cause::Refused(fault)) => Outcome::Refused(fault),
            Some(Cause::Limit(hit)) => {
                let name = hit.name;
                report.limit = Some(hit);
                if self.released {
                    Outcome::Finished(finished)
                } else {
                    Outcome::Refused(faults::sandbox(
                        "limit_before_start",
                        "starting",
                        Some(format!("limits.{name}")),
                        "the limit was reached before the command started".into(),
                        Some("give it more, or run `stockade doctor` to see what is slow here"),
                    ))
                }
            }
            Some(Cause::Cancel) if !self.released => Outcome::Refused(faults::sandbox(
                "cancelled",
                "starting",
                None,
                "cancelled before the command started".into(),
                None,
            )),
            Some(Cause::Cancel) => Outcome::Finished(finished),
            None if self.started && self.ended.is_some() => Outcome::Finished(finished),
            None => {
                let fault = faults::sandbox(
                    "init_died",
                    "supervising",
                    None,
                    match init_status {
                        Some(r) if r.status & 0x7f != 0 => {
                            format!("init was killed by signal {}", r.status & 0x7f)
                        }
                        _ => "init ended without a word".to_owned(),
                    },
                    Some("was it killed from outside, or is the host out of memory?"),
                );
                // Kernels 6.16 to 7.2 kill a newborn whose cgroup was killed differently often than its parent's:
                // nothing has run then, and fresh facts choose another way.
                if self.released { Outcome::Broken(fault) } else { Outcome::Refused(fault) }
            }
        };
        if let (Some((name, errno)), Outcome::Finished(end)) = (undelivered, &report.outcome) {
            let hint = format!(
                "{end}; its exit code would have been {}. Its output is incomplete: is the disk full, or the descriptor \
                 closed?",
                report.exit_code()
            );
            report.outcome = Outcome::Broken(faults::sandbox(
                "output_lost",
                "passing on the command's output",
                Some(name.to_owned()),
                errno.to_string(),
                Some(&hint),
            ));
        }
        let unmoved = |p: &&ProtectedCreated| p.moved_to.is_none();
        let visible = |p: &ProtectedCreated| crate::base::text::visible(p.path.as_bytes());
        if let Some(replaced) = report.protected_created.iter().filter(unmoved).find(|p| p.replaced)
            && !matches!(report.outcome, Outcome::Broken(_))
        {
            report.outcome = Outcome::Broken(faults::sandbox(
                "mask_lost",
                "keeping masks and protections in place",
                Some(visible(replaced)),
                "replaced while the command ran".to_owned(),
                Some("look at it before you use any tool in this directory"),
            ));
        }
        if let Some(created) = report.protected_created.iter().filter(unmoved).find(|p| !p.replaced) {
            report.outcome = Outcome::Broken(faults::sandbox(
                "protected_not_moved",
                "moving created protected paths aside",
                Some(visible(created)),
                "a path that would run code on the host was created and could not be moved".to_owned(),
                Some("look at it before you use any tool in this directory"),
            ));
        }
        // What came until here was meant for the run, and must not end the telling of it.
        while let Ok(Some(_)) = self.signals.read_signal() {}
    }
}

/// Adds a descriptor, when there is one, under the name by which its readiness is handled.
fn adder<'v, 'fd>(
    sources: &'v mut Vec<Ready>,
    fds: &'v mut Vec<PollFd<'fd>>,
) -> impl FnMut(Ready, Option<BorrowedFd<'fd>>, PollFlags) + use<'v, 'fd> {
    move |source, fd, flags| {
        if let Some(fd) = fd {
            sources.push(source);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Ready {
    Signal,
    Control,
    Death,
    OutOfMemory,
    StdinIn,
    StdinOut,
    StdoutIn,
    StderrIn,
    StdoutOut,
    StderrOut,
}

/// Our ends of the command's streams.
struct Ours {
    stdin: Inlet,
    stdout: Outlet,
    stderr: Outlet,
}

/// The command's pipes (owned by its host identity, else it could not open `/dev/stdout` again) and our ends.
fn streams(plan: &Plan, options: &Options, id_base: u32) -> Result<(Stdio, Ours), rustix::io::Errno> {
    let outlet = |from, number, tail| outlet(plan, options, from, number, tail);
    if options.tty {
        // They come with the terminal.
        let (stdout, stderr) = (outlet(None, 1, 0)?, outlet(None, 2, 0)?);
        return Ok((Stdio::Terminal, Ours { stdin: Inlet::new(None, None), stdout, stderr }));
    }
    let ids = &plan.containment.ids;
    let pipe = |ours_reads: bool| -> Result<(OwnedFd, OwnedFd), rustix::io::Errno> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        let (ours, theirs) = if ours_reads { (read, write) } else { (write, read) };
        rustix::fs::fcntl_setfl(&ours, OFlags::NONBLOCK)?;
        if plan.containment.mode == Mode::Privileged {
            let uid = rustix::fs::Uid::from_raw(idmap::host_id(ids.outer_uid, id_base));
            let gid = rustix::fs::Gid::from_raw(idmap::host_id(ids.outer_gid, id_base));
            rustix::fs::fchown(&theirs, Some(uid), Some(gid))?;
        }
        Ok((ours, theirs))
    };
    let (stdin, in_theirs) = if options.close_stdin {
        let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, FileMode::empty())?;
        (Inlet::new(None, None), null)
    } else {
        let (ours, theirs) = pipe(false)?;
        (Inlet::new(Some(caller(0)?), Some(ours)), theirs)
    };
    let (out, out_theirs) = pipe(true)?;
    let (err, err_theirs) = pipe(true)?;
    let (stdout, stderr) = (outlet(Some(out), 1, 0)?, outlet(Some(err), 2, TAIL_BYTES)?);
    Ok((Stdio::Pipes([in_theirs, out_theirs, err_theirs]), Ours { stdin, stdout, stderr }))
}

/// Where a stream of the command goes: into the report, or to our descriptor of this number; then only its last `tail`
/// bytes are kept, for those who ask why the command failed.
fn outlet(
    plan: &Plan,
    options: &Options,
    from: Option<OwnedFd>,
    number: i32,
    tail: usize,
) -> Result<Outlet, rustix::io::Errno> {
    let (limit, action) = (plan.containment.limits.output, plan.containment.limits.output_action);
    Ok(if options.capture {
        Outlet::new(from, None, Capture::new(limit, action).digested(options.digests))
    } else {
        let capture = Capture::with_bounds(limit, action, 0, tail).digested(options.digests);
        Outlet::new(from, Some(caller(number)?), capture)
    })
}

/// A copy of one of our own standard descriptors, all of which are open: see `sys::fds`. For output to a terminal it is one
/// that never blocks: a terminal that is stopped, or that nobody reads, must not keep us from limits and signals.
fn caller(number: i32) -> Result<OwnedFd, rustix::io::Errno> {
    match number {
        0 => rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3),
        1 => super::terminal::unblocking(std::io::stdout().as_fd()),
        _ => super::terminal::unblocking(std::io::stderr().as_fd()),
    }
}

fn block_signals(tty: bool) -> nix::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGWINCH] {
        set.add(signal);
    }
    if tty {
        // Without a terminal to give back, being stopped is the kernel's business.
        set.add(Signal::SIGTSTP);
        set.add(Signal::SIGCONT);
    }
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

fn internal(stage: &str, message: &str) -> Fault {
    faults::sandbox("system", stage, None, message.to_owned(), None)
}

fn missing(protection: Protection, why: &str) -> ReadBack {
    let gap = Gap { what: why.to_owned(), remedy: "run `stockade doctor`".to_owned() };
    ReadBack { protection, by: "", gap: Some(gap), partial: false }
}

fn limit_read_back(limit: Limit, result: Result<(), cgroup::LimitGap>) -> ReadBack {
    let protection = match limit {
        Limit::Memory => Protection::LimitMemory,
        Limit::Processes => Protection::LimitProcesses,
        Limit::Cpu => Protection::LimitCpu,
    };
    match result {
        Ok(()) => ReadBack { protection, by: "cgroup-read-back", gap: None, partial: false },
        Err(gap) => ReadBack {
            protection,
            by: "",
            partial: gap.partial,
            gap: Some(Gap { what: gap.what, remedy: gap.remedy }),
        },
    }
}

/// SIGKILL to init, which takes its PID namespace with it. pid_namespaces(7).
fn end_now(running: &Running) {
    // ESRCH: it is dead already, which is what is wanted.
    let _ = rustix::process::pidfd_send_signal(&running.pidfd, rustix::process::Signal::KILL);
}

/// Removes the cgroups and, when that worked, the run's record. Otherwise the record stays for the next start.
fn clean_up(cgroup: Option<ExecCgroup>, live: Live, leftovers: &mut Vec<String>) -> bool {
    if let Some(cgroup) = cgroup
        && let Err(errors) = cgroup.remove()
    {
        leftovers.extend(errors.iter().map(ToString::to_string));
        return false;
    }
    if let Err(e) = live.end() {
        leftovers.push(e.to_string());
    }
    true
}

fn usage(
    wall_ms: u64,
    stats: Option<&cgroup::Stats>,
    ended: Option<(i32, u64, u64)>,
    init: Option<crate::sys::wait::Reaped>,
) -> Usage {
    let from_cgroup = |reading: Option<&Reading>| reading.and_then(Reading::value);
    let cpu_us = match from_cgroup(stats.map(|s| &s.cpu_us)) {
        Some(v) => Measured { value: Some(v), from: "cgroup: the whole tree" },
        None => {
            let own = init.map_or(0, |r| r.cpu_us);
            let waited = ended.map_or(0, |e| e.1);
            Measured { value: Some(own.max(waited)), from: "wait4: init and what it reaped" }
        }
    };
    let memory_peak_bytes = match from_cgroup(stats.map(|s| &s.memory_peak)) {
        Some(v) => Measured { value: Some(v), from: "cgroup: the whole tree" },
        None => match ended {
            Some((_, _, kib)) => {
                Measured { value: Some(kib * 1024), from: "wait4: the largest single process" }
            }
            None => Measured { value: None, from: "the command was killed and no cgroup counted" },
        },
    };
    let processes_peak = match from_cgroup(stats.map(|s| &s.processes_peak)) {
        Some(v) => Measured { value: Some(v), from: "cgroup: the whole tree" },
        None => Measured { value: None, from: "no cgroup with a processes limit counted" },
    };
    let processes_denied = match from_cgroup(stats.map(|s| &s.processes_denied)) {
        Some(v) => Measured { value: Some(v), from: "cgroup: the whole tree" },
        None => Measured { value: None, from: "no cgroup with a processes limit counted" },
    };
    Usage { wall_ms, cpu_us, memory_peak_bytes, processes_peak, processes_denied }
}

/// What a verdict of the canaries is good for: this boot, this plan, this binary, this host, this user.
fn verdict_key(plan: &Plan, facts: &HostFacts) -> Digest {
    let parts = (
        &facts.boot_id,
        plan.plan_digest,
        crate::probe::build_id(),
        Digest::of_canonical(facts).ok(),
        (facts.uid, facts.gid),
    );
    Digest::of_canonical(&parts).unwrap_or_else(|_| Digest::of(plan.plan_digest.bytes()))
}

const VERDICTS: &str = "verdict";

fn load_verdict(store: &Store, key: &Digest) -> Option<(Seen, u64)> {
    let bytes = store.get(VERDICTS, key)?;
    let word = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let (held, ran, at) = (word(0)?, word(8)?, word(16)?);
    (bytes.len() == 24 && held == ran).then_some((Seen { held, ran }, at))
}

fn save_verdict(store: &Store, key: &Digest, seen: Seen) {
    let mut bytes = Vec::with_capacity(24);
    for word in [seen.held, seen.ran, unix_ms()] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    // A verdict that cannot be kept is made again next time.
    let _ = store.put(VERDICTS, key, &bytes);
}
