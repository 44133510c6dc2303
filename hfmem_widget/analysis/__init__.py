"""What a session means: functions that take one and return what was found. They read no device."""
