//! Git: its rows of the matrix, and one by one what its commands come to under `offline`, whose list `docs/profiles.md` has.

use super::matrix::{Cell, Prepared, ROW, Reason, Row, told};
use crate::common::{Raw, Sandbox, Workspace, bash, home};
use Cell::{Copy, Fails, Works};
use std::path::Path;
use std::process::Command;

/// Runs a script outside, without the host's own configuration of git.
fn outside(dir: &Path, script: &str) -> Result<(), String> {
    let identity = ["AUTHOR", "COMMITTER"].into_iter().flat_map(|who| {
        [(format!("GIT_{who}_NAME"), "Test"), (format!("GIT_{who}_EMAIL"), "test@example.invalid")]
    });
    let done = Command::new("bash")
        .current_dir(dir)
        .args(["-c", &format!("set -euo pipefail\n{script}")])
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", home())
        .envs(identity)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.success() { Ok(()) } else { Err(format!("outside, {script:?}: {said}")) }
}

/// A repository with an identity of its own and one commit.
const INIT: &str =
    "git init -q -b main; git config user.name Test; git config user.email test@example.invalid
    echo one > a.txt; git add a.txt; git commit -qm first\n";

fn checkout(ws: &Workspace) -> Prepared {
    outside(ws.path(), INIT).unwrap();
    Prepared { at: None, _keep: Vec::new() }
}

/// The row's workspace is the main repository; stockade works in a worktree that lies elsewhere.
fn linked(main: &Workspace) -> Prepared {
    let elsewhere = Workspace::new("linked");
    let at = elsewhere.path().join("tree");
    outside(main.path(), &format!("{INIT} git worktree add -q -b linked {}", at.display())).unwrap();
    Prepared { at: Some(at), _keep: vec![elsewhere] }
}

/// Stockade works in the submodule of the row's workspace.
fn submodule(top: &Workspace) -> Prepared {
    let source = Workspace::new("submodule-source");
    outside(source.path(), INIT).unwrap();
    let add = format!(
        "{INIT} git -c protocol.file.allow=always submodule add -q {} sub; git commit -qm sub
        git -C sub config user.name Test; git -C sub config user.email test@example.invalid",
        source.path().display()
    );
    outside(top.path(), &add).unwrap();
    Prepared { at: Some(top.path().join("sub")), _keep: vec![source] }
}

/// Stockade works in the whole of it.
fn superproject(top: &Workspace) -> Prepared {
    Prepared { at: None, ..submodule(top) }
}

static NO_GIT_DIR: Reason = Reason {
    words: "a git directory beside the workspace is not shown (`grants.ro`)",
    says: "not a git repository",
    named: None,
};

static READ_ONLY_GIT_DIR: Reason = Reason {
    words: "the git directory beside the workspace is read-only, as the workspace is",
    says: "read-only file system",
    named: None,
};

const WRITES: [Cell; 5] = [Works, Works, Works, Copy, Copy];
const BESIDE: [Cell; 5] = [Works, Works, Works, Fails(&READ_ONLY_GIT_DIR), Fails(&NO_GIT_DIR)];

