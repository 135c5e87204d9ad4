// SPDX-License-Identifier: Apache-2.0
#include "tests/proto/conformance.h"

int main(void)
{
    return conformance_run(TRANSPORT_TLS);
}
