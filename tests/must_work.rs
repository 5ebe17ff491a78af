//! What must work under the unmodified `offline` profile (70-quality, must-work matrix; user-reports 2c–2g): a
//! sandbox that breaks these will be switched off. From a home that is not root's, with a toolchain below it
//! (`scripts/test-user` puts one there; without it the host's own is used and the skips say so).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{BOTH, Input, Run, Sandbox, Workspace, bash, home, sh, skip};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(240);

#[track_caller]
fn works(ws: &Workspace, script: &str) -> Run {
    let run = Sandbox::new(ws).patience(LONG).run(bash(&format!("set -euo pipefail\n{script}")));
    run.expect_exit(0);
    run
}

fn git(dir: &Path, args: &[&str]) {
    let done = Command::new("git")
        .current_dir(dir)
        .args(["-c", "init.defaultBranch=main"])
        .args(args)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", home())
        .output()
        .unwrap();
    assert!(done.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn checkout(tag: &str) -> Workspace {
    let ws = Workspace::new(tag);
    git(ws.path(), &["init", "-q"]);
    git(ws.path(), &["config", "user.name", "Test"]);
    git(ws.path(), &["config", "user.email", "test@example.invalid"]);
    ws.file("a.txt", "one\n");
    git(ws.path(), &["add", "a.txt"]);
    git(ws.path(), &["commit", "-qm", "first"]);
    ws
}

/// Whether a program is on the PATH that stockade's caller has.
fn host_has(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|d| d.join(program).exists()));
    if !found {
        skip(&format!("{program} is not installed"));
    }
    found
}

#[test]
fn bash_pipelines() {
    let ws = Workspace::new("bash");
    let run = works(
        &ws,
        r#"
        seq 1 1000 | awk '{s+=$1} END {print s}' > sum
        diff <(sort <<<$'b\na') <(printf 'a\nb\n')
        find . -type f | xargs -P 4 -n 1 wc -c > /dev/null
        (cd /tmp && mkdir d && mv d e && rmdir e)
        yes | head -n 5 > /dev/null || true
        trap 'echo trapped' EXIT
        exec 3<> scratch; echo three >&3
        echo "$(cat sum) $HOME $USER $(pwd)"
        "#,
    );
    assert_eq!(run.out(), format!("500500 /home/agent agent {}\ntrapped\n", ws.path().display()));
}

#[test]
fn the_basics_as_both_users() {
    for inside in BOTH {
        let ws = Workspace::new("basics");
        let run = Sandbox::new(&ws).inside(inside).run(sh("id -u; whoami; hostname; test -w . && touch new && ls; getent passwd $(id -u) | cut -d: -f3; date > /dev/null; df . > /dev/null; ps > /dev/null 2>&1 || true"));
        run.expect_exit(0);
        let uid = inside.uid();
        let who = if uid == 0 { "root" } else { "agent" };
        assert_eq!(run.out(), format!("{uid}\n{who}\nstockade\nnew\n{uid}\n"), "{}", run.err());
    }
}

#[test]
fn git_in_a_checkout() {
    let ws = checkout("git");
    let run = works(
        &ws,
        r#"
        git status --porcelain
        echo two > b.txt; mkdir dir; echo three > dir/c.txt
        git add .
        git commit -qm second
        git mv b.txt dir/b.txt
        git commit -qm renamed
        echo more >> a.txt
        git stash -q; git stash pop -q
        git checkout -q -b side; git commit -qam side
        git checkout -q main; git merge -q side
        git diff HEAD~1 > /dev/null
        git gc -q
        git status --porcelain
        git log --oneline | wc -l
        "#,
    );
    assert_eq!(run.out().lines().last(), Some("4"), "{}", run.out());
    assert_eq!(
        run.json["protected_created"].as_array().map(Vec::len),
        Some(0),
        "{}",
        run.json["protected_created"]
    );
    git(ws.path(), &["fsck", "--strict"]);
}

