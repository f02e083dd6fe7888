//! Restricts the system calls of the program, using seccomp.
//!
//! There are two filters. The first allows the calls that an interpreter needs and returns ENOSYS
//! for all others, like a kernel without the call, so that the C library tries an older call. The
//! second returns EPERM for calls that are denied on purpose, so that the code gets a clear error.
//! If both return an error, the later filter takes precedence. Neither allows creating a process,
//! so no process can be left running even without a process namespace.

/// The two filters, compiled.
#[derive(Debug)]
pub(super) struct Filters(Vec<seccompiler::BpfProgram>);

impl Filters {
    /// Installs the filters for this thread and everything it executes.
    ///
    /// # Errors
    ///
    /// The kernel refuses the filters.
    pub(super) fn apply(&self) -> Result<(), String> {
        self.0
            .iter()
            .try_for_each(|filter| seccompiler::apply_filter(filter))
            .map_err(|error| error.to_string())
    }
}

/// Always fails, because there is no verified filter for other processors.
///
/// # Errors
///
/// There is no filter for this processor.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn filters() -> Result<Filters, String> {
    Err(format!("there is no filter for {}", std::env::consts::ARCH))
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use written::filters;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod written {
    use std::collections::BTreeMap;

    use nix::libc;
    use seccompiler::{
        BackendError, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
        SeccompFilter, SeccompRule,
    };

    use super::Filters;

    type Rules = BTreeMap<i64, Vec<SeccompRule>>;

    /// Compiles the filters for this process. They contain its process ID, so that it can signal
    /// itself.
    ///
    /// # Errors
    ///
    /// The filter compiler rejects them.
    pub(in super::super) fn filters() -> Result<Filters, String> {
        let compiled = || -> Result<Filters, BackendError> {
            let errno = |number: i32| SeccompAction::Errno(number.unsigned_abs());
            let arch = std::env::consts::ARCH.try_into()?;
            let needed_rules = SeccompFilter::new(
                needed_rules()?,
                errno(libc::ENOSYS),
                SeccompAction::Allow,
                arch,
            )?;
            let denied = SeccompFilter::new(
                denied_rules()?,
                SeccompAction::Allow,
                errno(libc::EPERM),
                arch,
            )?;
            Ok(Filters(vec![needed_rules.try_into()?, denied.try_into()?]))
        };
        compiled().map_err(|error| error.to_string())
    }

    fn needed_rules() -> Result<Rules, BackendError> {
        let mut rules: Rules = ALLOWED_CALLS
            .iter()
            .chain(LEGACY_CALLS)
            .map(|call| (*call, Vec::new()))
            .collect();
        rules.insert(libc::SYS_clone, vec![rule(&[is_thread()?])?]);
        for call in [libc::SYS_kill, libc::SYS_tgkill] {
            rules.insert(call, any_of(0, &[u64::from(std::process::id())])?);
        }
        rules.insert(libc::SYS_prlimit64, any_of(0, &[0])?);
        rules.insert(libc::SYS_fcntl, any_of(1, &FILE_COMMANDS)?);
        rules.insert(libc::SYS_ioctl, any_of(1, &DEVICE_COMMANDS)?);
        // Event loops use connected socket pairs to wake themselves. Such sockets reach nothing
        // else.
        let is_stream = SeccompCmpOp::MaskedEq(0xf);
        let pair = [
            argument(0, SeccompCmpOp::Eq, value(libc::AF_UNIX))?,
            argument(1, is_stream, value(libc::SOCK_STREAM))?,
        ];
        rules.insert(libc::SYS_socketpair, vec![rule(&pair)?]);
        Ok(rules)
    }

    fn denied_rules() -> Result<Rules, BackendError> {
        let mut rules: Rules = DENIED_CALLS
            .iter()
            .chain(DENIED_LEGACY_CALLS)
            .map(|call| (*call, Vec::new()))
            .collect();
        let flag = value(libc::CLONE_THREAD);
        let no_thread = argument(0, SeccompCmpOp::MaskedEq(flag), 0)?;
        rules.insert(libc::SYS_clone, vec![rule(&[no_thread])?]);
        for call in [libc::SYS_kill, libc::SYS_tgkill] {
            let process = u64::from(std::process::id());
            let another = argument(0, SeccompCmpOp::Ne, process)?;
            rules.insert(call, vec![rule(&[another])?]);
        }
        Ok(rules)
    }

    fn is_thread() -> Result<SeccompCondition, BackendError> {
        let flag = value(libc::CLONE_THREAD);
        argument(0, SeccompCmpOp::MaskedEq(flag), flag)
    }

    /// The value of a C library constant, as the kernel sees it.
    fn value(constant: i32) -> u64 {
        u64::from(constant.unsigned_abs())
    }

    fn argument(
        index: u8,
        operator: SeccompCmpOp,
        value: u64,
    ) -> Result<SeccompCondition, BackendError> {
        SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)
    }

    fn rule(conditions: &[SeccompCondition]) -> Result<SeccompRule, BackendError> {
        SeccompRule::new(conditions.to_vec())
    }

    fn any_of(index: u8, values: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
        values
            .iter()
            .map(|value| rule(&[argument(index, SeccompCmpOp::Eq, *value)?]))
            .collect()
    }

    /// Commands for duplicates, flags, locks and pipe sizes. `F_SETOWN` and `F_SETSIG` are
    /// excluded, because they send signals to other processes.
    const FILE_COMMANDS: [u64; 13] = [
        libc::F_DUPFD as u64,
        libc::F_GETFD as u64,
        libc::F_SETFD as u64,
        libc::F_GETFL as u64,
        libc::F_SETFL as u64,
        libc::F_GETLK as u64,
        libc::F_SETLK as u64,
        libc::F_SETLKW as u64,
        libc::F_DUPFD_CLOEXEC as u64,
        libc::F_GETPIPE_SZ as u64,
        libc::F_OFD_GETLK as u64,
        libc::F_OFD_SETLK as u64,
        libc::F_OFD_SETLKW as u64,
    ];

    /// Commands for the terminal test, the terminal size, the number of readable bytes, and
    /// close-on-exec.
    const DEVICE_COMMANDS: [u64; 6] = [
        libc::TCGETS,
        libc::TIOCGWINSZ,
        libc::FIONREAD,
        libc::FIONBIO,
        libc::FIOCLEX,
        libc::FIONCLEX,
    ];

    /// Calls that are always allowed. The second filter denies `prctl` and `seccomp` later.
    /// `execve` is for starting the program itself; whatever it executes keeps the same filters.
    #[rustfmt::skip]
    const ALLOWED_CALLS: &[i64] = &[
        // The process itself.
        libc::SYS_execve, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_prctl, libc::SYS_seccomp,
        libc::SYS_getpid, libc::SYS_getppid, libc::SYS_gettid, libc::SYS_getpgid, libc::SYS_getsid,
        libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid,
        libc::SYS_getresuid, libc::SYS_getresgid, libc::SYS_getgroups, libc::SYS_capget,
        libc::SYS_set_tid_address, libc::SYS_set_robust_list, libc::SYS_rseq, libc::SYS_futex,
        libc::SYS_sched_yield, libc::SYS_sched_getaffinity, libc::SYS_sched_getparam,
        libc::SYS_sched_getscheduler, libc::SYS_sched_get_priority_max,
        libc::SYS_sched_get_priority_min, libc::SYS_getcpu, libc::SYS_getpriority,
        libc::SYS_getrusage, libc::SYS_times, libc::SYS_umask, libc::SYS_uname, libc::SYS_sysinfo,
        libc::SYS_getrandom, libc::SYS_restart_syscall,
        // Time.
        libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep, libc::SYS_gettimeofday, libc::SYS_getitimer, libc::SYS_setitimer,
        // Memory.
        libc::SYS_brk, libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_mprotect,
        libc::SYS_madvise, libc::SYS_mincore, libc::SYS_msync, libc::SYS_membarrier,
        // Signals to itself.
        libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigpending, libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigsuspend,
        libc::SYS_sigaltstack,
        // Files, as far as Landlock or the mounts allow access.
        libc::SYS_openat, libc::SYS_close, libc::SYS_close_range, libc::SYS_read, libc::SYS_write,
        libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64,
        libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_preadv2, libc::SYS_pwritev2,
        libc::SYS_lseek, libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx,
        libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_faccessat, libc::SYS_faccessat2,
        libc::SYS_readlinkat, libc::SYS_getdents64, libc::SYS_getcwd, libc::SYS_chdir,
        libc::SYS_fchdir, libc::SYS_mkdirat, libc::SYS_unlinkat, libc::SYS_renameat,
        libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_ftruncate,
        libc::SYS_fallocate, libc::SYS_fadvise64, libc::SYS_fsync, libc::SYS_fdatasync,
        libc::SYS_flock, libc::SYS_copy_file_range, libc::SYS_sendfile, libc::SYS_dup,
        libc::SYS_dup3,
        // Waiting, and communication within the process.
        libc::SYS_pipe2, libc::SYS_eventfd2, libc::SYS_ppoll, libc::SYS_pselect6,
        libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2, libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_shutdown,
        libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_getsockopt, libc::SYS_setsockopt,
    ];

    /// Older calls; newer processors have only their replacements above.
    #[cfg(target_arch = "x86_64")]
    #[rustfmt::skip]
    const LEGACY_CALLS: &[i64] = &[
        libc::SYS_arch_prctl, libc::SYS_getpgrp, libc::SYS_time, libc::SYS_alarm, libc::SYS_pause,
        libc::SYS_open, libc::SYS_creat, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access,
        libc::SYS_readlink, libc::SYS_getdents, libc::SYS_mkdir, libc::SYS_rmdir,
        libc::SYS_unlink, libc::SYS_rename, libc::SYS_link, libc::SYS_symlink, libc::SYS_dup2,
        libc::SYS_pipe, libc::SYS_eventfd, libc::SYS_poll, libc::SYS_select,
        libc::SYS_epoll_create, libc::SYS_epoll_wait,
    ];
    #[cfg(target_arch = "aarch64")]
    const LEGACY_CALLS: &[i64] = &[];

    /// Calls that code may try and that should return a clear error. Owners, modes, times and
    /// attributes are included because Landlock does not restrict them, and `truncate` because
    /// early versions of Landlock do not.
    #[rustfmt::skip]
    const DENIED_CALLS: &[i64] = &[
        libc::SYS_socket, libc::SYS_connect, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept,
        libc::SYS_accept4, libc::SYS_sendmsg, libc::SYS_sendmmsg, libc::SYS_recvmsg,
        libc::SYS_recvmmsg, libc::SYS_execveat, libc::SYS_ptrace, libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev, libc::SYS_pidfd_open, libc::SYS_pidfd_getfd,
        libc::SYS_pidfd_send_signal, libc::SYS_tkill, libc::SYS_rt_sigqueueinfo,
        libc::SYS_rt_tgsigqueueinfo, libc::SYS_setsid, libc::SYS_setpgid, libc::SYS_prctl,
        libc::SYS_seccomp, libc::SYS_unshare, libc::SYS_setns, libc::SYS_mount, libc::SYS_umount2,
        libc::SYS_pivot_root, libc::SYS_chroot, libc::SYS_open_tree, libc::SYS_move_mount,
        libc::SYS_fsopen, libc::SYS_bpf, libc::SYS_keyctl, libc::SYS_add_key,
        libc::SYS_request_key, libc::SYS_perf_event_open, libc::SYS_userfaultfd,
        libc::SYS_io_uring_setup, libc::SYS_memfd_create, libc::SYS_shmget, libc::SYS_msgget,
        libc::SYS_semget, libc::SYS_mq_open, libc::SYS_mknodat, libc::SYS_truncate,
        libc::SYS_fchmod, libc::SYS_fchmodat, libc::SYS_fchown, libc::SYS_fchownat,
        libc::SYS_utimensat, libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr,
        libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr,
        libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid, libc::SYS_setregid,
        libc::SYS_setresuid, libc::SYS_setresgid, libc::SYS_setgroups, libc::SYS_capset,
        libc::SYS_sched_setaffinity, libc::SYS_setpriority, libc::SYS_sethostname,
        libc::SYS_inotify_init1, libc::SYS_fanotify_init, libc::SYS_open_by_handle_at,
        libc::SYS_name_to_handle_at,
    ];

    #[cfg(target_arch = "x86_64")]
    #[rustfmt::skip]
    const DENIED_LEGACY_CALLS: &[i64] = &[
        libc::SYS_fork, libc::SYS_vfork, libc::SYS_mknod, libc::SYS_chmod, libc::SYS_chown,
        libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat,
        libc::SYS_inotify_init,
    ];
    #[cfg(target_arch = "aarch64")]
    const DENIED_LEGACY_CALLS: &[i64] = &[];
}
