"""What a model will need, told before it is loaded: from shapes, and dry runs on PyTorch's meta device."""