pub static ROWS: &[Row] = &[
    Row {
        test: "git_in_a_checkout",
        program: "git",
        what: "add, commit, rename, stash, branch, merge, rebase, tag, bisect, gc, fsck",
        prepare: Some(checkout),
        script: r#"
            git status --porcelain
            echo two > b.txt; mkdir dir; echo three > dir/c.txt
            git add .; git commit -qm second
            git mv b.txt dir/b.txt; git commit -qm renamed
            echo more >> a.txt; git stash -q; git stash pop -q
            git checkout -q -b side; git commit -qam side
            git checkout -q main; git merge -q side
            git switch -q -c topic HEAD~2; echo t > t; git add t; git commit -qm topic; git rebase -q main
            git tag -a -m v1 v1
            { git bisect start HEAD HEAD~4; git bisect run test ! -e t; git bisect reset; } > /tmp/bisect 2>&1
            git gc -q; git fsck --strict > /tmp/fsck 2>&1
            git status --porcelain
            git log --oneline | wc -l; git describe
            "#,
        prints: "5\nv1\n",
        cells: WRITES,
        ..ROW
    },
    Row {
        test: "git_in_a_linked_worktree",
        program: "git",
        beside: true,
        what: "status and log in a linked worktree, whose repository lies elsewhere",
        prepare: Some(linked),
        script: "git status --porcelain; git log --oneline | wc -l",
        prints: "1\n",
        cells: [Works, Works, Works, Works, Fails(&NO_GIT_DIR)],
        ..ROW
    },
    Row {
        test: "git_in_a_linked_worktree",
        program: "git",
        beside: true,
        what: "add and commit in such a worktree",
        prepare: Some(linked),
        script: "echo x > /tmp/x; git status --porcelain; git update-index --add --cacheinfo 100644,$(git hash-object -w /tmp/x),x; git commit -qm linked; git log --oneline | wc -l",
        prints: "2\n",
        cells: BESIDE,
        ..ROW
    },
    Row {
        test: "git_in_a_submodule",
        program: "git",
        what: "commit in a submodule from the repository that has it, then the submodule's new commit there",
        prepare: Some(superproject),
        script: "cd sub; echo x > x; git add x; git commit -qm inside; cd ..
            git submodule foreach -q 'git merge -q --ff-only main'; git commit -qam moved; git submodule status | cut -c 1,42-; git status --porcelain; git log --oneline | wc -l",
        prints: "  sub (heads/main)\n3\n",
        cells: WRITES,
        ..ROW
    },
    Row {
        test: "git_in_a_submodule",
        program: "git",
        beside: true,
        what: "commit with the submodule as the workspace, its git directory beside it",
        prepare: Some(submodule),
        script: "git update-index --add --cacheinfo 100644,$(echo x | git hash-object -w --stdin),x; git commit -qm inside; git log --oneline | wc -l",
        prints: "2\n",
        cells: BESIDE,
        ..ROW
    },
    Row {
        test: "git_makes_a_repository_and_a_fresh_clone",
        program: "git",
        what: "`init`, and `clone` of a local repository, below the workspace",
        script: "git init -q -b main source; cd source; git config user.name T; git config user.email t@example.invalid
            echo x > x; git add x; git commit -qm first; cd ..; git clone -q source copy; git -C copy log --oneline | wc -l",
        prints: "1\n",
        cells: WRITES,
        ..ROW
    },
];

// ---- one by one under `offline` ----------------------------------------------------------------

/// A line of the table in `docs/profiles.md`.
pub struct Listed {
    pub command: &'static str,
    pub happens: &'static str,
    tries: &'static [Try],
}

/// One command that does not do all that it does outside.
struct Try {
    script: &'static str,
    /// It does not fail.
    done: bool,
    /// On standard error.
    says: &'static str,
    /// Kind and object of a finding in `denials`.
    named: Option<(&'static str, &'static str)>,
    /// Must hold outside afterwards.
    after: &'static str,
    /// What is moved to quarantine.
    moved: &'static [&'static str],
}

const BUSY: &str = "could not write config file";
const CONFIG: Option<(&str, &str)> = Some(("protected", ".git/config"));

const SUB: Option<(&str, &str)> = Some(("protected", ".git/modules/sub/config"));

const fn fails(script: &'static str) -> Try {
    Try { script, done: false, says: BUSY, named: CONFIG, after: "true", moved: &[] }
}

const fn done(script: &'static str) -> Try {
    Try { done: true, named: None, ..fails(script) }
}

