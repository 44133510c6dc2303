"""What a session means: functions that take a session and return figures. They read no device."""
