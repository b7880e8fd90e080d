"""The keys of a memory in an optimizer's state, once."""

# State keys: flat tensors of fixed shape under every parameter, from the first step on.
SLOTS = "critical_slots"  # (C, *shape): the stored gradients
SCALE = "critical_scale"  # (C, blocks): with 8-bit slots, what their codes are multiplied with
SUM = "critical_sum"  # (*shape): the sum of the stored gradients, fp32 or wider; not with aggr="fisher"
PRIORITY = "critical_priority"  # (C,): norm * decay ** age
NORM = "critical_norm"  # (C,): norm when stored
BORN = "critical_born"  # (C,): number of the step that stored it; 0 = free
CLOCK = "critical_clock"  # (): steps seen, not counting those with a gradient that was not finite
INSERTED = "critical_inserted"  # (): gradients stored so far
GRAM = "critical_gram"  # (C, C): inner products of the stored gradients; with aggr="fisher" only

# NOTE [pending]: an entry that a kernel has rounded has inner products that only the next step's pass over the slots
# finds; until then its row and column of the Gram matrix are NaN. A checkpoint keeps them so, and the resumed run finds
# the same bits; whatever else goes on from there settles them first (gram.settle).
TABLE_KEYS = (PRIORITY, NORM, BORN, CLOCK, INSERTED)
KEYS = (SLOTS, SCALE, SUM, *TABLE_KEYS, GRAM)
