/* base/log.h - lines for people. Only here and in main.c is anything printed to stderr.
 *
 * A line goes to stderr and to up to two files, each by one write, so that lines of several threads
 * and processes do not mix; a lock keeps the files' state together. Nothing is buffered: what was
 * logged before a crash is in the file. A line that cannot be written is lost and counted, never
 * waited for, as training goes on without its log.
 *
 * Files that are renamed while they are written (logrotate): after a SIGHUP (sys_reopen_asked) the
 * next line goes to a new file of the old name. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <longhaul/host.h>

/* In files a line begins with its time of day (text_time), which stderr is spared: whoever keeps
 * that, as journald does, has its own.
 *
 * level is LH_LOG_*. Lines under the threshold (LH_LOG_INFO at start) are dropped. Control
 * characters in what is printed are shown as \xNN: a document or a model name can't steer a
 * terminal. Where stderr is journald's, as JOURNAL_STREAM says, each line there begins with its
 * priority as sd-daemon(3) writes it, <7> to <3>. A text is cut at 2,047 bytes. errno stays as it
 * is. [any thread] */
void log_line(int32_t level, const char *fmt, ...) LH_PRINTF(2, 3);
/* For the files of log_also and log_as_rank alone: what nobody reads as it happens. level: how much it matters, of
 * which the line itself says nothing. [any thread] */
void log_note(int32_t level, const char *fmt, ...) LH_PRINTF(2, 3);
/* Why this process ends, as "longhaul: ...": an error by its priority, whatever the threshold. */
void log_end(const char *sentence);
void log_threshold(int32_t level);
/* A second sink besides stderr, e.g. train.log, opened with O_APPEND by the caller, who closes it
 * after log_also(-1, ""). A line that can't be written is lost whole: the first one is told, and at
 * the end how many they were. path is for those sentences. */
void log_also(int fd, const char *path);
/* This process is a rank that others print for: its lines carry "rank N: ", stderr gets none under
 * LH_LOG_WARN, fd gets all, as with log_also; it is open for reading too. */
void log_as_rank(uint32_t rank, int fd, const char *path);
/* What stood in the rank's file before it was opened is of another run, and goes: called once it is
 * known that this run does not continue that one. */
void log_begin_anew(void);
/* In a process made by fork that closes those files: from now on it writes to stderr alone. */
void log_forked(void);
/* While true, stderr is a terminal with a progress line: log_line clears it first. */
void log_over_progress(bool on);

#endif
