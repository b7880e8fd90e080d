"""The paper's optimizers."""

# In the order of its tables.
PAPER = ("Adam", "Adam_C", "RMSprop", "RMSprop_C", "SGDM", "SGDM_C", "SGD", "SGD_C")
FAMILIES = ("SGD", "SGDM", "RMSprop", "Adam")