#[test]
fn git_in_a_linked_worktree() {
    let main = checkout("git-main");
    let at = home().join("ws").join(common::unique("linked"));
    git(main.path(), &["worktree", "add", "-q", "-b", "linked", at.to_str().unwrap()]);
    let run = Sandbox::bare().patience(LONG).option("-w").option(&at).run(bash(
        "set -e; git status --porcelain; echo x > x; git add x; git commit -qm linked; git log --oneline | wc -l; git status --porcelain",
    ));
    run.expect_exit(0);
    assert_eq!(run.out(), "2\n", "{}", run.err());
    git(main.path(), &["log", "--oneline", "linked"]);
    git(main.path(), &["worktree", "remove", "--force", at.to_str().unwrap()]);
}

#[test]
fn git_makes_a_repository_and_a_fresh_clone() {
    let source = checkout("clone-source");
    let ws = Workspace::new("clone");
    // A clone's `.git/config` is a protected name that was missing: in a subdirectory it is nobody's business.
    let run = Sandbox::new(&ws)
        .options(["--ro", &format!("{}:/source", source.path().display())])
        .run(bash("set -e; git -c safe.directory='*' clone -q /source/.git copy 2>&1 && cd copy && git log --oneline | wc -l"));
    run.expect_exit(0);
    assert_eq!(run.out(), "1\n", "{}", run.err());
}

/// A crate with a path dependency beside it, all offline; cargo renames directories and takes locks.
#[test]
fn cargo_build_and_test() {
    if !host_has("cargo") {
        return;
    }
    let ws = Workspace::new("cargo");
    ws.file("Cargo.toml", "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[dependencies]\nhelper = { path = \"vendor/helper\" }\n");
    ws.file("src/main.rs", "fn main() { println!(\"{}\", helper::twice(21)); }\n#[test]\nfn doubles() { assert_eq!(helper::twice(2), 4); }\n");
    ws.file("build.rs", "fn main() { println!(\"cargo:rerun-if-changed=build.rs\"); }\n");
    ws.file(
        "vendor/helper/Cargo.toml",
        "[package]\nname = \"helper\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
    );
    ws.file("vendor/helper/src/lib.rs", "pub fn twice(n: u32) -> u32 { n * 2 }\n");
    let run = works(
        &ws,
        "cargo build --offline 2>&1 | tail -3; cargo test --offline 2>&1 | tail -5; touch src/main.rs; cargo build --offline -q; ./target/debug/app",
    );
    assert_eq!(run.out().lines().last(), Some("42"), "{}", run.out());
    let below_a_home = |at: &Path| at.starts_with("/home") || at.starts_with(home());
    if !std::env::var_os("CARGO_HOME").is_some_and(|c| below_a_home(Path::new(&c))) {
        skip("toolchain is not below a home (run scripts/test-user): built with the host's");
    }
}

#[test]
fn python_asyncio_and_multiprocessing() {
    let ws = Workspace::new("python");
    ws.file(
        "t.py",
        r#"
import asyncio, multiprocessing as mp, os, socket, sqlite3, subprocess, tempfile, threading, mmap, fcntl, sys

def square(x):
    return x * x

async def main():
    async def serve(r, w):
        w.write(await r.readline()); await w.drain(); w.close()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    r, w = await asyncio.open_connection(*server.sockets[0].getsockname())
    w.write(b"echo\n"); assert await r.readline() == b"echo\n"
    u = await asyncio.start_unix_server(serve, "sock")
    r, w = await asyncio.open_unix_connection("sock")
    w.write(b"unix\n"); assert await r.readline() == b"unix\n"
    p = await asyncio.create_subprocess_exec("echo", "child", stdout=asyncio.subprocess.PIPE)
    out, _ = await p.communicate(); assert out == b"child\n"
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    threading.Thread(target=lambda: loop.call_soon_threadsafe(done.set)).start()
    await asyncio.wait_for(done.wait(), 5)

if __name__ == "__main__":
    asyncio.run(main())
    for method in ("fork", "spawn", "forkserver"):
        with mp.get_context(method).Pool(2) as pool:
            assert pool.map(square, range(8)) == [x * x for x in range(8)], method
    from multiprocessing import shared_memory
    m = shared_memory.SharedMemory(create=True, size=4096); m.buf[0] = 7; m.close(); m.unlink()
    q = mp.Queue(); p = mp.Process(target=q.put, args=("x",)); p.start(); assert q.get() == "x"; p.join()
    threads = [threading.Thread(target=lambda: sum(range(1000))) for _ in range(64)]
    [t.start() for t in threads]; [t.join() for t in threads]
    db = sqlite3.connect("t.db"); db.execute("pragma journal_mode=wal"); db.execute("create table t(x)")
    db.executemany("insert into t values (?)", [(i,) for i in range(1000)]); db.commit()
    assert db.execute("select count(*) from t").fetchone() == (1000,); db.close()
    with tempfile.TemporaryFile() as f: f.write(b"x")
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600); os.write(fd, b"x"); os.close(fd)
    with open("locked", "w") as f: fcntl.flock(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_EX)
    os.makedirs("a/b"); open("f", "w").close(); os.rename("f", "a/b/f"); os.rename("a", "c")
    os.posix_fallocate(os.open("fa", os.O_CREAT | os.O_RDWR), 0, 65536)
    a, b = socket.socketpair(); a.send(b"x"); assert b.recv(1) == b"x"
    assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3
    import getpass, pwd, ssl, locale, random, uuid
    assert pwd.getpwuid(os.getuid()).pw_name == getpass.getuser() == "agent"
    ssl.create_default_context()
    print("fine", os.cpu_count() > 0)
"#,
    );
    let run = works(&ws, "/usr/bin/python3 t.py");
    assert_eq!(run.out(), "fine True\n", "{}", run.err());
    // Whatever python the caller's PATH names (pyenv: a toolchain below a home).
    if host_has("python3") {
        works(&ws, "rm -rf t.db* c sock fa locked; python3 t.py");
    }
}

