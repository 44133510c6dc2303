"""What travels to the page while code runs: messages, when they are sent, and the widget that sends them."""