pub static LISTED: &[Listed] = &[
    Listed {
        command: "`git config NAME VALUE`, `--unset`, `--worktree`",
        happens: "fails. `git -c NAME=VALUE …` and `git config --global` (in the private HOME, gone afterwards) work",
        tries: &[
            fails("git config user.name x"),
            fails("git config --unset user.name"),
            fails("git config --worktree user.name x"),
            fails("git config --remove-section user"),
        ],
    },
    Listed {
        command: "`git remote add`, `rename`, `remove`, `set-url`",
        happens: "fails",
        tries: &[
            fails("git remote add x ./other"),
            fails("git remote rename origin x"),
            fails("git remote remove origin"),
            fails("git remote set-url origin x"),
        ],
    },
    Listed { command: "`git init` in a repository", happens: "fails", tries: &[fails("git init -q")] },
    Listed {
        command: "`git branch -m`, `git branch -c`",
        happens: "fails after the branch itself was renamed or copied",
        tries: &[
            Try {
                after: "git rev-parse -q --verify new; ! git rev-parse -q --verify side",
                ..fails("git branch -m side new")
            },
            Try {
                after: "git rev-parse -q --verify new; git rev-parse -q --verify side",
                ..fails("git branch -c side new")
            },
        ],
    },
    Listed {
        command: "`git branch --unset-upstream`, `--edit-description`",
        happens: "fails",
        tries: &[
            fails("git branch --unset-upstream tracked"),
            fails("EDITOR='echo x >' git branch --edit-description side"),
        ],
    },
    Listed {
        command: "`git sparse-checkout set`",
        happens: "fails",
        tries: &[fails("git sparse-checkout set dir")],
    },
    Listed {
        command: "`git submodule init`, `sync`, `update`, and `--recurse-submodules` of other commands",
        happens: "fails where it writes the configuration, which `update` does for every submodule that is there. `git -C SUBMODULE checkout COMMIT` does the same and works",
        tries: &[
            fails("git submodule init lazy"),
            fails("git submodule sync -q"),
            Try { named: SUB, ..fails("git submodule update -q sub") },
            Try {
                named: SUB,
                ..fails("git -C sub update-index -q --refresh; git checkout -q --recurse-submodules side")
            },
        ],
    },
    Listed {
        command: "`git submodule add`, `deinit`",
        happens: "done, but its part of the configuration is not written, and git says so; what `add` has made below `.git/modules` is moved to quarantine",
        tries: &[
            Try {
                after: "test -e new/a.txt; ! git config submodule.new.url",
                moved: &[".git/modules/new/config", ".git/modules/new/hooks"],
                ..done("git -c protocol.file.allow=always submodule add -q \"$PWD/other\" new")
            },
            Try { after: "git config submodule.sub.url", ..done("git submodule deinit -q sub") },
        ],
    },
    Listed {
        command: "`git branch -d`, `-D`, `git branch --set-upstream-to`, `git checkout --track`, `git push -u`",
        happens: "done, but its part of the configuration is not written, and git says so",
        tries: &[
            Try { after: "! git rev-parse -q --verify side", ..done("git branch -D side") },
            Try { after: "! git config branch.side.merge", ..done("git branch --set-upstream-to=main side") },
            Try {
                after: "git rev-parse -q --verify t2; ! git config branch.t2.merge",
                ..done("git checkout -q -b t2 --track side")
            },
            Try {
                after: "git -C other rev-parse -q --verify x; ! git config branch.main.merge",
                ..done("git push -q -u ./other main:refs/heads/x")
            },
        ],
    },
    Listed {
        command: "`git worktree add` below the workspace",
        happens: "done, but the new worktree's `commondir` and `gitdir` are protected names that did not exist: they are moved to quarantine at the end, and the worktree is broken until they are put back",
        tries: &[Try {
            says: "",
            after: "test -e new/a.txt; ! git -C new status",
            moved: &[".git/worktrees/new/commondir", ".git/worktrees/new/gitdir"],
            ..done("git worktree add -q new side; git -C new status --porcelain")
        }],
    },
    Listed {
        command: "`git worktree add` in `/tmp` or HOME",
        happens: "works as long as the command runs; the directory is gone afterwards, and what the repository knows of it is moved to quarantine",
        tries: &[
            Try {
                says: "",
                moved: &[".git/worktrees/new/commondir", ".git/worktrees/new/gitdir"],
                ..done("git worktree add -q /tmp/new side; git -C /tmp/new status --porcelain")
            },
            Try {
                says: "",
                moved: &[".git/worktrees/new/commondir", ".git/worktrees/new/gitdir"],
                ..done("git worktree add -q ~/new side; git -C ~/new status --porcelain")
            },
        ],
    },
    Listed {
        command: "`git worktree add` elsewhere",
        happens: "fails: nothing else is writable",
        tries: &[Try {
            says: "Read-only file system",
            named: Some(("read_only", "?")),
            ..fails("git worktree add -q /srv/new side")
        }],
    },
    Listed {
        command: "anything that writes below `.git/hooks`",
        happens: "read-only file system",
        tries: &[
            Try {
                says: "Read-only file system",
                named: Some(("protected", ".git/hooks/pre-commit")),
                ..fails("echo x > .git/hooks/pre-commit")
            },
            Try {
                says: "Read-only file system",
                named: Some(("protected", "?")),
                ..fails("chmod +x .git/hooks/*.sample")
            },
        ],
    },
    Listed {
        command: "`mv .git …`, `rm -rf .git`",
        happens: "device or resource busy, read-only file system",
        tries: &[
            Try { says: "Device or resource busy", named: Some(("mount", ".git")), ..fails("mv .git g") },
            Try { says: "Read-only file system", named: Some(("protected", "?")), ..fails("rm -rf .git") },
        ],
    },
    Listed {
        command: "`git fetch`, `pull`, `push`, `clone` over a network",
        happens: "no network",
        tries: &[
            network("git fetch https://example.com/x"),
            network("git pull https://example.com/x main"),
            network("git push git@example.com:x main"),
            network("git clone -q git://example.com/x"),
        ],
    },
    Listed {
        command: "`git commit -S` with the caller's key",
        happens: "no key: HOME is private",
        tries: &[Try {
            says: "failed to sign",
            named: Some(("private", "/home/agent/.gnupg")),
            ..fails("git commit -q --allow-empty -S -m x")
        }],
    },
    Listed {
        command: "`git maintenance start`",
        happens: "no timers inside",
        tries: &[Try { says: "", named: None, ..fails("git maintenance start") }],
    },
];