#[test]
fn node() {
    if !host_has("node") {
        return;
    }
    let ws = Workspace::new("node");
    ws.file(
        "t.js",
        r"
const { spawn, execSync } = require('child_process');
const { Worker, isMainThread, parentPort } = require('worker_threads');
const http = require('http'), net = require('net'), fs = require('fs'), os = require('os'), crypto = require('crypto');
if (!isMainThread) { parentPort.postMessage('worker'); } else (async () => {
  const server = http.createServer((q, r) => r.end('hello')).listen(0, '127.0.0.1');
  await new Promise(r => server.once('listening', r));
  const body = await new Promise(r => http.get({ port: server.address().port, host: '127.0.0.1' }, m => m.on('data', d => r(String(d)))));
  if (body !== 'hello') throw body;
  server.close();
  const u = net.createServer(s => s.end('u')).listen('node.sock');
  await new Promise(r => u.once('listening', r)); u.close();
  await new Promise(r => new Worker(__filename).on('message', r));
  await new Promise((r, j) => spawn('sh', ['-c', 'exit 0']).on('exit', c => c ? j(c) : r()));
  const w = fs.watch('.', () => {}); w.close();
  fs.writeFileSync('x', crypto.randomBytes(16)); fs.copyFileSync('x', 'y'); await fs.promises.readFile('y');
  if (os.userInfo().username !== 'agent') throw os.userInfo().username;
  console.log('fine', execSync('echo sub').toString().trim());
})().catch(e => { console.error(e); process.exit(1); });
",
    );
    let run = works(&ws, "node t.js");
    assert_eq!(run.out(), "fine sub\n", "{}", run.err());
}

#[test]
fn make_and_a_c_compiler() {
    if !host_has("gcc") || !host_has("make") {
        return;
    }
    let ws = Workspace::new("make");
    ws.file("Makefile", "all: app\napp: a.o b.o\n\tgcc -pthread -o $@ $^\n%.o: %.c\n\tgcc -O2 -c -o $@ $<\nclean:\n\trm -f *.o app\n");
    ws.file("a.c", "#include <pthread.h>\n#include <stdio.h>\nint two(void);\nstatic void *f(void *x) { return x; }\nint main(void) { pthread_t t[32]; for (int i = 0; i < 32; i++) if (pthread_create(&t[i], 0, f, 0)) return 1; for (int i = 0; i < 32; i++) pthread_join(t[i], 0); printf(\"%d\\n\", two()); return 0; }\n");
    ws.file("b.c", "int two(void) { return 2; }\n");
    let run = works(&ws, "make -j4 -s; ./app; make -s clean");
    assert_eq!(run.out(), "2\n");
}

