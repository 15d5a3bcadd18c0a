"""For IT and data protection: backups, copies and their removal, monitoring, logs, the dossier."""
