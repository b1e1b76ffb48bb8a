/* The functions behind the command tree. Each prints its own result and failure. */
#ifndef FP9_CTL_COMMANDS_H
#define FP9_CTL_COMMANDS_H

#include "ctl/ctl.h"
#include "ctl/parse.h"

/* show.c */
enum ctl_exit show_status(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit show_ducks(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit show_duck(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit show_models(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit show_model(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit show_cache(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit show_sessions(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit show_jobs(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit show_job(struct ctl *ctl, const struct parse_args *args);

/* admin.c */
enum ctl_exit admin_plan(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit admin_load(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit admin_unload(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit admin_prepare(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit admin_verify(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit admin_invalidate(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit admin_job_wait(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit admin_job_cancel(struct ctl *ctl, const struct parse_args *args);

/* step.c */
enum ctl_exit step_decode(struct ctl *ctl, const struct parse_args *args);
enum ctl_exit step_prefill(struct ctl *ctl, const struct parse_args *args);

/* metrics.c */
enum ctl_exit metrics_print(struct ctl *ctl, const struct parse_args *args);

/* top.c */
enum ctl_exit top_run(struct ctl *ctl, const struct parse_args *args);

/* trace.c */
enum ctl_exit trace_run(struct ctl *ctl, const struct parse_args *args);

/* bench.c */
enum ctl_exit bench_run(struct ctl *ctl, const struct parse_args *args);

/* events.c */
enum ctl_exit events_run(struct ctl *ctl, const struct parse_args *args);

/* help.c */
enum ctl_exit help_completion(struct ctl *ctl, const struct parse_args *args);

#endif