const fn network(script: &'static str) -> Try {
    Try { says: "example.com", named: Some(("network", "example.com")), ..fails(script) }
}

/// What works as outside: the words of the document, and how each is tried.
pub static WORKING: &[(&str, &str)] = &[
    ("status", "git status"),
    ("add", "echo x > new; git add new; git diff --cached --quiet && exit 1; true"),
    ("commit", "echo x >> a.txt; git commit -qam x"),
    ("commit --amend", "git commit -q --amend -m other"),
    ("branch", "git branch new; git branch -f new side; git rev-parse new"),
    ("switch", "git switch -q side; git switch -q -c new"),
    ("checkout", "git checkout -q side; git checkout -q -b new; git checkout -q main -- a.txt"),
    ("restore", "echo x > a.txt; git restore a.txt; git diff --quiet"),
    ("merge", "git merge -q -m merged side"),
    ("rebase", "git switch -q side; git rebase -q main"),
    ("rebase -i", "GIT_SEQUENCE_EDITOR='sed -i s/^pick/reword/' EDITOR=true git rebase -q -i HEAD~1"),
    ("stash", "echo x > a.txt; git stash -q; git stash pop -q; git stash -q; git stash drop -q"),
    ("tag", "git tag t; git tag -a -m x u; git tag -d t"),
    ("reset", "git reset -q --hard HEAD~1; git reset -q --soft ORIG_HEAD"),
    ("gc", "git gc -q --prune=now"),
    ("prune", "git prune"),
    ("repack", "git repack -qad"),
    ("maintenance run", "git maintenance run --quiet"),
    (
        "commit-graph",
        "git commit-graph write --reachable --no-progress; git commit-graph verify --no-progress",
    ),
    ("mv", "git mv a.txt c.txt; git commit -qm moved"),
    ("rm", "git rm -q a.txt; git commit -qm gone"),
    ("clean", "touch new; git clean -qfdx -e other -e new.git; test ! -e new"),
    ("notes", "git notes add -m x; git notes show"),
    ("revert", "git revert --no-edit HEAD"),
    ("cherry-pick", "git cherry-pick side"),
    ("diff", "git diff HEAD~1"),
    ("apply", "git diff side main -- s.txt > /tmp/p; git switch -q side; git apply --index /tmp/p"),
    ("format-patch", "git format-patch -q -o /tmp/patches HEAD~1"),
    ("am", "git format-patch -q -o /tmp/p HEAD..side; git am -q /tmp/p/*"),
    ("bisect", "git bisect start HEAD HEAD~2; git bisect run test ! -e .gitmodules; git bisect reset"),
    ("log", "git log --stat"),
    ("show", "git show HEAD"),
    ("blame", "git blame a.txt"),
    ("grep", "git grep one"),
    ("describe", "git describe --all"),
    ("shortlog", "git shortlog HEAD"),
    ("reflog", "git reflog; git reflog expire --all"),
    ("fsck", "git fsck --strict"),
    ("archive", "git archive HEAD | tar t"),
    ("bundle", "git bundle create -q /tmp/b main; git clone -q -b main /tmp/b /tmp/from-bundle"),
    ("filter-branch", "FILTER_BRANCH_SQUELCH_WARNING=1 git filter-branch -f --msg-filter cat HEAD"),
    ("pack-refs", "git pack-refs --all"),
    ("update-ref", "git update-ref refs/x/y HEAD; git update-ref -d refs/x/y"),
    ("symbolic-ref", "git symbolic-ref HEAD refs/heads/side"),
    ("replace", "git replace HEAD HEAD~1"),
    ("rerere", "git -c rerere.enabled=true merge -q -m merged side; git rerere gc"),
    ("submodule summary", "git submodule summary"),
    ("submodule status", "git submodule status"),
    ("submodule foreach", "git submodule foreach git status"),
    ("worktree list", "git worktree list"),
];