/// Names that no shell likes and the kernel does: 255 bytes, no UTF-8, newlines.
#[test]
fn odd_and_long_names() {
    let ws = Workspace::new("oddnames");
    works(
        &ws,
        r#"
        long=$(printf 'n%.0s' $(seq 1 255)); echo x > "$long"; test -s "$long"
        printf 'y' > $'\xff\xfe'; test -s $'\xff\xfe'; printf z > $'new\nline'
        ln -s "$long" link; mv "$long" "${long/n/m}"
        deep=.; for i in $(seq 1 40); do deep=$deep/$(printf 'd%.0s' $(seq 1 60)); done; mkdir -p "$deep"; touch "$deep/f"
        cp -a . /tmp/copy; rm -rf /tmp/copy
        tar cf /tmp/t.tar . ; mkdir /tmp/x; tar xf /tmp/t.tar -C /tmp/x
        "#,
    );
    assert!(ws.path().join(common::name(b"\xff\xfe")).exists());
}

/// At the kernel's limits: a single argument of 128 KiB less one byte, an environment of a megabyte.
#[test]
fn long_arguments_and_a_large_environment() {
    let ws = Workspace::new("long");
    let argument = "x".repeat(128 * 1024 - 1);
    let raw = Sandbox::new(&ws).raw(["sh", "-c", "printf %s \"$1\" | wc -c", "sh", &argument]);
    assert_eq!((raw.code(), raw.out().trim()), (0, "131071"), "{}", raw.err());
    let mut sandbox = Sandbox::new(&ws);
    for i in 0..16 {
        sandbox =
            sandbox.env(&format!("BIG{i}"), "e".repeat(64 * 1024)).option("--env").option(format!("BIG{i}"));
    }
    let raw = sandbox.raw(sh("env | wc -c"));
    assert_eq!(raw.code(), 0, "{}", raw.err());
    assert!(raw.out().trim().parse::<usize>().unwrap() > 1 << 20, "{}", raw.out());
}

#[test]
fn a_hundred_mebibytes_of_output() {
    let ws = Workspace::new("hundred");
    ws.file("gen.py", "import sys,hashlib\nb=bytes(range(256))*4096\nh=hashlib.sha256()\nfor i in range(100):\n    sys.stdout.buffer.write(b); h.update(b)\nsys.stderr.write(h.hexdigest())\n");
    let raw = Sandbox::new(&ws).patience(LONG).raw(["/usr/bin/python3", "gen.py"]);
    assert_eq!(raw.code(), 0, "{}", raw.err());
    assert_eq!(raw.stdout.len(), 100 << 20);
    let digest: String = Sha256::digest(&raw.stdout).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(digest, raw.err());
}

#[test]
fn closed_stdin_and_no_terminal() {
    let ws = Workspace::new("nostdin");
    let raw = Sandbox::new(&ws).stdin(Input::Closed).raw(bash(
        "read -r x || echo eof; /usr/bin/python3 -c 'import sys; print(sys.stdin.read() == \"\")'",
    ));
    assert_eq!((raw.code(), raw.out()), (0, "eof\nTrue\n".into()), "{}", raw.err());
}

/// Own terminals: `script`, job control, window size.
#[test]
fn terminals() {
    let ws = Workspace::new("terminal");
    let run = works(&ws, "script -qec 'tty; stty size > /dev/null' /dev/null | head -1");
    assert!(run.out().starts_with("/dev/pts/"), "{}", run.out());
    let raw = Sandbox::new(&ws)
        .option("--tty")
        .raw(bash("set -m; sleep 0.1 & jobs > /dev/null; wait; test -t 0 && test -t 1 && tty"));
    assert_eq!(raw.code(), 0, "{}", raw.out());
    assert!(raw.out().contains("/dev/pts/"), "{}", raw.out());
}

#[test]
fn file_facilities() {
    let ws = Workspace::new("files");
    let program = ws.fixture("fs");
    let rows = vec![
        common::allow("inotify").with(ws.at("")),
        common::allow("o_tmpfile").with(ws.at("")),
        common::deny("flock", "EAGAIN").with(ws.at("lock")).outside("EAGAIN"),
        common::allow("write_read_back").with(ws.at("w")),
        common::allow("setxattr_user").with(program),
        common::allow("lease").with(ws.at("lease")),
    ];
    common::check("fs", &ws, &rows, |s| s);
    works(
        &ws,
        "truncate -s 1G sparse; cp --sparse=always sparse s2; dd if=/dev/zero of=d bs=1M count=4 conv=fsync status=none; sync -f d; ln d d2; chmod -x d; touch -d yesterday d",
    );
}

