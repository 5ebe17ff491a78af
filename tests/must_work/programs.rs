//! The rows of the matrix: programs, what is done with them, and what comes of it under each shipped profile.

use super::matrix::{Cell, How, Prepared, READ_ONLY_WORKSPACE, ROW, Reason, Row};
use Cell::{Copy, Fails, Prints, Works};

/// `offline`, `build` and `open` have a writable workspace, `read-only` and `strict` do not.
const WRITES: [Cell; 5] = [Works, Works, Works, Copy, Copy];

pub static NO_TOOLCHAIN: Reason = Reason {
    words: "toolchains below the caller's home are not shown (`root.toolchains`)",
    says: "command not found",
    named: Some("absent"),
};

static NO_SOCKETS: Reason = Reason {
    words: "no sockets (`seccomp.sets` without `network`)",
    says: "Function not implemented",
    named: Some("call"),
};

static NO_GRANT: Reason = Reason {
    words: "the profile lets the caller grant nothing (`grants.intents`)",
    says: "grants.intents",
    named: Some("not_granted"),
};

static NO_ENV: Reason = Reason {
    words: "the profile passes nothing of the caller's on (`grants.env`)",
    says: "grants.env",
    named: Some("not_granted"),
};

static NO_MAVEN: Reason = Reason {
    words: "Maven's own configuration in `/etc/maven` is not shown (`root.etc`)",
    says: "m2.conf",
    named: Some("absent"),
};

static FILE_SIZE: Reason = Reason {
    words: "a file may have 512 MiB (`limits.file_size`)",
    says: "File size limit exceeded",
    named: Some("limit"),
};

/// How programs end in a read-only workspace that do not say why.
static CMAKE_IN_PLACE: Reason = Reason {
    says: "Unable to (re)create the private pkgRedirects directory",
    named: None,
    ..READ_ONLY_WORKSPACE
};

static SQLITE_IN_PLACE: Reason =
    Reason { says: "unable to open database file", named: None, ..READ_ONLY_WORKSPACE };

static CRASHES: Reason = Reason {
    words: "no sockets (`seccomp.sets` without `network`): Chromium crashes without a word",
    says: "Trace/breakpoint trap",
    named: None,
};

static OUTPUT: Reason = Reason {
    words: "64 MiB of it arrive, which is the profile's `limits.output`; the rest is counted and dropped",
    says: "",
    named: None,
};

macro_rules! source {
    ($name:literal) => {
        include_str!(concat!("../fixtures/must_work/", $name))
    };
}

