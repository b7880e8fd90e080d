"""PyTorch's side: the mixin in front of a base, the classes and the wrapper made with it, saving and loading."""
