/* transport_wan.c - two ends far apart: in a network namespace of their own, whose loopback delays
 * every packet and loses some. */
#include "transport_wan.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport_rig.h"

enum { DELAY_MS = 40, LOST_PERCENT = 1, MESSAGES = 16, MESSAGE_BYTES = 256 << 10 };

/* A transport that stays within its machine has no such network between its ends. */
static void must_be_far(end_t *e, buffer_t *b)
{
    const uint64_t begin = check_now_ns();
    end_receive(e, b, 0, 1, 1, 1);
    if (e->side == 0) end_send(e, b, 1, 1, 1, 2);
    (void)end_await(e, LH_WIRE_RECEIVED, 1);
    if (e->side == 1) end_send(e, b, 1, 1, 1, 2);
    (void)end_await(e, LH_WIRE_SENT, 2);
    const double took_ms = (double)(check_now_ns() - begin) / 1e6;
    if (e->side == 0 && took_ms < 2 * DELAY_MS)
        check_skip("a byte there and back took %.1f ms, so it did not go over a network that "
                   "delays it by %d ms each way",
                   took_ms, DELAY_MS);
    end_barrier(e);
}

static void messages_cross_a_wan(end_t *e)
{
    end_meet(e);
    buffer_t out = buffer_new(e, (uint64_t)MESSAGES * MESSAGE_BYTES, false, 0);
    buffer_t in = buffer_new(e, (uint64_t)MESSAGES * MESSAGE_BYTES, false, 0);
    must_be_far(e, &out);
    buffer_fill(out.data, out.bytes, e->side);
    for (uint64_t i = 0; i < MESSAGES; i++) {
        end_receive(e, &in, i * MESSAGE_BYTES, MESSAGE_BYTES, (uint32_t)i, 100 + i);
        end_send(e, &out, i * MESSAGE_BYTES, MESSAGE_BYTES, (uint32_t)i, 200 + i);
    }
    for (uint64_t i = 0; i < MESSAGES; i++) {
        (void)end_await(e, LH_WIRE_RECEIVED, 100 + i);
        (void)end_await(e, LH_WIRE_SENT, 200 + i);
    }
    buffer_check(in.data, in.bytes, 1 - e->side);
    end_barrier(e);
}

const fact_t wan_fact = {"messages_cross_a_wan", messages_cross_a_wan, false, NULL};

static void enter_wan(void)
{
    char line[128];
    if (unshare(CLONE_NEWNET) != 0)
        check_skip("needs root, for a network namespace: %s", strerror(errno));
    if (system("ip link set lo up 2>/dev/null") != 0) check_skip("needs ip and tc of iproute2");
    (void)snprintf(line, sizeof(line),
                   "tc qdisc add dev lo root netem delay %dms loss %d%% limit 100000 2>/dev/null",
                   DELAY_MS, LOST_PERCENT);
    if (system(line) != 0) check_skip("needs tc of iproute2 and sch_netem of the kernel");
}

/* A process more: that of a debugger stays in its network. */
void wan_run(subject_t *s)
{
    int how;
    if (plugin_is_without_messages(s->plugin->transport)) check_skip("it carries no messages");
    const pid_t pid = fork();
    if (pid == 0) {
        enter_wan();
        rig_run(s);
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &how, 0) != pid) check_skip("no child: %s", strerror(errno));
    if (!WIFEXITED(how) || WEXITSTATUS(how) != 0) check_fault("its process was ended");
}