pub static ROWS: &[Row] = &[
    Row {
        test: "bash_pipelines",
        program: "bash",
        what: "pipelines, here-strings, process substitution, `xargs -P`, traps, further descriptors",
        script: r#"
            seq 1 1000 | awk '{s+=$1} END {print s}' > sum
            diff <(sort <<<$'b\na') <(printf 'a\nb\n')
            find . -type f | xargs -P 4 -n 1 wc -c > /dev/null
            (cd /tmp && mkdir d && mv d e && rmdir e)
            yes | head -n 5 > /dev/null || true
            trap 'echo trapped' EXIT
            exec 3<> scratch; echo three >&3
            echo "$(cat sum) $HOME $USER $(pwd)"
            "#,
        prints: "500500 /home/agent agent {W}\ntrapped\n",
        cells: WRITES,
        ..ROW
    },
    Row {
        test: "odd_and_long_names",
        program: "coreutils, tar",
        what: "names of 255 bytes, that are no UTF-8, with a newline; 40 directories deep; links, copies, archives of them",
        script: r#"
            long=$(printf 'n%.0s' $(seq 1 255)); echo x > "$long"; test -s "$long"
            printf 'y' > $'\xff\xfe'; test -s $'\xff\xfe'; printf z > $'new\nline'
            ln -s "$long" link; mv "$long" "${long/n/m}"
            deep=.; for i in $(seq 1 40); do deep=$deep/$(printf 'd%.0s' $(seq 1 60)); done; mkdir -p "$deep"; touch "$deep/f"
            cp -a . /tmp/other; rm -rf /tmp/other
            tar cf /tmp/t.tar . ; mkdir /tmp/x; tar xf /tmp/t.tar -C /tmp/x
            ls /tmp/x | wc -l
            "#,
        prints: "6\n",
        cells: WRITES,
        ..ROW
    },
    Row {
        test: "file_facilities",
        program: "coreutils",
        what: "sparse files, hard links, `fsync`, times",
        script: "truncate -s 256M sparse; cp --sparse=always sparse s2; dd if=/dev/zero of=d bs=1M count=4 conv=fsync status=none
            sync -f d; ln d d2; chmod -x d; touch -d yesterday d; echo fine",
        cells: WRITES,
        ..ROW
    },
    Row {
        test: "file_facilities",
        program: "coreutils",
        what: "a file of 1 GiB (sparse)",
        script: "truncate -s 1G sparse; echo fine",
        cells: [Works, Works, Works, Copy, Fails(&FILE_SIZE)],
        ..ROW
    },
    Row {
        test: "file_facilities",
        program: "python3",
        what: "inotify, `O_TMPFILE` and its link, `flock`, record locks, leases, attributes, shared mappings",
        files: &[("files.py", source!("files.py"))],
        script: "/usr/bin/python3 files.py",
        cells: WRITES,
        ..ROW
    },
    Row {
        test: "sqlite_with_a_write_ahead_log",
        program: "python3",
        what: "sqlite in WAL mode, with three processes on one database",
        files: &[("wal.py", source!("wal.py"))],
        script: "/usr/bin/python3 wal.py",
        prints: "200 ok\n",
        in_place: &SQLITE_IN_PLACE,
        cells: WRITES,
        ..ROW
    },
    Row {
        test: "machine_facts_are_readable",
        program: "coreutils, procps",
        what: "looking at processors, memory, limits, time zones, locales",
        script: "nproc > /dev/null; free -m > /dev/null; uname -a > /dev/null; cat /proc/meminfo /proc/cpuinfo /proc/loadavg /proc/self/limits > /dev/null
            ulimit -a > /dev/null; locale > /dev/null; openssl version > /dev/null; date -d 2020-01-01 > /dev/null; TZ=Europe/Berlin date > /dev/null; echo fine",
        ..ROW
    },
    Row {
        test: "long_arguments_and_a_large_environment",
        program: "bash",
        what: "an argument of 128 KiB less one byte, the most that the kernel takes",
        how: How::Argument(128 * 1024 - 1),
        script: "printf %s \"$1\" | wc -c",
        prints: "131071\n",
        ..ROW
    },
    Row {
        test: "long_arguments_and_a_large_environment",
        program: "bash",
        what: "1 MiB of environment, made inside",
        script: "for i in $(seq 16); do export BIG$i=$(printf %065536d 0); done; test $(env | wc -c) -gt 1048576; echo fine",
        ..ROW
    },
    Row {
        test: "long_arguments_and_a_large_environment",
        program: "bash",
        what: "1 MiB of environment from outside, by `--env`",
        how: How::Environment,
        script: "test $(env | wc -c) -gt 1048576; echo fine",
        cells: [Works, Works, Works, Works, Fails(&NO_ENV)],
        ..ROW
    },
    Row {
        test: "a_hundred_mebibytes_of_output",
        program: "python3",
        what: "100 MiB on standard output, compared by SHA-256",
        how: How::Hashed,
        script: "/usr/bin/python3 -c 'import sys,hashlib
b=bytes(range(256))*4096
h=hashlib.sha256()
for i in range(100): sys.stdout.buffer.write(b); h.update(b)
sys.stderr.write(h.hexdigest()+\"\\n\")'",
        prints: "100 MiB, the same: true\n",
        cells: [Works, Works, Works, Works, Prints("64 MiB, the same: false\n", &OUTPUT)],
        ..ROW
    },
    Row {
        test: "closed_stdin_and_no_terminal",
        program: "bash, python3",
        what: "reading from a standard input that does not exist",
        how: How::ClosedStdin,
        script: "read -r x || echo eof; /usr/bin/python3 -c 'import sys; print(sys.stdin.read() == \"\")'",
        prints: "eof\nTrue\n",
        ..ROW
    },
    Row {
        test: "terminals",
        program: "script",
        what: "a terminal that the command opens itself",
        script: "script -qec 'tty; stty size > /dev/null' /dev/null | head -1 | cut -c -9",
        prints: "/dev/pts/\n",
        ..ROW
    },
    Row {
        test: "terminals",
        program: "bash",
        what: "job control on the terminal of `--tty`",
        how: How::Options(&["--tty"]),
        script: "exec 2>/dev/null; set -m; sleep 0.1 & jobs > /dev/null; wait; test -t 0 && test -t 1 && tty | cut -c -9",
        prints: "/dev/pts/\r\n",
        ..ROW
    },
    Row {
        test: "make_and_a_c_compiler",
        program: "gcc, make",
        what: "`make -j4`, running the result",
        needs: &["gcc", "make"],
        files: &[
            (
                "Makefile",
                "all: app\napp: a.o b.o\n\tgcc -pthread -o $@ $^\n%.o: %.c\n\tgcc -O2 -c -o $@ $<\nclean:\n\trm -f *.o app\n",
            ),
            ("a.c", "#include <stdio.h>\nint two(void);\nint main(void) { printf(\"%d\\n\", two()); return 0; }\n"),
            ("b.c", "int two(void) { return 2; }\n"),
        ],
        script: "make -j4 -s; ./app; make -s clean",
        prints: "2\n",
        cells: WRITES,
        ..ROW
    },
    Row {
        test: "cmake_configures_and_builds",
        program: "cmake",
        what: "configure, build, `ctest`",
        needs: &["cmake", "gcc", "make"],
        files: &[
            (
                "CMakeLists.txt",
                "cmake_minimum_required(VERSION 3.10)\nproject(t C)\nadd_executable(t t.c)\nenable_testing()\nadd_test(NAME t COMMAND t)\n",
            ),
            ("t.c", "int main(void) { return 0; }\n"),
        ],
        script: "cmake -S . -B build >/dev/null\ncmake --build build -j2 >/dev/null\ncd build\nctest --output-on-failure | grep -o '100% tests passed'",
        prints: "100% tests passed\n",
        in_place: &CMAKE_IN_PLACE,
        cells: WRITES,
        ..ROW
    },
    Row {
        test: "many_threads",
        program: "gcc",
        what: "4,000 threads, 200 at a time",
        needs: &["gcc"],
        files: &[("t.c", source!("threads.c"))],
        script: "cc -O1 -pthread -o /tmp/t t.c\n/tmp/t",
        prints: "4000\n",
        ..ROW
    },
    Row {
        test: "cargo_build_and_test",
        program: "cargo",
        what: "build and test a crate with a build script and a vendored dependency, build it again",
        needs: &["cargo"],
        files: &[
            (
                "Cargo.toml",
                "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[dependencies]\nhelper = { path = \"vendor/helper\" }\n",
            ),
            (
                "src/main.rs",
                "fn main() { println!(\"{}\", helper::twice(21)); }\n#[test]\nfn doubles() { assert_eq!(helper::twice(2), 4); }\n",
            ),
            ("build.rs", "fn main() { println!(\"cargo:rerun-if-changed=build.rs\"); }\n"),
            (
                "vendor/helper/Cargo.toml",
                "[package]\nname = \"helper\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
            ),
            ("vendor/helper/src/lib.rs", "pub fn twice(n: u32) -> u32 { n * 2 }\n"),
        ],
        script: "cargo build --offline -q; cargo test --offline 2>&1 | grep -o '1 passed'; touch src/main.rs; cargo build --offline -q; ./target/debug/app",
        prints: "1 passed\n42\n",
        cells: [Works, Works, Works, Copy, Fails(&NO_TOOLCHAIN)],
        ..ROW
    },
    Row {
        test: "go_with_a_vendored_module",
        program: "go",
        what: "build, run, test and vet with a vendored module",
        needs: &["go"],
        files: &[
            ("go.mod", "module example.invalid/app\n\ngo 1.18\n\nrequire example.invalid/dep v1.0.0\n"),
            (
                "main.go",
                "package main\n\nimport (\n\t\"example.invalid/dep\"\n\t\"fmt\"\n)\n\nfunc main() {\n\tdone := make(chan int)\n\tfor i := 0; i < 1000; i++ {\n\t\tgo func() { done <- 1 }()\n\t}\n\tn := 0\n\tfor i := 0; i < 1000; i++ {\n\t\tn += <-done\n\t}\n\tfmt.Println(dep.Answer, n)\n}\n",
            ),
            ("main_test.go", "package main\n\nimport \"testing\"\n\nfunc TestIt(t *testing.T) {}\n"),
            ("vendor/example.invalid/dep/d.go", "package dep\n\nconst Answer = 42\n"),
            ("vendor/modules.txt", "# example.invalid/dep v1.0.0\n## explicit\nexample.invalid/dep\n"),
        ],
        script: "go build -mod=vendor -o app .\n./app\ngo test -mod=vendor . >/dev/null\ngo vet -mod=vendor .",
        prints: "42 1000\n",
        cells: WRITES,
        ..ROW
    },
    Row {
        test: "npm_with_a_local_dependency",
        program: "npm",
        what: "`pack`, `install` from the tarball, `ci`, scripts, `npx`",
        needs: &["npm"],
        files: &[
            ("dep/package.json", r#"{"name":"dep","version":"1.0.0","main":"i.js"}"#),
            ("dep/i.js", "module.exports = 42;\n"),
            (
                "package.json",
                r#"{"name":"app","version":"1.0.0","dependencies":{"dep":"file:./dep-1.0.0.tgz"},"scripts":{"test":"node t.js","preinstall":"echo ran >pre"}}"#,
            ),
            ("t.js", "if (require('dep') !== 42) process.exit(3); console.log('fine');\n"),
        ],
        script: "(cd dep && npm pack --loglevel=error --pack-destination .. >/dev/null)
            npm install --offline --no-audit --no-fund --silent
            rm -rf node_modules
            npm ci --offline --no-audit --no-fund --silent
            npm test --silent; npx --offline --no-install node -e 0; cat pre",
        prints: "fine\nran\n",
        cells: WRITES,
        ..ROW
    },
    Row {
        test: "pip_in_an_environment_of_its_own",
        program: "pip",
        what: "a virtual environment, and a wheel installed into it",
        files: &[("wheel.py", source!("wheel.py"))],
        script: "/usr/bin/python3 wheel.py\n/usr/bin/python3 -m venv env
            ./env/bin/pip install --quiet --no-index --disable-pip-version-check ./dep-1.0-py3-none-any.whl
            ./env/bin/python -c 'import dep; print(dep.ANSWER)'",
        prints: "42\n",
        cells: WRITES,
        ..ROW
    },
    Row {
        test: "maven_from_a_local_repository",
        program: "mvn",
        what: "resources, compile, test (surefire, JUnit) and package, offline from Debian's repository; running the archive",
        needs: &["mvn", "javac"],
        // Surefire 2.22 notices the end of its tests with its next ping, which is sent every ten seconds.
        waits: true,
        files: &[
            ("pom.xml", source!("pom.xml")),
            ("src/main/java/x/App.java", source!("App.java")),
            ("src/test/java/x/AppTest.java", source!("AppTest.java")),
            ("src/main/resources/word", "packed\n"),
        ],
        script: r#"
            repo=/usr/share/maven-repo
            newest() { ls "$repo/$1" | grep '^[0-9]' | grep -v x | sort -V | tail -1; }
            options=(-Dv.junit=$(newest junit/junit))
            for p in resources compiler surefire jar; do options+=(-Dv.$p=$(newest org/apache/maven/plugins/maven-$p-plugin)); done
            export MAVEN_OPTS='-XX:TieredStopAtLevel=1'
            mvn --offline --batch-mode --quiet -Dmaven.repo.local=$repo "${options[@]}" package >log || { cat log; exit 1; }
            grep -o 'Tests run: 1, Failures: 0, Errors: 0, Skipped: 0' target/surefire-reports/*.txt
            java -cp target/app-1.jar x.App"#,
        prints: "Tests run: 1, Failures: 0, Errors: 0, Skipped: 0\npacked 42\n",
        cells: [Works, Works, Works, Copy, Fails(&NO_MAVEN)],
        ..ROW
    },
    Row {
        test: "a_java_virtual_machine",
        program: "javac, jar, java",
        what: "a thread pool, loopback sockets, child processes, temporary files",
        needs: &["javac", "jar"],
        files: &[("T.java", source!("T.java"))],
        script: "javac T.java\njar cfe t.jar T T*.class\njava -jar t.jar",
        prints: "fine 500 3 agent\n",
        cells: [Works, Works, Works, Copy, Fails(&NO_SOCKETS)],
        ..ROW
    },
    Row {
        test: "a_java_virtual_machine",
        program: "java",
        what: "a thread pool and child processes of a program that was compiled before, without file channels",
        needs: &["javac"],
        files: &[("Pool.java", source!("Pool.java"))],
        prepare: Some(compile),
        script: "java -cp . Pool",
        prints: "42 3\n",
        ..ROW
    },
    Row {
        test: "node",
        program: "node",
        what: "computing, files, workers",
        needs: &["node"],
        files: &[("t.js", source!("worker.js"))],
        script: "node t.js",
        ..ROW
    },
    Row {
        test: "node",
        program: "node",
        what: "an HTTP server and client, Unix sockets, workers, child processes, `fs.watch`",
        needs: &["node"],
        files: &[("t.js", source!("t.js"))],
        script: "node t.js",
        prints: "fine sub\n",
        cells: [Works, Works, Works, Copy, Fails(&NO_SOCKETS)],
        ..ROW
    },
    Row {
        test: "python_asyncio_and_multiprocessing",
        program: "python3",
        what: "asyncio: TCP and Unix servers and clients, child processes, calls from threads",
        files: &[("loop.py", source!("loop.py"))],
        script: "/usr/bin/python3 loop.py",
        cells: [Works, Works, Works, Copy, Fails(&NO_SOCKETS)],
        ..ROW
    },
    Row {
        test: "python_asyncio_and_multiprocessing",
        program: "python3",
        what: "multiprocessing by fork and spawn, shared memory, queues, 64 threads",
        files: &[("processes.py", source!("processes.py"))],
        script: "/usr/bin/python3 processes.py fork spawn",
        prints: "fine True\n",
        ..ROW
    },
    Row {
        test: "python_asyncio_and_multiprocessing",
        program: "python3",
        what: "multiprocessing by a fork server",
        files: &[("processes.py", source!("processes.py"))],
        script: "/usr/bin/python3 processes.py forkserver",
        prints: "fine True\n",
        cells: [Works, Works, Works, Works, Fails(&NO_SOCKETS)],
        ..ROW
    },
    Row {
        test: "python_asyncio_and_multiprocessing",
        program: "python3",
        what: "passwd, TLS defaults, temporary files, renames of directories, also with the python3 of the caller's PATH",
        files: &[("standard.py", source!("standard.py"))],
        script: "/usr/bin/python3 standard.py; rm -rf c fa; python3 standard.py",
        prints: "fine\nfine\n",
        cells: WRITES,
        ..ROW
    },
    Row {
        test: "chromium_without_a_window",
        program: "chromium",
        what: "headless, with `--grant browser`: its own sandbox, a page with a script",
        needs: &["chromium-headless-shell"],
        how: How::Options(&["--grant", "browser"]),
        script: CHROMIUM,
        prints: "<p id=\"x\">42</p>\n",
        cells: [Works, Works, Works, Fails(&NO_GRANT), Fails(&NO_GRANT)],
        ..ROW
    },
    Row {
        test: "chromium_without_a_window",
        program: "chromium",
        what: "headless, with `--no-sandbox`, in Stockade's sandbox alone",
        needs: &["chromium-headless-shell"],
        script: concat!("flags=--no-sandbox\n", source!("chromium.sh")),
        prints: "<p id=\"x\">42</p>\n",
        cells: [Works, Works, Works, Works, Fails(&CRASHES)],
        ..ROW
    },
];

const CHROMIUM: &str = concat!("flags=\n", source!("chromium.sh"));

fn compile(ws: &crate::common::Workspace) -> Prepared {
    let done = std::process::Command::new("javac").current_dir(ws.path()).arg("Pool.java").status().unwrap();
    assert!(done.success(), "javac outside");
    Prepared { at: None, _keep: Vec::new() }
}
