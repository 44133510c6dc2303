"""How it looks: functions of a `Session`; nothing here can reach a device."""