/// Unprivileged programs that look at their own limits and machine.
#[test]
fn machine_facts_are_readable() {
    let ws = Workspace::new("facts");
    works(
        &ws,
        "nproc; free -m > /dev/null; uname -a > /dev/null; cat /proc/meminfo /proc/cpuinfo /proc/loadavg /proc/self/limits > /dev/null; ulimit -a > /dev/null; locale > /dev/null; openssl version > /dev/null; date -d 2020-01-01 > /dev/null; TZ=Europe/Berlin date > /dev/null",
    );
}

/// A project path that only exists inside a home: absolute paths in builds stay true.
#[test]
fn the_workspace_is_at_its_own_path() {
    let ws = Workspace::new("ownpath");
    let raw = Sandbox::bare().current_dir(ws.path()).raw(["pwd"]);
    assert_eq!((raw.code(), PathBuf::from(raw.out().trim_end())), (0, ws.path().to_owned()), "{}", raw.err());
}

/// uid without a passwd entry, odd umask, ignored signals: the caller's peculiarities don't come along.
#[test]
fn the_callers_peculiarities_stay_outside() {
    let ws = Workspace::new("peculiar");
    let raw = Sandbox::new(&ws)
        .launcher([
            "bash",
            "-c",
            "umask 077; trap '' PIPE TERM INT; ulimit -c unlimited; nice -n 0 \"$@\"",
            "bash",
        ])
        .raw(sh("umask; ulimit -c; yes | head -1; grep -E '^Sig(Ign|Blk)' /proc/self/status"));
    assert_eq!(raw.code(), 0, "{}", raw.err());
    let out = raw.out();
    assert!(out.starts_with("0022\n0\ny\n"), "{out}");
    assert!(out.contains("SigIgn:\t0000000000000000") && out.contains("SigBlk:\t0000000000000000"), "{out}");
}

