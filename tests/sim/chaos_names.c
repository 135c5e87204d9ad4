// SPDX-License-Identifier: Apache-2.0
// Sessions with names, and calls that are made again with their key, in chaos_test.
#include "tests/sim/chaos.h"

#include <stdio.h>

#include "common/base/clock.h"

struct text {
    char bytes[16];
};

static struct text text_of(uint32_t name) // 0: none
{
    struct text text = {""};
    if (name)
        snprintf(text.bytes, sizeof text.bytes, "name%u", name);
    return text;
}

static struct model *model_of(uint64_t id)
{
    for (uint32_t i = 0; i < chaos.n_models; i++)
        if (chaos.models[i].id == id)
            return &chaos.models[i];
    return NULL;
}

static struct model *owner_of(uint32_t name)
{
    for (uint32_t i = 0; i < chaos.n_models; i++)
        if (chaos.models[i].name == name && !chaos.models[i].deleted)
            return &chaos.models[i];
    return NULL;
}

static bool may_be_taken(uint32_t name)
{
    bool taken = chaos.names[name].orphans || chaos.names[name].under_way;
    for (uint32_t i = 0; i < chaos.n_models; i++)
        taken = taken || (chaos.models[i].name == name && !chaos.models[i].gone_ns);
    return taken;
}

// ---- calls ----------------------------------------------------------------------------------------------

static void begun(struct op *op, uint32_t name, uint64_t key)
{
    op->key = key;
    op->name = name;
    chaos.making += op->kind != FIND;
    if (!name)
        return;
    op->life = chaos.lives;
    op->start_ns = sim_clock();
    op->owner = owner_of(name);
    op->rivals = may_be_taken(name);
    if (op->kind == FIND)
        return;
    for (struct op *other = chaos.ops; other < op; other++)
        other->rivals = other->rivals || (other->name == name && !other->checked);
    chaos.names[name].under_way++;
}

static struct op *start_create(uint32_t name, uint64_t key)
{
    struct op *op = chaos_op_new(CREATE, NULL, 0, 0, 0);
    begun(op, name, key);
    op->call = sim_create_as(chaos_a_client(),
                             (struct sim_shape){.layers = LAYERS,
                                                .members = (uint32_t)sim_random(chaos.n_workers + 1),
                                                .replicas = chaos.replicas,
                                                .forget = chaos.forget,
                                                .floor = chaos.floor,
                                                .masks = chaos.forget ? chaos.masks : NULL},
                             text_of(name).bytes, key);
    return op;
}

static struct op *start_fork(struct model *m, uint64_t length, uint32_t name, uint64_t key)
{
    struct op *op = chaos_op_new(FORK, m, 0, length, 0);
    op->must = !m->lossy;
    begun(op, name, key);
    op->call = sim_fork_as(chaos_a_client(), m->id, length, text_of(name).bytes, key);
    return op;
}

static uint64_t draw_key(void)
{
    return sim_random(4) ? 1 + sim_random(UINT64_MAX) : 0;
}

struct op *chaos_start_create(uint32_t name)
{
    return start_create(name, draw_key());
}

void chaos_start_creates(void)
{
    uint32_t name = (uint32_t)sim_random(NAMES + 1);
    chaos_start_create(name);
    if (name && !sim_random(3))
        chaos_start_create(name);
}

// Its maker has forgotten that it made this one, or got no answer.
void chaos_start_create_again(struct model *m)
{
    if (m->key)
        start_create(m->name, m->key)->again = m;
}

void chaos_start_fork(struct model *m, uint64_t length)
{
    start_fork(m, length, (uint32_t)sim_random(2 * NAMES) % (NAMES + 1), draw_key());
}

struct op *chaos_start_find(uint32_t name)
{
    struct op *op = chaos_op_new(FIND, NULL, 0, 0, 0);
    begun(op, name, 0);
    op->call = sim_find(chaos_a_client(), text_of(name).bytes);
    return op;
}

// ---- their ends -----------------------------------------------------------------------------------------

struct model *chaos_made(const struct op *op)
{
    struct model *m = op->call->code == COMMON_OK ? model_of(op->call->session) : NULL;
    if (m && (!op->key || m->key != op->key))
        chaos_violated(op, "another session is said to be the new one");
    if (m || op->call->code != COMMON_OK)
        return NULL;
    if (chaos.n_models >= SESSIONS + STRANGERS) {
        chaos.names[op->name].orphans++;
        return NULL;
    }
    m = chaos_model_new(op->call->session, op->call->incarnation);
    m->told = op->call->cut;
    m->name = op->name;
    m->key = op->key;
    return m;
}

// Its maker got no answer. What is in it is not recorded: it is deleted.
static void found_stranger(const struct op *op)
{
    struct name *name = &chaos.names[op->name];
    if (!op->rivals)
        chaos_violated(op, "a name has a session that nobody made");
    uint32_t room = SESSIONS + STRANGERS + (chaos.ending ? NAMES : 0);
    if (!name->orphans || name->under_way || chaos.n_models >= room || chaos.n_ops + 1 >= OPS)
        return;
    name->orphans--;
    struct model *m = chaos_model_new(op->call->session, op->call->incarnation);
    m->name = op->name;
    chaos_start_delete(m);
}

static void found(const struct op *op)
{
    const struct model *m = model_of(op->call->session);
    if (!m)
        found_stranger(op);
    else if (m->name != op->name)
        chaos_violated(op, "a name has another session");
    else if (m->gone_ns && m->gone_ns < op->start_ns)
        chaos_violated(op, "a deleted session has its name still");
}

// A client without an answer to a creation asks again, with the key.
static bool starts_again(const struct op *op)
{
    const struct model *m = op->m;
    bool can = op->key && chaos.n_ops < OPS / 2 && sim_random(3) &&
               (!m || (!m->cutting && !m->must_cut && !m->deleted && m->cuts == op->cuts));
    if (!can)
        return false;
    if (op->kind == CREATE)
        start_create(op->name, op->key);
    else
        start_fork(op->m, op->first, op->name, op->key)->kills = op->kills;
    return true;
}

void chaos_name_ended(struct op *op, bool heard)
{
    struct name *name = &chaos.names[op->name];
    enum common_code code = op->call->code;
    bool makes = op->kind == CREATE || op->kind == FORK;
    chaos.making -= makes;
    if (makes && op->name)
        name->under_way--;
    if (makes && (!heard || chaos_passes(code))) {
        if (heard && starts_again(op))
            return;
        name->orphans++;
        name->life = chaos.lives;
    }
    if (!heard)
        return;
    const struct model *again = op->again && !op->again->deleted ? op->again : NULL;
    if (again && (code == COMMON_OK ? op->call->session != again->id : !chaos_passes(code)))
        chaos_violated(op, "a key does not lead to what it has made");
    if (!op->name)
        return;
    const struct model *owner = op->owner && !op->owner->deleted ? op->owner : NULL;
    if (code == COMMON_OK && owner && owner->id != op->call->session)
        chaos_violated(op, "two sessions have one name");
    if (code == COMMON_ALREADY_EXISTS && !op->rivals)
        chaos_violated(op, "a name is taken that nobody has");
    if (op->kind != FIND)
        return;
    if (code == COMMON_NOT_FOUND && owner)
        chaos_violated(op, "a name is lost");
    if (code == COMMON_NOT_FOUND &&
        name->life < op->life) // what the dead process had in hand came to nothing
        name->orphans = 0;
    if (code == COMMON_OK)
        found(op);
}
