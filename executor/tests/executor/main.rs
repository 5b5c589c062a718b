//! Executors against real processes and simulated nodes.
//!
//! The program is its own supervisor, trampoline, payload and victim, by its first argument.

#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "tests print, and remove only what they create"
)]

mod bench;
mod conformance;
mod copies;
mod disks;
mod drift;
mod large;
mod lives;
mod logs;
mod loop_;
mod machines;
mod memory;
mod mounts;
mod outputs;
mod payloads;
mod pods;
mod proofs;
mod reboots;
mod records;
mod replaced;
mod snapshots;
mod volumes;
mod world;

use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "as-supervisor", dir] => chancery_executor::process::supervisor_main(Path::new(dir)),
        [_, "as-trampoline"] => chancery_executor::process::trampoline_main(),
        [_, "as-victim", root, count] => lives::victim(Path::new(root), count.parse().expect("a number")),
        [_, "as-rebooted", root, boot] => reboots::victim(Path::new(root), boot.parse().expect("a number")),
        [_, "as-maker", root, what, count] => {
            volumes::victim(Path::new(root), what, count.parse().expect("a number"))
        }
        [_, "as-neighbour", root, cgroup, out] => proofs::neighbour(Path::new(root), cgroup, Path::new(out)),
        [_, "as-hider", root, groups, out] => {
            proofs::hider(Path::new(root), Path::new(groups), Path::new(out))
        }
        [_, "as-observer", root] => proofs::observer(Path::new(root)),
        _ => run_tests(),
    }
}

