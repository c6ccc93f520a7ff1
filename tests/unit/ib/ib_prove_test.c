/* ib_prove_test.c - the proofs of `known` beside another implementation's: Python's hmac over the
 * same bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "ib_prove.h"

/* The pair's key: 0, 1, 2 ... */
static lh_status_t derive(const lh_host_t *host, const char *purpose, uint32_t peer, void *out,
                          size_t bytes)
{
    (void)host;
    if (peer == 99) return LH_UNSUPPORTED;
    assert_string_equal(purpose, "rdma known");
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)out)[i] = (uint8_t)i;
    return LH_OK;
}

static const lh_host_t host = {.derive_key = derive};
static const uint8_t dials[] = "dialdialdial", listens[] = "listenlisten";
static const uint8_t expected[IB_SESSION_BYTES] = {
    0x76, 0x49, 0x96, 0x05, 0x0f, 0xca, 0x4c, 0x95, 0xaa, 0xc8, 0x8f, 0xd5, 0x8d, 0x93, 0x92, 0x3c,
    0x2a, 0x52, 0x24, 0xaa, 0x62, 0xc4, 0x79, 0xc8, 0x84, 0x2c, 0x6f, 0xda, 0x34, 0x99, 0x4b, 0xac};
static const uint8_t macs[2][IB_MAC_BYTES] = {
    {0x23, 0x0f, 0x9e, 0x53, 0xf7, 0x5c, 0xdc, 0x3a, 0x7d, 0xa2, 0x17, 0x37},
    {0xa5, 0x38, 0x9f, 0x80, 0xa7, 0xae, 0x16, 0x45, 0x0e, 0x15, 0x94, 0x95}};

static void proofs_are_those_of_another_implementation(void **state)
{
    uint8_t session[IB_SESSION_BYTES], greeting[IB_GREETING_BYTES];
    (void)state;
    assert_true(ib_session(&host, 3, dials, listens, session));
    assert_memory_equal(session, expected, sizeof(expected));
    for (uint32_t i = 0; i < IB_GREETING_BYTES; i++)
        greeting[i] = (uint8_t)(7 * i + 1);
    for (uint32_t side = 0; side < 2; side++) {
        ib_session_sign(session, side == 1, greeting);
        assert_memory_equal(greeting + IB_SIGNED_BYTES, macs[side], IB_MAC_BYTES);
        assert_true(ib_session_signed(session, side == 1, greeting));
        assert_false(ib_session_signed(session, side == 0, greeting)); /* no answer to itself */
    }
}

static void a_changed_bit_or_nonce_proves_nothing(void **state)
{
    uint8_t session[IB_SESSION_BYTES], other[IB_SESSION_BYTES], greeting[IB_GREETING_BYTES] = {0};
    (void)state;
    assert_false(ib_session(&host, 99, dials, listens, session)); /* the job has no secret */
    assert_true(ib_session(&host, 3, dials, listens, session));
    assert_true(ib_session(&host, 3, listens, dials, other));
    ib_session_sign(session, false, greeting);
    assert_false(ib_session_signed(other, false, greeting));
    for (uint32_t bit = 0; bit < 8 * IB_GREETING_BYTES; bit++) {
        greeting[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(ib_session_signed(session, false, greeting));
        greeting[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proofs_are_those_of_another_implementation),
        cmocka_unit_test(a_changed_bit_or_nonce_proves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
