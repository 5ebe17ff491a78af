//! Wiping what a cloned process inherited in memory that procfs shows: its argument and environment block.

/// Overwrites the argument and environment strings with which this process was started, so that neither
/// `/proc/PID/environ` nor `/proc/PID/cmdline` nor this process's memory holds the caller's. Only for a
/// cloned stage: `std::env` is meaningless afterwards. proc_pid_environ(5).
pub fn wipe_start_block() {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return };
    // The command name may hold anything; the fields start after its closing parenthesis. proc_pid_stat(5).
    let Some(tail) = stat.rfind(')').map(|at| &stat[at + 1..]) else { return };
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    // arg_start, arg_end, env_start, env_end are fields 48 to 51; the slice starts at field 3.
    let field = |n: usize| fields.get(n - 3).and_then(|s| s.parse::<usize>().ok());
    for (start, end) in [(48, 49), (50, 51)] {
        if let (Some(from), Some(to)) = (field(start), field(end))
            && from != 0
            && to > from
            && to - from <= 32 << 20
        {
            // SAFETY: the kernel reports these as the bounds of the strings that it placed on this process's
            // initial stack; the mapping is private, writable and lives as long as the process. Nothing in a
            // stage reads them any more (its environment is built from the plan).
            unsafe { std::ptr::write_bytes(from as *mut u8, 0, to - from) };
        }
    }
}