/// What the document says in words of its own: ways around the list, and other repositories.
const ELSEWHERE: &[&str] = &[
    "git -c user.name=X commit -q --allow-empty -m x; git log -1 --format=%an | grep -x X",
    "git config --global alias.s status; git s",
    "git -C sub checkout -q HEAD~0",
    "git fetch -q origin",
    "git pull -q --no-edit --no-rebase ./other main --allow-unrelated-histories -X ours",
    "git push -q ./other main:refs/heads/pushed",
    "git remote update; git remote -v; git remote prune origin; git ls-remote origin",
    "git clone -q ./other mine; git -C mine config user.name x; git -C mine remote add x y",
    "git clone -q ./other /tmp/mine; git -C /tmp/mine config user.name x",
    "git init -q fresh; git -C fresh config user.name x; git -C fresh branch -m new; echo x > fresh/.git/hooks/pre-commit",
    "git init -q /tmp/fresh; git -C /tmp/fresh config user.name x",
];

/// Where the commands run.
struct Bench {
    /// A repository with all that they need, copied for each.
    template: Workspace,
    /// The caller's home, with keys in it.
    home: Workspace,
}

impl Bench {
    fn new() -> Self {
        let (template, home) = (Workspace::new("git-template"), Workspace::new("git-home"));
        home.dir(".gnupg/private-keys-v1.d");
        let commit = "git add .; git commit -q -m";
        outside(
            template.path(),
            &format!(
                "{INIT} mkdir dir; echo two > dir/b.txt; {commit} second
                git branch tracked; git config branch.tracked.remote .; git config branch.tracked.merge refs/heads/main
                git switch -q -c side; echo side > s.txt; {commit} side; git switch -q main
                git init -q -b main other; (cd other; {INIT} git config receive.denyCurrentBranch ignore)
                echo other/ > .git/info/exclude
                git -c protocol.file.allow=always submodule add -q \"$PWD/other\" sub
                git config -f .gitmodules submodule.lazy.path lazy; git config -f .gitmodules submodule.lazy.url ./other
                git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),lazy; mkdir lazy
                {commit} third; git remote add origin ./other; git fetch -q origin"
            ),
        )
        .unwrap();
        Self { template, home }
    }

    /// Runs a script in a copy under `offline`.
    fn run(&self, script: &str) -> (Workspace, Raw) {
        let ws = Workspace::new("git");
        outside(self.template.path(), &format!("cp -a . {}", ws.path().display())).unwrap();
        let script = format!("set -euo pipefail\n{script}");
        let sandbox = Sandbox::new(&ws).profile("offline").env("LC_ALL", "C").env("HOME", self.home.path());
        let raw = sandbox.with_result().raw(bash(&script));
        (ws, raw)
    }
}

impl Try {
    fn check(&self, bench: &Bench) -> Result<(), String> {
        let (ws, raw) = bench.run(self.script);
        if raw.result.is_none() || (raw.code() == 0) != self.done {
            return Err(format!("it should {}: {}", if self.done { "succeed" } else { "fail" }, told(&raw)));
        }
        if !raw.err().contains(self.says) {
            return Err(format!("it should say {:?}: {}", self.says, told(&raw)));
        }
        let result = raw.result.as_ref().unwrap();
        if let Some((kind, object)) = self.named {
            let findings = result["denials"]["findings"].as_array().unwrap();
            let fits = |f: &serde_json::Value| f["kind"] == kind && (object == "?" || f["object"] == object);
            if !findings.iter().any(fits) {
                return Err(format!("nothing names {kind} {object}: {findings:?} {}", told(&raw)));
            }
        }
        let moved: Vec<_> =
            result["protected_created"].as_array().unwrap().iter().map(|m| &m["path"]).collect();
        if moved != self.moved {
            return Err(format!("moved to quarantine: {moved:?}"));
        }
        outside(ws.path(), self.after)
    }
}

/// Every line of the list as it is written.
pub fn listed_commands_fail_by_the_reason_that_is_named() {
    let bench = Bench::new();
    let tries = LISTED.iter().flat_map(|line| line.tries.iter());
    let wrong: Vec<String> =
        tries.filter_map(|t| t.check(&bench).err().map(|why| format!("{}: {why}", t.script))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Every command that the document says to work.
pub fn unlisted_commands_work() {
    let (bench, mut wrong) = (Bench::new(), Vec::new());
    for script in WORKING.iter().map(|(_, script)| script).chain(ELSEWHERE) {
        let (ws, raw) = bench.run(script);
        let moved = raw.result.as_ref().map(|r| r["protected_created"].as_array().map(Vec::len));
        if raw.code() != 0 || moved != Some(Some(0)) || raw.err().contains(BUSY) {
            wrong.push(format!("{script}: moved {moved:?} {}", told(&raw)));
        } else if let Err(why) = outside(ws.path(), "git fsck --strict") {
            wrong.push(format!("{script}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
