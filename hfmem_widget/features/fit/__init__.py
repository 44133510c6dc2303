"""What a model will need, before it is loaded: from shapes, rules, and dry runs on PyTorch's meta device."""
