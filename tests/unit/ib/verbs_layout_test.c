/* verbs_layout_test.c - the layouts that the ib transport declares are those of the headers of
 * libibverbs and librdmacm, field by field. Skipped where these are not installed (Debian's
 * libibverbs-dev and librdmacm-dev). */
#include <stdio.h>

#if __has_include(<infiniband/verbs.h>) && __has_include(<rdma/rdma_cma.h>)
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "ib_verbs.h"

static int faults;

static void compare(const char *what, size_t ours, size_t theirs)
{
    if (ours == theirs) return;
    printf("%s: %zu, in the headers %zu\n", what, ours, theirs);
    faults++;
}

#define FIELD(T, ours, S, theirs)                                                            \
    do {                                                                                     \
        compare(#T "." #ours, offsetof(T, ours), offsetof(S, theirs));                       \
        compare("bytes of " #T "." #ours, sizeof(((T *)0)->ours), sizeof(((S *)0)->theirs)); \
    } while (0)
#define SIZE(T, S) compare("bytes of " #T, sizeof(T), sizeof(S))
#define VALUE(ours, theirs) compare(#ours, ours, theirs)

static void of_contexts(void)
{
    FIELD(verbs_device_t, name, struct ibv_device, name);
    FIELD(verbs_device_t, folder, struct ibv_device, ibdev_path);
    SIZE(verbs_device_t, struct ibv_device);
    FIELD(verbs_context_t, device, struct ibv_context, device);
    FIELD(verbs_context_t, ops, struct ibv_context, ops);
    FIELD(verbs_context_t, ops.poll_cq, struct ibv_context, ops.poll_cq);
    FIELD(verbs_context_t, ops.req_notify_cq, struct ibv_context, ops.req_notify_cq);
    FIELD(verbs_context_t, ops.post_send, struct ibv_context, ops.post_send);
    FIELD(verbs_context_t, ops.post_recv, struct ibv_context, ops.post_recv);
    FIELD(verbs_context_t, async_fd, struct ibv_context, async_fd);
    FIELD(verbs_pd_t, context, struct ibv_pd, context);
    FIELD(verbs_mr_t, address, struct ibv_mr, addr);
    FIELD(verbs_mr_t, bytes, struct ibv_mr, length);
    FIELD(verbs_mr_t, lkey, struct ibv_mr, lkey);
    FIELD(verbs_mr_t, rkey, struct ibv_mr, rkey);
    FIELD(verbs_channel_t, fd, struct ibv_comp_channel, fd);
    FIELD(verbs_cq_t, context, struct ibv_cq, context);
    FIELD(verbs_cq_t, channel, struct ibv_cq, channel);
    FIELD(verbs_cq_t, cq_context, struct ibv_cq, cq_context);
    FIELD(verbs_qp_t, context, struct ibv_qp, context);
    FIELD(verbs_qp_t, number, struct ibv_qp, qp_num);
}

static void of_requests(void)
{
    SIZE(verbs_qp_init_t, struct ibv_qp_init_attr);
    FIELD(verbs_qp_init_t, send_cq, struct ibv_qp_init_attr, send_cq);
    FIELD(verbs_qp_init_t, recv_cq, struct ibv_qp_init_attr, recv_cq);
    FIELD(verbs_qp_init_t, cap, struct ibv_qp_init_attr, cap);
    FIELD(verbs_qp_init_t, cap.send_wrs, struct ibv_qp_init_attr, cap.max_send_wr);
    FIELD(verbs_qp_init_t, cap.recv_wrs, struct ibv_qp_init_attr, cap.max_recv_wr);
    FIELD(verbs_qp_init_t, cap.send_sges, struct ibv_qp_init_attr, cap.max_send_sge);
    FIELD(verbs_qp_init_t, cap.recv_sges, struct ibv_qp_init_attr, cap.max_recv_sge);
    FIELD(verbs_qp_init_t, cap.inline_bytes, struct ibv_qp_init_attr, cap.max_inline_data);
    FIELD(verbs_qp_init_t, type, struct ibv_qp_init_attr, qp_type);
    FIELD(verbs_qp_init_t, signal_all, struct ibv_qp_init_attr, sq_sig_all);
    SIZE(verbs_sge_t, struct ibv_sge);
    FIELD(verbs_sge_t, address, struct ibv_sge, addr);
    FIELD(verbs_sge_t, bytes, struct ibv_sge, length);
    FIELD(verbs_sge_t, lkey, struct ibv_sge, lkey);
    SIZE(verbs_send_wr_t, struct ibv_send_wr);
    FIELD(verbs_send_wr_t, id, struct ibv_send_wr, wr_id);
    FIELD(verbs_send_wr_t, next, struct ibv_send_wr, next);
    FIELD(verbs_send_wr_t, sges, struct ibv_send_wr, sg_list);
    FIELD(verbs_send_wr_t, sge_count, struct ibv_send_wr, num_sge);
    FIELD(verbs_send_wr_t, opcode, struct ibv_send_wr, opcode);
    FIELD(verbs_send_wr_t, flags, struct ibv_send_wr, send_flags);
    FIELD(verbs_send_wr_t, immediate, struct ibv_send_wr, imm_data);
    FIELD(verbs_send_wr_t, remote.address, struct ibv_send_wr, wr.rdma.remote_addr);
    FIELD(verbs_send_wr_t, remote.rkey, struct ibv_send_wr, wr.rdma.rkey);
    SIZE(verbs_recv_wr_t, struct ibv_recv_wr);
    FIELD(verbs_recv_wr_t, id, struct ibv_recv_wr, wr_id);
    FIELD(verbs_recv_wr_t, sge_count, struct ibv_recv_wr, num_sge);
    SIZE(verbs_wc_t, struct ibv_wc);
    FIELD(verbs_wc_t, id, struct ibv_wc, wr_id);
    FIELD(verbs_wc_t, status, struct ibv_wc, status);
    FIELD(verbs_wc_t, opcode, struct ibv_wc, opcode);
    FIELD(verbs_wc_t, bytes, struct ibv_wc, byte_len);
    FIELD(verbs_wc_t, immediate, struct ibv_wc, imm_data);
    FIELD(verbs_wc_t, pair, struct ibv_wc, qp_num);
    FIELD(verbs_wc_t, flags, struct ibv_wc, wc_flags);
    SIZE(verbs_limits_t, struct ibv_device_attr);
    FIELD(verbs_limits_t, pairs, struct ibv_device_attr, max_qp);
    FIELD(verbs_limits_t, wrs, struct ibv_device_attr, max_qp_wr);
    FIELD(verbs_limits_t, entries, struct ibv_device_attr, max_cqe);
    FIELD(verbs_limits_t, ports, struct ibv_device_attr, phys_port_cnt);
    SIZE(verbs_port_t, struct ibv_port_attr);
    FIELD(verbs_port_t, state, struct ibv_port_attr, state);
    FIELD(verbs_port_t, message_most, struct ibv_port_attr, max_msg_sz);
    FIELD(verbs_port_t, mtu, struct ibv_port_attr, active_mtu);
    FIELD(verbs_port_t, gids, struct ibv_port_attr, gid_tbl_len);
    FIELD(verbs_port_t, width, struct ibv_port_attr, active_width);
    FIELD(verbs_port_t, speed, struct ibv_port_attr, active_speed);
    FIELD(verbs_port_t, link_layer, struct ibv_port_attr, link_layer);
}

static void of_queue_pairs(void)
{
    SIZE(verbs_route_t, struct ibv_global_route);
    FIELD(verbs_route_t, to, struct ibv_global_route, dgid);
    FIELD(verbs_route_t, flow_label, struct ibv_global_route, flow_label);
    FIELD(verbs_route_t, gid, struct ibv_global_route, sgid_index);
    FIELD(verbs_route_t, hops, struct ibv_global_route, hop_limit);
    FIELD(verbs_route_t, traffic_class, struct ibv_global_route, traffic_class);
    SIZE(verbs_way_t, struct ibv_ah_attr);
    FIELD(verbs_way_t, lid, struct ibv_ah_attr, dlid);
    FIELD(verbs_way_t, has_route, struct ibv_ah_attr, is_global);
    FIELD(verbs_way_t, port, struct ibv_ah_attr, port_num);
    SIZE(verbs_qp_attr_t, struct ibv_qp_attr);
    FIELD(verbs_qp_attr_t, state, struct ibv_qp_attr, qp_state);
    FIELD(verbs_qp_attr_t, mtu, struct ibv_qp_attr, path_mtu);
    FIELD(verbs_qp_attr_t, peer_pair, struct ibv_qp_attr, dest_qp_num);
    FIELD(verbs_qp_attr_t, access, struct ibv_qp_attr, qp_access_flags);
    FIELD(verbs_qp_attr_t, way, struct ibv_qp_attr, ah_attr);
    FIELD(verbs_qp_attr_t, other_way, struct ibv_qp_attr, alt_ah_attr);
    FIELD(verbs_qp_attr_t, pkey, struct ibv_qp_attr, pkey_index);
    FIELD(verbs_qp_attr_t, reads_out, struct ibv_qp_attr, max_rd_atomic);
    FIELD(verbs_qp_attr_t, reads_in, struct ibv_qp_attr, max_dest_rd_atomic);
    FIELD(verbs_qp_attr_t, rnr_timer, struct ibv_qp_attr, min_rnr_timer);
    FIELD(verbs_qp_attr_t, timeout, struct ibv_qp_attr, timeout);
    FIELD(verbs_qp_attr_t, rate_limit, struct ibv_qp_attr, rate_limit);
    SIZE(verbs_ece_t, struct ibv_ece);
    FIELD(verbs_ece_t, vendor, struct ibv_ece, vendor_id);
    FIELD(verbs_ece_t, options, struct ibv_ece, options);
    VALUE(VERBS_QP_INIT, IBV_QPS_INIT);
    VALUE(VERBS_QP_RTR, IBV_QPS_RTR);
    VALUE(VERBS_QP_RTS, IBV_QPS_RTS);
    VALUE(VERBS_QP_ERROR, IBV_QPS_ERR);
    VALUE(VERBS_QP_STATE, IBV_QP_STATE);
    VALUE(CM_CONNECT_RESPONSE, RDMA_CM_EVENT_CONNECT_RESPONSE);
}

static void of_the_connection_manager(void)
{
    FIELD(cm_channel_t, fd, struct rdma_event_channel, fd);
    FIELD(cm_id_t, verbs, struct rdma_cm_id, verbs);
    FIELD(cm_id_t, context, struct rdma_cm_id, context);
    FIELD(cm_id_t, qp, struct rdma_cm_id, qp);
    FIELD(cm_id_t, from, struct rdma_cm_id, route.addr.src_storage);
    FIELD(cm_id_t, to, struct rdma_cm_id, route.addr.dst_storage);
    FIELD(cm_id_t, path_count, struct rdma_cm_id, route.num_paths);
    FIELD(cm_id_t, space, struct rdma_cm_id, ps);
    FIELD(cm_id_t, port, struct rdma_cm_id, port_num);
    FIELD(cm_param_t, data, struct rdma_conn_param, private_data);
    FIELD(cm_param_t, data_bytes, struct rdma_conn_param, private_data_len);
    FIELD(cm_param_t, retries, struct rdma_conn_param, retry_count);
    FIELD(cm_param_t, rnr_retries, struct rdma_conn_param, rnr_retry_count);
    FIELD(cm_param_t, pair, struct rdma_conn_param, qp_num);
    SIZE(cm_param_t, struct rdma_conn_param);
    FIELD(cm_event_t, id, struct rdma_cm_event, id);
    FIELD(cm_event_t, type, struct rdma_cm_event, event);
    FIELD(cm_event_t, status, struct rdma_cm_event, status);
    FIELD(cm_event_t, param, struct rdma_cm_event, param.conn);
}

static void of_numbers(void)
{
    VALUE(VERBS_RC, IBV_QPT_RC);
    VALUE(VERBS_PORT_ACTIVE, IBV_PORT_ACTIVE);
    VALUE(VERBS_LINK_INFINIBAND, IBV_LINK_LAYER_INFINIBAND);
    VALUE(VERBS_LINK_ETHERNET, IBV_LINK_LAYER_ETHERNET);
    VALUE(VERBS_WRITE, IBV_WR_RDMA_WRITE);
    VALUE(VERBS_WRITE_WITH_IMMEDIATE, IBV_WR_RDMA_WRITE_WITH_IMM);
    VALUE(VERBS_SIGNALED, IBV_SEND_SIGNALED);
    VALUE(VERBS_INLINE, IBV_SEND_INLINE);
    VALUE(VERBS_LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE);
    VALUE(VERBS_REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE);
    VALUE(VERBS_WC_SEND_WRITE, IBV_WC_RDMA_WRITE);
    VALUE(VERBS_WC_RECEIVE_IMMEDIATE, IBV_WC_RECV_RDMA_WITH_IMM);
    VALUE(VERBS_WC_OK, IBV_WC_SUCCESS);
    VALUE(VERBS_WC_LOCAL_PROTECTION, IBV_WC_LOC_PROT_ERR);
    VALUE(VERBS_WC_FLUSHED, IBV_WC_WR_FLUSH_ERR);
    VALUE(VERBS_WC_REMOTE_INVALID, IBV_WC_REM_INV_REQ_ERR);
    VALUE(VERBS_WC_REMOTE_ACCESS, IBV_WC_REM_ACCESS_ERR);
    VALUE(VERBS_WC_REMOTE_OPERATION, IBV_WC_REM_OP_ERR);
    VALUE(VERBS_WC_RETRIES_EXCEEDED, IBV_WC_RETRY_EXC_ERR);
    VALUE(VERBS_WC_RNR_RETRIES_EXCEEDED, IBV_WC_RNR_RETRY_EXC_ERR);
    VALUE(CM_ADDRESS_RESOLVED, RDMA_CM_EVENT_ADDR_RESOLVED);
    VALUE(CM_ROUTE_ERROR, RDMA_CM_EVENT_ROUTE_ERROR);
    VALUE(CM_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_REQUEST);
    VALUE(CM_CONNECT_ERROR, RDMA_CM_EVENT_CONNECT_ERROR);
    VALUE(CM_REJECTED, RDMA_CM_EVENT_REJECTED);
    VALUE(CM_ESTABLISHED, RDMA_CM_EVENT_ESTABLISHED);
    VALUE(CM_DISCONNECTED, RDMA_CM_EVENT_DISCONNECTED);
    VALUE(CM_DEVICE_REMOVED, RDMA_CM_EVENT_DEVICE_REMOVAL);
    VALUE(CM_SPACE_TCP, RDMA_PS_TCP);
    VALUE(CM_OPTION_ID, RDMA_OPTION_ID);
    VALUE(CM_OPTION_TOS, RDMA_OPTION_ID_TOS);
    VALUE(CM_OPTION_ACK_TIMEOUT, RDMA_OPTION_ID_ACK_TIMEOUT);
}

int main(void)
{
    of_contexts();
    of_requests();
    of_queue_pairs();
    of_the_connection_manager();
    of_numbers();
    printf("%d differences\n", faults);
    return faults > 0 ? 1 : 0;
}
#else
int main(void)
{
    printf("the headers of libibverbs and librdmacm are not installed\n");
    return 77;
}
#endif