#[expect(clippy::too_many_lines, reason = "it is a list")]
fn run_tests() -> ExitCode {
    macro_rules! trials {
        ($($module:ident::$name:ident),* $(,)?) => {
            vec![$(Trial::test(concat!(stringify!($module), "::", stringify!($name)), || {
                world::block_on($module::$name());
                Ok(())
            })),*]
        };
    }
    let mut trials = trials![
        pods::pods_of_kubernetes_conform,
        machines::virtual_machines_conform,
        world::processes_conform,
        world::simulated_nodes_conform,
        bench::a_hundred_thousand_ensures_are_all_reported_ready,
        bench::coordinates_select_behaviour,
        lives::killing_the_executor_at_any_moment_neither_loses_nor_doubles,
        lives::adoption_keeps_pids_and_ports,
        lives::a_pid_that_is_another_process_is_neither_adopted_nor_killed,
        lives::stale_files_do_not_block,
        lives::orphans_of_a_dead_supervisor_are_adopted_and_ended,
        lives::a_supervisor_that_dies_before_it_reports_leaves_nothing,
        payloads::a_process_that_exits_ends_its_siblings_and_their_children,
        payloads::what_ignores_the_stop_signal_is_killed,
        payloads::placeholders_and_readiness,
        payloads::one_that_hangs_is_reported_with_its_error_and_ended_by_its_executor_only_on_command,
        payloads::a_port_without_a_listener_is_reported_as_refused_and_nothing_hangs_before_it_was_ready,
        payloads::what_is_wrong_with_an_incarnation_is_reported,
        payloads::nothing_but_the_standard_descriptors_reaches_a_process,
        payloads::a_process_starts_with_the_original_descriptor_limit_of_the_server,
        memory::what_requests_more_than_its_limit_is_refused_it,
        memory::a_limit_is_that_of_a_group_where_there_are_groups,
        memory::lack_of_memory_is_reported_as_the_cause_of_death,
        outputs::a_flood_is_bounded_and_its_end_is_kept,
        outputs::a_follower_reads_every_line_across_files,
        memory::a_group_of_a_dead_supervisor_is_removed_with_its_incarnation,
        outputs::output_outlives_a_crash_while_its_directory_is_removed,
        copies::a_copy_touches_nothing_that_the_original_runs_and_reports_no_end_of_it,
        copies::what_a_copy_names_is_dead_after_a_reboot_and_not_started_again_from_it,
        large::an_incarnation_of_many_processes_and_ports_is_reported_whole_and_ended,
        large::a_stop_during_the_start_of_many_processes_is_executed_immediately,
        logs::what_replaces_its_log_keeps_no_supervisor_from_its_work,
        logs::a_supervisor_whose_log_cannot_be_written_continues_and_reports_the_end,
        mounts::what_is_mounted_in_a_working_directory_survives_it_and_is_a_debt_until_it_is_unmounted,
        mounts::a_mount_in_remains_of_a_dead_executor_is_not_entered_and_blocks_nothing,
        outputs::a_process_outlives_the_supervisor_that_captures_its_output,
        records::one_damaged_copy_of_each_record_loses_nothing,
        records::what_a_supervisor_has_recorded_is_written_again_by_it_though_no_copy_is_whole,
        reboots::only_incarnations_with_restart_always_restart_after_a_reboot_without_a_decider,
        reboots::a_slow_start_after_a_reboot_does_not_count_as_unresponsive,
        reboots::killing_the_executor_at_any_moment_after_a_reboot_starts_each_once_a_boot,
        reboots::a_second_reboot_before_anything_was_started_restarts_the_same_incarnations,
        reboots::one_that_cannot_be_started_again_has_ended_with_its_reason_and_holds_back_no_other,
        reboots::a_supervisor_that_cannot_start_after_a_reboot_is_an_end_with_its_reason,
        reboots::a_stop_of_an_incarnation_that_waits_for_its_restart_is_not_undone,
        reboots::incarnations_ended_by_a_shutdown_restart_after_the_boot,
        reboots::a_copy_of_the_directory_on_another_machine_starts_nothing,
        drift::a_process_that_is_killed_from_outside_is_an_end_with_its_signal,
        drift::an_orphan_that_is_killed_from_outside_is_an_end_with_unknown_status,
        drift::what_loses_its_directory_is_ended_immediately_and_reported_with_the_reason,
        drift::a_supervisor_alone_ends_what_loses_its_directory,
        drift::a_directory_that_was_moved_away_holds_the_end_when_it_is_moved_back,
        drift::what_has_lost_directory_and_supervisor_is_found_by_the_next_executor_and_ended,
        drift::records_that_are_removed_or_altered_are_written_again_and_end_nothing,
        drift::a_lock_and_a_socket_that_are_taken_away_are_made_again,
        proofs::a_daemon_that_leaves_everything_behind_is_ended_with_its_group,
        proofs::without_groups_an_end_that_cannot_be_proved_is_unknown_and_the_volume_stays_in_use,
        proofs::what_has_a_mark_is_ended_without_groups_too,
        proofs::known_processes_block_no_end_without_groups,
        proofs::a_directory_reached_by_a_link_and_by_its_real_path_is_one,
        proofs::another_pid_namespace_ends_nothing_that_runs,
        proofs::an_executor_that_sees_the_processes_of_another_namespace_does_not_start,
        proofs::a_process_that_cannot_be_read_is_not_taken_for_absent,
        proofs::a_daemon_in_the_pid_namespace_of_others_ends_with_its_incarnation,
        proofs::a_file_system_that_does_not_respond_blocks_no_end,
        proofs::an_empty_group_that_cannot_be_removed_keeps_no_executor_from_its_start,
        proofs::a_pipe_of_an_output_that_was_replaced_blocks_no_end,
        proofs::daemons_of_others_end_with_their_incarnation,
        proofs::a_group_of_an_incarnation_without_directory_is_ended,
        proofs::a_stopped_supervisor_blocks_neither_stop_nor_kill,
        proofs::a_supervisor_that_never_answers_the_next_executor_is_replaced,
        proofs::a_supervisor_that_cannot_read_its_control_group_leaves_the_end_to_the_executor,
        disks::killing_the_executor_while_it_makes_disks_leaves_whole_ones_or_none,
        disks::a_disk_that_is_removed_is_a_loss_and_is_not_made_again,
        disks::a_start_without_a_fitting_disk_fails_and_changes_nothing,
        disks::a_disk_without_whole_sectors_is_not_made,
        snapshots::a_snapshot_has_the_content_of_its_source_and_is_independent_of_it,
        snapshots::a_volume_that_processes_use_is_copied_once_they_have_ended,
        snapshots::a_copy_is_discarded_if_its_source_is_used_before_it_is_complete,
        snapshots::killing_the_executor_while_it_copies_leaves_whole_snapshots_or_none,
        volumes::killing_the_executor_while_it_makes_them_neither_loses_nor_doubles,
        volumes::killing_the_executor_while_it_destroys_them_ends_in_none_and_takes_no_other,
        volumes::what_has_started_to_be_destroyed_continues_without_a_command,
        volumes::a_volume_that_an_orphan_uses_gets_no_second_user,
        volumes::what_is_not_ours_is_never_touched,
        volumes::links_that_lead_out_of_a_volume_are_removed_and_not_followed,
        volumes::a_file_system_that_is_mounted_inside_is_left_and_named,
        volumes::what_is_in_a_volume_outlives_executor_run_and_reboot,
        volumes::a_volume_whose_data_is_removed_has_ended_and_is_not_made_again,
        volumes::one_damaged_copy_of_its_record_loses_nothing,
        volumes::what_was_commanded_is_not_removed_for_lack_of_a_record,
        volumes::a_process_finds_its_volume_by_placeholder_and_variable,
        volumes::a_process_that_is_left_of_a_lost_run_keeps_its_volume,
        volumes::a_volume_without_free_capacity_waits_and_what_one_uses_is_reported,
        volumes::a_concurrent_start_and_destruction_have_one_outcome,
        replaced::a_directory_that_replaces_a_volume_is_not_touched_and_the_volume_is_known_when_it_is_back,
        replaced::without_the_disk_that_volumes_are_on_nothing_is_reported_of_them_and_none_is_made,
        replaced::a_disk_of_volumes_that_does_not_respond_blocks_nothing_else,
        lives::concurrent_supervisors_start_one_set,
        lives::a_late_supervisor_starts_nothing,
        lives::a_directory_deeper_than_a_socket_path_works,
        loop_::a_session_starts_level_and_reports,
        loop_::a_lost_channel_is_opened_again,
        loop_::what_cannot_be_listed_is_not_reported_gone_and_the_session_continues,
        loop_::one_executor_a_store,
        loop_::a_diverged_journal_stops_it_and_the_head_is_kept,
    ];
    let real = trials![memory::the_kernel_ends_a_group_that_exceeds_its_limit];
    trials.extend(real.into_iter().map(|trial| trial.with_ignored_flag(memory::lent().is_none())));
    // Sorted as libtest does.
    trials.sort_by(|one, other| one.name().cmp(other.name()));
    let mut arguments = Arguments::from_args();
    if arguments.test_threads.is_none() {
        let threads = std::env::var("RUST_TEST_THREADS").ok();
        arguments.test_threads = threads.map(|threads| threads.parse().expect("a number of threads"));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
