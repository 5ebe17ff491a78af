//! What the cgroups of one executor cost, with pauses between the rounds (tight loops hide the RCU wait):
//! `cargo bench --bench cgroup`, as root on a hybrid host. Without a test harness: the process has one
//! thread, so that it may clone as `exec` does.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement stops at the first surprise and prints"
)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use stockade::base::{HostPath, RunId};
use stockade::plan::{CgroupDir, CgroupFacts};
use stockade::supervise::cgroup::{self, ExecCgroup, Wanted};
use stockade::supervise::recover::{Beginning, Host, IdSources, Live, recover};
use stockade::supervise::state_dir::StateDir;
use stockade::sys::clone::{Cloned, clone3, exit_now};

fn dir(path: &str) -> CgroupDir {
    CgroupDir { own: HostPath::new(path).unwrap(), writable: true }
}

fn facts() -> CgroupFacts {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let mut facts =
        CgroupFacts { v2: Some(dir("/sys/fs/cgroup/unified")), v2_kill: true, ..CgroupFacts::default() };
    for line in own.lines() {
        let f: Vec<&str> = line.splitn(3, ':').collect();
        if ["memory", "pids", "cpu"].contains(&f[1]) {
            facts.v1.insert(f[1].to_owned(), dir(&format!("/sys/fs/cgroup/{}{}", f[1], f[2])));
        }
    }
    facts
}

#[derive(Default)]
struct Times(BTreeMap<&'static str, Vec<u128>>);

impl Times {
    fn take<T>(&mut self, what: &'static str, f: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let out = f();
        self.0.entry(what).or_default().push(start.elapsed().as_micros());
        out
    }
    fn print(mut self, title: &str) {
        println!("{title}");
        for (what, times) in &mut self.0 {
            times.sort_unstable();
            println!(
                "  {what:<28} p50 {:>6} µs   p90 {:>6} µs",
                times[times.len() / 2],
                times[times.len() * 9 / 10]
            );
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Born into cgroup2, the child writes `0` to the v1 `tasks` files.
    Itself,
    /// Born into cgroup2, the parent writes the pid.
    Parent,
    /// Not born into it either.
    ParentAll,
}

fn rounds(way: Way, wanted: Wanted, n: u8) -> Times {
    let facts = facts();
    let mut times = Times::default();
    for round in 0..n {
        std::thread::sleep(Duration::from_millis(100));
        let run = RunId::new(u64::from(std::process::id()), [round, way as u8, 2, 3, 4, 5, 6, 7, 8, 9]);
        let whole = Instant::now();
        let mut group = times.take("1 create_v2", || ExecCgroup::create_v2(&facts, &run).unwrap());
        // In `exec` the limits are added after the clone and the descriptors sent; here before it, so that
        // the child simply inherits them.
        let gaps = times.take("2 add_limits", || group.add_limits(&facts, &wanted));
        assert!(gaps.iter().all(|(_, r)| r.is_ok()), "{gaps:?}");
        let (go_r, go_w) = rustix::pipe::pipe().unwrap();
        let (done_r, done_w) = rustix::pipe::pipe().unwrap();
        let into = group.clone_dir().filter(|_| way != Way::ParentAll);
        let cloned = times.take("3 clone3", || clone3(0, into).unwrap());
        match cloned {
            Cloned::Child => {
                let start = Instant::now();
                let ok = way != Way::Itself || cgroup::enter(&group.task_fds()).is_ok();
                let took = u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX);
                let _ = rustix::io::write(&done_w, &took.to_le_bytes());
                let _ = rustix::io::read(&go_r, &mut [0u8; 1][..]);
                exit_now(i32::from(!ok));
            }
            Cloned::Parent { pid, pidfd: _pidfd } => {
                let mut took = [0u8; 4];
                times.take("4 wait for child's entering", || {
                    rustix::io::read(&done_r, &mut took[..]).unwrap()
                });
                times.0.entry("4a inside the child").or_default().push(u32::from_le_bytes(took).into());
                times.take("5 place", || group.place(pid).unwrap());
                rustix::io::write(&go_w, b"x").unwrap();
                let reaped = stockade::sys::wait::wait4(pid, true).unwrap().unwrap();
                assert_eq!(reaped.status, 0);
                times.take("6 stats", || group.stats());
                times.take("7 remove", || group.remove().unwrap());
                times.0.entry("all of it").or_default().push(whole.elapsed().as_micros());
            }
        }
    }
    times
}

fn main() {
    let all = Wanted { memory: Some(256 << 20), processes: Some(100), cpu_percent: Some(100) };
    let two = Wanted { cpu_percent: None, ..all };
    rounds(Way::Itself, all, 40).print("memory, pids, cpu; the child enters by itself");
    rounds(Way::Itself, two, 40).print("memory, pids; the child enters by itself");
    rounds(Way::Parent, all, 20).print("memory, pids, cpu; the parent writes the pid to tasks");
    rounds(Way::ParentAll, all, 20)
        .print("memory, pids, cpu; the parent writes the pid everywhere, cgroup2 included");

    let tmp = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = tmp.path().join("state");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let (ids, proc) = (IdSources::default(), std::path::Path::new("/proc"));
    for others in [0u8, 20] {
        let state = StateDir::open(&path, rustix::process::geteuid().as_raw()).unwrap();
        let begin = |state: &StateDir, run, ids| {
            let what = Beginning {
                run,
                boot_id: boot.trim(),
                proc,
                ids,
                cgroups: cgroup::names(&facts(), &run, &all),
                temporary: Vec::new(),
            };
            Live::begin(state, what).unwrap()
        };
        let held: Vec<Live> =
            (0..others).map(|n| begin(&state, RunId::new(1, [n; 10]), Some(&ids))).collect();
        let mut times = Times::default();
        for n in 0..40 {
            std::thread::sleep(Duration::from_millis(100));
            let state = times.take("1 open the state directory", || {
                StateDir::open(&path, rustix::process::geteuid().as_raw()).unwrap()
            });
            times.take("2 recover, nothing to do", || {
                recover(&state, Host { boot_id: boot.trim(), proc }).unwrap()
            });
            let mut live =
                times.take("3 begin, with id range", || begin(&state, RunId::new(2, [n; 10]), Some(&ids)));
            times.take("4 update", || live.update(|r| r.init = r.owner).unwrap());
            times.take("5 end", || live.end().unwrap());
            std::thread::sleep(Duration::from_millis(100));
            let live = times.take("3 begin, rootless", || begin(&state, RunId::new(3, [n; 10]), None));
            live.end().unwrap();
        }
        times.print(&format!("lease on {}, {others} other live runs", path.display()));
        held.into_iter().for_each(|l| l.end().unwrap());
    }
}
