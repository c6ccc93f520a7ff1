/* transport_list.c - `transport_list PLUGIN [FACT]`: whether a transport plugin does what every one
 * must do. */
#include "transport_rig.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc < 2) {
        (void)fprintf(stderr, "usage: %s PLUGIN [FACT]\n", argv[0]);
        return 2;
    }
    return rig_main(argv[1], transport_facts, transport_fact_count, argc > 2 ? argv[2] : NULL);
}
