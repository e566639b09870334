"""Campaigns against the whole system: real mounts, power cuts, kills, faults and load, repeatable from a seed.

docs/campaigns.md has a row or a sentence for each campaign. Begin with its test module; these are the helpers:

- Faults in one process (`test_disk_faults`, `test_crash_images`): `workloads`; the disks are in
  `tests/support/crashdisk`.
- Faults and kills of programs (`test_syscall_faults`, `test_kills`): the module `strace` makes a system call fail, or
  kills. `scenes` makes the log directories, `commands` has the commands and the table of errors by system call,
  `mounts` and `fault_script` run a mount and the calls on it, `load` has writers beside a kill, and `launcher` starts
  programs.
- Power cuts under a mount (`test_power`): `power`, `power_load`, `power_oracle`.
- One model of everything (`test_everything`, `test_everything_mounted`): `log_model`, `everything`, `mounted_logs`,
  `mount_questions`.
- Hostile files (`test_hostile_files`): `hostile_corpus`, `hostile_mutations`, `hostile_doors`, `hostile`.
- Growing files (`test_growing_files`): `growing_reader`.
- For all of them: `oracle` checks a log directory without a repair, `findings` collects failures, and `mutants` is a
  logfs with a seeded bug.
"""