#[test]
fn npm_with_a_local_dependency() {
    if !host_has("npm") {
        return;
    }
    let ws = Workspace::new("npm");
    ws.file("dep/package.json", r#"{"name":"dep","version":"1.0.0","main":"i.js"}"#);
    ws.file("dep/i.js", "module.exports = 42;\n");
    ws.file(
        "package.json",
        r#"{"name":"app","version":"1.0.0","dependencies":{"dep":"file:./dep-1.0.0.tgz"},"scripts":{"test":"node t.js","preinstall":"echo ran >pre"}}"#,
    );
    ws.file("t.js", "if (require('dep') !== 42) process.exit(3); console.log('fine');\n");
    let run = works(
        &ws,
        "(cd dep && npm pack --silent --pack-destination .. >/dev/null)\n\
         npm install --offline --no-audit --no-fund --silent\nrm -rf node_modules\nnpm ci --offline --no-audit --no-fund --silent\n\
         npm test --silent; npx --offline --no-install node -e 0; cat pre",
    );
    assert_eq!(run.out(), "fine\nran\n", "{}", run.err());
}

#[test]
fn pip_in_an_environment_of_its_own() {
    let ws = Workspace::new("pip");
    // What building a wheel comes to, without the tools for it.
    ws.file(
        "wheel.py",
        r#"
import base64, hashlib, zipfile
files = {"dep.py": "ANSWER = 42\n",
    "dep-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: dep\nVersion: 1.0\n",
    "dep-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
record = ""
for name, text in files.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    record += f"{name},sha256={digest},{len(text)}\n"
with zipfile.ZipFile("dep-1.0-py3-none-any.whl", "w") as z:
    for name, text in files.items(): z.writestr(name, text)
    z.writestr("dep-1.0.dist-info/RECORD", record + "dep-1.0.dist-info/RECORD,,\n")
"#,
    );
    if !host_has("python3") {
        return;
    }
    let bare = Command::new("python3").args(["-c", "import ensurepip, venv"]).output();
    if !bare.is_ok_and(|o| o.status.success()) {
        return skip("python3 has no venv and ensurepip");
    }
    let run = works(
        &ws,
        "python3 wheel.py\npython3 -m venv env\n./env/bin/pip install --quiet --no-index --disable-pip-version-check ./dep-1.0-py3-none-any.whl\n\
         ./env/bin/python -c 'import dep; print(dep.ANSWER)'",
    );
    assert_eq!(run.out(), "42\n", "{}", run.err());
}

#[test]
fn go_with_a_vendored_module() {
    if !host_has("go") {
        return;
    }
    let ws = Workspace::new("go");
    ws.file("go.mod", "module example.invalid/app\n\ngo 1.18\n\nrequire example.invalid/dep v1.0.0\n");
    ws.file(
        "main.go",
        "package main\n\nimport (\n\t\"example.invalid/dep\"\n\t\"fmt\"\n)\n\nfunc main() {\n\tdone := make(chan int)\n\tfor i := 0; i < 1000; i++ {\n\t\tgo func() { done <- 1 }()\n\t}\n\tn := 0\n\tfor i := 0; i < 1000; i++ {\n\t\tn += <-done\n\t}\n\tfmt.Println(dep.Answer, n)\n}\n",
    );
    ws.file("main_test.go", "package main\n\nimport \"testing\"\n\nfunc TestIt(t *testing.T) {}\n");
    ws.file("vendor/example.invalid/dep/d.go", "package dep\n\nconst Answer = 42\n");
    ws.file("vendor/modules.txt", "# example.invalid/dep v1.0.0\n## explicit\nexample.invalid/dep\n");
    let run = works(
        &ws,
        "go build -mod=vendor -o app .\n./app\ngo test -mod=vendor . >/dev/null\ngo vet -mod=vendor .",
    );
    assert_eq!(run.out(), "42 1000\n", "{}", run.err());
}

#[test]
fn a_java_virtual_machine() {
    if !host_has("javac") || !host_has("jar") {
        return;
    }
    let ws = Workspace::new("java");
    ws.file(
        "T.java",
        r#"
import java.util.concurrent.*;
public class T {
    public static void main(String[] a) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(64);
        int n = 0;
        Callable<Integer> one = () -> 1;
        for (Future<Integer> f : pool.invokeAll(java.util.Collections.nCopies(500, one))) n += f.get();
        pool.shutdown();
        java.nio.file.Path p = java.nio.file.Files.createTempFile("t", "x");
        java.nio.file.Files.write(p, new byte[1 << 20]);
        java.net.ServerSocket s = new java.net.ServerSocket(0, 1, java.net.InetAddress.getLoopbackAddress());
        new java.net.Socket(s.getInetAddress(), s.getLocalPort()).close();
        Process q = new ProcessBuilder("sh", "-c", "exit 3").start();
        System.out.println("fine " + n + " " + q.waitFor() + " " + System.getProperty("user.name"));
    }
}
"#,
    );
    let run = works(&ws, "javac T.java\njar cfe t.jar T T*.class\njava -jar t.jar");
    assert_eq!(run.out(), "fine 500 3 agent\n", "{}", run.err());
}

#[test]
fn cmake_configures_and_builds() {
    if !host_has("cmake") {
        return;
    }
    let ws = Workspace::new("cmake");
    ws.file("CMakeLists.txt", "cmake_minimum_required(VERSION 3.10)\nproject(t C)\nadd_executable(t t.c)\nenable_testing()\nadd_test(NAME t COMMAND t)\n");
    ws.file("t.c", "int main(void) { return 0; }\n");
    works(
        &ws,
        "cmake -S . -B build >/dev/null\ncmake --build build -j2 >/dev/null\ncd build\nctest --output-on-failure >/dev/null",
    );
}

#[test]
fn many_threads() {
    let ws = Workspace::new("threads");
    ws.file(
        "t.c",
        "#include <pthread.h>\n#include <stdio.h>\nstatic void *f(void *x) { return x; }\n\
         int main(void) { pthread_t t[200]; int n = 0;\n\
         for (int round = 0; round < 20; round++) { for (int i = 0; i < 200; i++) if (pthread_create(&t[i], 0, f, 0)) return 3;\n\
         for (int i = 0; i < 200; i++, n++) pthread_join(t[i], 0); }\nprintf(\"%d\\n\", n); }\n",
    );
    let run = works(&ws, "cc -O1 -pthread -o t t.c\n./t");
    assert_eq!(run.out(), "4000\n", "{}", run.err());
}
