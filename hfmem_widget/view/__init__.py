"""Cards, charts, texts and the wire: functions of a `Session`; nothing here accesses a device."""
